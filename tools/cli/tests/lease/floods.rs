//! Many users, many connections, many leases: what hostile users take costs others no more than a moment.

use std::fs;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hugekit::pool::Backing;
use hugekit_lease::protocol::{Refusal, Request};
use hugekit_lease::{Lease, LeaseError};
use hugekit_testing::processes::happens;
use hugekit_testing::seed;
use hugekit_testing::trials::skip;

use super::attacks::{connection, say};
use super::daemon::{Daemon, PATIENCE};
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[
    ("silent_connections_of_many_users_lock_out_no_other", silent),
    ("requests_of_many_users_that_wait_lock_out_no_other", waiting),
    ("users_of_a_range_count_as_its_owner", ranges),
    ("a_user_sees_its_own_leases_and_root_all", own_rows),
    ("leases_and_connections_without_number_leave_nothing_behind", everything),
];

/// Users that no account has.
const HOSTILE: u32 = 54_400;
const HONEST: u32 = 54_321;

/// Does it as another user. The kernel goes by the user of the thread that connects.
fn as_user<T>(uid: u32, act: impl FnOnce() -> T) -> T {
    // Also after a panic: another user cannot end the broker, and would wait for it for ever.
    let _root_again = scopeguard::guard((), |()| become_user(0));
    become_user(uid);
    act()
}

/// This thread alone: libc's own function would change all of them.
#[allow(unsafe_code)]
fn become_user(uid: u32) {
    // SAFETY: the call reads no memory.
    let answer = unsafe { libc::syscall(libc::SYS_setresuid, u32::MAX, uid, u32::MAX) };
    assert_eq!(answer, 0);
}

fn silent(backing: Backing) {
    let daemon = Daemon::new(backing, 1, &[]).open_to_all();
    let connect = |uid| as_user(uid, || connection(&daemon));
    let _silent: Vec<_> =
        (0..10).flat_map(|user| (0..64).map(move |_| HOSTILE + user)).map(connect).collect();
    for _ in 0..3 {
        daemon.status().unwrap();
        let lease = as_user(HONEST, || daemon.ask(PATIENCE)).unwrap();
        assert_eq!(lease.bytes(), UNIT);
    }
    assert!(daemon.descriptors().len() < 400);
}

fn waiting(backing: Backing) {
    let all = (1_u64 << 50).to_string();
    let daemon = Daemon::listening(backing, 0, &["--keep-free", &all]).open_to_all();
    let request = Request::Lease { bytes: UNIT as u64, wait_ms: u64::MAX }.to_message();
    let connect = |uid| {
        let socket = as_user(uid, || connection(&daemon));
        say(&socket, &request);
        socket
    };
    let _hostile: Vec<_> =
        (0..10).flat_map(|user| (0..64).map(move |_| HOSTILE + user)).map(connect).collect();
    // All seats are taken, by users that have asked.
    daemon.until(|status| status.waiting == 256);
    let honest = as_user(HONEST, || daemon.ask(Duration::from_millis(1)));
    assert!(matches!(honest, Err(LeaseError::Refused(Refusal::NoPages { .. }))), "{honest:?}");
    // Root has seats of its own.
    let _root: Vec<_> = (0..32).map(|_| connect(0)).collect();
    daemon.until(|status| status.waiting >= 256 + 32 - 1);
}

fn own_rows(backing: Backing) {
    let daemon = Daemon::of_units(SMALL, backing, 1).open_to_all();
    let ask = |uid| as_user(uid, || Lease::ask(&daemon.socket(), SMALL, PATIENCE).unwrap());
    let _leases: Vec<_> = (0..70).map(|_| ask(HOSTILE)).chain([ask(HONEST)]).collect();
    let users = |uid| {
        let status = as_user(uid, || daemon.until(|_| true));
        assert_eq!(status.leases, 71);
        status.rows.iter().map(|row| row.uid).collect::<Vec<_>>()
    };
    assert_eq!((users(HONEST), users(HOSTILE)), (vec![HONEST], vec![HOSTILE; 64]));
    assert_eq!(users(0).len(), 71);
}

/// With another `/etc/subuid` than the machine's, where this test may mount one.
fn ranges(backing: Backing) {
    let ranges = tempfile::NamedTempFile::new().unwrap();
    fs::write(ranges.path(), format!("{HOSTILE}:200000:65536\n")).unwrap();
    let mount = "mount --bind \"$0\" /etc/subuid";
    let mut may_mount = Command::new("unshare");
    may_mount.args(["--mount", "sh", "-c", mount]).arg(ranges.path()).stderr(Stdio::null());
    if !may_mount.status().is_ok_and(|status| status.success()) {
        skip("this process may not mount a file over /etc/subuid");
    }
    let quota = format!("*={UNIT}");
    let daemon = Daemon::around(UNIT, backing, |broker| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &format!("{mount} && exec \"$@\"")]);
        command.arg(ranges.path()).arg(broker.get_program()).args(broker.get_args());
        command.args(["--quota", &quota]);
        command
    });
    let daemon = daemon.open_to_all();
    let ask = |uid| as_user(uid, || daemon.ask(PATIENCE));
    let lease = ask(200_000).unwrap();
    for uid in [200_001, 265_535, HOSTILE] {
        match ask(uid) {
            Err(LeaseError::Refused(Refusal::OverQuota { used, .. })) => {
                assert_eq!(used, UNIT as u64);
            }
            other => panic!("{uid}: {other:?}"),
        }
    }
    drop([ask(265_536).unwrap(), ask(HONEST).unwrap()]);
    drop(lease);
    daemon.until(|status| status.leases == 0);
    ask(HOSTILE).unwrap();
}

/// Bytes of a unit here: of so many leases.
const SMALL: usize = 64 << 10;
const LEASES: usize = 100;
const CONNECTIONS: usize = 400;

/// Hostile users connect, ask, leave, and keep leases; an honest one is served, and root sees it.
fn everything(backing: Backing) {
    let daemon = Daemon::of_units(SMALL, backing, 4).open_to_all();
    daemon.until(|status| status.ready == 4);
    let before = (daemon.descriptors().len(), resident(&daemon));
    let over = AtomicBool::new(false);
    let mut random = seed::random();
    let leases = thread::scope(|scope| {
        for user in 0..4 {
            let (daemon, over, random) = (&daemon, &over, random.fork());
            scope.spawn(move || as_user(HOSTILE + user, || flood(daemon, over, random)));
        }
        // Also after a panic: the threads would go on for ever.
        let _over = scopeguard::guard((), |()| over.store(true, Ordering::Relaxed));
        let ask = || Lease::ask(&daemon.socket(), SMALL, PATIENCE).unwrap();
        (0..LEASES).map(|_| as_user(HONEST, ask)).collect::<Vec<_>>()
    });
    let own = |uid| move |row: &hugekit_lease::protocol::LeaseRow| row.uid == uid;
    let status = daemon.until(|status| status.ready == 4 && status.leases == LEASES as u64);
    assert!(status.rows.iter().all(own(HONEST)));
    drop(leases);
    daemon.until(|status| status.leases == 0 && status.waiting == 0 && status.filling == 0);
    assert!(happens(|| daemon.descriptors().len() <= before.0), "{:?}", daemon.descriptors());
    let after = resident(&daemon);
    assert!(after < before.1 + (16 << 20), "{before:?} {after}");
    let zombies = || daemon.fillers().len();
    daemon.until(|_| zombies() == 0);
}

/// Connects without end, and does something else each time, until it is over.
fn flood(daemon: &Daemon, over: &AtomicBool, mut random: fastrand::Rng) {
    let mut kept: Vec<OwnedFd> = Vec::new();
    let request = Request::Lease { bytes: SMALL as u64, wait_ms: 60_000 }.to_message();
    for _ in 0..CONNECTIONS {
        let socket = connection(daemon);
        match random.u8(0..4) {
            0 => say(&socket, &request),
            1 => say(&socket, &Request::Status.to_message()),
            2 => say(&socket, &request[..7]),
            _ => {}
        }
        if random.u8(0..3) > 0 {
            kept.push(socket);
        }
        if kept.len() > 200 {
            kept.drain(..random.usize(0..100));
        }
    }
    while !over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Memory of the broker, in bytes.
fn resident(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
