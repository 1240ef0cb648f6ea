//! Snapshots of regions: forks that are only read.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Stats;
use hugekit_regions::region::ReadOnlyFork;

/// A point in time of a region, and what reading it has cost.
#[derive(Debug)]
pub(super) struct OfRegion {
    fork: ReadOnlyFork,
    /// Granules that were preserved by others than writers.
    by_others: AtomicU64,
}

impl OfRegion {
    pub(super) fn new(fork: ReadOnlyFork) -> Self {
        Self { fork, by_others: AtomicU64::new(0) }
    }

    pub(super) fn fork(&self) -> &ReadOnlyFork {
        &self.fork
    }

    /// Offsets of a range of addresses.
    pub(super) fn offsets(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.fork.addresses().start;
        range.start - start..range.end - start
    }

    pub(super) fn preserve(&self, part: &Range<usize>) {
        let copied = self.fork.preserve(&self.offsets(part));
        self.by_others.fetch_add(copied as u64, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> Stats {
        let (cost, granule_bytes) = (self.fork.cost(), self.fork.granule_bytes());
        let len = self.fork.addresses().len();
        let copied_by_others = cost.copied_at_once + self.by_others.load(Ordering::Relaxed);
        let held = (cost.copied_by_writers + copied_by_others) as usize * granule_bytes;
        Stats {
            granules: len.div_ceil(granule_bytes),
            granule_bytes,
            copied_by_writers: cost.copied_by_writers,
            copied_by_others,
            retained: held,
            most_retained: held,
            cap: len.next_multiple_of(granule_bytes),
            reserved: len.next_multiple_of(granule_bytes),
            longest_fault: cost.longest_fault,
        }
    }
}
