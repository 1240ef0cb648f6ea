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
    /// Granules that were preserved by others than writers.
    preserved: AtomicU64,
}

/// The record of what is written to a region from one moment on. Offsets are the region's.
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

    /// Returns the number of bytes of the region.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of bytes of a granule.
    pub fn granule_bytes(&self) -> usize {
        self.granule_bytes
    }

    /// The granules of a range are not noted any more, and count as written.
    pub fn end_of(&self, bytes: &Range<usize>) {
        self.watch.end_of(self.slots(bytes));
    }

    /// Makes the granules of a range writable without a fault; they count as written.
    pub fn own(&self, bytes: &Range<usize>) -> Result<(), Lost> {
        self.watch.own(self.slots(bytes))
    }

    fn slots(&self, bytes: &Range<usize>) -> Range<usize> {
        bytes.start / self.granule_bytes..bytes.end.div_ceil(self.granule_bytes)
    }
}

/// The cost of a fork so far.
#[derive(Clone, Copy, Debug)]
pub struct ForkCost {
    pub copied_by_writers: u64,
    /// Copied when it was made because they are pinned, or preserved by others than writers.
    pub copied_by_others: u64,
    pub longest_fault: Duration,
}

impl ForkBuilder<'_> {
    /// The region as it is now.
    #[doc(hidden)]
    pub fn read_only(&self) -> Result<ReadOnlyFork, ForkError> {
        self.read_only_at(None)
    }

    /// The region as it is when an epoch of it begins, and which offsets of it were written since the epoch before; all
    /// of them, if there was none.
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
    /// Returns the addresses of the region that it is of.
    pub fn addresses(&self) -> Range<usize> {
        self.addresses.clone()
    }

    /// Returns offsets of a range of its addresses.
    pub fn offsets(&self, range: &Range<usize>) -> Range<usize> {
        range.start - self.addresses.start..range.end - self.addresses.start
    }

    /// Returns the number of bytes of a granule.
    pub fn granule_bytes(&self) -> usize {
        self.fork.0.granule_bytes()
    }

    /// Returns how writes to the region are served.
    pub fn serving(&self) -> &Serving {
        self.fork.0.group.serving()
    }

    /// Returns whether this is the process that made it.
    pub fn is_ours(&self) -> bool {
        self.fork.0.is_ours()
    }

    /// Copies bytes of one granule: past the cache unless the copy is used soon.
    ///
    /// # Errors
    /// [`Lost`] if their memory has failed.
    ///
    /// # Safety
    /// The bytes of `to` may be written, and no other thread uses them.
    pub unsafe fn read(&self, range: &Range<usize>, to: *mut u8, reuse: Reuse) -> Result<(), Lost> {
        // SAFETY: as many bytes of `to` may be written, and no other thread uses them.
        unsafe { self.fork.read(self.offsets(range), to, reuse) }
    }

    /// No reader wants the granules that begin in this range any more.
    pub fn let_go(&self, range: &Range<usize>) {
        self.fork.detach(self.slots(range), false);
    }

    /// Has the granules of this range for itself, so that the regions that share them write them without a fault.
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
