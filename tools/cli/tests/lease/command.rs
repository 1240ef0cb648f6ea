//! `hugekit lease` and `hugekit broker status`, as people start them.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use hugekit::pool::Backing;
use hugekit_testing::processes::{Killed, happens};
use rustix::process::Signal;

use super::daemon::{Daemon, program, socket, start};
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[
    ("a_program_gets_its_memory_by_a_path", by_path),
    ("without_a_broker_the_command_populates", alone),
    ("[nightly: a client gives a broker 30 seconds] a_stopped_broker_is_given_up", given_up),
    ("units_that_cannot_be_made_are_announced_by_both_commands", shortage),
    ("arguments_that_make_no_sense_are_refused", arguments),
    ("a_file_has_its_name_when_it_is_complete", named),
    ("status_is_for_people_and_for_programs", status),
    ("status_waits_for_the_broker_and_its_units", status_waits),
    ("a_quota_below_a_unit_is_a_warning", small_quota),
    ("a_broker_that_makes_no_sense_does_not_start", configurations),
    ("a_limit_of_file_sizes_is_an_error_with_its_figure", limited_files),
    ("a_broker_without_huge_pages_says_so_and_is_named", no_huge_pages),
];

fn leasing(socket: &Path, before: &[&str], command: &[&str]) -> Command {
    let mut lease = program();
    lease.args(["lease", "--size", &UNIT.to_string(), "--socket"]).arg(socket);
    lease.args(before).arg("--").args(command);
    lease
}

fn run(socket: &Path, before: &[&str], command: &[&str]) -> Output {
    leasing(socket, before, command).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const LOOK: &str =
    "stat -Lc '%s %b %B' {}; head -c 4 {} | od -An -tx1; readlink /proc/self/fd/{fd}";

fn check_look(output: &Output) {
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = said.lines().map(str::trim).collect();
    let [stat, bytes, link] = lines[..] else { panic!("{output:?}") };
    assert_eq!(stat, format!("{UNIT} {} 512", UNIT / 512));
    assert_eq!(bytes, "00 00 00 00");
    assert!(link.starts_with("/memfd:hugekit:lease"), "{link}");
}

fn by_path(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 1, &[]);
    let output = run(&daemon.socket(), &[], &["sh", "-c", LOOK]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    check_look(&output);
    let output = run(&daemon.socket(), &[], &["/nonexistent/program", "{}"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot start /nonexistent/program"), "{output:?}");
    daemon.until(|status| status.leases == 0);
}

fn alone(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&socket(folder.path()), &["--backing", "base"], &["sh", "-c", LOOK]);
    assert!(output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("no broker listens"), "{output:?}");
    assert!(stderr(&output).contains("populating 4MiB here instead"), "{output:?}");
    assert!(stderr(&output).contains("remedy: start one: hugekit broker --unit 4MiB --socket"));
    check_look(&output);
    let output = run(&socket(folder.path()), &["--backing", "base", "--no-wait"], &["true", "{}"]);
    assert!(output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("populating 4MiB here instead"), "{output:?}");
}

/// By all commands at once: each of them waits for seconds.
fn given_up(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 1, &[]);
    let socket = &daemon.socket();
    let (image, status) = (["image", "list", "--socket"], ["broker", "status", "--socket"]);
    daemon.signal(Signal::STOP);
    let failed = |output: Output, seconds: u32| {
        let (said, wanted) = (stderr(&output), format!("has not answered for {seconds}s"));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said.contains(&wanted) && said.contains("remedy: see whether"), "{said}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| failed(run(socket, &["--wait", "1"], &["true", "{}"]), 31));
        scope.spawn(|| failed(run(socket, &["--no-wait"], &["true", "{}"]), 30));
        let load = ["image", "load", "--name", "x", "/proc/self/exe", "--socket"];
        scope.spawn(move || failed(program().args(load).arg(socket).output().unwrap(), 30));
        scope.spawn(|| failed(program().args(image).arg(socket).output().unwrap(), 30));
        scope.spawn(|| failed(program().args(status).arg(socket).output().unwrap(), 30));
    });
    daemon.signal(Signal::CONT);
    daemon.until(|status| status.leases == 0);
}

/// The log of a broker that has ended, and that has said this.
fn log_of(mut daemon: Daemon, log: &tempfile::NamedTempFile, part: &str) -> String {
    let read = || std::fs::read_to_string(log.path()).unwrap();
    // A thread of its own writes the log.
    assert!(happens(|| read().contains(part)), "{}", read());
    daemon.signal(Signal::TERM);
    assert!(daemon.ended().success());
    read()
}

fn shortage(_: Backing) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let daemon = Daemon::changed(Backing::Base, 1, &["--keep-free", "1024TiB"], |command| {
        command.stderr(log.reopen().unwrap());
    });
    daemon.until(|status| status.ready == 0);
    for _ in 0..3 {
        let output = run(&daemon.socket(), &["--wait", "0.1"], &["cat", "{}"]);
        assert_eq!(output.status.code(), Some(1));
    }
    let mut waiting = leasing(&daemon.socket(), &["--wait", "600"], &["cat", "{}"]);
    let mut waiting = Killed(waiting.stderr(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(waiting.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("waiting for at most 600s"), "{said}");
    drop(waiting);
    let mut status = program();
    let output = status.args(["broker", "status", "--socket"]).arg(daemon.socket()).output();
    let said = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(said.contains("short       a unit needs 4 MiB"), "{said}");
    let log = log_of(daemon, &log, "no unit can be made now");
    assert!(log.contains("--ready and --keep-free need 1024"), "{log}");
    // Once, although the broker looks ten times a second, and clients asked.
    assert_eq!(log.matches("no unit can be made now: a unit needs 4 MiB").count(), 1, "{log}");
}

fn arguments(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let usage = |before: &[&str], command: &[&str]| {
        let output = run(&socket(folder.path()), before, command);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        stderr(&output)
    };
    assert!(usage(&[], &["cat", "/dev/null"]).contains("no argument contains {}"));
    let private = ["qemu", "-object", "memory-backend-file,id=m,size=4M,mem-path={}"];
    let said = usage(&[], &private);
    assert!(said.contains("add share=on") && said.contains("Usage: hugekit lease"), "{said}");
    let said = usage(&[], &["qemu", "-m", "4M", "-mem-path", "{}"]);
    assert!(said.contains("size=4M,mem-path={},share=on"), "{said}");
    let large = ["qemu", "-object", "memory-backend-file,id=m,size=8M,mem-path={},share=on"];
    assert!(usage(&[], &large).contains("8MiB are used, but 4MiB are leased"));
    usage(&["--no-wait", "--wait", "5"], &["cat", "{}"]);
    usage(&["--wait", "-1"], &["cat", "{}"]);
    usage(&["--path", "/dev/shm/x"], &["cat", "{}"]);
}

fn named(_: Backing) {
    let folder = Path::new("/dev/shm");
    let Ok(folder) = tempfile::tempdir_in(folder) else { return };
    let path = folder.path().join("vm");
    let make = |path: &Path, size: &str| {
        let mut lease = program();
        lease.args(["lease", "--size", size, "--path"]).arg(path).output().unwrap()
    };
    let output = make(&path, "4MiB");
    assert!(output.status.success(), "{output:?}");
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!((found.len(), found.blocks() * 512), (UNIT as u64, UNIT as u64));
    // No file is replaced, and none is left of what failed.
    let output = make(&path, "4MiB");
    let taken = format!("{} exists", path.display());
    assert!(output.status.code() == Some(1) && stderr(&output).contains(&taken), "{output:?}");
    // It is refused before any memory is populated: more than there is.
    assert!(stderr(&make(&path, "1000TiB")).contains(&taken));
    assert!(stderr(&make(&folder.path().join("odd"), "5")).contains("not one or more whole pages"));
    let elsewhere = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = make(&elsewhere.path().join("vm"), "4MiB");
    assert!(stderr(&output).contains("no hugetlbfs and no tmpfs"), "{output:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn status(_: Backing) {
    let daemon = Daemon::new(Backing::Base, 2, &["--keep-free", "1MiB"]);
    let _lease = daemon.ask(std::time::Duration::ZERO).unwrap();
    daemon.until(|status| status.ready == 2);
    let run = |more: &[&str]| {
        let mut status = program();
        status.args(["broker", "status", "--socket"]).arg(daemon.socket()).args(more);
        let output = status.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let people = run(&[]);
    for part in ["4MiB, shared memory on base pages", "2 of 2", "1 now, 1 since", "charged to"] {
        assert!(people.contains(part), "{people}");
    }
    let value: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
    assert_eq!(value["units_ready"], 2);
    assert_eq!(value["unit_bytes"], UNIT);
    assert_eq!(value["bytes_kept_free"], 1 << 20);
    assert_eq!(value["leases_shown"][0]["pid"], std::process::id());
    assert_eq!(value["leases_shown"][0]["charged"], "broker");
    let folder = tempfile::tempdir().unwrap();
    let mut status = program();
    status.args(["broker", "status", "--socket"]).arg(socket(folder.path()));
    let output = status.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no broker listens"), "{output:?}");
    assert_eq!(stderr(&output).matches("remedy: ").count(), 1, "{output:?}");
}

fn status_waits(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let run = |socket: &Path, seconds: &str| {
        let mut status = program();
        status.args(["broker", "status", "--wait", seconds, "--socket"]).arg(socket);
        status.output().unwrap()
    };
    let output = run(&socket(folder.path()), "0");
    assert!(stderr(&output).contains("no broker listens"), "{output:?}");
    let mut broker = start(folder.path(), Backing::Base, 2, &[]);
    // It waits before the broker listens, or before its units are ready.
    let output = std::thread::scope(|scope| {
        let waits = scope.spawn(|| run(&socket(folder.path()), "60"));
        let mut broker = broker.spawn().unwrap();
        let output = waits.join().unwrap();
        broker.kill().unwrap();
        broker.wait().unwrap();
        output
    });
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("2 of 2"), "{output:?}");
    let daemon = Daemon::listening(Backing::Base, 1, &["--keep-free", "1024TiB"]);
    let output = run(&daemon.socket(), "0.1");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("units are missing after 100ms"), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("0 of 1"), "{output:?}");
}

fn small_quota(_: Backing) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let quotas = ["--quota", "7=1MiB", "--quota", "8=4MiB", "--quota", "*=0"];
    let daemon = Daemon::changed(Backing::Base, 1, &quotas, |command| {
        command.stderr(log.reopen().unwrap());
    });
    daemon.until(|status| status.ready == 1);
    let log = log_of(daemon, &log, "listening at ");
    assert!(log.contains("--quota '7=1MiB' is less than one unit of 4MiB"), "{log}");
    assert_eq!(log.matches("warning: --quota").count(), 1, "{log}");
    assert!(log.contains(": 1 unit of 4MiB"), "{log}");
}

/// By a limit of file sizes, for which memory in files counts.
fn limited_files(_: Backing) {
    let limited = |arguments: &[&OsStr]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"ulimit -f 4096; exec "$0" "$@""#]).arg(program().get_program());
        shell.args(arguments).output().unwrap()
    };
    let figure = "files of this process may have 2MiB, and memory in files counts";
    let folder = tempfile::tempdir().unwrap();
    let (socket, path) = (socket(folder.path()), folder.path().join("none"));
    let words = |text: &'static str| text.split(' ').map(OsStr::new).collect::<Vec<_>>();
    let broker = [&words("broker --unit 4MiB --backing base --socket")[..], &[socket.as_os_str()]];
    let lease = words("lease --size 4MiB --backing base --no-wait --socket");
    let end = words("-- true {}");
    let lease = [&lease[..], &[path.as_os_str()], &end[..]];
    for arguments in [broker.concat(), lease.concat()] {
        let output = limited(&arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said.contains("File too large") && said.contains(figure), "{said}");
    }
    // A broker of images lives on, and names its own limit.
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"ulimit -f 4096; exec "$0" "$@""#]).arg(program().get_program());
    shell.args(["broker", "--socket"]).arg(&socket).stderr(Stdio::null());
    let _broker = Killed(shell.spawn().unwrap());
    assert!(happens(|| hugekit_lease::status(&socket).is_ok()));
    std::fs::write(&path, vec![7; 4 << 20]).unwrap();
    let mut load = program();
    load.args(["image", "load", "--name", "x", "--socket"]).arg(&socket).arg(&path);
    let said = stderr(&load.output().unwrap());
    assert!(said.contains("File too large") && said.contains("start the broker with"), "{said}");
    hugekit_lease::status(&socket).unwrap();
    // Programs that are started have the signal's own action.
    let caught = r#"grep SigCgt /proc/self/status; grep SigIgn /proc/self/status"#;
    let output =
        run(&Daemon::new(Backing::Base, 1, &[]).socket(), &[], &["sh", "-c", caught, "{}"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let has_signal = |line: &str| {
        let mask = u64::from_str_radix(line.rsplit('\t').next().unwrap(), 16).unwrap();
        mask & (1 << 24) != 0
    };
    assert!(said.lines().count() == 2 && !said.lines().any(has_signal), "{said}");
}

/// A parent has switched transparent huge pages off for the broker.
fn no_huge_pages(_: Backing) {
    let log = tempfile::NamedTempFile::new().unwrap();
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let daemon = Daemon::changed(Backing::Thp, 1, &[], |command| {
        command.stderr(log.reopen().unwrap());
    });
    rustix::thread::disable_transparent_huge_pages(false).unwrap();
    daemon.until(|status| status.ready == 1);
    let mut status = program();
    let status =
        status.args(["broker", "status", "--socket"]).arg(daemon.socket()).output().unwrap();
    let output = run(&daemon.socket(), &[], &["true", "{}"]);
    let pid = daemon.pid();
    let log = log_of(daemon, &log, "listening at ");
    assert!(
        log.contains("disabled for this process and its children (PR_SET_THP_DISABLE)"),
        "{log}"
    );
    // The filler may have found a huge page all the same.
    let said = stderr(&output);
    let named = format!("disabled for the broker, process {pid} (PR_SET_THP_DISABLE)");
    assert!(!said.contains("requested, only") || said.contains(&named), "{said}");
    let has_none = String::from_utf8_lossy(&status.stdout).contains(" 0B of ");
    assert!(!has_none || stderr(&status).contains(&named), "{status:?}");
    assert!(!said.contains("hugekit doctor"), "{said}");
}

fn configurations(_: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let start = |arguments: &[&str]| {
        let mut broker = program();
        broker.arg("broker").args(arguments).arg("--socket").arg(socket(folder.path()));
        let output = broker.output().unwrap();
        assert!(!output.status.success() && output.status.code().is_some(), "{output:?}");
        stderr(&output)
    };
    assert!(start(&["--unit", "5", "--backing", "base"]).contains("not one or more whole pages"));
    assert!(start(&["--unit", "0", "--backing", "base"]).contains("not one or more whole pages"));
    assert!(start(&["--ready", "2"]).contains("--unit"));
    assert!(start(&["--unit", "1MiB", "--quota", "root=1"]).contains("the user must be a number"));
    assert!(start(&["--unit", "1MiB", "--quota", "7"]).contains("UID=SIZE"));
    assert!(start(&["--unit", "1MiB", "--charge", "me"]).contains("control group"));
    let none = ["--unit", "1MiB", "--backing", "base", "--charge", "/nonexistent"];
    assert!(start(&none).contains("/nonexistent"));
    let none = ["--unit", "1MiB", "--backing", "base", "--node", "1023"];
    assert!(start(&none).contains("no node 1023; its nodes are 0"));
    let mistaken = folder.path().join("mistaken");
    let mut broker = program();
    broker.args(["broker", "--socket"]).arg(mistaken.join("hugekit/broker.sock"));
    assert!(stderr(&broker.output().unwrap()).contains("a directory that exists"));
    assert!(!mistaken.exists(), "a mistake in a path makes no folders");
    std::fs::write(socket(folder.path()), "a file of another program").unwrap();
    assert!(start(&["--unit", "1MiB", "--backing", "base"]).contains("cannot listen"));
    assert!(socket(folder.path()).exists());
}
