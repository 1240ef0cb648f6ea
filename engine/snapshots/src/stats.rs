//! What a snapshot has cost.

use std::time::Duration;

#[cfg(doc)]
use super::{Reserve, Snapshot};

/// The costs of a snapshot so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotStats {
    /// Granules of the snapshot. The first and the last may be shorter: bytes on a page with other
    /// data were copied at once.
    pub granules: usize,
    /// Bytes of a granule.
    pub granule_bytes: usize,
    /// Granules that writers copied.
    pub copied_by_writers: u64,
    /// Granules that were copied by [`Snapshot::prepare_write`], in the background, or when the
    /// snapshot was taken because a region has them pinned.
    pub copied_by_others: u64,
    /// Bytes of the copies that exist now. A region's copies exist until the snapshot is dropped.
    pub retained: usize,
    /// The most bytes of copies that existed at a time.
    pub most_retained: usize,
    /// The most bytes of copies that may exist. For a region all of its bytes, which are reserved.
    pub cap: usize,
    /// Bytes of these that were allocated before: in a [`Reserve`], or in the region's pool.
    pub reserved: usize,
    /// The longest time that one write waited for a copy, without the time to deliver a signal.
    /// Waits for a region's other forks count too.
    pub longest_fault: Duration,
}
