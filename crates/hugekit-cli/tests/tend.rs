//! `hugekit tend` on programs of the test's own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use assert_cmd::cargo::cargo_bin_cmd;
use predicates::prelude::*;
use predicates::str::contains;

/// Killed when dropped.
struct Running(Child);

impl Running {
    fn sleeping() -> Self {
        Self(Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What keeps every process here from being tended: the kernel, or who runs the test.
fn is_refused(output: &str) -> bool {
    ["may not be tended", "needs Linux 6.1", "of 2 MiB only"].iter().any(|why| output.contains(why))
}

#[test]
fn one_pass_as_json_has_the_processs_memory() {
    let sleeping = Running::sleeping();
    let output = cargo_bin_cmd!("hugekit")
        .args(["tend", "--once", "--json", &sleeping.pid()])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    if is_refused(&said) {
        return;
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["pid"].to_string(), sleeping.pid());
    assert!(report["after"]["all"].as_u64().unwrap() > 0, "{report}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn program_that_is_started_gives_its_exit_status() {
    let output = cargo_bin_cmd!("hugekit")
        .args(["tend", "--", "sh", "-c", "sleep 0.3; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "also where it cannot be tended");
}

#[test]
fn program_that_another_one_has_started_in_its_place_is_tended() {
    let output = cargo_bin_cmd!("hugekit")
        .args(["tend", "--json", "--", "sh", "-c", "sleep 0.3; exec sleep 0.5"])
        .output()
        .unwrap();
    if is_refused(&String::from_utf8(output.stderr).unwrap()) {
        return;
    }
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.lines().any(|line| line.contains("\"name\":\"sleep\"")), "{said}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn process_that_is_gone_or_not_named_is_an_error() {
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    cargo_bin_cmd!("hugekit")
        .args(["tend", &ended.id().to_string()])
        .assert()
        .failure()
        .stderr(contains("is gone").or(contains("of 2 MiB only")));
    cargo_bin_cmd!("hugekit").arg("tend").assert().code(2).stderr(contains("PID"));
}

#[test]
fn second_tender_of_a_process_waits_for_the_first_to_end() {
    let sleeping = Running::sleeping();
    let program = assert_cmd::cargo::cargo_bin!("hugekit");
    let tend = || {
        let mut command = Command::new(program);
        command.args(["tend", "--json", &sleeping.pid()]);
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let mut first = tend();
    let mut line = String::new();
    let mut said = BufReader::new(first.0.stdout.take().unwrap());
    if said.read_line(&mut line).unwrap() == 0 {
        return; // It cannot be tended here.
    }
    let mut second = tend();
    let mut note = String::new();
    BufReader::new(second.0.stderr.take().unwrap()).read_line(&mut note).unwrap();
    assert!(note.contains("tended already") && note.contains("waiting"), "{note}");
    drop(first);
    line.clear();
    BufReader::new(second.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"passes\":1"), "{line}");
}
