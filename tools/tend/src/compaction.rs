//! Memory that is free, but in pieces: the kernel is asked to compact it, seldom, and in the tender's own time. It comes to
//! this only if the kernel gathers no single block on request.

use std::fs;
use std::time::{Duration, Instant};

use hugekit_machine::{Memory, Root};

/// The shortest time between two compactions. A compaction of the whole machine moves pages of all
/// processes.
const SELDOM: Duration = Duration::from_secs(300);

/// A compaction needs this many times `keep_free` of fragmented free memory; with less, there is
/// nothing to gain.
const WORTH_IT: u64 = 4;

const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// The time of the last request.
#[derive(Debug, Default)]
pub(crate) struct Compaction(Option<Instant>);

impl Compaction {
    /// Asks, if it is worth it and was not asked for lately. The calling thread moves the pages, at its own priority,
    /// which takes seconds on a large machine; who may not ask goes without.
    pub(crate) fn ask(&mut self, root: &Root, keep_free: u64) {
        let free = Memory::read(root).map_or(0, |memory| memory.free);
        if self.is_due(free, keep_free) {
            self.0 = Some(Instant::now());
            let _ = fs::write(root.path(COMPACT), "1");
        }
    }

    fn is_due(&self, free: u64, keep_free: u64) -> bool {
        let is_long_ago = self.0.is_none_or(|last| last.elapsed() >= SELDOM);
        is_long_ago && free >= keep_free.saturating_mul(WORTH_IT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compaction_is_asked_for_seldom_and_where_much_is_free() {
        let mut compaction = Compaction::default();
        assert!(compaction.is_due(400, 100) && !compaction.is_due(399, 100));
        assert!(!compaction.is_due(u64::MAX - 1, u64::MAX));
        compaction.0 = Some(Instant::now());
        assert!(!compaction.is_due(400, 100));
    }
}
