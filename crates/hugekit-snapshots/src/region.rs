//! Snapshots of regions: forks that are only read.

use super::source::Source;
use super::{Snapshot, SnapshotError, Stats};
use hugekit_regions::region::{ForkBuilder, ReadOnlyFork};
#[cfg(doc)]
use hugekit_regions::{Region, SharedRegion};

/// What a point in time of a region has cost.
pub(super) fn stats_of(fork: &ReadOnlyFork) -> Stats {
    let (cost, granule_bytes, len) = (fork.cost(), fork.granule_bytes(), fork.addresses().len());
    let held = (cost.copied_by_writers + cost.copied_by_others) as usize * granule_bytes;
    Stats {
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

impl Snapshot {
    /// Takes a snapshot of a region, whatever its size in microseconds on huge pages.
    ///
    /// The snapshot is a [fork](Region::fork) that is only read. The region keeps its pages. A writer copies the
    /// granules that the snapshot still needs. The copies go to bytes of the pool that this call reserves, as many as
    /// the region has, so writers never outrun the snapshot, and it may outlive the region.
    /// [`write_to`](Self::write_to) and [`copy_to`](Self::copy_to) release each granule after reading it. The
    /// reserved bytes return to the pool when the snapshot is dropped.
    ///
    /// `region` is a [`Region`], a [`SharedRegion`], or a [`ForkBuilder`] with options. Stores to a shared region that
    /// race with the call are in the snapshot or not, granule by granule.
    ///
    /// ```
    /// use hugekit::Snapshot;
    /// use hugekit::pool::{Backing, Pool};
    ///
    /// let pool = Pool::builder(2 << 20).backing(Backing::Base).build()?;
    /// let mut state = pool.region(1 << 20)?;
    /// state.fill(1);
    /// let snapshot = Snapshot::of_region(&state)?;
    /// state.fill(2);
    /// let mut dump = Vec::new();
    /// snapshot.write_to(&mut dump)?;
    /// assert!(dump.iter().all(|&byte| byte == 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError::Fork`]; the region is unchanged then.
    pub fn of_region<'a>(region: impl Into<ForkBuilder<'a>>) -> Result<Self, SnapshotError> {
        Ok(Self { source: Source::Region(region.into().read_only()?) })
    }
}
