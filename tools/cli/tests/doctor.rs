//! `hugekit doctor` on the machine that runs the tests, whatever that offers.

use std::collections::BTreeSet;

use assert_cmd::Command;
use hugekit_testing::trials::{Checks, skip, trials};
use libtest_mimic::Arguments;
use predicates::prelude::*;
use serde_json::Value;

const TOPICS: [&str; 9] = [
    "machine",
    "caches",
    "cpus",
    "memory",
    "huge pages",
    "transparent huge pages",
    "userfaultfd",
    "kvm",
    "routines",
];

const VERDICTS: [&str; 5] = ["ok", "note", "limited", "missing", "unknown"];

fn doctor() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hugekit"));
    command.arg("doctor");
    command
}

fn report() -> Value {
    let output = doctor().arg("--json").assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

fn json_has_every_topic() {
    let report = report();
    assert_eq!(report["schema"], "hugekit-doctor/1");
    let lines = report["lines"].as_array().unwrap();
    let topics: BTreeSet<&str> = lines.iter().map(|line| line["topic"].as_str().unwrap()).collect();
    assert!(TOPICS.iter().all(|topic| topics.contains(topic)), "{topics:?}");
}

fn json_has_a_remedy_for_what_is_missing() {
    for line in report()["lines"].as_array().unwrap() {
        let verdict = line["verdict"].as_str().unwrap();
        assert!(VERDICTS.contains(&verdict), "{line}");
        assert!(verdict != "missing" || line["remedy"].is_string(), "{line}");
    }
}

fn json_says_which_machine() {
    let machine = &report()["machine"];
    assert_eq!(machine["architecture"], std::env::consts::ARCH);
    assert!(machine["memory_bytes"].as_u64().unwrap() > 0);
}

fn a_pipe_gets_no_colour_and_no_notices() {
    let plain = predicate::str::contains("\u{1b}").not();
    let report = doctor().assert().success().stderr("");
    report.stdout(plain.and(predicate::str::contains("userfaultfd")));
}

fn process_that_cannot_be_examined_is_an_error_in_plain_words() {
    for (pid, says) in [
        ("xyz", "it is no process's number: `pgrep -o -x NAME` prints it"),
        ("-1", "it is no process's number"),
        ("0", "it is no process's number"),
        ("", "it is empty: does the process run?"),
    ] {
        doctor().args(["--pid", pid]).assert().code(2).stderr(predicate::str::contains(says));
    }
    let gone = doctor().args(["--pid", "2147483647"]).assert().code(1).stdout("");
    gone.stderr("error: there is no process 2147483647\n");
    let own = std::process::id().to_string();
    let mut bounded = Command::new("setpriv");
    bounded.args(["--bounding-set", "-all", env!("CARGO_BIN_EXE_hugekit"), "doctor", "--pid"]);
    let refused = bounded.arg(own).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    if said.contains("setpriv: ") {
        skip(said);
    }
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("may not be examined") && said.contains("remedy: run with CAP_"),
        "{said}"
    );
}

fn unknown_arguments_are_usage_errors() {
    doctor().arg("--cure").assert().code(2).stderr(predicate::str::contains("--cure"));
    doctor().arg("extra").assert().code(2);
}

const CHECKS: Checks = hugekit_testing::checks![
    json_has_every_topic,
    json_has_a_remedy_for_what_is_missing,
    json_says_which_machine,
    a_pipe_gets_no_colour_and_no_notices,
    process_that_cannot_be_examined_is_an_error_in_plain_words,
    unknown_arguments_are_usage_errors,
];

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials(CHECKS, None)).exit();
}
