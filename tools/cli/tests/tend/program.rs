//! A program that is started to be tended.

use hugekit_testing::checks;
use hugekit_testing::trials::{Checks, skip};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr;

use crate::running::{Lines, Running, wait_until};

/// Says each signal that it gets, and ends with SIGTERM.
const SAYS_SIGNALS: &str = "\
for signal in HUP INT QUIT USR1 USR2 WINCH TSTP CONT; do trap \"echo got $signal\" $signal; done
trap 'echo got TERM; exit 5' TERM
echo ready
while :; do sleep 0.02; done";

fn signals_are_passed_on_and_the_status_is_the_programs() {
    let mut tending = Running::tending(&["--", "sh", "-c", SAYS_SIGNALS]);
    let lines = tending.lines();
    lines.until("ready");
    for (number, name) in [
        (libc::SIGHUP, "HUP"),
        (libc::SIGINT, "INT"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
        (libc::SIGWINCH, "WINCH"),
        (libc::SIGCONT, "CONT"),
        (libc::SIGTERM, "TERM"),
    ] {
        tending.signal(number);
        lines.until(&format!("got {name}"));
    }
    assert_eq!(tending.ended().code(), Some(5));
}

fn tender_stops_with_its_program_and_goes_on_with_it() {
    let mut tending = Running::tending(&["--", "sh", "-c", SAYS_SIGNALS]);
    let lines = tending.lines();
    lines.until("ready");
    tending.signal(libc::SIGTSTP);
    lines.until("got TSTP");
    wait_until("the tender stops", || tending.state() == 'T');
    tending.signal(libc::SIGCONT);
    lines.until("got CONT");
    wait_until("the tender goes on", || tending.state() != 'T');
    tending.signal(libc::SIGTERM);
    assert_eq!(tending.ended().code(), Some(5));
}

fn program_that_a_signal_ends_gives_128_and_its_number() {
    let mut tending = Running::tending(&["--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(tending.ended().code(), Some(128 + libc::SIGKILL));
    let mut missing = Running::tending(&["--", "/no/such/program"]);
    assert!(missing.said_on_stderr().contains("cannot start /no/such/program"));
    assert_eq!(missing.ended().code(), Some(1));
}

fn signal_that_the_caller_ignores_stays_ignored_and_no_other_is_blocked() {
    let script = "trap '' HUP; exec \"$0\" tend -- grep -E 'Sig(Blk|Ign)' /proc/self/status";
    let program = assert_cmd::cargo::cargo_bin!("hugekit");
    let said = Command::new("sh").args(["-c", script]).arg(program).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let mask = |key: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(key)).expect("the shell says it");
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    assert_eq!(mask("SigBlk:"), 0);
    assert_eq!(mask("SigIgn:") & 1, 1, "SIGHUP is signal 1");
}

/// A terminal: its own end, and that of the programs in it.
fn terminal() -> (File, OwnedFd) {
    let (mut own, mut theirs) = (-1, -1);
    // SAFETY: the call writes two descriptors, which are new and belong to nothing else; it reads no other argument.
    unsafe {
        let nothing = ptr::null_mut();
        let made =
            libc::openpty(&raw mut own, &raw mut theirs, nothing, ptr::null_mut(), ptr::null_mut());
        assert_eq!(made, 0);
        (File::from_raw_fd(own), OwnedFd::from_raw_fd(theirs))
    }
}

fn key_of_the_terminal_reaches_the_program_once() {
    let (mut own, theirs) = terminal();
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hugekit"));
    command.args(["tend", "--", "sh", "-c", SAYS_SIGNALS]);
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap());
    // SAFETY: both calls are async-signal-safe, and standard input is the terminal there.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let mut tending = Running::of(command.stderr(Stdio::null()));
    drop((command, theirs));
    let lines = Lines::of(own.try_clone().unwrap());
    lines.until("ready");
    own.write_all(b"\x03").unwrap();
    lines.until("got INT");
    // Sent to the tender alone: by then a second SIGINT would have come.
    tending.signal(libc::SIGUSR1);
    loop {
        let line = lines.next_line().unwrap();
        assert!(!line.contains("got INT"), "the key reached the program twice");
        if line.contains("got USR1") {
            break;
        }
    }
    tending.signal(libc::SIGTERM);
    assert_eq!(tending.ended().code(), Some(5));
}

fn first_process_of_a_container_passes_signals_on_and_reaps_orphans() {
    let script =
        "sh -c 'sleep 0.05 & sleep 0.05 &'; sleep 0.5; echo orphaned; ".to_owned() + SAYS_SIGNALS;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]);
    command.arg(assert_cmd::cargo::cargo_bin!("hugekit")).args(["tend", "--", "sh", "-c", &script]);
    let mut apart = Running::new(&mut command);
    let lines = apart.lines();
    // Only root has namespaces.
    let Some(_) = lines.next_line() else {
        skip("no new process namespace may be made");
    };
    lines.until("ready");
    let children = |of: u32| {
        let listed = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
        let listed = listed.unwrap();
        listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()
    };
    let first = children(apart.0.id())[0];
    wait_until("the program has no orphan beside it", || children(first).len() == 1);
    // SAFETY: sends a signal to a process that this test has started, and that lives.
    assert_eq!(unsafe { libc::kill(first as i32, libc::SIGTERM) }, 0);
    lines.until("got TERM");
    assert_eq!(apart.ended().code(), Some(5));
}

fn server_saves_before_it_ends_by_the_signal_to_its_tender() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    if Command::new("redis-server").arg("--version").output().is_err() {
        skip("no redis-server");
    }
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hugekit"));
    command.args(["tend", "--", "redis-server", "--bind", "127.0.0.1", "--port"]);
    command.arg(port.to_string()).args(["--save", "3600 1", "--dir"]).arg(folder.path());
    let mut tending = Running::of(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let mut said = [0; 64];
    wait_until("the server answers", || {
        let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) else { return false };
        server.write_all(b"SET key value\r\n").unwrap();
        let count = server.read(&mut said).unwrap();
        said[..count] == *b"+OK\r\n"
    });
    tending.signal(libc::SIGTERM);
    assert_eq!(tending.ended().code(), Some(0));
    let saved = std::fs::read(folder.path().join("dump.rdb")).expect("the server has saved");
    assert!(saved.windows(5).any(|bytes| bytes == b"value"));
}

pub(crate) const CHECKS: Checks = checks![
    signals_are_passed_on_and_the_status_is_the_programs,
    tender_stops_with_its_program_and_goes_on_with_it,
    program_that_a_signal_ends_gives_128_and_its_number,
    signal_that_the_caller_ignores_stays_ignored_and_no_other_is_blocked,
    key_of_the_terminal_reaches_the_program_once,
    first_process_of_a_container_passes_signals_on_and_reaps_orphans,
    server_saves_before_it_ends_by_the_signal_to_its_tender,
];
