//! Regions, cleared at allocation and at the fault: touched, released, made ready, cut, dropped.

use hugekit::PopulateOptions;
use hugekit::pool::{Backing, Clearing};
use hugekit::{Pool, SharedRegion, Threads};

use crate::model::{CELL_BYTES, Model, PAGE_BYTES, Tracked};
use crate::status::Count;
use crate::world::World;

/// Bytes that earlier regions leave in a pool: no owner of a later one may see it.
const SOIL: u8 = 0xd1;

pub(super) fn regions(world: &mut World) {
    let backing = world.backing();
    let folios = world.folios(backing);
    let Some(pool) = soiled(world, backing, folios) else { return };
    for _ in 0..world.rng.u32(1..4) {
        let len = world.rng.usize(1..=folios) * backing.page_size();
        let Some((region, mut tracked)) = region(world, &pool, len) else { return };
        for _ in 0..world.steps() {
            step(world, &region, &mut tracked);
        }
        world.verified(tracked.check("region"));
        end_region(world, region, tracked);
    }
}

/// A pool of which all is dirty.
pub(super) fn soiled(world: &mut World, backing: Backing, folios: usize) -> Option<Pool> {
    let builder = Pool::builder(folios * backing.page_size()).backing(backing).strict(true);
    let pool = world.pool(&builder.scrub_threads(0))?;
    world.unless_short(pool.region(pool.capacity()))?.fill(SOIL);
    Some(pool)
}

/// A region, cleared at random times, and its expected content.
pub(super) fn region(
    world: &mut World,
    pool: &Pool,
    len: usize,
) -> Option<(SharedRegion, Tracked)> {
    let at_fault = !world.one_in(3);
    let clearing = if at_fault { Clearing::OnFault } else { Clearing::OnAllocation };
    let threads = if world.rng.bool() { Threads::One } else { Threads::Exactly(2) };
    let builder = pool.region_builder(len).clearing(clearing).fault_mode(world.fault_mode);
    let region = world.unless_short(builder.threads(threads).build())?.share();
    world.count(Count::Regions);
    // SAFETY: `region` outlives what tracks it, in every caller.
    let tracked = unsafe { Tracked::new(region.as_ptr(), Model::zeroed(region.mapped_len())) };
    Some((region, tracked))
}

/// Something that may be done to any region.
pub(super) fn step(world: &mut World, region: &SharedRegion, tracked: &mut Tracked) {
    let folio = region.pool().page_size();
    let bytes = world.part_of(region.len());
    match world.rng.u32(0..10) {
        0..5 => {
            let cells = world.part_of(tracked.bytes() / CELL_BYTES);
            let most = cells.start + if world.rng.bool() { 1 } else { cells.len() };
            tracked.write(cells.start..most, world.tag());
            world.count(Count::Writes);
        }
        5 | 6 => {
            let folios = world.part_of(region.mapped_len() / folio);
            let pages = folio / PAGE_BYTES;
            tracked.release(folios.start * pages..folios.end * pages, || {
                region.release(folios.start * folio..folios.end * folio).expect("whole folios");
            });
            world.count(Count::Releases);
        }
        7 => region.prepare_write(bytes).expect("there is memory for it"),
        8 => {
            let threads = if world.rng.bool() { Threads::One } else { Threads::Exactly(2) };
            region
                .populate_with(bytes, &PopulateOptions::new().threads(threads))
                .expect("it is populated");
        }
        _ => world.verified(tracked.check("region, meanwhile")),
    }
    world.beat();
}

/// Dropped, retired or cut first.
fn end_region(world: &mut World, region: SharedRegion, mut tracked: Tracked) {
    // SAFETY: handlers touch it, by its address, only where it is still mapped.
    let Ok(mut region) = (unsafe { region.into_exclusive() }) else { return };
    match world.rng.u32(0..4) {
        0 => {
            let len = world.rng.usize(1..=region.len());
            let kept = len.next_multiple_of(region.pool().page_size());
            tracked.truncate(kept, || region.truncate(len).expect("shorter"));
            world.verified(tracked.check("region, cut"));
            drop(tracked);
        }
        1 => {
            drop(tracked);
            region.retire().expect("the kernel takes it back");
        }
        _ => drop(tracked),
    }
}
