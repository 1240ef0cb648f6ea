//! Forks of regions that are cleared when they are touched: the fork clears and copies nothing, no thread sees a byte
//! of an earlier owner, and each side changes its own.

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::snapshot::Changes;
use hugekit::{Pool, Region, Snapshot};
use hugekit_testing::states::saved;

use crate::backings::{Check, builder, is_zero};
use crate::model::Tree;
use crate::permitted::fault_modes;

/// Granules of a region.
pub(crate) const GRANULES: usize = 8;

/// Bytes that one fault clears.
fn granule(backing: Backing) -> usize {
    backing.page_size().max(64 << 10)
}

/// A pool for so many regions, all of it dirty.
fn soiled(backing: Backing, regions: usize) -> Pool {
    let folios = regions * GRANULES * granule(backing) / backing.page_size();
    let pool = builder(backing, folios).scrub_threads(0).build().unwrap();
    pool.region(folios * backing.page_size()).unwrap().fill(0xd1);
    pool
}

fn unready(pool: &Pool, fault_mode: FaultMode) -> Region {
    let builder = pool.region_builder(GRANULES * granule(pool.backing()));
    builder.clearing(Clearing::OnFault).fault_mode(fault_mode).build().unwrap()
}

/// Calls `check` with a pool of dirty memory and a region of it that no thread has touched, in every way to serve it.
fn each(backing: Backing, regions: usize, check: impl Fn(&Pool, Region, usize)) {
    for fault_mode in fault_modes() {
        let pool = soiled(backing, regions);
        let region = unready(&pool, fault_mode);
        check(&pool, region, granule(backing));
        assert_eq!(pool.stats().unwrap().in_use, 0, "{fault_mode:?}");
    }
}

fn cleared(pool: &Pool) -> u64 {
    pool.stats().unwrap().scrubbed_at_fault
}

fn first_fork_of_unready_memory_clears_nothing(backing: Backing) {
    each(backing, 3, |pool, mut region, granule| {
        region[7] = 7;
        region[5 * granule + 3] = 5;
        let touched = 2 * granule as u64;
        assert_eq!(cleared(pool), touched);
        let mut child = region.fork().unwrap();
        let mut grandchild = child.fork().unwrap();
        assert_eq!(cleared(pool), touched);
        assert_eq!(region.shared_bytes().unwrap(), 2 * granule);
        // Each region clears its own granule where it is touched.
        child[2 * granule] = 2;
        grandchild[3 * granule] = 3;
        region[4 * granule] = 4;
        assert_eq!(cleared(pool), touched + 3 * granule as u64);
        child[7] = 17;
        let ones = |region: &Region| -> Vec<(usize, u8)> {
            region.iter().copied().enumerate().filter(|&(_, byte)| byte != 0).collect()
        };
        let shared = (5 * granule + 3, 5);
        assert_eq!(ones(&region), [(7, 7), (4 * granule, 4), shared]);
        assert_eq!(ones(&child), [(7, 17), (2 * granule, 2), shared]);
        drop(region);
        assert_eq!(ones(&grandchild), [(7, 7), (3 * granule, 3), shared]);
    });
}

/// The fork has what a region that was cleared at once would have had, whichever side goes first.
fn fork_of_unready_memory_outlives_its_parent(backing: Backing) {
    each(backing, 3, |pool, mut region, granule| {
        region[granule] = 1;
        let child = region.fork().unwrap();
        drop(region);
        let others: Vec<Region> = std::iter::from_fn(|| pool.region(granule).ok()).collect();
        assert_eq!(others.len(), 2 * GRANULES);
        assert!(others.iter().all(|other| is_zero(other)));
        assert!(is_zero(&child[..granule]) && is_zero(&child[granule + 1..]));
        assert_eq!(child[granule], 1);
    });
}

/// What was never ready is none of the fork's mappings: where they are few, it is made ready first.
fn first_fork_of_scattered_memory_takes_few_mappings(backing: Backing) {
    each(backing, 3, |pool, mut region, granule| {
        for slot in (0..GRANULES).step_by(2) {
            region[slot * granule] = 1;
        }
        let mut child = region.fork_builder().max_vmas(8).build().unwrap();
        assert_eq!(cleared(pool), region.len() as u64);
        child[granule] = 2;
        let sum = |region: &Region| region.iter().map(|&byte| usize::from(byte)).sum::<usize>();
        assert_eq!((sum(&region), sum(&child)), (GRANULES / 2, GRANULES / 2 + 2));
        for slot in 0..GRANULES {
            region[slot * granule] = 9;
        }
        assert_eq!((sum(&region), sum(&child)), (9 * GRANULES, GRANULES / 2 + 2));
    });
}

/// A fork that asks for something else than the region has clears what is left first, and is as right.
fn first_fork_on_other_terms_clears_first(backing: Backing) {
    for fault_mode in fault_modes() {
        for other in fault_modes().into_iter().filter(|&other| other != fault_mode) {
            let pool = soiled(backing, 2);
            let mut region = unready(&pool, fault_mode);
            region[7] = 7;
            let mut child = region.fork_builder().fault_mode(other).build().unwrap();
            assert_eq!(cleared(&pool), region.len() as u64);
            assert_eq!(region.serving().unwrap().fault_mode, other);
            child[7] = 8;
            region[9] = 9;
            assert_eq!((region[7], region[9], child[7], child[9]), (7, 9, 8, 0));
            assert!(is_zero(&region[10..]) && is_zero(&child[10..]));
        }
        if !backing.is_reserved() {
            let pool = soiled(backing, 3);
            let mut region = unready(&pool, fault_mode);
            region[7] = 7;
            let mut child = region.fork_builder().granule(4096).build().unwrap();
            child[4096] = 8;
            assert_eq!((region[7], region[4096], child[7], child[4096]), (7, 0, 7, 8));
            assert!(is_zero(&region[8..]));
        }
    }
}

/// A snapshot reads zeroes where the region was not ready, and keeps what it held when it was taken.
fn snapshot_of_unready_memory_reads_zero(backing: Backing) {
    each(backing, 2, |pool, mut region, granule| {
        region[3 * granule] = 3;
        let snapshot = Snapshot::of_region(&region).unwrap();
        assert_eq!(cleared(pool), granule as u64);
        assert_eq!(snapshot.stats().copied_by_others, 0);
        region.fill(1);
        let mut bytes = vec![0xee; region.len()];
        snapshot.copy_to(&mut bytes).unwrap();
        assert_eq!(bytes[3 * granule], 3);
        bytes[3 * granule] = 0;
        assert!(is_zero(&bytes));
        assert!(region.iter().all(|&byte| byte == 1));
        // What the snapshot needs no more, a fork of the region has.
        assert!(region.fork().unwrap().iter().all(|&byte| byte == 1));
    });
}

/// Every state that changes leave says what was written, of memory that was not ready too.
fn changes_of_unready_memory_find_every_write(backing: Backing) {
    each(backing, 2, |_, mut region, granule| {
        region[granule] = 1;
        let mut image = vec![0xee; region.len()];
        let mut epoch = saved(Changes::first(&region).unwrap(), &mut image);
        assert!(image == *region);
        for round in 2..6_u8 {
            region[usize::from(round) * granule + 9] = round;
            region.release(granule..2 * granule).unwrap();
            if round % 2 == 0 {
                region[granule + 5] = round;
            }
            epoch = saved(Changes::since(&region, epoch).unwrap(), &mut image);
            assert!(image == *region, "{round}");
        }
    });
}

/// Released after a fork, memory is cleared when it is touched, as before; what is pinned is cleared at once.
fn release_of_forked_unready_memory_waits_for_the_touch(backing: Backing) {
    each(backing, 2, |pool, region, granule| {
        let region = region.share();
        region.write_at(granule, &[1; 3]).unwrap();
        let child = region.fork().unwrap();
        region.write_at(granule, &[2; 3]).unwrap();
        let before = cleared(pool);
        region.release(granule..2 * granule).unwrap();
        assert_eq!(pool.stats().unwrap().scrubbed_at_release, 0);
        assert_eq!(region.word_at(granule).unwrap().load(std::sync::atomic::Ordering::Relaxed), 0);
        assert_eq!(cleared(pool), before + granule as u64);
        assert_eq!(child[granule..granule + 3], [1; 3]);
        let pin = region.pin(granule..granule + 1).unwrap();
        region.write_at(granule, &[2; 3]).unwrap();
        region.release(granule..2 * granule).unwrap();
        assert_eq!(pool.stats().unwrap().scrubbed_at_release, granule as u64);
        drop(pin);
        // SAFETY: no other thread uses the region.
        let mut region = unsafe { region.into_exclusive() }.unwrap();
        assert!(is_zero(&region[granule..2 * granule]));
        drop(child);
        region.fill(7);
        region.release(0..region.len()).unwrap();
        let second = region.fork().unwrap();
        assert!(is_zero(&second) && is_zero(&region));
    });
}

/// Random operations on trees of regions of which the first is not ready, against a plain vector for each.
fn forks_of_unready_memory_are_like_vectors(backing: Backing) {
    for fault_mode in fault_modes() {
        let tree = Tree { backing, granule: granule(backing), fault_mode };
        tree.try_random_operations(3 * granule(backing), Some(Clearing::OnFault));
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    first_fork_of_unready_memory_clears_nothing,
    fork_of_unready_memory_outlives_its_parent,
    first_fork_of_scattered_memory_takes_few_mappings,
    first_fork_on_other_terms_clears_first,
    snapshot_of_unready_memory_reads_zero,
    changes_of_unready_memory_find_every_write,
    release_of_forked_unready_memory_waits_for_the_touch,
    forks_of_unready_memory_are_like_vectors,
];
