//! Touches of one byte, and the target of the clear or copy that each of them causes.

use std::sync::atomic::Ordering;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::snapshot::{Granule, Snapshot};
use hugekit::{Pool, Region};
use hugekit_bulk::sweep::last_target;
use hugekit_testing::memory::Memory;
use hugekit_testing::{backings, checks, served};
use rustix::param::page_size;

pub(crate) type Touch = fn(Backing, FaultMode) -> Option<usize>;

pub(crate) const GRANULES: usize = 4;

/// Touches of regions.
pub(crate) const OF_REGIONS: &[(&str, Touch)] = checks![
    clear_on_fault,
    copy_for_a_writing_fork,
    copy_beside_a_writing_parent,
    copy_for_a_snapshot_of_a_region,
];

/// Touches of anonymous memory, on base pages or transparent huge pages.
pub(crate) const OF_ANONYMOUS: &[(&str, Touch)] = checks![copy_for_a_snapshot];

pub(crate) fn granule(backing: Backing) -> usize {
    backing.page_size().max(64 << 10)
}

/// A word in the middle of a granule, and neither the first nor the last one of its page.
pub(crate) fn touched(granule: usize) -> usize {
    2 * granule + granule / 2 + page_size() / 4 + 8
}

fn write(bytes: &mut [u8]) -> Option<usize> {
    last_target::take();
    bytes[touched(bytes.len() / GRANULES)] = 2;
    last_target::take()
}

fn clear_on_fault(backing: Backing, fault_mode: FaultMode) -> Option<usize> {
    let len = GRANULES * granule(backing);
    let pool = served::soiled(backing, len / backing.page_size());
    write(&mut served::at_fault(&pool, len, fault_mode))
}

/// A region that was written, and room for its fork.
fn written(backing: Backing, granule: usize) -> (Pool, Region) {
    let len = GRANULES * granule;
    let pool = backings::builder(backing, 2 * len / backing.page_size());
    let pool = pool.scrub_threads(0).build().unwrap();
    let mut region = pool.region(len).unwrap();
    region.fill(1);
    (pool, region)
}

fn copy_for_a_writing_fork(backing: Backing, fault_mode: FaultMode) -> Option<usize> {
    let (_pool, region) = written(backing, granule(backing));
    write(&mut region.fork_builder().fault_mode(fault_mode).build().unwrap())
}

fn copy_beside_a_writing_parent(backing: Backing, fault_mode: FaultMode) -> Option<usize> {
    let (_pool, mut region) = written(backing, granule(backing));
    let _fork = region.fork_builder().fault_mode(fault_mode).build().unwrap();
    write(&mut region)
}

fn copy_for_a_snapshot_of_a_region(backing: Backing, fault_mode: FaultMode) -> Option<usize> {
    let (_pool, mut region) = written(backing, granule(backing));
    let _snapshot = Snapshot::of_region(region.fork_builder().fault_mode(fault_mode)).unwrap();
    write(&mut region)
}

/// Of so little that the kernel makes the copy, because a look at the handlers would take longer.
pub(crate) fn copy_of_a_page(fault_mode: FaultMode) -> Option<usize> {
    let (_pool, region) = written(Backing::Base, page_size());
    let fork = region.fork_builder().granule(page_size()).fault_mode(fault_mode);
    write(&mut fork.build().unwrap())
}

#[allow(unsafe_code)]
fn copy_for_a_snapshot(backing: Backing, fault_mode: FaultMode) -> Option<usize> {
    let (is_huge, granule_bytes) = (backing != Backing::Base, granule(backing));
    let memory = Memory::filled(GRANULES * granule_bytes, is_huge, 1);
    let granule = if is_huge { Granule::Huge } else { Granule::Small };
    let builder = Snapshot::builder().granule(granule).fault_mode(fault_mode);
    // SAFETY: only this thread accesses the memory, after the snapshot was taken; it takes SIGBUS, and no system call
    // writes there.
    let snapshot = unsafe { builder.of_anonymous(memory.range()) }.unwrap();
    last_target::take();
    memory.words()[touched(granule_bytes) / 8].store(2, Ordering::Relaxed);
    let target = last_target::take();
    drop(snapshot);
    target
}
