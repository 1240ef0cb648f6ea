//! The life of records: kept, listed, shown, refused.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hugekit-lab/tests/data/record.json");

fn hugekit(data: &Path) -> Command {
    let mut command = Command::cargo_bin("hugekit").unwrap();
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
    let run = ["lab", "stores", "--memory", "64MiB", "--rounds", "2"];
    let output = hugekit(data.path()).args(run).assert().success().get_output().clone();
    let [path] = &kept(data.path())[..] else { panic!("one record is kept") };
    let id = path.file_stem().unwrap().to_str().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("kept as {id}")), "{said}");

    let list = hugekit(data.path()).args(["lab", "--list"]).assert().success();
    // Lines break where the name of the CPU has them break.
    let list = String::from_utf8(list.get_output().stdout.clone()).unwrap();
    let list = list.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(list.contains(id) && list.contains("hugekit lab stores"), "{list}");
    let shown = String::from_utf8(output.stdout).unwrap();
    for name in [id, "last", &id[..4], path.to_str().unwrap()] {
        hugekit(data.path()).args(["lab", "--show", name]).assert().success().stdout(shown.clone());
    }
    let json = hugekit(data.path()).args(["lab", "--show", id, "--json", "-"]).assert().success();
    assert!(json.get_output().stdout == fs::read(path).unwrap(), "not to the last digit");
}

#[test]
fn no_record_is_kept_if_none_is_wanted() {
    let data = tempfile::tempdir().unwrap();
    let run = ["lab", "stores", "--memory", "64MiB", "--rounds", "2", "--no-record"];
    hugekit(data.path()).args(run).assert().success();
    assert!(kept(data.path()).is_empty());
    hugekit(data.path()).args(["lab", "--list"]).assert().success().stdout(contains("no records"));
}

#[test]
fn what_cannot_be_kept_was_measured_all_the_same() {
    let run = ["lab", "stores", "--memory", "64MiB", "--rounds", "2"];
    let said = contains("warning: cannot keep the record in /dev/null/hugekit/records");
    hugekit(Path::new("/dev/null"))
        .args(run)
        .assert()
        .success()
        .stdout(contains("Summary"))
        .stderr(said);
}

#[test]
fn a_record_of_a_file_is_shown() {
    hugekit(Path::new("/dev/null"))
        .args(["lab", "--show", KEPT])
        .assert()
        .success()
        .stdout(contains("AMD EPYC").and(contains("parallel  skipped, this process has")));
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
        hugekit(Path::new("/dev/null"))
            .args(["lab", "--show"])
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
    hugekit(data.path())
        .args(["lab", "--show", "2026"])
        .assert()
        .code(1)
        .stderr(contains("no record '2026' among the 0").and(contains("--list")));
}

#[test]
fn what_looks_measures_nothing() {
    for arguments in [["--list", "--quick"], ["--show=last", "--setup"], ["--show=last", "stores"]]
    {
        hugekit(Path::new("/dev/null")).arg("lab").args(arguments).assert().code(2).stdout("");
    }
}
