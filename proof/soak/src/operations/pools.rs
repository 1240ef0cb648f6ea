//! Pools with scrubbers of their own: what comes back dirty is clean when it is allocated again.

use hugekit::pool::Clearing;
use hugekit::{Pool, Threads};

use crate::model::{CELL_BYTES, Model, Tracked};
use crate::status::Count;
use crate::world::World;

pub(super) fn pools(world: &mut World) {
    let backing = world.backing();
    let folios = world.folios(backing);
    let builder = Pool::builder(folios * backing.page_size()).backing(backing).strict(true);
    let threads = if world.rng.bool() { Threads::One } else { Threads::Exactly(2) };
    let builder = builder.scrub_threads(world.rng.usize(0..3)).threads(threads);
    let marks = (world.rng.usize(0..folios), folios);
    let builder = if world.one_in(3) {
        builder.watermarks(marks.0 * backing.page_size(), marks.1 * backing.page_size())
    } else {
        builder
    };
    let builder = builder.populate_on_allocation(world.rng.bool());
    let Some(pool) = world.pool(&builder) else { return };
    for _ in 0..world.steps() {
        churn(world, &pool, folios);
    }
    let stats = pool.stats().expect("this is the process that made it");
    assert_eq!(stats.in_use, 0, "{stats:?}");
}

fn churn(world: &mut World, pool: &Pool, folios: usize) {
    match world.rng.u32(0..8) {
        0 => drop(pool.scrub().expect("it clears")),
        1 => pool.pause_scrubbing().expect("it rests"),
        2 => pool.resume_scrubbing().expect("it goes on"),
        _ => {
            let len = world.rng.usize(1..=folios) * pool.page_size();
            let made = pool.region_builder(len).clearing(Clearing::OnAllocation).build();
            let Some(region) = world.unless_short(made) else { return };
            world.count(Count::Regions);
            let region = region.share();
            let model = Model::zeroed(region.mapped_len());
            // SAFETY: the region outlives it.
            let mut tracked = unsafe { Tracked::new(region.as_ptr(), model) };
            world.verified(tracked.check("allocated"));
            tracked.write(world.part_of(region.mapped_len() / CELL_BYTES), world.tag());
            world.verified(tracked.check("written"));
            drop(tracked);
        }
    }
    world.beat();
}
