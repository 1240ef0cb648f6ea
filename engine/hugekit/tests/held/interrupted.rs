//! What cannot be seen from outside: a thread that is interrupted exactly while it has what a fault may wait for.
#![allow(unsafe_code)]

use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing, Pool, PoolError};
use hugekit::snapshot::{Granule, Snapshot, SnapshotError};
use hugekit_sys::private_pages::PrivateBytes;
use hugekit_sys::sync::held;
use hugekit_testing::trials::skipped;

const PAGE: usize = 4096;

/// What the handler writes: a byte of every page.
static MEMORY: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static LEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn write_all(_: libc::c_int) {
    let start = MEMORY.load(Ordering::Relaxed);
    for offset in (0..LEN.load(Ordering::Relaxed)).step_by(PAGE) {
        // SAFETY: so many bytes, which only this thread accesses now.
        unsafe { start.add(offset).write_volatile(9) };
    }
}

fn have_a_handler_write(start: *mut u8, len: usize) {
    MEMORY.store(start, Ordering::Relaxed);
    LEN.store(len, Ordering::Relaxed);
    // SAFETY: the handler does what signal-safety(7) allows; zeroed, the structure is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = write_all as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()), 0);
    }
}

/// Runs `act` again and again, interrupted once, a claim later each time, until it has no more of them.
fn at_each_claim(mut act: impl FnMut()) {
    for first in 0.. {
        held::to_be_interrupted(libc::SIGUSR1, first);
        act();
        if held::is_still_to_be_interrupted() {
            assert!(first > 9, "{first} claims");
            return;
        }
    }
}

/// Runs a test of this file in a process of its own, which has the signal and may hang.
fn in_a_child(test: &str, run: impl FnOnce()) {
    const INSIDE: &str = "HUGEKIT_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return run();
    }
    if !are_faults_served() {
        return skipped("faults may not be served");
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(INSIDE, "1").args(["--exact", test, "--nocapture"]);
    let mut child = command.spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return assert!(status.success(), "{status}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("a thread waits for what it has interrupted");
}

/// Whether this process may do so at all: not under an emulator, where it could not start itself again either.
fn are_faults_served() -> bool {
    let memory = PrivateBytes::new(PAGE, PAGE).unwrap();
    made(FaultMode::InPlace, &memory, PAGE).is_ok()
}

/// `None` where faults of system calls may not be served, which some of these need.
fn of(fault_mode: FaultMode, memory: &PrivateBytes, len: usize) -> Option<Snapshot> {
    match made(fault_mode, memory, len) {
        Err(SnapshotError::Fault(_)) => None,
        made => Some(made.unwrap()),
    }
}

fn made(
    fault_mode: FaultMode,
    memory: &PrivateBytes,
    len: usize,
) -> Result<Snapshot, SnapshotError> {
    // SAFETY: so many bytes, which no other thread uses.
    unsafe { memory.start().write_bytes(7, len) };
    let builder = Snapshot::builder().fault_mode(fault_mode).granule(Granule::Small);
    let range = ptr::slice_from_raw_parts(memory.start(), len);
    // SAFETY: the memory stays until the snapshot has gone.
    unsafe { builder.max_cow_bytes(len).of_anonymous(range) }
}

/// What can be done with a snapshot, each as often as it claims anything.
fn use_snapshots(fault_mode: FaultMode) {
    let len = 12 * PAGE;
    let memory = PrivateBytes::new(len, PAGE).unwrap();
    if of(fault_mode, &memory, len).is_none() {
        // Who may not serve faults of system calls has no such threads.
        return skipped("not permitted");
    }
    have_a_handler_write(memory.start(), len);
    let uses: [fn(Snapshot); 4] = [
        |snapshot| {
            snapshot.write_to(std::io::sink()).unwrap();
        },
        |snapshot| {
            let mut copy = vec![0; snapshot.len()];
            snapshot.copy_to(&mut copy).unwrap();
            assert!(copy.iter().all(|byte| matches!(byte, 7 | 9)));
        },
        |snapshot| snapshot.prepare_write(0..snapshot.len()).unwrap(),
        |snapshot| snapshot.read_at(PAGE - 50, &mut [0; 100]).unwrap(),
    ];
    for use_it in uses {
        at_each_claim(|| use_it(of(fault_mode, &memory, len).unwrap()));
    }
    assert_eq!(super::allocator_calls(), 0);
}

/// The same for a region that is made ready when it is touched, and for a fork of it.
fn use_regions(fault_mode: FaultMode) {
    let len = 32 * PAGE;
    let pool = Pool::builder(4 * len).backing(Backing::Base).clearing(Clearing::OnFault);
    let pool = pool.scrub_threads(0).build().unwrap();
    let dirty_region = || {
        pool.region(4 * len).unwrap().fill(7);
        pool.region_builder(len).fault_mode(fault_mode).build()
    };
    if let Err(PoolError::Fault(_)) = dirty_region() {
        return skipped("not permitted");
    }
    have_a_handler_write(ptr::null_mut(), 0);
    at_each_claim(|| {
        let mut region = dirty_region().unwrap();
        have_a_handler_write(region.as_mut_ptr(), len);
        region.release(0..16 * PAGE).unwrap();
        region.prepare_write(PAGE..2 * PAGE).unwrap();
        let forks = region.fork_builder().granule(4 * PAGE).fault_mode(fault_mode);
        let mut fork = forks.build().unwrap();
        fork[3 * PAGE] = 1;
        fork.prepare_write(0..8 * PAGE).unwrap();
        region.prepare_write(16 * PAGE..len).unwrap();
        fork.release(0..4 * PAGE).unwrap();
        fork.truncate(8 * PAGE).unwrap();
        drop(fork);
        region.release(0..8 * PAGE).unwrap();
        LEN.store(0, Ordering::Relaxed);
    });
    assert_eq!(super::allocator_calls(), 0);
}

/// Hugekit's handler of SIGBUS, which another handler passes signals on to.
static PASSED_ON_TO: AtomicUsize = AtomicUsize::new(0);

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

extern "C" fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let handler = PASSED_ON_TO.load(Ordering::Relaxed);
    // SAFETY: a handler of this kind, called with what the kernel gave this one.
    unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) }
}

/// Writes to protected memory by way of a handler that was installed over hugekit's, and that blocks no signal.
fn write_by_another_handler(start: *mut u8) {
    // SAFETY: zeroed, the structures are valid; the handler does what signal-safety(7) allows. So many bytes.
    unsafe {
        let (mut other, mut ours): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        other.sa_sigaction = pass_on as *const () as usize;
        other.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        assert_eq!(libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut ours), 0);
        PASSED_ON_TO.store(ours.sa_sigaction, Ordering::Relaxed);
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const other, ptr::null_mut()), 0);
        start.write_volatile(8);
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()), 0);
    }
}

fn use_another_handler() {
    let len = 12 * PAGE;
    let memory = PrivateBytes::new(len, PAGE).unwrap();
    if of(FaultMode::InPlace, &memory, len).is_none() {
        return skipped("not permitted");
    }
    have_a_handler_write(memory.start(), len);
    at_each_claim(|| {
        let snapshot = of(FaultMode::InPlace, &memory, len).unwrap();
        write_by_another_handler(memory.start());
        drop(snapshot);
    });
}

#[test]
fn handler_of_a_handler_interrupted_at_each_claim_hangs_no_thread() {
    let test = "interrupted::handler_of_a_handler_interrupted_at_each_claim_hangs_no_thread";
    in_a_child(test, use_another_handler);
}

#[test]
fn snapshot_in_place_interrupted_at_each_claim_hangs_no_thread() {
    let test = "interrupted::snapshot_in_place_interrupted_at_each_claim_hangs_no_thread";
    in_a_child(test, || use_snapshots(FaultMode::InPlace));
}

#[test]
fn snapshot_threaded_interrupted_at_each_claim_hangs_no_thread() {
    let test = "interrupted::snapshot_threaded_interrupted_at_each_claim_hangs_no_thread";
    in_a_child(test, || use_snapshots(FaultMode::Threaded { threads: 1 }));
}

#[test]
fn region_in_place_interrupted_at_each_claim_hangs_no_thread() {
    let test = "interrupted::region_in_place_interrupted_at_each_claim_hangs_no_thread";
    in_a_child(test, || use_regions(FaultMode::InPlace));
}

#[test]
fn region_threaded_interrupted_at_each_claim_hangs_no_thread() {
    let test = "interrupted::region_threaded_interrupted_at_each_claim_hangs_no_thread";
    in_a_child(test, || use_regions(FaultMode::Threaded { threads: 1 }));
}
