//! The costs of a snapshot: figures for callers, and counters for writers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::serving::state::Preserver;

#[cfg(doc)]
use super::{Reserve, Snapshot};
use hugekit_regions::region::ReadOnlyFork;

/// The costs of a snapshot until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotStats {
    /// Granules of the snapshot. The first and the last granule may be shorter, because bytes on a
    /// page with other data are copied at once.
    pub granules: usize,
    /// Bytes of a granule.
    pub granule_bytes: usize,
    /// Granules that writers copied.
    pub copied_by_writers: u64,
    /// Granules that other code copied: [`Snapshot::prepare_write`], the background thread, or the
    /// call that took the snapshot, if a region has pinned ranges.
    pub copied_by_others: u64,
    /// Bytes of the copies that exist now. The copies of a region exist until the snapshot is
    /// dropped.
    pub retained: usize,
    /// The highest number of bytes of copies at any moment.
    pub most_retained: usize,
    /// The limit of the bytes of copies. For a region: all of its bytes, which are reserved.
    pub cap: usize,
    /// Bytes of `cap` that were allocated in advance, in a [`Reserve`] or in the region's pool.
    pub reserved: usize,
    /// The longest time that one write waited for a copy, without the time to deliver a signal.
    /// Waits for other forks of the region are included.
    pub longest_fault: Duration,
}

impl SnapshotStats {
    /// Returns the costs of a snapshot of a region.
    pub(crate) fn of_fork(fork: &ReadOnlyFork) -> Self {
        let (cost, granule_bytes, len) =
            (fork.cost(), fork.granule_bytes(), fork.addresses().len());
        let held = (cost.copied_by_writers + cost.copied_by_others) as usize * granule_bytes;
        Self {
            granules: len.div_ceil(granule_bytes),
            granule_bytes,
            copied_by_writers: cost.copied_by_writers,
            copied_by_others: cost.copied_by_others,
            retained: held,
            most_retained: held,
            cap: len.next_multiple_of(granule_bytes),
            reserved: len.next_multiple_of(granule_bytes),
            longest_fault: cost.longest_fault,
        }
    }
}

/// The counters of one snapshot of anonymous memory. Fault handlers write them.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    by_writers: AtomicU64,
    by_others: AtomicU64,
    longest_nanos: AtomicU64,
}

/// The values of [`Costs`] at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CostCounts {
    pub(crate) by_writers: u64,
    pub(crate) by_others: u64,
    /// The longest wait of a write.
    pub(crate) longest_nanos: u64,
}

impl Costs {
    /// Counts a granule that was copied.
    pub(crate) fn count(&self, preserver: Preserver) {
        let counter = match preserver {
            Preserver::Writer(_) => &self.by_writers,
            Preserver::Other => &self.by_others,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a write that waited for this time.
    pub(crate) fn count_wait(&self, nanos: u64) {
        self.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> CostCounts {
        CostCounts {
            by_writers: self.by_writers.load(Ordering::Relaxed),
            by_others: self.by_others.load(Ordering::Relaxed),
            longest_nanos: self.longest_nanos.load(Ordering::Relaxed),
        }
    }
}
