//! `hugekit lab --compare` and `--show --html` on records with known changes.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/record.json");

fn lab() -> Command {
    let mut command = Command::cargo_bin("hugekit-lab").unwrap();
    command.env("XDG_DATA_HOME", "/dev/null");
    command
}

/// A record with fifteen samples around each of these medians, within 2 % of it.
fn record(folder: &Path, name: &str, medians: &[(&str, f64)]) -> PathBuf {
    let mut record: Value = serde_json::from_str(&fs::read_to_string(KEPT).unwrap()).unwrap();
    let case = |&(id, median): &(&str, f64)| {
        let samples: Vec<f64> =
            (0..15).map(|n| median * (0.98 + f64::from(n * 7 % 15) / 350.0)).collect();
        json!({"id": id, "unit": "GiB/s", "samples": samples})
    };
    let cases: Vec<Value> = medians.iter().map(case).collect();
    record["experiments"] = json!([{"name": "stores", "skipped": null, "memory": null,
        "notices": [], "cases": cases, "ratios": []}]);
    let path = folder.join(name);
    fs::write(&path, record.to_string()).unwrap();
    path
}

fn two(folder: &Path) -> [PathBuf; 2] {
    let old =
        [("stores/auto/4KiB", 90.0), ("stores/auto/1MiB", 50.0), ("stores/movnti/1MiB", 48.0)];
    let new =
        [("stores/auto/4KiB", 63.0), ("stores/auto/1MiB", 51.0), ("stores/movnti/1MiB", 60.0)];
    [record(folder, "old.json", &old), record(folder, "new.json", &new)]
}

#[test]
fn a_real_change_is_found_and_noise_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let output = lab()
        .args(["--json", "-", "--compare"])
        .args(two(folder.path()))
        .assert()
        .success()
        .get_output()
        .clone();
    let comparison: Value = serde_json::from_slice(&output.stdout).unwrap();
    let changes = comparison["changes"].as_array().unwrap();
    let verdicts: Vec<_> = changes.iter().map(|change| &change["verdict"]).collect();
    assert_eq!(verdicts, ["slower", "within-noise", "faster"]);
    let speed_up = changes[0]["speed_up"].as_f64().unwrap();
    assert!((speed_up - 0.7).abs() < 0.02, "{speed_up}");
}

#[test]
fn only_what_is_slower_beyond_the_limit_fails() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = two(folder.path());
    for (before, after, limit, code) in
        [(&old, &new, "20", 3), (&old, &new, "40%", 0), (&new, &old, "10", 3), (&old, &old, "0", 0)]
    {
        lab()
            .args(["--compare"])
            .args([before, after])
            .args(["--fail-beyond", limit])
            .assert()
            .code(code);
    }
    lab().args(["--fail-beyond", "5"]).assert().code(2);
    let limit = ["--fail-beyond", "lots"];
    lab().args(["--compare"]).args([old, new]).args(limit).assert().code(2);
}

#[test]
fn another_machine_is_compared_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = two(folder.path());
    let text = fs::read_to_string(&new).unwrap().replace("AMD EPYC", "Another CPU");
    fs::write(&new, text).unwrap();
    lab().args(["--compare"]).args([old, new]).assert().success().stdout(
        contains("warning: the records are of different machines (CPU: AMD EPYC / Another")
            .and(contains("within noise")),
    );
}

#[test]
fn records_without_a_common_case_cannot_be_compared() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = [("old.json", "stores/a/4KiB"), ("new.json", "stores/b/4KiB")]
        .map(|(name, id)| record(folder.path(), name, &[(id, 1.0)]));
    lab()
        .args(["--compare"])
        .args([old, new])
        .assert()
        .code(1)
        .stderr(contains("old and new have no case in common"));
}

#[test]
fn a_report_of_two_records_compares_them() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    lab().arg("--show").args(two(folder.path())).arg("--html").arg(&page).assert().success();
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains("From old to new") && page.contains("1 faster, 1 slower, 1 within noise")
    );
}

#[test]
fn a_report_that_cannot_be_made_leaves_the_one_there_was() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    fs::write(&page, "good").unwrap();
    let damaged = folder.path().join("damaged.json");
    fs::write(&damaged, &fs::read_to_string(KEPT).unwrap()[..500]).unwrap();
    lab().args(["--html"]).arg(&page).arg("--show").arg(&damaged).assert().code(1);
    assert_eq!(fs::read_to_string(&page).unwrap(), "good");
    lab()
        .args(["--show", KEPT, "--html", "/no/such/folder/page.html"])
        .assert()
        .code(1)
        .stderr(contains("cannot write /no/such/folder/page.html"));
}

/// The limit on a file's size stops a write where a full disk would: in the middle.
#[test]
fn a_disk_that_is_full_leaves_the_page_there_was_and_nothing_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    fs::write(&page, "good").unwrap();
    let program = assert_cmd::cargo::cargo_bin("hugekit-lab");
    let output = std::process::Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""])
        .arg(program)
        .args(["--show", KEPT, "--html"])
        .arg(&page)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write") && said.contains("File too large"), "{said}");
    assert_eq!(fs::read_to_string(&page).unwrap(), "good");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
