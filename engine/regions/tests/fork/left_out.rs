//! Bytes that forks do not inherit: zeroes in the fork, whoever had its memory before, and as they were in the region.

use std::ops::Range;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::region::{ForkBuilder, ForkError};
use hugekit::snapshot::Changes;
use hugekit::{Pool, Region, Snapshot};
use hugekit_testing::states::saved;

use crate::backings::{Check, FOLIOS, builder, is_zero};
use crate::fixture::{granules, is_painted, paint};
use crate::permitted::fault_modes;

/// Bytes of a region.
fn region_len(backing: Backing, granule: usize) -> usize {
    FOLIOS * backing.page_size().max(granule)
}

/// A pool for so many regions, all of it dirty.
fn soiled(backing: Backing, bytes: usize) -> Pool {
    let folios = bytes / backing.page_size();
    let pool = builder(backing, folios).scrub_threads(0).build().unwrap();
    pool.region(pool.capacity()).unwrap().fill(0xd1);
    pool
}

/// How a region is forked without some bytes.
type Without<'a> = &'a dyn Fn(&Region, &[Range<usize>]) -> Region;

/// Calls `check` with a pool of dirty memory, a painted region of it, how to fork that and its granule, in every way.
fn each(backing: Backing, regions: usize, check: impl Fn(Region, Without<'_>, usize)) {
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            let len = region_len(backing, granule);
            let pool = soiled(backing, regions * len);
            let mut region = pool.region(len).unwrap();
            paint(&mut region, 1);
            check(region, &|region, ranges| without(region, ranges, granule, fault_mode), granule);
            assert_eq!(pool.stats().unwrap().in_use, 0, "{fault_mode:?} {granule}");
        }
    }
}

fn without(
    region: &Region,
    ranges: &[Range<usize>],
    granule: usize,
    fault_mode: FaultMode,
) -> Region {
    let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
    ranges.iter().cloned().fold(fork, ForkBuilder::leave_out).build().unwrap()
}

/// What is painted, but for zeroes in a range.
fn has_hole(bytes: &[u8], hole: &Range<usize>) -> bool {
    let mut filled = bytes.to_vec();
    let mut expected = bytes.to_vec();
    paint(&mut expected, 1);
    filled[hole.clone()].copy_from_slice(&expected[hole.clone()]);
    is_zero(&bytes[hole.clone()]) && filled == expected
}

fn fork_has_zeroes_where_bytes_are_left_out(backing: Backing) {
    each(backing, 2, |mut region, without, granule| {
        let hole = granule..3 * granule;
        let mut child = without(&region, std::slice::from_ref(&hole));
        assert!(has_hole(&child, &hole) && is_painted(&region, 1));
        // Each side has memory of its own there.
        child[granule] = 2;
        region[2 * granule] = 3;
        assert_eq!((child[granule], child[2 * granule]), (2, 0));
        child[granule] = 0;
        assert!(has_hole(&child, &hole));
        paint(&mut region, 1);
        drop(region);
        assert!(has_hole(&child, &hole));
    });
}

/// Any bytes can be left out, not only whole granules; ranges may touch and overlap.
fn fork_leaves_out_parts_of_granules(backing: Backing) {
    each(backing, 3, |region, without, granule| {
        let (first, last) = (granule / 2 + 5, 4 * granule - 7);
        let ranges = [2 * granule..last, first..2 * granule + 3, 9..9];
        let child = without(&region, &ranges);
        assert!(has_hole(&child, &(first..last)) && is_painted(&region, 1));
        let all = 0..region.len();
        assert!(is_zero(&without(&child, std::slice::from_ref(&all))));
        assert!(has_hole(&child, &(first..last)));
    });
}

/// What a fork leaves out, its own forks inherit from it, unless they leave it out.
fn forks_of_forks_inherit_what_the_fork_has(backing: Backing) {
    each(backing, 4, |mut region, without, granule| {
        let hole = granule..2 * granule;
        let mut child = without(&region, std::slice::from_ref(&hole));
        child[granule + 5] = 9;
        let grandchild = without(&child, &[]);
        assert_eq!(grandchild[granule + 5], 9);
        let other = without(&child, std::slice::from_ref(&(0..hole.end)));
        assert!(is_zero(&other[..hole.end]));
        assert!(other[hole.end..] == region[hole.end..]);
        region.fill(7);
        child.fill(8);
        assert_eq!((grandchild[granule + 5], grandchild[granule + 6]), (9, 0));
        assert!(is_zero(&other[..hole.end]));
    });
}

/// Nothing is copied for the fork when the region writes there, and no fault tells of it.
fn writes_to_what_is_left_out_copy_nothing(backing: Backing) {
    each(backing, 2, |mut region, without, granule| {
        let len = region.len();
        let child = without(&region, std::slice::from_ref(&(granule..len)));
        assert_eq!(child.shared_bytes().unwrap(), granule);
        region[granule..].fill(5);
        assert_eq!(child.shared_bytes().unwrap(), granule);
        assert!(is_zero(&child[granule..]) && is_painted(&child[..granule], 1));
    });
}

fn snapshot_can_leave_bytes_out(backing: Backing) {
    each(backing, 3, |mut region, without, granule| {
        drop(without(&region, &[]));
        let hole = granule..granule + 100;
        let fork = region.fork_builder().leave_out(hole.clone());
        let snapshot = Snapshot::of_region(fork).unwrap();
        region.fill(3);
        let mut bytes = vec![0xee; region.len()];
        snapshot.copy_to(&mut bytes).unwrap();
        assert!(has_hole(&bytes, &hole));
    });
}

/// A state without some bytes delivers zeroes for them, also if no thread has written them since the state before. The
/// next state has them again.
fn changes_deliver_zeroes_for_what_is_left_out(backing: Backing) {
    each(backing, 3, |region, without, granule| {
        drop(without(&region, &[]));
        let mut image = vec![0xee; region.len()];
        let hole = granule..granule + 100;
        let epoch = saved(Changes::first(&region).unwrap(), &mut image);
        assert!(is_painted(&image, 1));
        let fork = region.fork_builder().leave_out(hole.clone());
        let epoch = saved(Changes::since(fork, epoch).unwrap(), &mut image);
        assert!(has_hole(&image, &hole));
        drop(saved(Changes::since(&region, epoch).unwrap(), &mut image));
        assert!(is_painted(&image, 1));
    });
}

fn bytes_outside_of_the_region_cannot_be_left_out(backing: Backing) {
    each(backing, 2, |region, _, _| {
        let len = region.len();
        let refused = region.fork_builder().leave_out(5..len + 1).build();
        assert!(
            matches!(&refused, Err(ForkError::OutOfRange { range, .. }) if *range == (5..len + 1)),
            "{refused:?}"
        );
    });
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    fork_has_zeroes_where_bytes_are_left_out,
    fork_leaves_out_parts_of_granules,
    forks_of_forks_inherit_what_the_fork_has,
    writes_to_what_is_left_out_copy_nothing,
    snapshot_can_leave_bytes_out,
    changes_deliver_zeroes_for_what_is_left_out,
    bytes_outside_of_the_region_cannot_be_left_out,
];
