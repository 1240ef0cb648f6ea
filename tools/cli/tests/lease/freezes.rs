//! What the broker deals with stands still, or takes nothing any more: it serves others, and ends when it is told to.

use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::Instant;

use hugekit::pool::Backing;
use hugekit_lease::protocol::Request;
use hugekit_testing::processes::happens;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process};

use super::attacks::{connection, lease, say};
use super::daemon::{Daemon, PATIENCE};
use super::gate::Gated;
use super::{Check, UNIT};

pub(crate) const CHECKS_OF_ONE: &[Check] = &[
    ("a_log_that_no_program_reads_stops_nothing", full_log),
    ("a_flood_of_the_same_message_is_counted", long_log),
    ("a_service_manager_that_stands_still_stops_nothing", full_manager),
    ("processes_that_populate_and_stand_still_do_not_keep_the_broker", stopped_filler),
    ("clients_that_stand_still_do_not_keep_the_broker", stopped_clients),
    ("processes_that_populate_for_who_has_gone_leave_nothing", no_zombies),
];

/// A pipe with room for no more.
fn full_pipe() -> (PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let size = rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    writer.write_all(&vec![b'x'; size]).unwrap();
    (reader, writer)
}

/// Leaves a process so many descriptors, or as many as it may have.
#[allow(unsafe_code)]
fn allow_descriptors(daemon: &Daemon, most: Option<u64>) {
    let pid = Pid::from_raw(daemon.pid() as i32);
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: most.or(maximum), maximum };
    rustix::process::prlimit(pid, Resource::Nofile, limit).unwrap();
}

/// Ends the broker, which may not take longer than a second on a machine with nothing else to do.
fn ends(mut daemon: Daemon) {
    daemon.signal(Signal::TERM);
    assert!(daemon.ended().success());
}

/// Has it fail to accept connections, and say so: each silent one goes for the next one's descriptor.
fn without_descriptors(daemon: &Daemon) {
    allow_descriptors(daemon, Some(daemon.descriptors().len() as u64 + 1));
    let silent: Vec<_> = (0..20).map(|_| connection(daemon)).collect();
    // It comes after them.
    daemon.until(|_| true);
    drop(silent);
    allow_descriptors(daemon, None);
}

fn full_log(backing: Backing) {
    let (reader, writer) = full_pipe();
    let daemon = Daemon::changed(backing, 0, &[], |command| {
        command.stderr(writer);
    });
    daemon.until(|_| true);
    without_descriptors(&daemon);
    daemon.until(|_| true);
    daemon.ask(PATIENCE).unwrap();
    until_said(&reader, "could not be accepted");
    // Another one ends while its log is full.
    drop((daemon, reader));
    let (_reader, writer) = full_pipe();
    let daemon = Daemon::changed(backing, 0, &[], |command| {
        command.stderr(writer);
    });
    daemon.until(|_| true);
    without_descriptors(&daemon);
    ends(daemon);
}

/// Reads a log until it has this.
fn until_said(log: &PipeReader, part: &'static str) {
    let mut log = BufReader::new(log.try_clone().unwrap());
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut line = Vec::new();
        while log.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if String::from_utf8_lossy(&line).contains(part) {
                return tell.send(());
            }
            line.clear();
        }
        Ok(())
    });
    told.recv_timeout(PATIENCE).expect("the log says it");
}

fn long_log(backing: Backing) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let daemon = Daemon::changed(backing, 0, &[], |command| {
        command.stderr(writer);
    });
    daemon.until(|_| true);
    // One is silent: it goes for its descriptor, and another one is accepted and is the silent one.
    let first = connection(&daemon);
    // Accepted before who comes next, it is one of the descriptors that are counted.
    daemon.until(|_| true);
    allow_descriptors(&daemon, Some(daemon.descriptors().len() as u64));
    let others: Vec<_> = (0..200).map(|_| connection(&daemon)).collect();
    let since = Instant::now();
    let heard = others.iter().take(190).map(super::attacks::hear);
    assert!(heard.into_iter().all(|answer| answer.is_none()));
    assert!(since.elapsed() < PATIENCE);
    allow_descriptors(&daemon, None);
    drop((first, others));
    daemon.until(|_| true);
    ends(daemon);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert!(said.lines().count() <= 40, "{said}");
    assert!(
        said.contains("could not be accepted") && said.contains("more lines were left out"),
        "{said}"
    );
}

fn full_manager(backing: Backing) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notices");
    let manager = UnixDatagram::bind(&path).unwrap();
    let other = UnixDatagram::unbound().unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send_to(b"X=1", &path).is_ok() {}
    let daemon = Daemon::changed(backing, 0, &[], |command| {
        command.env("NOTIFY_SOCKET", &path).stderr(Stdio::null());
    });
    daemon.until(|_| true);
    // What could not be told is told when there is room.
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut room = [0; 64];
    let mut hear = || {
        let len = manager.recv(&mut room).unwrap();
        room[..len].to_vec()
    };
    while hear() != b"READY=1" {}
    while other.send_to(b"X=1", &path).is_ok() {}
    ends(daemon);
}

fn stopped_filler(backing: Backing) {
    let gated = Gated::new(UNIT, backing, &[]);
    let client = connection(&gated.daemon);
    say(&client, &lease(u64::MAX));
    let filler = gated.fillers(1)[0];
    kill_process(Pid::from_raw(filler as i32).unwrap(), Signal::STOP).unwrap();
    let stopped = || state(filler) == Some('T');
    assert!(happens(stopped), "it does not stop");
    gated.daemon.until(|_| true);
    ends(gated.daemon);
    super::daemon::until_gone(filler);
}

/// The letter of a process's state.
fn state(process: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// One at each step: before its request, in the middle of it, after it, and with its lease unread.
fn stopped_clients(backing: Backing) {
    let all = (1_u64 << 50).to_string();
    let daemon = Daemon::new(backing, 1, &[]);
    let waiting = Daemon::listening(backing, 0, &["--keep-free", &all]);
    for daemon in [daemon, waiting] {
        let clients: Vec<_> = (0..5).map(|_| connection(&daemon)).collect();
        say(&clients[1], &Request::Status.to_message()[..9]);
        say(&clients[2], &Request::Status.to_message());
        say(&clients[3], &lease(u64::MAX));
        say(&clients[4], &lease(u64::MAX));
        daemon.until(|_| true);
        ends(daemon);
    }
}

/// A unit that is charged to a client is populated for it alone: here, each time, for one that goes meanwhile.
fn no_zombies(backing: Backing) {
    let gated = Gated::new(UNIT, backing, &["--charge", "client"]);
    for _ in 0..3 {
        let client = connection(&gated.daemon);
        say(&client, &lease(u64::MAX));
        let fillers = gated.fillers(1);
        drop(client);
        gated.daemon.until(|status| status.waiting == 0 && status.leases == 0);
        assert!(happens(|| gated.daemon.fillers().is_empty()), "{fillers:?}");
    }
}
