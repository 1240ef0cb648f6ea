//! Random trees of forks, each member with a model of its own.

use hugekit::region::PinnedRange;
use hugekit::{Pool, Region, SharedRegion};

use super::moments::read_out;
use super::regions::{soiled, step};
use crate::model::Tracked;
use crate::status::Count;
use crate::world::World;

const MOST_MEMBERS: usize = 6;

struct Member {
    tracked: Tracked,
    pinned: Option<PinnedRange>,
    region: SharedRegion,
}

pub(super) fn families(world: &mut World) {
    let backing = world.backing();
    let folios = world.folios(backing).div_ceil(2);
    // A snapshot is a member, too.
    let Some(pool) = soiled(world, backing, (MOST_MEMBERS + 1) * folios) else { return };
    let len = folios * backing.page_size();
    let Some((region, tracked)) = super::regions::region(world, &pool, len) else { return };
    let mut members = vec![Member { tracked, pinned: None, region }];
    for _ in 0..2 * world.steps() {
        let at = world.rng.usize(0..members.len());
        grow(world, &pool, &mut members, at);
    }
    for member in &members {
        world.verified(member.tracked.check("member of a family"));
    }
    while !members.is_empty() {
        let at = world.rng.usize(0..members.len());
        drop(members.swap_remove(at));
        for member in &members {
            world.verified(member.tracked.check("member that is left"));
        }
    }
    assert_eq!(pool.stats().expect("this process's").in_use, 0);
}

fn grow(world: &mut World, pool: &Pool, members: &mut Vec<Member>, at: usize) {
    match world.rng.u32(0..10) {
        0..2 if members.len() < MOST_MEMBERS => {
            let forked = fork(world, pool, &members[at]);
            members.extend(forked);
        }
        2 if members.len() > 1 => drop(members.swap_remove(at)),
        3 => pin(world, &mut members[at]),
        4 => snapshot(world, &members[at]),
        _ => {
            let Member { tracked, region, .. } = &mut members[at];
            step(world, region, tracked);
        }
    }
    world.beat();
}

fn fork(world: &mut World, pool: &Pool, parent: &Member) -> Option<Member> {
    let least = parent.tracked.least();
    let made = match parent.region.shared_bytes() {
        // The first fork's wishes hold for the family.
        Ok(_) if world.rng.bool() => parent.region.fork(),
        _ => parent.region.fork_builder().handling(world.handling).build(),
    };
    let made = match made {
        Err(hugekit::region::ForkError::HandlingDiffers { .. }) => return None,
        made => made,
    };
    let region: Region = world.unless_short(made)?;
    assert_eq!(region.pool().capacity(), pool.capacity());
    let model = parent.tracked.moment(&least);
    world.count(Count::Forks);
    let region = region.share();
    // SAFETY: a member's region is dropped after what tracks it.
    let tracked = unsafe { Tracked::new(region.as_ptr(), model) };
    Some(Member { tracked, pinned: None, region })
}

fn pin(world: &mut World, member: &mut Member) {
    let range = world.part_of(member.region.len());
    member.pinned = match member.pinned.take() {
        Some(_) => None,
        None => Some(member.region.pin(range).expect("there is memory for it")),
    };
}

fn snapshot(world: &mut World, member: &Member) {
    let least = member.tracked.least();
    let Some(snapshot) = world.unless_short(member.region.snapshot()) else { return };
    let model = member.tracked.moment(&least);
    world.count(Count::Snapshots);
    let read = read_out(world, snapshot, &|offset, bytes| model.check(offset, bytes, "snapshot"));
    read.expect("a region's snapshot is never lost");
}
