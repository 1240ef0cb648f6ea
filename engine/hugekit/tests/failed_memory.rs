//! Memory that fails while forks share it. Memory is made to fail by its address in the pool's own mapping, through
//! which forks copy: accesses end in SIGBUS there, and the kernel's own in an error, as with broken hardware.
#![allow(unsafe_code)]

use hugekit_testing::alias;
use hugekit_testing::backings;
use hugekit_testing::child;
use hugekit_testing::permitted;
use hugekit_testing::signal_stack;

use std::io::Write;

use alias::{alias_of, fail};
use backings::{Check, trials_on, usual};
use child::died_of;
use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::region::ForkError;
use hugekit::{HUGE_PAGE_BYTES, Pool, PoolError, PopulateError, Region, RegionError};
use hugekit_bulk::parallel::JobError;
use libtest_mimic::Arguments;

const MARKER: &[u8] = b"this memory will fail";
const REGIONS: usize = 3;

/// Bytes of a region: granules of which one fails and others do not.
fn len(backing: Backing) -> usize {
    (4 * backing.page_size()).max(1 << 20)
}

/// The first byte of the page that fails.
fn at(backing: Backing) -> usize {
    len(backing) / 2
}

/// A region of ones with a marker in it.
fn marked(backing: Backing) -> (Pool, Region) {
    // A handler that copies what has failed is interrupted itself.
    signal_stack::make_large();
    let pool = Pool::builder(REGIONS * len(backing)).backing(backing).strict(true);
    let pool = pool.scrub_threads(0).build().unwrap();
    let mut region = pool.region(len(backing)).unwrap();
    region.fill(1);
    region[at(backing)..][..MARKER.len()].copy_from_slice(MARKER);
    (pool, region)
}

fn fail_the_marker(backing: Backing, region: &Region) {
    let page = if backing.is_reserved() { backing.page_size() } else { 4096 };
    let whole = REGIONS * len(backing);
    fail(alias_of(region.as_ptr().addr(), whole), whole, page, MARKER);
}

/// Calls `check` with a region and a fork of it, after memory that they share has failed.
fn each(backing: Backing, check: impl Fn(Region, Region)) {
    for fault_mode in permitted::fault_modes() {
        let (pool, region) = marked(backing);
        let fork = region.fork_builder().fault_mode(fault_mode).build().unwrap();
        fail_the_marker(backing, &region);
        check(region, fork);
        // Memory that has failed has no owner any more: a granule, or the folio that it is part of.
        let granule = (64_usize << 10).div_ceil(backing.page_size());
        assert_eq!(pool.stats().unwrap().in_use, granule);
    }
}

/// Whether the kernel can read a byte for a system call.
fn can_be_read(region: &Region, at: usize) -> bool {
    let (_read, mut write) = std::io::pipe().unwrap();
    write.write(&region[at..=at]).is_ok()
}

fn is_lost(region: &Region, at: usize) -> bool {
    let ready = region.prepare_write(at..at + 1);
    let poisoned = matches!(
        ready,
        Err(RegionError::Populate(JobError::Chunk { error: PopulateError::Poisoned, .. }))
    );
    poisoned && !can_be_read(region, at)
}

fn last_is(region: &Region, value: u8) -> bool {
    region.prepare_write(region.len() - 1..region.len()).unwrap();
    region[region.len() - 1] == value
}

/// Who keeps the memory goes on. The other one, who needed a copy, has lost the granule and nothing else.
fn write_beside_failed_memory_goes_on(backing: Backing) {
    each(backing, |mut region, mut fork| {
        region[at(backing) + 100] = 7;
        assert_eq!(&region[at(backing)..][..MARKER.len()], MARKER);
        region[len(backing) - 1] = 2;
        assert!(is_lost(&fork, at(backing)));
        assert!(last_is(&fork, 1));
        fork[0] = 3;
        assert_eq!((region[0], fork[0], region[at(backing) + 100]), (1, 3, 7));
        assert!(matches!(fork.release(0..len(backing)), Err(RegionError::Copy(_))));
    });
}

/// A fork that is about to write is told, and its parent notices nothing.
fn read_of_a_fork_that_failed_is_told(backing: Backing) {
    each(backing, |mut region, fork| {
        assert!(is_lost(&fork, at(backing)));
        assert!(is_lost(&fork, at(backing)), "for good");
        assert!(last_is(&fork, 1));
        region[at(backing) + 100] = 7;
        assert_eq!(&region[at(backing)..][..MARKER.len()], MARKER);
    });
}

/// What a region has lost is lost for its forks, too, whichever goes first.
fn read_of_a_fork_of_a_fork_that_failed_is_told(backing: Backing) {
    each(backing, |mut region, fork| {
        region[at(backing) + 100] = 7;
        let second = fork.fork().unwrap();
        assert!(is_lost(&second, at(backing)) && last_is(&second, 1));
        drop(fork);
        assert!(is_lost(&second, at(backing)) && last_is(&second, 1));
    });
}

/// An access to what is lost ends as one to failed memory does: by SIGBUS, not in waiting for ever.
fn touch_of_failed_memory_ends_by_sigbus(backing: Backing) {
    for fault_mode in permitted::fault_modes() {
        for by_write in [false, true] {
            let signal = died_of(|| {
                each_of(backing, fault_mode, by_write);
            });
            assert_eq!(signal, Some(libc::SIGBUS), "{fault_mode:?}, by_write: {by_write}");
        }
    }
}

fn each_of(backing: Backing, fault_mode: FaultMode, by_write: bool) {
    let (_pool, mut region) = marked(backing);
    let mut fork = region.fork_builder().fault_mode(fault_mode).build().unwrap();
    fail_the_marker(backing, &region);
    if by_write {
        fork[at(backing) + 100] = 9;
    } else {
        region[at(backing) + 100] = 7;
        std::hint::black_box(fork[at(backing) + 100]);
    }
}

/// A snapshot of a region, of which a part is lost to a writer, is an error there and right elsewhere.
fn snapshot_of_failed_memory_is_an_error(backing: Backing) {
    for writes in [false, true] {
        let (_pool, mut region) = marked(backing);
        let snapshot = hugekit::Snapshot::of_region(&region).unwrap();
        fail_the_marker(backing, &region);
        if writes {
            region.fill(2);
        }
        let mut bytes = [0; 64];
        snapshot.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 64]);
        assert!(snapshot.read_at(at(backing), &mut bytes).is_err());
        assert!(snapshot.write_to(&mut std::io::sink()).is_err());
    }
}

/// A fork that must copy at once what has failed is not made, and nothing is taken for it.
fn fork_of_pinned_memory_that_failed_is_refused(backing: Backing) {
    let (pool, region) = marked(backing);
    fail_the_marker(backing, &region);
    let region = region.share();
    let pin = region.pin(at(backing)..at(backing) + 1).unwrap();
    let in_use = pool.stats().unwrap().in_use;
    assert!(matches!(region.fork(), Err(ForkError::NotReady(_) | ForkError::Copy(_))));
    assert!(pool.stats().unwrap().in_use <= in_use + HUGE_PAGE_BYTES / backing.page_size());
    drop(pin);
    let fork = region.fork().unwrap();
    drop(region);
    assert_eq!(fork[0], 1);
}

/// Folios that fail while no region has them end nothing: who asks for them is told once, and they are gone.
fn failure_in_the_pool_is_told_once(backing: Backing) {
    let (pool, region) = marked(backing);
    fail_the_marker(backing, &region);
    drop(region);
    let all = REGIONS * len(backing);
    let told = pool.region(all);
    assert!(matches!(
        told,
        Err(PoolError::Populate(JobError::Chunk { error: PopulateError::Poisoned, .. }))
    ));
    assert_eq!(pool.stats().unwrap().in_use, 1);
    let rest = pool.region(len(backing)).unwrap();
    assert!(rest.iter().all(|&byte| byte == 0));
    assert!(matches!(pool.region(all), Err(PoolError::NoRoom { .. })));
    pool.scrub().unwrap();
}

/// The scrubber, which meets them first, goes on.
fn scrubber_of_failed_memory_goes_on(backing: Backing) {
    let pool = Pool::builder(REGIONS * len(backing)).backing(backing).strict(true).build().unwrap();
    pool.pause_scrubbing().unwrap();
    let mut region = pool.region(len(backing)).unwrap();
    region[at(backing)..][..MARKER.len()].copy_from_slice(MARKER);
    fail_the_marker(backing, &region);
    drop(region);
    pool.resume_scrubbing().unwrap();
    while pool.stats().unwrap().dirty > 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(pool.stats().unwrap().in_use, 1);
}

const OF_POOLS: &[Check] =
    hugekit_testing::checks![failure_in_the_pool_is_told_once, scrubber_of_failed_memory_goes_on,];

const CHECKS: &[Check] = hugekit_testing::checks![
    write_beside_failed_memory_goes_on,
    read_of_a_fork_that_failed_is_told,
    read_of_a_fork_of_a_fork_that_failed_is_told,
    touch_of_failed_memory_ends_by_sigbus,
    snapshot_of_failed_memory_is_an_error,
    fork_of_pinned_memory_that_failed_is_refused,
];

/// fork(2) copies the handlers of signals before the memory. A child that is forked while another
/// thread installs the handler would know of a handler that it does not have, and be refused.
fn install_the_handler() {
    let (_pool, region) = marked(Backing::Base);
    let _ = region.fork_builder().fault_mode(FaultMode::InPlace).build();
}

fn main() {
    install_the_handler();
    let mut trials = Vec::new();
    for backing in usual() {
        trials.extend(trials_on(backing, REGIONS * len(backing) / backing.page_size(), CHECKS));
    }
    for backing in usual().filter(|&backing| backing != Backing::Base) {
        trials.extend(trials_on(backing, REGIONS * len(backing) / backing.page_size(), OF_POOLS));
    }
    libtest_mimic::run(&Arguments::from_args(), permitted::or_skipped(trials)).exit();
}
