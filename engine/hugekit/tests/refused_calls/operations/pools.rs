//! Pools, and regions that are cleared when they are allocated.

use hugekit::PopulateOptions;
use std::sync::atomic::{AtomicU64, Ordering};

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::region::RegionBuilder;
use hugekit::{Pool, PoolError, Region, RegionError};
use hugekit_bulk::parallel::Threads;

use super::{FOLIOS, Run, is_painted, is_whole, is_zero, paint, soiled};
use crate::case::{Point, have};

pub(super) const EACH: &[(&str, Run)] = hugekit_testing::checks![
    a_pool_is_built,
    a_pool_is_dropped,
    inherited_memory_is_made,
    inherited_memory_is_dropped,
    a_ladder_is_gone_down,
    dirty_folios_are_handed_out,
    holes_are_handed_out,
    a_pool_is_scrubbed,
    a_region_is_dropped,
    a_region_is_prefaulted,
    a_region_is_released,
    a_region_is_truncated,
    a_region_is_retired,
];

fn a_pool_is_built(point: &Point, backing: Backing, _: FaultMode) {
    let builder = Pool::builder(FOLIOS * backing.page_size()).backing(backing).strict(true);
    let builder = builder.in_core_dumps(false).scrub_threads(2);
    let built = point.refuse(|| builder.build());
    let Some(pool) = point.unless_refused(built, PoolError::kind) else { return };
    is_whole(point, &pool);
}

fn a_pool_is_dropped(point: &Point, backing: Backing, _: FaultMode) {
    let builder = Pool::builder(FOLIOS * backing.page_size()).backing(backing).strict(true);
    let pool = have(builder.build(), PoolError::kind);
    point.refuse(|| drop(pool));
}

fn inherited_memory_is_made(point: &Point, backing: Backing, _: FaultMode) {
    let builder = Pool::builder(FOLIOS * backing.page_size()).backing(backing).strict(true);
    let made = point.refuse(|| builder.in_core_dumps(false).build_inherited());
    let Some(memory) = point.unless_refused(made, PoolError::kind) else { return };
    let is_zero = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
    point.check(memory.words().iter().all(is_zero), "not clean");
    memory.words().iter().for_each(|word| word.store(1, Ordering::Relaxed));
}

fn inherited_memory_is_dropped(point: &Point, backing: Backing, _: FaultMode) {
    let builder = Pool::builder(FOLIOS * backing.page_size()).backing(backing).strict(true);
    let memory = have(builder.build_inherited(), PoolError::kind);
    point.refuse(|| drop(memory));
}

fn a_ladder_is_gone_down(point: &Point, backing: Backing, _: FaultMode) {
    let builder = Pool::builder(FOLIOS * backing.page_size()).backing(backing).scrub_threads(0);
    let built = point.refuse(|| builder.build());
    let Some(pool) = point.unless_refused(built, PoolError::kind) else { return };
    is_whole(point, &pool);
}

fn dirty_folios_are_handed_out(point: &Point, backing: Backing, _: FaultMode) {
    allocate(point, &soiled(backing, 1));
}

fn holes_are_handed_out(point: &Point, backing: Backing, _: FaultMode) {
    let builder = Pool::builder(FOLIOS * backing.page_size()).backing(backing).strict(true);
    let builder = builder.scrub_threads(0).populate_on_allocation(true);
    allocate(point, &have(builder.build(), PoolError::kind));
}

fn allocate(point: &Point, pool: &Pool) {
    let threads = Some(Threads::Exactly(2));
    let region = point.refuse(|| {
        threads
            .into_iter()
            .fold(pool.region_builder(pool.capacity()), RegionBuilder::threads)
            .build()
    });
    if let Some(mut region) = point.unless_refused(region, PoolError::kind) {
        point.check(is_zero(&region), "not clean");
        paint(&mut region);
        point.check(is_painted(&region), "not as written");
    }
    is_whole(point, pool);
}

fn a_pool_is_scrubbed(point: &Point, backing: Backing, _: FaultMode) {
    let pool = soiled(backing, 1);
    let scrubbed = point.refuse(|| pool.scrub());
    point.unless_refused(scrubbed, PoolError::kind);
    is_whole(point, &pool);
}

fn a_region_is_dropped(point: &Point, backing: Backing, _: FaultMode) {
    let pool = soiled(backing, 1);
    let mut region = pool.region(pool.capacity()).unwrap();
    paint(&mut region);
    point.refuse(|| drop(region));
    is_whole(point, &pool);
}

fn a_region_is_prefaulted(point: &Point, backing: Backing, _: FaultMode) {
    let pool = soiled(backing, 1);
    let region = pool.region(pool.capacity()).unwrap();
    prefault(point, &pool, region);
}

pub(super) fn prefault(point: &Point, pool: &Pool, region: Region) {
    let done = point.refuse(|| {
        region.populate_with(0..region.len(), &PopulateOptions::new().threads(Threads::Exactly(2)))
    });
    point.unless_refused(done, RegionError::kind);
    point.check(is_zero(&region), "not clean");
    drop(region);
    is_whole(point, pool);
}

fn a_region_is_released(point: &Point, backing: Backing, _: FaultMode) {
    let pool = soiled(backing, 1);
    let region = pool.region(pool.capacity()).unwrap();
    release(point, &pool, region);
}

pub(super) fn release(point: &Point, pool: &Pool, mut region: Region) {
    paint(&mut region);
    let len = region.len();
    let released = point.refuse(|| region.release(0..len));
    match point.unless_refused(released, RegionError::kind) {
        Some(()) => point.check(is_zero(&region), "not zero"),
        None => point.check(is_painted(&region), "changed"),
    }
    drop(region);
    is_whole(point, pool);
}

fn a_region_is_truncated(point: &Point, backing: Backing, _: FaultMode) {
    let pool = soiled(backing, 1);
    let mut region = pool.region(pool.capacity()).unwrap();
    paint(&mut region);
    let (before, len) = (region.len(), backing.page_size());
    let truncated = point.refuse(|| region.truncate(len));
    let truncated = point.unless_refused(truncated, RegionError::kind);
    point.check(region.len() == if truncated.is_some() { len } else { before }, "length");
    point.check(is_painted(&region), "changed");
    drop(region);
    is_whole(point, &pool);
}

/// Its folios go to the kernel, and come anew.
fn a_region_is_retired(point: &Point, backing: Backing, _: FaultMode) {
    let pool = soiled(backing, 2);
    let region = pool.region_builder(pool.capacity() / 2).clearing(Clearing::OnAllocation).build();
    let mut region = region.unwrap();
    paint(&mut region);
    let retired = point.refuse(|| region.retire());
    if point.unless_refused(retired, RegionError::kind).is_some() {
        is_whole(point, &pool);
    }
    let other = pool.region(pool.capacity() / 2).unwrap();
    point.check(is_zero(&other), "not clean");
}
