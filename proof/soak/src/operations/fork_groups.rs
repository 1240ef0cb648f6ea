//! Random trees of forks, each forked with a model of its own.

use hugekit::region::PinnedRange;
use hugekit::{Pool, Region, SharedRegion};

use super::moments::read_out;
use super::regions::{soiled, step};
use crate::model::Tracked;
use crate::status::Count;
use crate::world::World;

const MOST_REGIONS: usize = 6;

struct Forked {
    tracked: Tracked,
    pinned: Option<PinnedRange>,
    region: SharedRegion,
}

pub(super) fn fork_groups(world: &mut World) {
    let backing = world.backing();
    let folios = world.folios(backing).div_ceil(2);
    // A snapshot is a forked, too.
    let Some(pool) = soiled(world, backing, (MOST_REGIONS + 1) * folios) else { return };
    let len = folios * backing.page_size();
    let Some((region, tracked)) = super::regions::region(world, &pool, len) else { return };
    let mut regions = vec![Forked { tracked, pinned: None, region }];
    for _ in 0..2 * world.steps() {
        let at = world.rng.usize(0..regions.len());
        grow(world, &pool, &mut regions, at);
    }
    for forked in &regions {
        world.verified(forked.tracked.check("region of a fork group"));
    }
    while !regions.is_empty() {
        let at = world.rng.usize(0..regions.len());
        drop(regions.swap_remove(at));
        for forked in &regions {
            world.verified(forked.tracked.check("region that is left"));
        }
    }
    assert_eq!(pool.stats().expect("this process's").in_use, 0);
}

fn grow(world: &mut World, pool: &Pool, regions: &mut Vec<Forked>, at: usize) {
    match world.rng.u32(0..10) {
        0..2 if regions.len() < MOST_REGIONS => {
            let forked = fork(world, pool, &regions[at]);
            regions.extend(forked);
        }
        2 if regions.len() > 1 => drop(regions.swap_remove(at)),
        3 => pin(world, &mut regions[at]),
        4 => snapshot(world, &regions[at]),
        _ => {
            let Forked { tracked, region, .. } = &mut regions[at];
            step(world, region, tracked);
        }
    }
    world.beat();
}

fn fork(world: &mut World, pool: &Pool, parent: &Forked) -> Option<Forked> {
    let least = parent.tracked.least();
    let made = match parent.region.shared_bytes() {
        // What the first fork says holds for the fork group.
        Ok(_) if world.rng.bool() => parent.region.fork(),
        _ => parent.region.fork_builder().fault_mode(world.fault_mode).build(),
    };
    let made = match made {
        Err(hugekit::region::ForkError::FaultModeDiffers { .. }) => return None,
        made => made,
    };
    let region: Region = world.unless_short(made)?;
    assert_eq!(region.pool().capacity(), pool.capacity());
    let model = parent.tracked.moment(&least);
    world.count(Count::Forks);
    let region = region.share();
    // SAFETY: a forked's region is dropped after what tracks it.
    let tracked = unsafe { Tracked::new(region.as_ptr(), model) };
    Some(Forked { tracked, pinned: None, region })
}

fn pin(world: &mut World, forked: &mut Forked) {
    let range = world.part_of(forked.region.len());
    forked.pinned = match forked.pinned.take() {
        Some(_) => None,
        None => Some(forked.region.pin(range).expect("there is memory for it")),
    };
}

fn snapshot(world: &mut World, forked: &Forked) {
    let least = forked.tracked.least();
    let Some(snapshot) = world.unless_short(hugekit::Snapshot::of_region(&forked.region)) else {
        return;
    };
    let model = forked.tracked.moment(&least);
    world.count(Count::Snapshots);
    let read = read_out(world, snapshot, &|offset, bytes| model.check(offset, bytes, "snapshot"));
    read.expect("a region's snapshot is never lost");
}
