//! `hugekit tune` on the machine that runs the tests: what it stores, where, and what is then in force.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use assert_cmd::Command;
use hugekit::profile::{Measured, StoredBand, StoredProfile, Tuned};
use predicates::prelude::*;
use tempfile::TempDir;

/// `hugekit` with this profile and no other.
fn hugekit(profile: &Path) -> Command {
    let mut command = Command::cargo_bin("hugekit").unwrap();
    command.env("HUGEKIT_PROFILE", profile);
    command
}

/// The output of `tune --show`.
fn shown(command: &mut Command) -> String {
    let output = command.args(["tune", "--show"]).assert().success().get_output().stdout.clone();
    String::from_utf8(output).unwrap()
}

/// A profile of this machine that no calibration would come to.
fn odd_profile() -> String {
    let bands = vec![
        StoredBand { from: 0, routine: "memset".to_owned() },
        StoredBand { from: 12 << 10, routine: "memset".to_owned() },
    ];
    let measured = Measured { clear_warm: Some(bands), thread_cap: Some(3), ..Measured::default() };
    let tuned = Tuned { command: "hugekit tune".to_owned(), spread: 0.042 };
    StoredProfile::of_this_machine(tuned, measured).to_toml()
}

fn stored(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.toml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

/// The value of a row, and where it came from.
fn row(table: &str, key: &str) -> (String, String) {
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap();
    let (value, from) = line.trim().split_once(' ').unwrap().1.trim().rsplit_once("  ").unwrap();
    (value.trim().to_owned(), from.trim().to_owned())
}

#[test]
fn a_quick_run_stores_a_profile_that_is_in_force_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("not/there/yet/profile.toml");
    // Other tests run meanwhile; how noisy that is, is not the question here.
    let run = hugekit(&path).args(["tune", "--quick", "--force"]).assert().success();
    let printed = String::from_utf8(run.get_output().stdout.clone()).unwrap();
    assert!(printed.contains(path.to_str().unwrap()), "{printed}");
    assert!(printed.contains("equal measurements differ by ±"), "{printed}");
    assert!(printed.lines().all(|line| line.chars().count() <= 80 || line.contains("stored in")));
    let stored = StoredProfile::read(&path).unwrap().expect("it was stored");
    let profile = stored.for_this_machine().unwrap();
    assert_eq!(stored.tuned.command, "hugekit tune --quick");
    assert!(stored.measured.clear_warm.is_some() && stored.measured.copy_cold.is_some());
    assert!(profile.near_bytes_all >= 4096 && profile.near_bytes <= 1 << 20);
    let files = fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(files, 1, "nothing else is left there");
    let table = shown(&mut hugekit(&path));
    assert!(table.contains("measured by `hugekit tune --quick`"), "{table}");
    assert_eq!(row(&table, "copy_cold").1, "stored");
}

#[test]
fn the_profile_in_force_says_where_each_value_came_from() {
    let (_folder, path) = stored(&odd_profile());
    let table = shown(&mut hugekit(&path));
    assert!(table.contains(path.to_str().unwrap()) && table.contains("±4.2 %"), "{table}");
    let value = |value: &str, from: &str| (value.to_owned(), from.to_owned());
    assert_eq!(row(&table, "clear_warm"), value("memset, memset from 12KiB", "stored"));
    assert_eq!(row(&table, "thread_cap"), value("3", "stored"));
    assert_eq!(row(&table, "min_chunk").1, "built in");
}

#[test]
fn the_profile_is_found_in_the_configuration_directory() {
    let folder = tempfile::tempdir().unwrap();
    let home = || {
        let mut command = hugekit(Path::new(""));
        command.env_remove("HUGEKIT_PROFILE").env_remove("XDG_CONFIG_HOME");
        command.env("HOME", folder.path());
        command
    };
    assert!(shown(&mut home()).contains("stored: none"));
    for directory in ["xdg/hugekit", ".config/hugekit"] {
        fs::create_dir_all(folder.path().join(directory)).unwrap();
    }
    fs::write(folder.path().join(".config/hugekit/profile.toml"), odd_profile()).unwrap();
    assert!(shown(&mut home()).contains("/.config/hugekit/profile.toml"));
    assert!(shown(home().env("XDG_CONFIG_HOME", "relative")).contains("/.config/hugekit/"));
    let xdg = folder.path().join("xdg");
    assert!(shown(home().env("XDG_CONFIG_HOME", &xdg)).contains("stored: none"));
    fs::write(xdg.join("hugekit/profile.toml"), odd_profile()).unwrap();
    assert!(shown(home().env("XDG_CONFIG_HOME", &xdg)).contains("/xdg/hugekit/profile.toml"));
}

#[test]
fn an_empty_variable_means_what_is_built_in() {
    let table = shown(&mut hugekit(Path::new("")));
    assert!(table.contains("stored: none"), "{table}");
    assert_eq!(row(&table, "thread_cap").1, "built in");
    let refused = hugekit(Path::new("")).arg("tune").assert().failure();
    refused.stderr(predicate::str::contains("HUGEKIT_PROFILE is empty"));
}

#[test]
fn a_profile_that_is_no_use_here_is_reported_once_and_ignored() {
    let good = odd_profile();
    let version = format!("hugekit = \"{}\"", env!("CARGO_PKG_VERSION"));
    let cases = [
        ("damaged", "no TOML".to_owned()),
        ("damaged", good[..good.len() - 30].to_owned()),
        ("another machine", good.replace("l2 = ", "l2 = 1")),
        ("hugekit 0.0.9 measured it", good.replace(&version, "hugekit = \"0.0.9\"")),
        ("thread_cap = 0 makes no sense", good.replace("thread_cap = 3", "thread_cap = 0")),
        ("routine \"banana\"", good.replace("\"memset\"", "\"banana\"")),
    ];
    for (why, text) in cases {
        let (_folder, path) = stored(&text);
        let table = shown(&mut hugekit(&path));
        assert!(table.contains("is ignored") && table.contains(why), "{why}: {table}");
        assert_eq!(row(&table, "clear_warm").1, "built in", "{why}");
        let lab = ["lab", "stores", "--memory", "64MiB", "--rounds", "2", "--json", "-"];
        let output = hugekit(&path).args(lab).assert().success().get_output().clone();
        let (record, notices) = (output.stdout, String::from_utf8(output.stderr).unwrap());
        assert_eq!(notices.matches("is ignored").count(), 1, "{notices}");
        assert!(notices.contains(why), "{notices}");
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        assert_eq!(record["machine"]["profile"], "built in");
    }
}

#[test]
fn the_lab_says_by_which_profile_it_ran() {
    let (_folder, path) = stored(&odd_profile());
    let lab = ["lab", "stores", "--memory", "64MiB", "--rounds", "2", "--json", "-"];
    let run = hugekit(&path).args(lab).assert().success();
    let record: serde_json::Value = serde_json::from_slice(&run.get_output().stdout).unwrap();
    assert_eq!(record["machine"]["profile"], "`hugekit tune`");
}

#[test]
fn where_nothing_can_be_stored_nothing_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, why) in [
        (folder.path().to_owned(), "no regular file"),
        (PathBuf::from("/dev/null"), "no regular file"),
        (file.join("profile.toml"), "File exists"),
    ] {
        let refused = hugekit(&path).args(["tune", "--quick"]).assert().code(1);
        let refused = refused.stdout("").stderr(predicate::str::contains(why));
        refused.stderr(predicate::str::contains(path.to_str().unwrap()));
    }
}

#[test]
fn a_pipe_for_a_profile_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(shown(&mut hugekit(&pipe)).contains("no regular file"));
}

#[test]
fn showing_measures_nothing() {
    let conflict = hugekit(Path::new("")).args(["tune", "--show", "--quick"]).assert();
    conflict.code(2).stderr(predicate::str::contains("--quick"));
}

#[test]
fn an_interrupt_leaves_the_old_profile() {
    let (folder, path) = stored("# mine\n");
    let child = std::process::Command::new(assert_cmd::cargo::cargo_bin("hugekit"))
        .args(["tune", "--quick"])
        .env("HUGEKIT_PROFILE", &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(1));
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty());
    assert_eq!(fs::read_to_string(&path).unwrap(), "# mine\n");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
