//! Regions that are cleared when they are touched.

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::{Pool, PoolError, Region, RegionError};

use super::pools::{prefault, release};
use super::{Run, is_painted, is_whole, is_zero, paint, soiled};
use crate::case::Point;

pub(super) const EACH: &[(&str, Run)] = hugekit_testing::checks![
    a_served_region_is_built,
    a_served_region_is_touched,
    a_served_region_is_made_ready,
    a_served_region_is_prefaulted,
    a_served_region_is_released,
    a_served_region_is_truncated,
    a_served_region_is_dropped,
    a_served_region_is_retired,
];

fn build(pool: &Pool, fault_mode: FaultMode) -> Result<Region, PoolError> {
    let builder = pool.region_builder(pool.capacity()).clearing(Clearing::OnFault);
    builder.fault_mode(fault_mode).build()
}

fn a_served_region_is_built(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let pool = soiled(backing, 1);
    let region = point.refuse(|| build(&pool, fault_mode));
    if let Some(mut region) = point.unless_refused(region, PoolError::kind) {
        point.check(is_zero(&region), "not clean");
        paint(&mut region);
        point.check(is_painted(&region), "not as written");
    }
    is_whole(point, &pool);
}

fn a_served_region_is_touched(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let pool = soiled(backing, 1);
    let mut region = build(&pool, fault_mode).unwrap();
    let clean = point.refuse(|| {
        let clean = is_zero(&region[..1]);
        paint(&mut region);
        clean
    });
    point.check(clean, "not clean");
    point.check(is_painted(&region), "not as written");
    drop(region);
    is_whole(point, &pool);
}

fn a_served_region_is_made_ready(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let pool = soiled(backing, 1);
    let region = build(&pool, fault_mode).unwrap();
    let ready = point.refuse(|| region.prepare_write(0..region.len()));
    point.unless_refused(ready, RegionError::kind);
    point.check(is_zero(&region), "not clean");
    drop(region);
    is_whole(point, &pool);
}

fn a_served_region_is_prefaulted(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let pool = soiled(backing, 1);
    let region = build(&pool, fault_mode).unwrap();
    prefault(point, &pool, region);
}

fn a_served_region_is_released(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let pool = soiled(backing, 1);
    let region = build(&pool, fault_mode).unwrap();
    release(point, &pool, region);
}

fn a_served_region_is_truncated(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let pool = soiled(backing, 1);
    let mut region = build(&pool, fault_mode).unwrap();
    region[5] = 7;
    let (before, len) = (region.len(), backing.page_size());
    let truncated = point.refuse(|| region.truncate(len));
    let truncated = point.unless_refused(truncated, RegionError::kind);
    point.check(region.len() == if truncated.is_some() { len } else { before }, "length");
    point.check(region[5] == 7 && is_zero(&region[6..]), "changed");
    drop(region);
    is_whole(point, &pool);
}

fn a_served_region_is_dropped(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let pool = soiled(backing, 1);
    let mut region = build(&pool, fault_mode).unwrap();
    region[0] = 7;
    point.refuse(|| drop(region));
    is_whole(point, &pool);
}

fn a_served_region_is_retired(point: &Point, backing: Backing, fault_mode: FaultMode) {
    let pool = soiled(backing, 1);
    let mut region = build(&pool, fault_mode).unwrap();
    region[0] = 7;
    let retired = point.refuse(|| region.retire());
    if point.unless_refused(retired, RegionError::kind).is_some() {
        is_whole(point, &pool);
    }
}
