//! Compaction of memory that is free, but fragmented. The tender requests it seldom, and on its own
//! time.

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
    /// Requests a compaction, if it can gain enough and the last request is long ago. The calling
    /// thread moves the pages, at its own priority, which takes seconds on a large machine. A
    /// process without the permission does nothing.
    pub(crate) fn ask(&mut self, keep_free: u64) {
        let free = Memory::read(&Root::default()).map_or(0, |memory| memory.free);
        if self.is_due(free, keep_free) {
            self.0 = Some(Instant::now());
            let _ = fs::write(COMPACT, "1");
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
