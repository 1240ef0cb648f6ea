//! The log: a line for each event.

use hugekit_testing::checks;
use hugekit_testing::trials::Checks;
use std::fs::File;
use std::io::Write;
use std::os::linux::fs::MetadataExt;
use std::process::{Command, Stdio};

use crate::running::{Running, skip_if_refused, wait_until};

/// Whether the line begins with a time in UTC, as RFC 3339 has it.
fn has_time(line: &str) -> bool {
    let form = "dddd-dd-ddTdd:dd:dd.dddZ ";
    let is_so = |(form, c): (char, char)| form == c || (form == 'd' && c.is_ascii_digit());
    line.len() > form.len() && form.chars().zip(line.chars()).all(is_so)
}

fn tended_process_has_a_line_for_its_begin_each_pass_and_its_end() {
    let sleeping = Running::of(Command::new("sleep").arg("60"));
    let pid = sleeping.pid();
    let mut tending = Running::tending(&[&pid]);
    let lines = tending.lines();
    let Some(begun) = lines.next_line() else {
        tending.skip_if_refused();
    };
    assert!(begun.ends_with(&format!("sleep ({pid}): tending")), "{begun}");
    let pass = lines.next_line().unwrap();
    assert!(pass.contains(&format!("sleep ({pid}), pass 1:")), "{pass}");
    assert!(pass.contains("| left out: ") && pass.len() > 80, "one line: {pass}");
    drop(sleeping);
    let ended = lines.next_line().unwrap();
    assert!(ended.ends_with(&format!("sleep ({pid}): ended")), "{ended}");
    for line in [begun, pass, ended] {
        assert!(has_time(&line), "{line}");
    }
    assert_eq!(tending.ended().code(), Some(0));
}

/// Forks at the first line of its input. The child ends at the second one.
const FORKS_WHEN_TOLD: &str = r#"
import os, sys
os.read(0, 1)
if os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
os.wait()
"#;

fn fork_of_a_tended_process_is_said_with_its_estimated_time() {
    for (options, pass, fork) in [
        (&[][..], ", pass 1: ", ": 1 fork seen, the last in about "),
        (&["--json"], r#""forks":0,"#, r#""forks":1,"children":1,"last_fork":0."#),
    ] {
        let mut command = Command::new("python3");
        let mut server = Running::of(command.args(["-c", FORKS_WHEN_TOLD]).stdin(Stdio::piped()));
        let mut input = server.0.stdin.take().unwrap();
        let mut tending = Running::tending(&[options, &[&server.pid()]].concat());
        let lines = tending.lines();
        let Some(first) = lines.next_line() else {
            tending.skip_if_refused();
        };
        // The estimate is by the memory that the pass has found.
        if !first.contains(pass) {
            lines.until(pass);
        }
        input.write_all(b"1").unwrap();
        lines.until(fork);
        input.write_all(b"2").unwrap();
        assert!(server.ended().success());
        assert_eq!(tending.ended().code(), Some(0));
    }
}

fn signal_that_ends_the_tending_is_the_last_line() {
    let sleeping = Running::sleeping();
    for (number, name) in
        [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT"), (libc::SIGHUP, "SIGHUP")]
    {
        let mut tending = Running::tending(&[&sleeping.pid()]);
        let lines = tending.lines();
        if lines.next_line().is_none() {
            tending.skip_if_refused();
        }
        tending.signal(number);
        let last = lines.until("stopped by");
        assert!(last.ends_with(&format!("Z stopped by {name}")) && has_time(&last), "{last}");
        assert_eq!(lines.next_line(), None);
        assert_eq!(tending.ended().code(), Some(0));
    }
    let mut tending = Running::tending(&["--json", &sleeping.pid()]);
    let lines = tending.lines();
    lines.next_line();
    tending.signal(libc::SIGTERM);
    assert!(tending.said_on_stderr().ends_with("Z stopped by SIGTERM"));
    while let Some(line) = lines.next_line() {
        assert!(line.starts_with('{'), "{line}");
    }
}

fn full_disk_of_the_log_does_not_end_the_tending() {
    let sleeping = Running::sleeping();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hugekit"));
    command.args(["tend", &sleeping.pid()]).stdout(full).stderr(Stdio::piped());
    let mut tending = Running::of(&mut command);
    let note = tending.said_on_stderr();
    skip_if_refused(&note);
    assert!(note.contains("note: a line of the log is lost"), "{note}");
    // It goes on: its code is that of a signal that it waits for, and not of an error.
    tending.signal(libc::SIGTERM);
    assert_eq!(tending.ended().code(), Some(0));
    // A single pass has nothing but its report.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hugekit"));
    command.args(["tend", "--once", &sleeping.pid()]).stdout(full).stderr(Stdio::null());
    assert_eq!(Running::of(&mut command).ended().code(), Some(1));
}

fn notes_and_errors_begin_with_the_time() {
    let mut waiting = Running::tending(&["--name", "no-such-name"]);
    assert!(has_time(&waiting.said_on_stderr()));
    let mut failed = Running::tending(&["--once", "--name", "no-such-name"]);
    assert!(has_time(&failed.said_on_stderr()));
}

/// What the log says in a file, which the program takes for the journal or not.
fn log_in_a_file(is_journal: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let file = File::create(&path).unwrap();
    let stat = file.metadata().unwrap();
    let (device, inode) = (stat.st_dev(), stat.st_ino() + u64::from(!is_journal));
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hugekit"));
    command.args(["tend", "--name", "no-such-name"]).stderr(file);
    let _waiting = Running::of(command.env("JOURNAL_STREAM", format!("{device}:{inode}")));
    let read = || std::fs::read_to_string(&path).unwrap();
    wait_until("the log has a line", || read().ends_with('\n'));
    read()
}

fn lines_for_the_journal_have_no_time() {
    let said = log_in_a_file(true);
    assert!(said.starts_with("no process to tend yet"), "{said}");
    let said = log_in_a_file(false);
    assert!(has_time(&said), "{said}");
}

pub(crate) const CHECKS: Checks = checks![
    tended_process_has_a_line_for_its_begin_each_pass_and_its_end,
    fork_of_a_tended_process_is_said_with_its_estimated_time,
    signal_that_ends_the_tending_is_the_last_line,
    full_disk_of_the_log_does_not_end_the_tending,
    notes_and_errors_begin_with_the_time,
    lines_for_the_journal_have_no_time,
];
