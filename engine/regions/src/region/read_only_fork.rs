//! A point in time of a region: a fork that is only read.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{ForkBuilder, ForkError};
use crate::cow::{EpochWatch, Lost, NextEpoch, PointInTime};
use crate::fault::Serving;
use hugekit_bulk::Reuse;

/// The content of a region at one point in time. Ranges are addresses of that region.
#[derive(Debug)]
pub struct ReadOnlyFork {
    fork: PointInTime,
    addresses: Range<usize>,
    /// Granules that readers or helpers preserved, not writers.
    preserved: AtomicU64,
}

/// The record of the granules of a region that were written since a moment. Offsets are offsets in
/// the region.
#[derive(Debug)]
pub struct RegionEpoch {
    watch: EpochWatch,
    start: usize,
    len: usize,
    granule_bytes: usize,
}

impl RegionEpoch {
    /// Returns the address of an offset of the region.
    pub fn address(&self, offset: usize) -> usize {
        self.start + offset
    }

    /// Returns the length of the region in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the length of a granule in bytes.
    pub fn granule_bytes(&self) -> usize {
        self.granule_bytes
    }

    /// Stops recording writes to the granules of a range. These granules count as written.
    pub fn end_of(&self, bytes: &Range<usize>) {
        self.watch.end_of(self.slots(bytes));
    }

    /// Makes the granules of a range writable without a fault. These granules count as written.
    pub fn own(&self, bytes: &Range<usize>) -> Result<(), Lost> {
        self.watch.own(self.slots(bytes))
    }

    fn slots(&self, bytes: &Range<usize>) -> Range<usize> {
        bytes.start / self.granule_bytes..bytes.end.div_ceil(self.granule_bytes)
    }
}

/// The cost of a fork until now.
#[derive(Clone, Copy, Debug)]
pub struct ForkCost {
    pub copied_by_writers: u64,
    /// Granules that were copied when the fork was made because they are pinned, or that were
    /// preserved later by readers or helpers.
    pub copied_by_others: u64,
    pub longest_fault: Duration,
}

impl ForkBuilder<'_> {
    /// Makes a fork of the region as it is now.
    #[doc(hidden)]
    pub fn read_only(&self) -> Result<ReadOnlyFork, ForkError> {
        self.read_only_at(None)
    }

    /// Makes a fork of the region, and begins an epoch at the same moment. Also returns the offsets
    /// that were written since the epoch `before`; if that is `None`, returns all offsets.
    #[doc(hidden)]
    pub fn read_only_since(
        &self,
        before: Option<&RegionEpoch>,
    ) -> Result<(ReadOnlyFork, RegionEpoch, Vec<Range<usize>>), ForkError> {
        let len = self.origin().len();
        if before.is_some_and(|before| before.len != len) {
            return Err(ForkError::OtherEpoch);
        }
        let mut epoch = NextEpoch::since(before.map(|before| &before.watch));
        let fork = self.read_only_at(Some(&mut epoch))?;
        let granule_bytes = fork.granule_bytes();
        let watch = epoch.watch(&fork.fork.0);
        let slots = epoch.written(len.div_ceil(granule_bytes));
        let bytes =
            |slots: Range<usize>| slots.start * granule_bytes..len.min(slots.end * granule_bytes);
        let written = slots.map(bytes).collect();
        let start = fork.addresses.start;
        Ok((fork, RegionEpoch { watch, start, len, granule_bytes }, written))
    }

    fn read_only_at(&self, epoch: Option<&mut NextEpoch<'_>>) -> Result<ReadOnlyFork, ForkError> {
        let start = self.origin().start().as_ptr().expose_provenance();
        let fork = PointInTime(self.handle(epoch)?);
        fork.observe();
        let addresses = start..start + self.origin().len();
        Ok(ReadOnlyFork { fork, addresses, preserved: AtomicU64::new(0) })
    }
}

impl ReadOnlyFork {
    /// Returns the addresses of the forked region.
    pub fn addresses(&self) -> Range<usize> {
        self.addresses.clone()
    }

    /// Converts a range of the region's addresses to offsets.
    pub fn offsets(&self, range: &Range<usize>) -> Range<usize> {
        range.start - self.addresses.start..range.end - self.addresses.start
    }

    /// Returns the length of a granule in bytes.
    pub fn granule_bytes(&self) -> usize {
        self.fork.0.granule_bytes()
    }

    /// Returns the mode in which writes to the region are handled.
    pub fn serving(&self) -> &Serving {
        self.fork.0.group.serving()
    }

    /// Returns true if this process made the fork.
    pub fn is_ours(&self) -> bool {
        self.fork.0.is_ours()
    }

    /// Copies bytes of one granule to `to`. The copy streams past the cache unless `reuse` names a
    /// use.
    ///
    /// # Errors
    /// [`Lost`] if the memory of the fork has failed.
    ///
    /// # Safety
    /// `to` is valid for writes of as many bytes as `range` has, and no other thread accesses these
    /// bytes.
    pub unsafe fn read(&self, range: &Range<usize>, to: *mut u8, reuse: Reuse) -> Result<(), Lost> {
        // SAFETY: as many bytes of `to` may be written, and no other thread uses them.
        unsafe { self.fork.read(self.offsets(range), to, reuse) }
    }

    /// Declares that no reader needs the granules that begin in this range any more.
    pub fn let_go(&self, range: &Range<usize>) {
        self.fork.detach(self.slots(range), false);
    }

    /// Copies the granules of this range for the fork, so that regions that share the granules
    /// write to them without a fault.
    pub fn preserve(&self, range: &Range<usize>) {
        let copied = self.fork.detach(self.slots(range), true);
        self.preserved.fetch_add(copied as u64, Ordering::Relaxed);
    }

    fn slots(&self, range: &Range<usize>) -> Range<usize> {
        let (bytes, granule) = (self.offsets(range), self.granule_bytes());
        bytes.start / granule..bytes.end.div_ceil(granule)
    }

    /// Returns the cost so far.
    pub fn cost(&self) -> ForkCost {
        let cost = self.fork.cost();
        ForkCost {
            copied_by_writers: cost.received,
            copied_by_others: cost.copied_at_once + self.preserved.load(Ordering::Relaxed),
            longest_fault: Duration::from_nanos(cost.longest_nanos),
        }
    }
}
