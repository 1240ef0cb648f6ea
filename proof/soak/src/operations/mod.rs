//! The scenarios. Each makes its own memory, has handlers touch it, checks every byte and leaves nothing behind.

mod advice;
mod children;
mod fork_groups;
mod jobs;
mod moments;
mod pools;
mod readers;
mod regions;
mod several;

use std::sync::atomic::Ordering;

use hugekit::fault::FaultMode;

use crate::world::World;

/// A scenario.
#[derive(Debug)]
pub struct Operation {
    pub name: &'static str,
    pub run: fn(&mut World),
    /// True if it differs by the server of faults.
    pub is_served: bool,
    /// True if signals may come between any two instructions of it. False if that would take too long.
    pub can_step: bool,
}

const fn served(name: &'static str, run: fn(&mut World)) -> Operation {
    Operation { name, run, is_served: true, can_step: true }
}

const fn plain(name: &'static str, run: fn(&mut World)) -> Operation {
    Operation { name, run, is_served: false, can_step: true }
}

pub const OPERATIONS: &[Operation] = &[
    served("regions", regions::regions),
    plain("pools", pools::pools),
    served("fork_groups", fork_groups::fork_groups),
    served("forks_are_moments", moments::forks),
    served("region_snapshots", moments::of_region),
    served("snapshots", moments::of_anonymous),
    served("snapshots_under_readers", readers::overlapping),
    served("several_snapshots", several::several),
    plain("jobs", jobs::jobs),
    served("reserves", several::reserves),
    served("children", children::children),
    Operation { can_step: false, ..served("advice", advice::advice) },
];

/// The server of faults, of an operation that differs by it.
pub const FAULT_MODES: [(&str, FaultMode); 2] =
    [("in_place", FaultMode::InPlace), ("threaded", FaultMode::Threaded { threads: 1 })];

impl Operation {
    /// Runs it once with a seed.
    ///
    /// # Panics
    /// If a byte is wrong, or a call fails that must not.
    pub fn run(&'static self, world: &mut World, seed: u64) {
        let index = OPERATIONS.iter().position(|other| other.name == self.name).unwrap_or(0);
        let (doing, seeds) = (&world.status.doing[world.actor], &world.status.seeds[world.actor]);
        seeds.store(seed, Ordering::Relaxed);
        doing.store(index as u32 + 1, Ordering::Relaxed);
        world.rng = fastrand::Rng::with_seed(seed);
        let every = world.every;
        crate::step::every(every, || (self.run)(world));
        world.status.doing[world.actor].store(0, Ordering::Relaxed);
        world.beat();
        if let Some(implausible) = crate::exposed::implausible() {
            panic!("{}, seed {seed}: {implausible}", self.name);
        }
    }
}
