//! Forks of regions, and snapshots of regions.

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::region::ForkError;
use hugekit::snapshot::{Changes, Epoch};
use hugekit::{Pool, Region, RegionError, Snapshot, SnapshotError};
use hugekit_testing::states::{saved, try_save};

use super::{
    FOLIOS, Run, is_filled, is_painted, is_whole, is_zero, is_zero_or_painted, paint, soiled,
};
use crate::case::Point;

pub(super) const EACH: &[(&str, Run)] = hugekit_testing::checks![
    a_region_is_forked,
    a_fork_is_forked,
    forks_are_written,
    a_fork_is_made_ready,
    a_fork_that_was_read_is_made_ready,
    a_fork_is_prefaulted,
    a_fork_is_released,
    a_fork_is_truncated,
    forks_are_dropped,
    a_fork_is_retired,
    a_range_is_pinned,
    a_region_is_snapshotted,
    a_snapshotted_region_is_written,
    a_snapshot_of_a_region_is_read,
    a_watched_region_is_written,
    a_state_follows_an_epoch_of_a_region,
];

/// What goes another way on transparent huge pages: in place, the rights of mappings hold writes back; where threads serve
/// faults, what is shared is taken out of the page tables.
pub(super) const ON_HUGE_PAGES: &[(&str, Run)] =
    hugekit_testing::checks![a_region_is_forked, forks_are_written,];

/// A pool of three regions, and one of them, painted.
fn pool(backing: Backing) -> (Pool, Region) {
    let pool = soiled(backing, 3);
    let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
    paint(&mut region);
    (pool, region)
}

fn region_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    paint(&mut bytes);
    bytes
}

fn fork(region: &Region, fault_mode: FaultMode) -> Result<Region, ForkError> {
    region.fork_builder().fault_mode(fault_mode).build()
}

fn a_region_is_forked(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, mut region) = pool(backing);
    let forked = point.refuse(|| fork(&region, fault_mode));
    if let Some(mut other) = point.unless_refused(forked, ForkError::kind) {
        region.fill(2);
        point.check(is_painted(&other), "the fork changed");
        other.fill(3);
        point.check(is_filled(&region, 2), "the region changed");
    } else {
        point.check(is_painted(&region), "the region changed");
        region.fill(2);
    }
    drop(region);
    is_whole(point, &pool);
}

fn a_fork_is_forked(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, mut region) = pool(backing);
    let mut child = fork(&region, fault_mode).unwrap();
    child[0] = !child[0];
    region[1] = !region[1];
    let forked = point.refuse(|| child.fork());
    if let Some(grandchild) = point.unless_refused(forked, ForkError::kind) {
        point.check(*grandchild == *child, "the fork differs");
        child.fill(2);
        point.check(grandchild[1..9] == region_bytes()[1..9], "the fork changed");
    }
    region[1] = !region[1];
    point.check(is_painted(&region), "the region changed");
    drop((region, child));
    is_whole(point, &pool);
}

fn forks_are_written(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, mut region) = pool(backing);
    let mut child = fork(&region, fault_mode).unwrap();
    let last = fork(&child, fault_mode).unwrap();
    point.refuse(|| {
        region.fill(2);
        point.keeps(&region, 2);
        child.fill(3);
    });
    point.keeps(&[], 0);
    point.check(is_filled(&region, 2), "the region is not as written");
    point.check(is_filled(&child, 3), "the fork is not as written");
    point.check(is_painted(&last), "the last fork changed");
    drop((region, child, last));
    is_whole(point, &pool);
}

fn a_fork_is_made_ready(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, region) = pool(backing);
    let child = fork(&region, fault_mode).unwrap();
    let ready = point.refuse(|| child.prepare_write(0..child.len()));
    point.unless_refused(ready, RegionError::kind);
    point.check(is_painted(&region) && is_painted(&child), "changed");
    drop((region, child));
    is_whole(point, &pool);
}

fn a_fork_that_was_read_is_made_ready(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, mut region) = pool(backing);
    let child = fork(&region, fault_mode).unwrap();
    point.check(is_painted(&child), "the fork differs");
    let ready = point.refuse(|| child.prepare_write(0..child.len()));
    point.unless_refused(ready, RegionError::kind);
    region.fill(2);
    point.check(is_painted(&child), "the fork changed");
    drop((region, child));
    is_whole(point, &pool);
}

fn a_fork_is_prefaulted(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, region) = pool(backing);
    let child = fork(&region, fault_mode).unwrap();
    let done = point.refuse(|| child.populate(0..child.len()));
    point.unless_refused(done, RegionError::kind);
    point.check(is_painted(&region) && is_painted(&child), "changed");
    drop((region, child));
    is_whole(point, &pool);
}

fn a_fork_is_released(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, region) = pool(backing);
    let mut child = fork(&region, fault_mode).unwrap();
    let len = child.len();
    let released = point.refuse(|| child.release(0..len));
    match point.unless_refused(released, RegionError::kind) {
        Some(()) => point.check(is_zero(&child), "not zero"),
        None => point.check(is_zero_or_painted(&child), "neither what it was nor zero"),
    }
    point.check(is_painted(&region), "the region changed");
    drop((region, child));
    is_whole(point, &pool);
}

fn a_fork_is_truncated(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, region) = pool(backing);
    let mut child = fork(&region, fault_mode).unwrap();
    let len = backing.page_size();
    let truncated = point.refuse(|| child.truncate(len));
    let truncated = point.unless_refused(truncated, RegionError::kind);
    let expected = if truncated.is_some() { len } else { region.len() };
    point.check(child.len() == expected, "length");
    point.check(is_painted(&region) && is_painted(&child), "changed");
    drop((region, child));
    is_whole(point, &pool);
}

fn forks_are_dropped(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, mut region) = pool(backing);
    let mut child = fork(&region, fault_mode).unwrap();
    child[0] = 7;
    region[1] = 7;
    point.refuse(|| drop((region, child)));
    is_whole(point, &pool);
}

fn a_fork_is_retired(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, region) = pool(backing);
    let child = fork(&region, fault_mode).unwrap();
    let retired = point.refuse(|| child.retire());
    let retired = point.unless_refused(retired, RegionError::kind);
    point.check(is_painted(&region), "the region changed");
    drop(region);
    if retired.is_some() {
        is_whole(point, &pool);
    }
}

fn a_range_is_pinned(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, region) = pool(backing);
    let fork = fork(&region, fault_mode).unwrap();
    let region = region.share();
    let len = region.len();
    let pinned = point.refuse(|| region.pin(0..len));
    if let Some(pinned) = point.unless_refused(pinned, RegionError::kind) {
        // A handler thread that was refused its first read meanwhile leaves the group to the kernel.
        if let Some(moment) = point.unless_refused(region.fork(), ForkError::kind) {
            region.words()[0].store(7, std::sync::atomic::Ordering::Relaxed);
            point.check(is_painted(&moment), "the fork changed");
        }
        drop(pinned);
    }
    point.check(is_painted(&fork), "the fork changed");
    drop((region, fork));
    is_whole(point, &pool);
}

fn snapshot(region: &Region, fault_mode: FaultMode) -> Result<Snapshot, SnapshotError> {
    Snapshot::of_region(region.fork_builder().fault_mode(fault_mode))
}

fn copied(point: &Point, snapshot: Snapshot) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    let read = snapshot.write_to(&mut copy);
    point.unless_refused(read, SnapshotError::kind).map(|_| copy)
}

fn a_region_is_snapshotted(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, mut region) = pool(backing);
    let taken = point.refuse(|| snapshot(&region, fault_mode));
    if let Some(snapshot) = point.unless_refused(taken, SnapshotError::kind) {
        region.fill(2);
        let copy = copied(point, snapshot);
        point.check(copy.is_some_and(|copy| is_painted(&copy)), "the snapshot changed");
    } else {
        point.check(is_painted(&region), "the region changed");
    }
    drop(region);
    is_whole(point, &pool);
}

fn a_snapshotted_region_is_written(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, mut region) = pool(backing);
    let snapshot = snapshot(&region, fault_mode).unwrap();
    point.refuse(|| region.fill(2));
    point.check(is_filled(&region, 2), "not as written");
    if let Some(copy) = copied(point, snapshot) {
        point.check(is_painted(&copy), "the snapshot changed");
    }
    drop(region);
    is_whole(point, &pool);
}

fn a_snapshot_of_a_region_is_read(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, mut region) = pool(backing);
    let snapshot = snapshot(&region, fault_mode).unwrap();
    region[0] = !region[0];
    let mut copy = Vec::new();
    let read = point.refuse(|| snapshot.write_to(&mut copy));
    if point.unless_refused(read, SnapshotError::kind).is_some() {
        point.check(is_painted(&copy), "the snapshot changed");
    }
    region[0] = !region[0];
    point.check(is_painted(&region), "the region changed");
    drop(region);
    is_whole(point, &pool);
}

fn begun(region: &Region, fault_mode: FaultMode) -> (Epoch, Vec<u8>) {
    let mut image = vec![0; region.len()];
    let changes = Changes::first(region.fork_builder().fault_mode(fault_mode)).unwrap();
    (saved(changes, &mut image), image)
}

/// The next state has what was written, whatever was refused before; or there is none.
fn is_gone_on_from(point: &Point, region: &mut Region, epoch: Epoch, mut image: Vec<u8>) {
    let next = Changes::since(&*region, epoch).and_then(|changes| try_save(changes, &mut image));
    if point.unless_lost(next, SnapshotError::kind).is_some() {
        point.check(region[..] == image, "a write was forgotten");
    }
    region.fill(3);
    point.check(is_filled(region, 3), "not as written");
}

fn a_watched_region_is_written(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, mut region) = pool(backing);
    let (epoch, image) = begun(&region, fault_mode);
    point.refuse(|| region.fill(2));
    is_gone_on_from(point, &mut region, epoch, image);
    drop(region);
    is_whole(point, &pool);
}

fn a_state_follows_an_epoch_of_a_region(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let (pool, mut region) = pool(backing);
    let (epoch, image) = begun(&region, fault_mode);
    region[5] = !region[5];
    point.refuse(|| is_gone_on_from(point, &mut region, epoch, image));
    drop(region);
    is_whole(point, &pool);
}
