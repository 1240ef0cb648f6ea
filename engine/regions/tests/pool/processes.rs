//! Children of fork(2), and processes that are killed.

use std::sync::Mutex;
use std::time::Duration;

use hugekit::Region;
use hugekit::pool::{Backing, PoolError};

use crate::backings::{Check, FOLIOS, builder, is_zero};
use crate::child::{in_a_child, killed};

fn pool_in_a_child_is_refused_and_breaks_nothing(backing: Backing) {
    // A name of its own: other tests may be mapping theirs, which a child sees without any access.
    let name = format!("parent's of {backing:?}");
    let pool = builder(backing, FOLIOS).name(&name).build().unwrap();
    let page = backing.page_size();
    let mut region = Some(pool.region(2 * page).unwrap());
    region.as_mut().unwrap().fill(7);
    let shared = pool.region(page).unwrap().share();
    shared.write_at(0, &[9]).unwrap();
    let handles = Mutex::new(Some((pool.clone(), region.take(), shared.clone())));
    let code = in_a_child(|| {
        let (pool, mut region, shared) = handles.lock().unwrap().take().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let refused = [
            matches!(pool.region(page), Err(PoolError::Forked)),
            matches!(pool.stats(), Err(PoolError::Forked)),
            matches!(pool.scrub(), Err(PoolError::Forked)),
            matches!(pool.pause_scrubbing(), Err(PoolError::Forked)),
            matches!(pool.resume_scrubbing(), Err(PoolError::Forked)),
            region.as_mut().unwrap().release(0..page).is_err(),
            region.as_mut().unwrap().truncate(page).is_err(),
            region.as_ref().unwrap().populate(0..page).is_err(),
            region.take().unwrap().retire().is_err(),
            shared.release(0..page).is_err(),
            !maps.contains(&name),
        ];
        drop((pool, region, shared));
        refused.iter().position(|&refused| !refused).map_or(0, |at| at as i32 + 1)
    });
    assert_eq!(code, 0);
    let (_, region, _) = handles.into_inner().unwrap().unwrap();
    assert!(region.unwrap().iter().all(|&byte| byte == 7));
    let mut byte = [0];
    shared.read_at(0, &mut byte).unwrap();
    assert_eq!(byte, [9]);
}

fn build_in_a_child_makes_a_pool_of_its_own(backing: Backing) {
    let pool = builder(backing, FOLIOS).build().unwrap();
    let code = in_a_child(|| {
        let own = builder(backing, FOLIOS).build().unwrap();
        own.region(own.capacity()).unwrap().fill(1);
        i32::from(!is_zero(&own.region(own.capacity()).unwrap()))
    });
    assert_eq!(code, 0);
    drop(pool);
}

/// Forks while other threads hold the pool's lock as often as they can.
fn region_in_a_child_born_meanwhile_is_refused(backing: Backing) {
    let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
    let done = hugekit::Cancel::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.is_cancelled() {
                pool.region(page).unwrap()[0] = 1;
            }
        });
        for _ in 0..20 {
            let inherited = Mutex::new(Some(pool.clone()));
            let code = in_a_child(|| {
                let pool = inherited.lock().unwrap().take().unwrap();
                i32::from(!matches!(pool.region(page), Err(PoolError::Forked)))
            });
            assert_eq!(code, 0);
        }
        done.cancel();
    });
}

/// Killed while it makes pools, allocates, scrubs and drops, a process leaves nothing behind: together
/// these have more huge pages than a machine reserves for tests.
fn pool_of_a_killed_process_leaves_nothing_behind(backing: Backing) {
    let page = backing.page_size();
    for round in 0..100 {
        killed(Duration::from_micros(200 * round), || {
            loop {
                let pool = builder(backing, FOLIOS).populate_on_allocation(false).build().unwrap();
                let mut regions: Vec<Region> = (0..4).map(|_| pool.region(page).unwrap()).collect();
                regions.iter_mut().for_each(|region| region[0] = 1);
                regions.truncate(2);
                pool.region((FOLIOS - 2) * page).unwrap()[0] = 1;
            }
        });
    }
    assert!(is_zero(&builder(backing, FOLIOS).build().unwrap().region(FOLIOS * page).unwrap()));
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    pool_in_a_child_is_refused_and_breaks_nothing,
    build_in_a_child_makes_a_pool_of_its_own,
    region_in_a_child_born_meanwhile_is_refused,
    pool_of_a_killed_process_leaves_nothing_behind,
];
