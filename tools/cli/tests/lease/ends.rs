//! What ends: clients, leases, processes that populate, and the broker.

use std::fs;
use std::io::{PipeReader, Read};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hugekit::Pool;
use hugekit::pool::Backing;
use hugekit_lease::protocol::Refusal;
use hugekit_lease::{Lease, LeaseError};
use hugekit_machine::{Root, hugepages};
use rustix::process::Signal;

use super::daemon::{Daemon, PATIENCE, program, until_gone};
use super::gate::Gated;
use super::{Check, UNIT};

pub(crate) const CHECKS: &[Check] = &[
    ("leases_go_on_when_the_broker_is_killed", broker_killed),
    ("a_client_that_is_killed_gives_back", client_killed),
    ("a_broker_that_ends_says_so_to_who_waits", broker_ends),
    ("a_process_that_populates_may_be_killed", filler_killed),
    ("what_cannot_be_populated_for_one_client_is_no_others", one_of_two),
    ("processes_that_populate_end_with_the_broker", fillers_end),
    (
        "[nightly: it kills at random moments] a_process_that_populates_may_be_killed_at_any_moment",
        filler_killed_at_any_moment,
    ),
];

pub(crate) const CHECKS_OF_HUGE_PAGES: &[Check] = &[
    ("pages_are_free_again_when_a_lease_ends", pages_return),
    ("pages_that_the_kernel_holds_count_until_it_lets_go", pinned),
    ("holes_in_a_lease_are_no_credit_for_pages_of_another_that_the_kernel_holds", holes),
    ("a_lease_with_holes_counts_no_more_when_it_has_ended", ended_with_holes),
];

fn broker_killed(backing: Backing) {
    let mut daemon = Daemon::new(backing, 1, &[]);
    let pool = Pool::builder(UNIT).broker(daemon.socket()).build().unwrap();
    let mut region = pool.region(UNIT).unwrap();
    region.fill(7);
    daemon.signal(Signal::KILL);
    assert!(!daemon.ended().success());
    let since = Instant::now();
    loop {
        match Lease::ask(&daemon.socket(), UNIT, PATIENCE) {
            Err(error @ LeaseError::NoBroker { .. }) => break assert!(error.remedy().is_some()),
            // A process that it was starting has its socket for a moment.
            Err(LeaseError::HungUp) => assert!(since.elapsed() < PATIENCE),
            other => panic!("{other:?}"),
        }
    }
    assert!(region.iter().all(|&byte| byte == 7));
    // Its name is left, and no hindrance.
    assert!(daemon.socket().exists());
    daemon.again(backing, 1);
    daemon.ask(PATIENCE).unwrap();
    assert!(region.iter().all(|&byte| byte == 7));
}

fn client_killed(backing: Backing) {
    let uid = rustix::process::geteuid().as_raw();
    let daemon = Daemon::new(backing, 1, &["--quota", &format!("{uid}={UNIT}")]);
    for _ in 0..3 {
        let mut client = program();
        client.args(["lease", "--size", &UNIT.to_string(), "--socket"]).arg(daemon.socket());
        let client = client.args(["--", "sh", "-c", "exec 9<>{}; echo; read line"]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        client.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let refused = daemon.ask(PATIENCE);
        assert!(matches!(refused, Err(LeaseError::Refused(Refusal::OverQuota { .. }))));
        client.kill().unwrap();
        client.wait().unwrap();
        daemon.until(|status| status.leases == 0);
    }
    daemon.ask(PATIENCE).unwrap();
}

fn broker_ends(backing: Backing) {
    let all = (1_u64 << 50).to_string();
    for name in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut daemon = Daemon::listening(backing, 0, &["--keep-free", &all]);
        let socket = daemon.socket();
        let asks = std::thread::spawn(move || Lease::ask(&socket, UNIT, PATIENCE));
        daemon.until(|status| status.waiting == 1);
        daemon.signal(name);
        let ended = asks.join().unwrap();
        assert!(matches!(ended, Err(LeaseError::Refused(Refusal::Ending))), "{ended:?}");
        assert!(daemon.ended().success());
        assert!(!daemon.socket().exists());
    }
}

fn kill(filler: u32) {
    let pid = rustix::process::Pid::from_raw(filler as i32).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

fn ask(daemon: &Daemon) -> JoinHandle<Result<Lease, LeaseError>> {
    let socket = daemon.socket();
    std::thread::spawn(move || Lease::ask(&socket, UNIT, PATIENCE))
}

/// Whether the lease was refused because its process was killed.
fn is_killed(asked: &Result<Lease, LeaseError>) -> bool {
    matches!(asked, Err(LeaseError::Refused(Refusal::NotPopulated { signal: 9, .. })))
}

fn filler_killed(backing: Backing) {
    let gated = Gated::new(UNIT, backing, &[]);
    let asks = ask(&gated.daemon);
    gated.fillers(1).into_iter().for_each(kill);
    let asked = asks.join().unwrap();
    assert!(is_killed(&asked), "{asked:?}");
    let _open = gated.open();
    goes_on_after_a_failure(&gated.daemon);
}

fn filler_killed_at_any_moment(backing: Backing) {
    let daemon = Daemon::new(backing, 0, &[]);
    let mut killed = false;
    let since = Instant::now();
    // A unit takes a few milliseconds: one of many is met.
    while !killed && since.elapsed() < PATIENCE {
        let asks = ask(&daemon);
        while !asks.is_finished() && !killed {
            daemon.fillers().into_iter().for_each(kill);
        }
        let asked = asks.join().unwrap();
        killed = is_killed(&asked);
        assert!(killed || asked.is_ok(), "{asked:?}");
    }
    assert!(killed);
    goes_on_after_a_failure(&daemon);
}

fn goes_on_after_a_failure(daemon: &Daemon) {
    let status = daemon.until(|_| true);
    assert!(status.failures > 0);
    assert!(matches!(status.last_failure, Some(Refusal::NotPopulated { signal: 9, .. })));
    // It tries again after a pause.
    daemon.ask(PATIENCE).unwrap();
}

/// Units that are charged to clients are populated for each alone.
fn one_of_two(backing: Backing) {
    let gated = Gated::new(UNIT, backing, &["--charge", "client"]);
    let asks = [ask(&gated.daemon), ask(&gated.daemon)];
    kill(gated.fillers(2)[0]);
    gated.daemon.until(|status| status.failures == 1);
    let _open = gated.open();
    let asked = asks.map(|ask| ask.join().unwrap());
    assert_eq!(asked.iter().filter(|asked| is_killed(asked)).count(), 1, "{asked:?}");
    assert_eq!(asked.iter().filter(|asked| asked.is_ok()).count(), 1, "{asked:?}");
}

fn fillers_end(backing: Backing) {
    let mut gated = Gated::new(UNIT, backing, &[]);
    let asks = ask(&gated.daemon);
    let fillers = gated.fillers(1);
    gated.daemon.signal(Signal::KILL);
    gated.daemon.ended();
    fillers.into_iter().for_each(until_gone);
    assert!(asks.join().unwrap().is_err());
}

fn free() -> u64 {
    let pools = hugepages::read(&Root::default()).unwrap();
    pools.iter().find(|pool| pool.page_size == 2 << 20).unwrap().unpromised()
}

fn pages_return(backing: Backing) {
    let before = free();
    let daemon = Daemon::new(backing, 1, &[]);
    let lease = daemon.ask(PATIENCE).unwrap();
    daemon.until(|status| status.ready == 1 && status.leases == 1);
    assert_eq!(free(), before - 2 * (UNIT >> 21) as u64);
    drop(lease);
    daemon.until(|status| status.leases == 0 && status.unreturned == 0);
    assert_eq!(free(), before - (UNIT >> 21) as u64);
    drop(daemon);
    let since = Instant::now();
    while free() != before {
        assert!(since.elapsed() < PATIENCE);
    }
}

/// Base pages in a pipe, one of each huge page: the kernel holds all of them.
fn held_page(file: &fs::File) -> PipeReader {
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: a new shared mapping, and nothing else of this process is touched.
    #[allow(unsafe_code)]
    unsafe {
        let (read, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let start = libc::mmap(std::ptr::null_mut(), UNIT, read, shared, file.as_raw_fd(), 0);
        assert_ne!(start, libc::MAP_FAILED);
        for at in (0..UNIT).step_by(2 << 20) {
            let page = libc::iovec { iov_base: start.byte_add(at), iov_len: 4096 };
            assert_eq!(libc::vmsplice(writer.as_raw_fd(), &raw const page, 1, 0), 4096);
        }
        assert_eq!(libc::munmap(start, UNIT), 0);
    }
    reader
}

fn pinned(backing: Backing) {
    let uid = rustix::process::geteuid().as_raw();
    let daemon = Daemon::new(backing, 0, &["--quota", &format!("{uid}={UNIT}")]);
    let file = fs::File::from(daemon.ask(PATIENCE).unwrap().into_file());
    let held = held_page(&file);
    drop(file);
    let status = daemon.until(|status| status.leases == 0);
    assert_eq!(status.unreturned, UNIT as u64);
    assert!(matches!(
        daemon.ask(Duration::ZERO),
        Err(LeaseError::Refused(Refusal::OverQuota { .. }))
    ));
    drop(held);
    daemon.until(|status| status.unreturned == 0);
    daemon.ask(PATIENCE).unwrap();
}

fn punch(file: &fs::File) {
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, hole, 0, UNIT as u64).unwrap();
}

/// The attack: what the kernel holds of an ended lease, and the holes of another one, cancel each other in the sums.
fn holes(backing: Backing) {
    let uid = rustix::process::geteuid().as_raw();
    let unit = UNIT as u64;
    for holes_first in [true, false] {
        let daemon = Daemon::new(backing, 0, &["--quota", &format!("{uid}={}", 2 * UNIT)]);
        let lease = || fs::File::from(daemon.ask(PATIENCE).unwrap().into_file());
        let [ended, hollow] = [lease(), lease()];
        let held = held_page(&ended);
        if holes_first {
            punch(&hollow);
            // Its notice is there, and a look was taken at what is free then.
            daemon.until(|_| true);
        }
        drop(ended);
        daemon.until(|status| status.leases == 1);
        if !holes_first {
            punch(&hollow);
        }
        for _ in 0..50 {
            assert_eq!(daemon.status().unwrap().unreturned, unit, "{holes_first}");
        }
        match daemon.ask(Duration::ZERO) {
            Err(LeaseError::Refused(Refusal::OverQuota { used, .. })) => assert_eq!(used, 2 * unit),
            other => panic!("{other:?}"),
        }
        drop(held);
        drop(hollow);
        daemon.until(|status| status.leases == 0 && status.unreturned == 0);
        drop([lease(), lease()]);
    }
}

fn ended_with_holes(backing: Backing) {
    let uid = rustix::process::geteuid().as_raw();
    let daemon = Daemon::new(backing, 0, &["--quota", &format!("{uid}={}", 2 * UNIT)]);
    for _ in 0..3 {
        let [one, other] =
            [(); 2].map(|()| fs::File::from(daemon.ask(PATIENCE).unwrap().into_file()));
        punch(&one);
        drop(one);
        punch(&other);
        daemon.until(|status| status.leases == 1);
        drop(other);
        daemon.until(|status| status.leases == 0 && status.unreturned == 0);
    }
}
