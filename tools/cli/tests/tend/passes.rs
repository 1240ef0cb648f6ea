//! Passes, and who has a process.

use hugekit_testing::checks;
use hugekit_testing::trials::{Checks, skip};
use std::io::{BufRead, BufReader};
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin_cmd;
use hugekit_testing::processes::wait_for_handler;
use predicates::prelude::*;
use predicates::str::contains;

use crate::running::{HANGS, Lines, Running, skip_if_refused, wait_until};

fn one_pass_as_json_has_the_processs_memory() {
    let sleeping = Running::sleeping();
    let output = cargo_bin_cmd!("hugekit")
        .args(["tend", "--once", "--json", &sleeping.pid()])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    skip_if_refused(&said);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["pid"].to_string(), sleeping.pid());
    assert!(report["after"]["all"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(output.status.success(), report["hindrance"].is_null(), "{report} {said}");
}

fn one_pass_tends_the_others_when_a_process_is_gone() {
    let (sleeping, mut ended) = (Running::sleeping(), Command::new("true").spawn().unwrap());
    ended.wait().unwrap();
    let (pid, gone) = (sleeping.pid(), ended.id().to_string());
    let output = cargo_bin_cmd!("hugekit").args(["tend", "--once", &pid, &gone]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    skip_if_refused(&said);
    assert!(said.contains(&format!("note: process {gone} is gone")), "{said}");
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.contains(&format!("{pid}: ")), "{report}");
    assert!(said.contains("not tended: 1") || said.contains("ended early"), "{said}");
}

fn program_that_is_started_gives_its_exit_status() {
    let output = cargo_bin_cmd!("hugekit")
        .args(["tend", "--", "sh", "-c", "sleep 0.3; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "also where it cannot be tended");
}

fn program_that_another_one_has_started_in_its_place_is_tended() {
    let output = cargo_bin_cmd!("hugekit")
        .args(["tend", "--json", "--", "sh", "-c", "sleep 0.3; exec sleep 0.5"])
        .output()
        .unwrap();
    skip_if_refused(&String::from_utf8(output.stderr).unwrap());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.lines().any(|line| line.contains("\"name\":\"sleep\"")), "{said}");
    assert_eq!(output.status.code(), Some(0));
}

fn process_that_is_gone_or_not_named_is_an_error() {
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    cargo_bin_cmd!("hugekit")
        .args(["tend", &ended.id().to_string()])
        .assert()
        .failure()
        .stderr(contains("is gone").or(contains("only pages of 2 MiB")));
    cargo_bin_cmd!("hugekit").arg("tend").assert().code(2).stderr(contains("PID"));
    for (arguments, says) in [
        (&["redis-server"][..], "write --name redis-server, or -- redis-server to start it"),
        (&["0"], "no process's number"),
        (&["--name", ""], "a process's name is wanted"),
        (&[""], "it is empty: does the process run?"),
        (&["1", "--rate", "0"], "at least 2MiB"),
        (&["1", "--rate", "2097151"], "at least 2MiB"),
        (&["1", "--density", "50%"], "a whole number from 1 to 100, without a sign"),
        (&["1", "--cpu", "0"], "a whole number from 1 to 100"),
    ] {
        cargo_bin_cmd!("hugekit")
            .arg("tend")
            .args(arguments)
            .assert()
            .code(2)
            .stderr(contains(says));
    }
}

fn second_tender_of_a_process_waits_for_the_first_to_end() {
    let sleeping = Running::sleeping();
    let program = assert_cmd::cargo::cargo_bin!("hugekit");
    let tend = || {
        let mut command = Command::new(program);
        command.args(["tend", "--json", &sleeping.pid()]);
        Running::new(&mut command)
    };
    let mut first = tend();
    let mut line = String::new();
    let mut said = BufReader::new(first.0.stdout.take().unwrap());
    if said.read_line(&mut line).unwrap() == 0 {
        first.skip_if_refused();
    }
    let mut second = tend();
    let mut note = String::new();
    BufReader::new(second.0.stderr.take().unwrap()).read_line(&mut note).unwrap();
    let which = format!("has another tender (process {}): waiting", first.pid());
    assert!(note.contains(&which), "{note}");
    let once = ["tend", "--once", &sleeping.pid()];
    let refused = cargo_bin_cmd!("hugekit").args(once).assert().code(1);
    refused.stderr(contains(format!("has another tender (process {})", first.pid())));
    drop(first);
    line.clear();
    BufReader::new(second.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"passes\":1"), "{line}");
}

fn name_that_no_process_has_is_said_and_an_error_of_one_pass() {
    cargo_bin_cmd!("hugekit")
        .args(["tend", "--once", "--name", "no-such-name"])
        .assert()
        .failure()
        .stderr(contains("no process to tend").and(contains("no process is named no-such-name")));
    let mut waiting = Running::tending(&["--name", "no-such-name"]);
    let said = waiting.said_on_stderr();
    for part in ["no process to tend yet", "no process is named no-such-name", "waiting"] {
        assert!(said.contains(part), "{said}");
    }
    waiting.signal(libc::SIGTERM);
    assert_eq!(waiting.ended().code(), Some(0));
}

fn folder_that_can_be_no_control_group_is_refused_and_a_group_may_come_later() {
    // The program is not started.
    for end in [&["--once"][..], &[], &["--", "echo", "started"]] {
        for folder in ["/no/such/group", "/tmp", "no-such-group", "/proc/self/cgroup"] {
            cargo_bin_cmd!("hugekit")
                .args(["tend", "--cgroup", folder])
                .args(end)
                .timeout(HANGS)
                .assert()
                .code(1)
                .stdout("")
                .stderr(contains(format!("no such control group: {folder}")))
                .stderr(contains("remedy: write a folder below /sys/fs/cgroup"));
        }
    }
    let Some(groups) = mount_of_groups() else {
        skip("no control groups are mounted");
    };
    let later = format!("{groups}/no.slice/such.service");
    let once = ["tend", "--once", "--cgroup", &later];
    let refused = cargo_bin_cmd!("hugekit").args(once).timeout(HANGS).assert().code(1);
    refused
        .stderr(contains(format!("no such control group: {later}\n")))
        .stderr(contains("start its service first: --once does not wait"));
    let mut waiting = Running::tending(&["--cgroup", &later]);
    let said = waiting.said_on_stderr();
    assert!(said.contains("no process to tend yet") && said.contains(&later), "{said}");
    waiting.signal(libc::SIGTERM);
    assert_eq!(waiting.ended().code(), Some(0));
}

fn mount_of_groups() -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    mounts.find(|mount| mount[2].starts_with("cgroup")).map(|mount| mount[1].to_owned())
}

fn threads_of_the_kernel_are_passed_over_in_a_group() {
    let root = mount_of_groups().unwrap_or_default();
    let processes = std::fs::read_to_string(format!("{root}/cgroup.procs")).unwrap_or_default();
    let is_kernels =
        |pid: &str| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty());
    if !processes.lines().any(is_kernels) {
        skip("no group with threads of the kernel");
    }
    // Without capabilities, it tends few processes of this machine or none. For a name that no process has it waits, and
    // says so when it has looked at the group.
    for once in [&["--once"][..], &["--name", "no-such-name"]] {
        let mut bounded = Command::new("setpriv");
        bounded.args(["--bounding-set", "-all"]).arg(assert_cmd::cargo::cargo_bin!("hugekit"));
        let mut tending = Running::new(bounded.args(["tend", "--cgroup", &root]).args(once));
        let notes = Lines::of(tending.0.stderr.take().unwrap());
        if once != ["--once"] {
            wait_for_handler(tending.0.id(), libc::SIGTERM);
        }
        while let Some(note) = notes.next_line() {
            assert!(!note.contains("thread of the kernel"), "{note}");
            if note.ends_with("waiting") {
                tending.signal(libc::SIGTERM);
            }
        }
    }
}

/// Forks a child that does nothing, and prints its number.
const FORKS: &str = r#"
import os, time
child = os.fork()
if child:
    print(child, flush=True)
    os.wait()
else:
    time.sleep(60)
"#;

fn forked_child_is_refused_and_its_parent_named() {
    let mut parent = Running::new(Command::new("python3").args(["-c", FORKS]));
    let child = parent.lines().next_line().unwrap();
    let pid = parent.pid();
    for once in [&["--once"][..], &[]] {
        let mut tend = cargo_bin_cmd!("hugekit");
        let output = tend.args(["tend", &child]).args(once).timeout(HANGS).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        skip_if_refused(&said);
        let why = format!("process {child} is a child of {pid} (forked to save?)");
        assert!(said.contains(&why) && said.contains(&format!("remedy: give {pid}")), "{said}");
    }
    let both = ["tend", "--once", &child, &pid];
    let early = cargo_bin_cmd!("hugekit").args(both).assert().code(1);
    early
        .stdout(contains("a forked child shares the memory"))
        .stderr(contains(format!("error: the pass over {pid} ended early: ")))
        .stderr(contains("remedy: run it again when its children have ended"));
    let doctor = ["doctor", "--pid", &child];
    let warned = cargo_bin_cmd!("hugekit").args(doctor).assert().success();
    warned.stdout(contains(format!("> hugekit doctor --pid {pid}")));
    // SAFETY: the child of a program that this test has started, and that has not waited for it.
    unsafe { libc::kill(child.parse().unwrap(), libc::SIGKILL) };
    assert!(parent.ended().success());
}

fn processes_of_a_name_that_may_not_be_tended_are_noted_at_once_and_once() {
    let mut server = Running::sleeping_named("hk-of-a-name");
    let pid = server.pid();
    let mut bounded = Command::new("setpriv");
    bounded.args(["--bounding-set", "-all"]).arg(assert_cmd::cargo::cargo_bin!("hugekit"));
    let mut tending = Running::new(bounded.args(["tend", "--name", "hk-of-a-name"]));
    let notes = Lines::of(tending.0.stderr.take().unwrap());
    let note = notes.next_line().unwrap_or_default();
    if !note.contains("may not be tended") {
        skip(note);
    }
    assert!(note.contains(&pid) && note.contains("CAP_SYS_PTRACE"), "{note}");
    notes.until("none that was found can be tended; waiting");
    // It looks again every two seconds, and then notes another one.
    let other = Running::sleeping_named("hk-of-a-name");
    let note = notes.next_line().unwrap();
    assert!(note.contains(&other.pid()), "each process is noted once: {note}");
    tending.signal(libc::SIGTERM);
    assert_eq!(tending.ended().code(), Some(0));
    assert_eq!(notes.next_line(), None, "each process is noted once");
    server.0.kill().unwrap();
}

fn pass_that_collapses_nothing_says_why() {
    let sleeping = Running::sleeping();
    let output =
        cargo_bin_cmd!("hugekit").args(["tend", "--once", &sleeping.pid()]).output().unwrap();
    skip_if_refused(&String::from_utf8(output.stderr).unwrap());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("in mappings without a whole aligned 2 MiB"), "{said}");
}

fn hole_is_not_filled_when_the_memory_limit_cannot_be_read() {
    let sleeping = Running::sleeping();
    let program = assert_cmd::cargo::cargo_bin!("hugekit");
    let script = "umount -R -l /sys/fs/cgroup && exec \"$0\" tend --once --json \"$1\"";
    let mut apart = Command::new("unshare");
    apart.args(["--mount", "--cgroup", "sh", "-c", script]).arg(program).arg(sleeping.pid());
    let output = apart.output().unwrap();
    if !output.status.success() {
        skip("control groups cannot be hidden from a process");
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["is_limit_unknown"], true, "{report}");
    let seen = Command::new(program).args(["tend", "--once", "--json", &sleeping.pid()]).output();
    let report: serde_json::Value = serde_json::from_slice(&seen.unwrap().stdout).unwrap();
    assert_eq!(report["is_limit_unknown"], false, "{report}");
}

/// A pass over a process, by a tender that is root and has only these capabilities.
fn pass_with(capabilities: &[&str], pid: &str) -> Output {
    let kept: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let mut bounded = Command::new("setpriv");
    bounded.args(["--bounding-set", &format!("-all{kept}")]);
    bounded.arg(assert_cmd::cargo::cargo_bin!("hugekit")).args(["tend", "--once", pid]);
    bounded.output().unwrap()
}

fn process_of_another_user_needs_three_capabilities_and_no_more() {
    const NEEDED: [&str; 3] = ["sys_ptrace", "sys_nice", "dac_read_search"];
    let mut of_nobody = Command::new("setpriv");
    of_nobody.args(["--reuid", "65534", "--clear-groups", "sleep", "60"]);
    let mut other = Running::new(&mut of_nobody);
    let pid = other.pid();
    let runs = |name: &str| {
        std::fs::read(format!("/proc/{pid}/comm"))
            .is_ok_and(|comm| comm.trim_ascii() == name.as_bytes())
    };
    wait_until("the process runs", || runs("sleep") || other.0.try_wait().unwrap().is_some());
    let said = pass_with(&NEEDED, &pid);
    if !said.status.success() {
        let unbounded = cargo_bin_cmd!("hugekit").args(["tend", "--once", &pid]).output().unwrap();
        assert!(!unbounded.status.success(), "only with more capabilities: {said:?}");
        skip(String::from_utf8_lossy(&unbounded.stderr));
    }
    for missing in NEEDED {
        let others: Vec<&str> = NEEDED.into_iter().filter(|&name| name != missing).collect();
        let said = String::from_utf8(pass_with(&others, &pid).stderr).unwrap();
        assert!(said.contains("may not be tended"), "without {missing}: {said}");
    }
}

pub(crate) const CHECKS: Checks = checks![
    one_pass_as_json_has_the_processs_memory,
    one_pass_tends_the_others_when_a_process_is_gone,
    program_that_is_started_gives_its_exit_status,
    program_that_another_one_has_started_in_its_place_is_tended,
    process_that_is_gone_or_not_named_is_an_error,
    second_tender_of_a_process_waits_for_the_first_to_end,
    name_that_no_process_has_is_said_and_an_error_of_one_pass,
    folder_that_can_be_no_control_group_is_refused_and_a_group_may_come_later,
    threads_of_the_kernel_are_passed_over_in_a_group,
    forked_child_is_refused_and_its_parent_named,
    processes_of_a_name_that_may_not_be_tended_are_noted_at_once_and_once,
    pass_that_collapses_nothing_says_why,
    hole_is_not_filled_when_the_memory_limit_cannot_be_read,
    process_of_another_user_needs_three_capabilities_and_no_more,
];
