//! Snapshots of regions: forks that are only read.

use crate::SnapshotStats;
use hugekit_regions::region::ReadOnlyFork;

/// Returns the cost of a snapshot of a region.
pub(super) fn stats_of(fork: &ReadOnlyFork) -> SnapshotStats {
    let (cost, granule_bytes, len) = (fork.cost(), fork.granule_bytes(), fork.addresses().len());
    let held = (cost.copied_by_writers + cost.copied_by_others) as usize * granule_bytes;
    SnapshotStats {
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
