//! What a snapshot has cost.

use std::time::Duration;

#[cfg(doc)]
use super::{Reserve, Snapshot};

/// What a snapshot has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotStats {
    /// Granules it has, the first and the last of which may be shorter; bytes that share a page with others' were
    /// copied at once.
    pub granules: usize,
    /// Bytes of each.
    pub granule_bytes: usize,
    /// Granules that writers preserved.
    pub copied_by_writers: u64,
    /// Granules that were preserved by [`Snapshot::prepare_write`], in the background, and at once
    /// because a region has them pinned.
    pub copied_by_others: u64,
    /// Bytes of granules that are retained now. A region's are held until the snapshot is dropped.
    pub retained: usize,
    /// Bytes that were retained at most.
    pub most_retained: usize,
    /// Bytes that may be retained: of a region all, reserved.
    pub cap: usize,
    /// Bytes of those that were there before, in a [`Reserve`] or the region's pool.
    pub reserved: usize,
    /// The longest time that a write to the memory took because of snapshots, and of a region's other forks;
    /// signal delivery not counted.
    pub longest_fault: Duration,
}
