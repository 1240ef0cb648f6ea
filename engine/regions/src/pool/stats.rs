//! Counters of a pool.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io;

use hugekit_sys::private_pages::Private;

/// Who cleared a dirty folio.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scrubbed {
    InBackground,
    OnAllocation,
    OnRequest,
    AtRelease,
    OnFault,
}

/// Counted since the pool was made, by fault handlers too: in memory that no snapshot can protect.
#[derive(Debug)]
pub(super) struct Counters(Private<PoolCounts>);

#[derive(Debug, Default)]
struct PoolCounts {
    scrubbed: [AtomicU64; 5],
    populated: AtomicU64,
    allocations: AtomicU64,
    waits: AtomicU64,
}

impl Counters {
    pub(super) fn new() -> io::Result<Self> {
        Private::new(PoolCounts::default()).map(Self)
    }

    pub(super) fn scrubbed(&self, who: Scrubbed, bytes: usize) {
        self.0.scrubbed[who as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn populated(&self, bytes: usize) {
        self.0.populated.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn handed_out(&self) {
        self.0.allocations.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn waited(&self) {
        self.0.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counted part of [`PoolStats`]. Values that are known at any moment are 0.
    pub(super) fn read(&self) -> PoolStats {
        let scrubbed = |who: Scrubbed| self.0.scrubbed[who as usize].load(Ordering::Relaxed);
        PoolStats {
            scrubbed_in_background: scrubbed(Scrubbed::InBackground),
            scrubbed_at_allocation: scrubbed(Scrubbed::OnAllocation),
            scrubbed_on_request: scrubbed(Scrubbed::OnRequest),
            scrubbed_at_release: scrubbed(Scrubbed::AtRelease),
            scrubbed_at_fault: scrubbed(Scrubbed::OnFault),
            populated: self.0.populated.load(Ordering::Relaxed),
            allocations: self.0.allocations.load(Ordering::Relaxed),
            waits: self.0.waits.load(Ordering::Relaxed),
            ..PoolStats::default()
        }
    }
}

/// The state of a pool at one moment. States are counted in folios. Work is counted in bytes since
/// the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes of a folio.
    pub page_size: usize,
    /// Folios that are not populated yet.
    pub holes: usize,
    /// Folios that are clean and free.
    pub clean: usize,
    /// Folios of regions, and folios that are being cleared or populated for a region.
    pub in_use: usize,
    /// Folios that contain bytes of their last owner, including folios that are being cleared.
    pub dirty: usize,
    /// Folios on base pages, because no huge page was free ([`Backing::Thp`](super::Backing::Thp)).
    pub fragmented: usize,
    /// Bytes cleared by the scrubber's threads.
    pub scrubbed_in_background: u64,
    /// Bytes cleared when a region was allocated.
    pub scrubbed_at_allocation: u64,
    /// Bytes cleared by [`Pool::scrub`](super::Pool::scrub).
    pub scrubbed_on_request: u64,
    /// Bytes cleared when a part of a region was released.
    pub scrubbed_at_release: u64,
    /// Bytes cleared at the first access ([`Clearing::OnFault`](super::Clearing::OnFault)).
    pub scrubbed_at_fault: u64,
    /// Bytes that the pool asked the kernel to populate.
    pub populated: u64,
    /// Regions that were allocated.
    pub allocations: u64,
    /// Allocated regions that waited until the scrubber finished a piece.
    pub waits: u64,
}
