//! The life of records: kept, listed, shown, refused.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/record.json");

fn lab(data: &Path) -> Command {
    let mut command = Command::cargo_bin("hugekit-lab").unwrap();
    command.env("XDG_DATA_HOME", data);
    command
}

fn kept(data: &Path) -> Vec<PathBuf> {
    let folder = fs::read_dir(data.join("hugekit/records")).into_iter().flatten();
    folder.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_run_is_kept_listed_and_shown_as_it_was_printed() {
    let data = tempfile::tempdir().unwrap();
    let run = ["stores", "--routine", "memset", "--memory", "64MiB", "--rounds", "2"];
    let output = lab(data.path()).args(run).assert().success().get_output().clone();
    let [path] = &kept(data.path())[..] else { panic!("one record is kept") };
    let id = path.file_stem().unwrap().to_str().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("kept as {id}")), "{said}");

    let list = lab(data.path()).args(["--list"]).assert().success();
    // Lines break where the name of the CPU has them break.
    let list = String::from_utf8(list.get_output().stdout.clone()).unwrap();
    let list = list.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(list.contains(id) && list.contains("hugekit lab stores"), "{list}");
    let shown = String::from_utf8(output.stdout).unwrap();
    for name in [id, "last", &id[..4], path.to_str().unwrap()] {
        lab(data.path()).args(["--show", name]).assert().success().stdout(shown.clone());
    }
    let json = lab(data.path()).args(["--show", id, "--json", "-"]).assert().success();
    assert!(json.get_output().stdout == fs::read(path).unwrap(), "not to the last digit");
}

#[test]
fn no_record_is_kept_if_none_is_wanted() {
    let data = tempfile::tempdir().unwrap();
    let run =
        ["stores", "--routine", "memset", "--memory", "64MiB", "--rounds", "2", "--no-record"];
    lab(data.path()).args(run).assert().success();
    assert!(kept(data.path()).is_empty());
    lab(data.path()).args(["--list"]).assert().success().stdout(contains("no records"));
}

#[test]
fn what_cannot_be_kept_was_measured_all_the_same() {
    let run = ["stores", "--routine", "memset", "--memory", "64MiB", "--rounds", "2"];
    let said = contains("warning: cannot keep the record in /dev/null/hugekit/records");
    lab(Path::new("/dev/null"))
        .args(run)
        .assert()
        .success()
        .stdout(contains("Summary"))
        .stderr(said);
}

#[test]
fn a_record_of_a_file_is_shown() {
    lab(Path::new("/dev/null"))
        .args(["--show", KEPT])
        .assert()
        .success()
        .stdout(contains("AMD EPYC").and(contains("parallel   skipped, this process has")));
}

#[test]
fn a_newer_a_damaged_and_no_record_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let kept = fs::read_to_string(KEPT).unwrap();
    for (name, text, said) in [
        (
            "newer.json",
            r#"{"schema": "hugekit-lab/2"}"#,
            "of version 2, and this hugekit reads version 1",
        ),
        ("half.json", &kept[..kept.len() / 2], "the record is damaged"),
        ("other.json", "{}", "no record of the lab"),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        lab(Path::new("/dev/null"))
            .args(["--show"])
            .arg(&path)
            .assert()
            .code(1)
            .stdout("")
            .stderr(contains(name).and(contains(said)));
    }
}

#[test]
fn an_unknown_id_says_where_it_was_looked_for() {
    let data = tempfile::tempdir().unwrap();
    lab(data.path())
        .args(["--show", "2026"])
        .assert()
        .code(1)
        .stderr(contains("no record is kept in ").and(contains("run `hugekit lab`")));
}

/// The verdict on each claim whose line has these words.
fn verdicts<'a>(printed: &'a str, words: &str) -> Vec<&'a str> {
    let lines = printed.lines().filter(|line| line.contains(words));
    lines.map(|line| line.trim_start_matches("· ").split(": ").next().unwrap()).collect()
}

/// Joins the lines of each claim.
fn unwrapped(printed: &[u8]) -> String {
    String::from_utf8(printed.to_vec()).unwrap().replace("\n    ", " ").replace("\n  ", "\n")
}

#[test]
fn a_report_ends_with_a_verdict_for_each_claim() {
    let data = tempfile::tempdir().unwrap();
    let run = ["clear", "--memory", "64MiB", "--rounds", "6"];
    let run = lab(data.path()).args(run).assert().success().get_output().clone();
    let (_, reported) = std::str::from_utf8(&run.stdout).unwrap().split_once("claims\n").unwrap();
    let reported = unwrapped(reported.as_bytes());
    let of_pages = verdicts(&reported, "extent clears 2MiB faster");
    assert!(matches!(of_pages[..], ["reproduced" | "not reproduced"]), "{reported}");
    assert!(reported.contains("the same for 1GiB: it needs `--memory 1GiB`; "), "{reported}");
    assert!(!reported.contains("ktask"), "{reported}");

    let all = lab(data.path()).args(["--claims"]).assert().success();
    let all = unwrapped(&all.get_output().stdout);
    assert_eq!(verdicts(&all, "extent clears 2MiB faster"), of_pages);
    for (words, why) in [
        ("so all of fork(2)", "two kernels"),
        ("2 threads clear", "`hugekit lab parallel` measures it; published 1.88–2.54"),
    ] {
        assert_eq!(verdicts(&all, words), ["not testable here"], "{all}");
        assert!(all.contains(why), "{all}");
    }
}

#[test]
fn what_looks_measures_nothing() {
    for arguments in [
        ["--list", "--quick"],
        ["--show=last", "--setup"],
        ["--show=last", "stores"],
        ["--claims=last", "--quick"],
    ] {
        lab(Path::new("/dev/null")).args(arguments).assert().code(2).stdout("");
    }
}
