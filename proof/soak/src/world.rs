//! A scenario's surroundings: its choices, and the place that it reports to.

use std::sync::atomic::Ordering;

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, FaultError, PoolBuilder};
use hugekit::region::ForkError;
use hugekit::{HUGE_PAGE_BYTES, Pool, PoolError, SnapshotError};

use crate::status::{Count, Status};

/// The size of scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// Some base pages: every instruction costs two signals.
    Stepped,
    /// A few huge pages.
    Short,
    /// Megabytes.
    Soak,
}

/// The random numbers, the options and the status of an actor.
#[derive(Debug)]
pub struct World {
    pub rng: fastrand::Rng,
    pub fault_mode: FaultMode,
    pub size: Size,
    /// Instructions from one signal to the next, in each thread of a scenario; 0 if it is not stepped.
    pub every: u32,
    pub actor: usize,
    pub status: &'static Status,
}

impl World {
    /// Another thread's of the same scenario.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self { rng: self.rng.fork(), ..*self }
    }

    pub fn beat(&self) {
        self.status.beats[self.actor].fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self, what: Count) {
        self.status.add(what, 1);
        self.beat();
    }

    pub fn verified(&self, bytes: usize) {
        self.status.add(Count::BytesVerified, bytes as u64);
        self.beat();
    }

    /// Returns true once in this many times, at random.
    pub fn one_in(&mut self, times: u32) -> bool {
        self.rng.u32(0..times) == 0
    }

    pub fn tag(&mut self) -> u64 {
        self.rng.u64(1..1 << 40)
    }

    /// Something of a range, not empty.
    pub fn part_of(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.rng.usize(0..len);
        start..self.rng.usize(start..len) + 1
    }

    /// Returns a number of steps that fits the size.
    pub fn steps(&mut self) -> usize {
        match self.size {
            Size::Stepped => self.rng.usize(2..6),
            Size::Short => self.rng.usize(4..16),
            Size::Soak => self.rng.usize(8..64),
        }
    }

    pub fn backing(&mut self) -> Backing {
        if self.size == Size::Stepped || self.rng.bool() {
            return Backing::Base;
        }
        let is_huge =
            |backing: &Backing| *backing != Backing::Base && backing.page_size() <= HUGE_PAGE_BYTES;
        let huge: Vec<_> = Backing::ALL.iter().copied().filter(is_huge).collect();
        huge[self.rng.usize(0..huge.len())]
    }

    /// Folios of a region on a backing.
    pub fn folios(&mut self, backing: Backing) -> usize {
        match (backing, self.size) {
            (Backing::Base, Size::Stepped) => self.rng.usize(4..24),
            (Backing::Base, Size::Short) => self.rng.usize(16..128),
            (Backing::Base, Size::Soak) => self.rng.usize(16..1024),
            (_, Size::Soak) => self.rng.usize(1..5),
            _ => self.rng.usize(1..3),
        }
    }

    /// A pool, if there are huge pages for it, or none: then it is counted.
    pub fn pool(&self, builder: &PoolBuilder<'_>) -> Option<Pool> {
        self.count(Count::Pools);
        // It reads what the machine has, which is most of what stepping would cost.
        let built = {
            let _paused = crate::step::Paused::new();
            builder.build()
        };
        self.unless_short(built)
    }

    /// The object that was made, or `None` if the machine lacks memory for it or forbids it. Any other error is a
    /// failure.
    ///
    /// # Panics
    /// On any other error.
    pub fn unless_short<T, E: Lack>(&self, made: Result<T, E>) -> Option<T> {
        match made {
            Ok(made) => Some(made),
            Err(error) if error.is_lack() => {
                self.count(Count::Refused);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Tells what a machine lacks from what went wrong.
pub trait Lack: std::fmt::Display {
    fn is_lack(&self) -> bool;
}

impl Lack for PoolError {
    fn is_lack(&self) -> bool {
        match self {
            Self::NotEnoughHugePages(_)
            | Self::NoHugePages { .. }
            | Self::NotEnoughMemory { .. }
            | Self::OverGroupLimit { .. }
            | Self::NoThp { .. } => true,
            Self::Fault(error) => error.is_lack(),
            _ => false,
        }
    }
}

impl Lack for FaultError {
    fn is_lack(&self) -> bool {
        matches!(self, Self::NotPermitted { .. })
    }
}

impl Lack for ForkError {
    fn is_lack(&self) -> bool {
        match self {
            // Free folios lie in pieces smaller than granules.
            Self::Pool(PoolError::NoRoom { .. }) => true,
            Self::Pool(error) => error.is_lack(),
            Self::Fault(error) => error.is_lack(),
            _ => false,
        }
    }
}

impl Lack for SnapshotError {
    fn is_lack(&self) -> bool {
        match self {
            // A thread that starts a process has signals blocked until the child runs its program.
            Self::Blocked { .. } => true,
            Self::Memory(error) => error.is_lack(),
            Self::Fork(error) => error.is_lack(),
            Self::Fault(error) => error.is_lack(),
            _ => false,
        }
    }
}
