//! Control groups: who is charged, and what a group that is short of memory, or frozen, costs others.

use std::io::{BufRead, BufReader, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hugekit::pool::Backing;
use hugekit_lease::protocol::{Payer, Refusal, Request};
use hugekit_lease::{Lease, LeaseError};
use hugekit_testing::control_group::{ControlGroup, controller};
use hugekit_testing::processes::Killed;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, sendmsg, socket_with,
};

use super::daemon::{Daemon, PATIENCE, program};
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[
    ("a_group_pays_for_what_it_was_told_to", told_group),
    ("a_client_pays_in_its_own_group", client),
];

pub(crate) const CHECKS_OF_MEMORY: &[Check] = &[
    ("the_oom_killer_ends_what_populates_and_not_the_broker", oom),
    ("unit_without_room_in_the_group_of_the_broker_is_refused", no_room),
    ("unit_that_another_group_pays_needs_no_room_in_that_of_the_broker", paid_elsewhere),
];

pub(crate) const CHECKS_OF_FROZEN: &[Check] =
    &[("a_client_whose_group_is_frozen_costs_no_other_anything", frozen)];

fn group(backing: Backing) -> ControlGroup {
    ControlGroup::new(controller(backing)).unwrap()
}

fn told_group(backing: Backing) {
    let group = group(backing);
    let daemon = Daemon::new(backing, 2, &["--charge", group.folder.to_str().unwrap()]);
    assert!(group.charged(backing) >= 2 * UNIT as u64);
    let lease = daemon.ask(PATIENCE).unwrap();
    assert_eq!(lease.payer(), Payer::Group);
    daemon.until(|status| status.ready == 2 && status.rows[0].payer == Payer::Group);
    assert!(group.charged(backing) >= 3 * UNIT as u64);
    drop(daemon);
    // What is leased is charged to the group as long as it is used.
    assert!(group.charged(backing) >= UNIT as u64);
    drop(lease);
    group.until_charged_below(backing, UNIT as u64);
}

/// A program with a lease, which goes on until it is killed.
fn holder(daemon: &Daemon) -> Command {
    let mut lease = program();
    lease.args(["lease", "--size", &UNIT.to_string(), "--socket"]).arg(daemon.socket());
    lease.args(["--", "sh", "-c", "exec 9<>{}; echo has it; read line"]);
    lease
}

fn started(mut command: Command) -> Killed {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut child = Killed(child);
    let mut said = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "has it\n");
    child
}

fn client(backing: Backing) {
    let group = group(backing);
    let daemon = Daemon::new(backing, 0, &["--charge", "client"]);
    let inside = started(group.around(&holder(&daemon)));
    assert!(group.charged(backing) >= UNIT as u64);
    // Of another client, in another group, the group does not hear.
    let other = self::group(backing);
    let outside = started(other.around(&holder(&daemon)));
    assert!(group.charged(backing) < 2 * UNIT as u64);
    let status = daemon.until(|status| status.leases == 2);
    let payers: Vec<_> = status.rows.iter().map(|row| row.payer).collect();
    assert_eq!(payers, [Payer::Client, Payer::Client]);
    drop((inside, outside));
    daemon.until(|status| status.leases == 0);
}

/// The broker and what populates share a group that has room for the broker alone.
fn oom(backing: Backing) {
    let group = group(backing);
    let unit = 128 << 20;
    group.limit(48 << 20);
    let daemon = Daemon::around(unit, backing, |command| {
        let mut charging = program();
        charging.args(command.get_args()).arg("--charge").arg(&group.folder);
        charging
    });
    let asked = Lease::ask(&daemon.socket(), unit, PATIENCE);
    match asked {
        Err(LeaseError::Refused(Refusal::NotPopulated { signal: 9, .. })) => {}
        other => panic!("{other:?}"),
    }
    // It lives, and what was populated is the kernel's again.
    let status = daemon.until(|status| status.filling == 0 && status.failures > 0);
    assert_eq!((status.ready, status.leases), (0, 0));
}

/// Nothing is populated, and so nothing is killed.
fn no_room(backing: Backing) {
    let group = group(backing);
    let unit = 128 << 20;
    group.limit(48 << 20);
    let daemon = Daemon::around(unit, backing, |command| group.around(command));
    match Lease::ask(&daemon.socket(), unit, Duration::ZERO) {
        Err(LeaseError::Refused(Refusal::NoPages { free, .. })) => assert!(free <= 48 << 20),
        other => panic!("{other:?}"),
    }
    assert_eq!(daemon.until(|_| true).failures, 0);
}

fn paid_elsewhere(backing: Backing) {
    let (small, payer) = (group(backing), group(backing));
    let unit = 96 << 20;
    small.limit(64 << 20);
    let daemon = Daemon::around(unit, backing, |command| {
        let mut charging = program();
        charging.args(command.get_args()).arg("--charge").arg(&payer.folder);
        small.around(&charging)
    });
    let lease = Lease::ask(&daemon.socket(), unit, PATIENCE).unwrap();
    assert_eq!(lease.payer(), Payer::Group);
    assert!(payer.charged(backing) >= unit as u64);
}

/// A process that has connected, and a socket of this one that is the same connection: the broker takes the process for
/// its client.
fn connected_by_another(socket: &Path) -> (Killed, OwnedFd) {
    let flags = SocketFlags::empty();
    let ours = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let address = SocketAddrUnix::new(socket).unwrap();
    let theirs = ours.as_raw_fd();
    let mut other = Command::new("sleep");
    // SAFETY: the child has the descriptor, which is open in this process; it makes one system call, and neither
    // allocates nor takes a lock.
    #[allow(unsafe_code)]
    unsafe {
        other.arg("600").pre_exec(move || {
            let theirs = std::os::fd::BorrowedFd::borrow_raw(theirs);
            Ok(connect(theirs, &address)?)
        });
    }
    let other = other.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    (Killed(other.spawn().unwrap()), ours)
}

fn frozen(backing: Backing) {
    let group = ControlGroup::new("").unwrap();
    let daemon = Daemon::new(backing, 0, &["--charge", "client"]);
    let (client, connection) = connected_by_another(&daemon.socket());
    group.take_in(client.0.id());
    group.freeze(true);
    let request = Request::Lease { bytes: UNIT as u64, wait_ms: 600_000 }.to_message();
    let mut none = SendAncillaryBuffer::default();
    sendmsg(&connection, &[IoSlice::new(&request)], &mut none, SendFlags::empty()).unwrap();
    // What populates for it has joined its group, and stands still there.
    let since = Instant::now();
    while group.members() < 2 {
        assert!(since.elapsed() < PATIENCE, "nothing populates for the frozen client");
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..3 {
        daemon.ask(PATIENCE).unwrap();
    }
    assert_eq!(daemon.until(|_| true).waiting, 1);
    // Thawed, it is served like any other.
    group.freeze(false);
    daemon.until(|status| status.leases == 1 && status.waiting == 0);
    drop((client, connection));
    daemon.until(|status| status.leases == 0);
}
