//! Memory that fails for real, as far as software can have it fail: the kernel is told that a page is broken, as by a
//! controller that has counted too many errors. It takes the page away from all mappings for good, and what touches
//! the page afterwards gets SIGBUS. The machine has less memory then, so this is done only where a process is told
//! that it may: in guests of `cargo xtask fleet`.
#![allow(unsafe_code)]

use hugekit_testing::alias;
use hugekit_testing::backings;
use hugekit_testing::child;
use hugekit_testing::signal_stack;

use std::cell::Cell;
use std::ffi::c_int;
use std::path::Path;
use std::ptr;

use alias::{alias_of, place_of};
use backings::{Check, trials_on, unless_lacking, usual};
use child::died_of;
use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{HUGE_PAGE_BYTES, Pool, PoolError, PopulateError, Region, RegionError};
use hugekit_bulk::parallel::JobError;
use libtest_mimic::Arguments;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// Set where memory may be taken out of use.
const MAY: &str = "HUGEKIT_MAY_BREAK_MEMORY";
/// There where the kernel can be told.
const RECOVERY: &str = "/proc/sys/vm/memory_failure_recovery";

const MARKER: &[u8] = b"this memory will fail";
const REGIONS: usize = 3;
const LEN: usize = 4 * HUGE_PAGE_BYTES;
const AT: usize = LEN / 2;

thread_local! {
    /// Whether this thread has a page break at this moment.
    static BREAKS: Cell<bool> = const { Cell::new(false) };
}

/// The program's own handler, which hugekit finds: a page that the thread has break is none that it needs, and the
/// kernel tells it so all the same where the page was written. All else ends the process.
extern "C" fn on_sigbus(_: c_int) {
    if !BREAKS.get() {
        // SAFETY: async-signal-safe; the default needs no handler.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

fn folios(backing: Backing) -> usize {
    REGIONS * LEN / backing.page_size()
}

/// A region of ones with a marker in it.
fn marked(backing: Backing) -> (Pool, Region) {
    signal_stack::make_large();
    let pool = Pool::builder(REGIONS * LEN).backing(backing).strict(true);
    let pool = pool.scrub_threads(0).build().unwrap();
    let mut region = pool.region(LEN).unwrap();
    region.fill(1);
    region[AT..][..MARKER.len()].copy_from_slice(MARKER);
    (pool, region)
}

/// What `prepare` makes, with the page broken that holds the marker of its region. A huge page that cannot be taken apart
/// at that moment, because khugepaged looks at it, is known to be broken and stays where it is: that is tried again.
fn broken<T>(prepare: impl Fn() -> T, region_of: impl Fn(&T) -> &Region) -> T {
    loop {
        let prepared = prepare();
        if is_taken_away(region_of(&prepared)) {
            return prepared;
        }
    }
}

/// Has the page break that holds the marker. By its address in the pool's own mapping: the kernel then holds the page
/// from when it looks it up. By its frame, another page might have broken, because pages move.
fn is_taken_away(region: &Region) -> bool {
    let whole = REGIONS * LEN;
    let at = place_of(alias_of(region.as_ptr().addr(), whole), whole, page_size(), MARKER);
    let page = ptr::with_exposed_provenance_mut(at);
    BREAKS.set(true);
    // SAFETY: a page of the pool's; who touches it hears of it, which is what is tested.
    let done = unsafe { madvise(page, page_size(), Advice::LinuxHwPoison) };
    BREAKS.set(false);
    match done {
        Err(Errno::HWPOISON) => false,
        done => {
            done.unwrap();
            true
        }
    }
}

fn is_poisoned<T>(result: Result<T, JobError<PopulateError>>) -> bool {
    matches!(result, Err(JobError::Chunk { error: PopulateError::Poisoned, .. }))
}

/// Pages that break while no region has them end nothing: who asks for them is told once, and they are gone.
fn break_in_the_pool_is_told_once(backing: Backing) {
    let (pool, region) = broken(|| marked(backing), |(_, region)| region);
    drop(region);
    let Err(PoolError::Populate(told)) = pool.region(REGIONS * LEN) else { panic!("not told") };
    assert!(is_poisoned::<()>(Err(told)));
    assert_eq!(pool.stats().unwrap().in_use, 1);
    let rest = pool.region(LEN).unwrap();
    assert!(rest.iter().all(|&byte| byte == 0));
    pool.scrub().unwrap();
}

/// A fork that is about to write what broke is told; all else of it, and of its parent, is there.
fn break_of_shared_memory_is_told(backing: Backing) {
    for fault_mode in [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }] {
        let forked = || {
            let (pool, region) = marked(backing);
            let fork = region.fork_builder().fault_mode(fault_mode).build().unwrap();
            (pool, region, fork)
        };
        let (_pool, region, mut fork) = broken(forked, |(_, region, _)| region);
        let Err(RegionError::Populate(told)) = fork.prepare_write(AT..AT + 1) else {
            panic!("not told: {fault_mode:?}")
        };
        assert!(is_poisoned::<()>(Err(told)));
        fork[0] = 3;
        assert_eq!((region[0], fork[0], region[LEN - 1], fork[LEN - 1]), (1, 3, 1, 1));
    }
}

/// An access to what broke ends as it does in any memory: by SIGBUS, not in waiting for ever.
fn touch_of_broken_memory_ends_by_sigbus(backing: Backing) {
    for by_fork in [false, true] {
        let signal = died_of(|| {
            let forked = || {
                let (pool, region) = marked(backing);
                let fork = region.fork().unwrap();
                (pool, region, fork)
            };
            let (_pool, mut region, mut fork) = broken(forked, |(_, region, _)| region);
            let broken = if by_fork { &mut fork } else { &mut region };
            broken[AT + 100] = 9;
        });
        assert_eq!(signal, Some(libc::SIGBUS), "by_fork: {by_fork}");
    }
}

/// A snapshot of a region is an error where the region broke, and right elsewhere.
fn snapshot_of_broken_memory_is_an_error(backing: Backing) {
    let snapshotted = || {
        let (pool, region) = marked(backing);
        let snapshot = hugekit::Snapshot::of_region(&region).unwrap();
        (pool, region, snapshot)
    };
    let (_pool, _region, snapshot) = broken(snapshotted, |(_, region, _)| region);
    let mut bytes = [0; 64];
    snapshot.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 64]);
    assert!(snapshot.read_at(AT, &mut bytes).is_err());
}

const OF_POOLS: &[Check] = hugekit_testing::checks![break_in_the_pool_is_told_once];

const CHECKS: &[Check] = hugekit_testing::checks![
    break_of_shared_memory_is_told,
    touch_of_broken_memory_ends_by_sigbus,
    snapshot_of_broken_memory_is_an_error,
];

fn main() {
    // SAFETY: the handler is async-signal-safe.
    unsafe { libc::signal(libc::SIGBUS, on_sigbus as *const () as usize) };
    let lacking = if std::env::var_os(MAY).is_none() {
        Some("memory is broken for good, and only in guests: cargo xtask fleet")
    } else if !Path::new(RECOVERY).exists() {
        Some("this kernel cannot be told that memory broke")
    } else {
        None
    };
    let of = |backing| trials_on(backing, folios(backing), CHECKS);
    let of_pools = |backing| trials_on(backing, folios(backing), OF_POOLS);
    let trials = usual().flat_map(of);
    let trials =
        trials.chain(usual().filter(|&backing| backing != Backing::Base).flat_map(of_pools));
    let trials = trials.map(|trial| unless_lacking(trial, lacking)).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
