//! Snapshots of regions: forks that are only read.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::source::Source;
use super::{Snapshot, SnapshotError, Stats};
use crate::region::{ForkBuilder, ReadOnlyFork, Region, SharedRegion};

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

impl Region {
    /// A point in time of the region, in microseconds, whatever its size.
    ///
    /// It is a [fork](Self::fork) that is only read: the region keeps its pages, and who writes to it copies
    /// what the snapshot still needs, into bytes of the pool that are reserved now, as many as the region has.
    /// So writers never outrun it, and it may outlive the region. [`Snapshot::write_to`] and
    /// [`Snapshot::copy_to`] let go what they have read; the reserved bytes go back when it is dropped.
    ///
    /// ```
    /// use hugekit::pool::{Backing, Pool};
    ///
    /// let pool = Pool::builder(2 << 20).backing(Backing::Base).build()?;
    /// let mut state = pool.region(1 << 20)?;
    /// state.fill(1);
    /// let snapshot = state.snapshot()?;
    /// state.fill(2);
    /// let mut dump = Vec::new();
    /// snapshot.write_to(&mut dump)?;
    /// assert!(dump.iter().all(|&byte| byte == 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError::Fork`]; the region is as it was then.
    pub fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        self.fork_builder().snapshot()
    }
}

impl SharedRegion {
    /// As [`Region::snapshot`]. Stores that race with the call are in it or not, granule by granule.
    ///
    /// # Errors
    /// As there.
    pub fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        self.fork_builder().snapshot()
    }
}

impl<R> ForkBuilder<'_, R> {
    /// Makes the fork to be read only, as a snapshot of the region.
    ///
    /// # Errors
    /// [`SnapshotError::Fork`]; the region is as it was then.
    pub fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        Ok(Snapshot { source: Source::Region(OfRegion::new(self.read_only()?)) })
    }
}
