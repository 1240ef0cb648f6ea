//! Options for a snapshot.
#![allow(unsafe_code)]

use std::ops::Range;

use super::anonymous::Anonymous;
use super::background::Background;
use super::interval::inner_of;
use super::plan::{Purpose, SnapshotPlan};
use super::reserve::Reserve;
use super::source::SnapshotSource;
use super::taken::Taken;
use super::{Changes, Epoch, Snapshot, SnapshotError, limit, several, survey};
use hugekit_machine::{Root, mappings};
use hugekit_regions::fault::{FaultMode, Serving};
#[cfg(doc)]
use hugekit_regions::region::ForkError;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::headroom;
use hugekit_sys::pagemap::PageMap;

const SMALL: usize = 64 << 10;

/// What one write makes its thread copy, and what protection is lifted of together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Granule {
    /// 2 MiB where some of the memory is on transparent huge pages, else 64 KiB.
    #[default]
    Auto,
    /// 2 MiB: huge pages stay whole.
    Huge,
    /// 64 KiB: a write waits less long. Huge pages are split, which costs later: writers meet more faults,
    /// and more misses of the TLB until the kernel puts the pages together again.
    Small,
}

/// Options for a snapshot, made by [`Snapshot::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until of_anonymous"]
pub struct Builder {
    pub(super) fault_mode: FaultMode,
    granule: Granule,
    pub(super) cap: Option<usize>,
    /// Bytes that are taken at the same time, as far as they are more than the range.
    pub(super) together: usize,
    pub(super) populated: usize,
    reserve: Option<Reserve>,
    background: bool,
}

impl Builder {
    /// Who copies what is written: [`FaultMode::Auto`] unless said, which is threaded where this process may
    /// serve the faults of system calls, else in place. Snapshots of the same memory must agree; the first of
    /// several says how many threads there are.
    pub fn fault_mode(mut self, fault_mode: FaultMode) -> Self {
        self.fault_mode = fault_mode;
        self
    }

    /// How much one write copies.
    pub fn granule(mut self, granule: Granule) -> Self {
        self.granule = granule;
        self
    }

    /// The most bytes of copies that the snapshot holds at a time, in whole granules. If writers need more, the
    /// snapshot is lost ([`SnapshotError::CowLimitExceeded`]) and the writers go on.
    ///
    /// By default all of the memory, so that writers never need more. If less than that is available when the
    /// snapshot is taken, on the machine or in the control group, the limit is what is available, but at least 64 MiB.
    /// The bytes of a [`reserve`](Self::reserve) may be held in any case, even if this limit is lower.
    ///
    /// Copies take memory when they are made. What was read is given up, and its memory is used for the next copies.
    pub fn max_cow_bytes(mut self, bytes: usize) -> Self {
        self.cap = Some(bytes);
        self
    }

    /// Populates memory for so many bytes of the copies that may be retained, before the snapshot
    /// is taken; none unless said. A write need not wait then until the kernel has cleared a page
    /// for its copy. It takes the calling thread 0.1 to 0.2 seconds a gigabyte, while writers still
    /// run freely.
    pub fn populate_copies(mut self, bytes: usize) -> Self {
        self.populated = bytes;
        self
    }

    /// The bytes of all memory of which snapshots are taken at the same time, by several calls: they share the memory
    /// that is available for copies, if no [`max_cow_bytes`](Self::max_cow_bytes) is set. By default the range alone;
    /// [`take_many`](Self::take_many) counts its own ranges.
    #[doc(hidden)]
    pub fn together(mut self, bytes: usize) -> Self {
        self.together = bytes;
        self
    }

    /// Memory that is there already: granules are put there first. What this snapshot uses of it is its alone until
    /// it is dropped. If other snapshots use all of it, memory is taken as without
    /// ([`SnapshotStats::reserved`](super::SnapshotStats::reserved)). At least as many bytes as the reserve has may be held
    /// ([`max_cow_bytes`](Self::max_cow_bytes)).
    pub fn reserve(mut self, reserve: &Reserve) -> Self {
        self.reserve = Some(reserve.clone());
        self
    }

    /// Has a thread of low priority preserve granules as well, from the end on, until half of what may be held
    /// is: writers meet fewer faults then, at the price of copies that might not have been needed. Not unless said.
    pub fn in_background(mut self, copy: bool) -> Self {
        self.background = copy;
        self
    }

    /// Takes a snapshot of private anonymous memory of this process, whatever mapped it, on huge pages or not, in
    /// one mapping or several. Of pages that hold other data too, at both ends, the bytes are copied at once.
    ///
    /// # Errors
    /// [`SnapshotError`], naming the mapping where one is in the way. Nothing is changed then.
    ///
    /// # Safety
    /// Until the snapshot is dropped:
    /// - no thread that has SIGBUS blocked writes to the memory, none has its stack, its alternate signal stack
    ///   or its thread-local variables there (those of the C library's own threads are refused, as far as they
    ///   can be found out), and no other code replaces hugekit's handler of SIGBUS without passing signals on to it;
    /// - no system call writes to it but after [`Snapshot::prepare_write`], unless the program can
    ///   bear EFAULT;
    /// - no other code has the kernel serve its faults (`userfaultfd`), in other processes too (ptrace, CRIU).
    ///
    /// The memory may be written, unmapped, remapped, protected, discarded and forked meanwhile: what that takes
    /// from the snapshot is an error when it is read.
    pub unsafe fn of_anonymous(self, memory: *const [u8]) -> Result<Snapshot, SnapshotError> {
        let mut made = self.protect(range_of(memory)?, Purpose::Once)?;
        if self.background {
            let half = made.cap / 2;
            made.background = Some(Background::start(&made.snapshot, made.tracker, half)?);
        }
        Ok(Snapshot { source: SnapshotSource::Anonymous(made) })
    }

    /// Takes a snapshot of each of several ranges, as [`of_anonymous`](Self::of_anonymous) would
    /// one after the other, but in less time where ranges lie side by side: 1 ms less for each that
    /// begins where another one ends, and that is on huge pages. So do arrays that an allocator
    /// mapped one by one, with a few words of its own and the rest of a page between them.
    /// [`max_cow_bytes`](Self::max_cow_bytes) and [`populate_copies`](Self::populate_copies) are
    /// meant for each range, and ranges that lie side by side share what they have together; so is
    /// what they [cost](Snapshot::stats).
    ///
    /// # Errors
    /// As of [`of_anonymous`](Self::of_anonymous), for the first range that is refused; none is taken then.
    ///
    /// # Safety
    /// As for [`of_anonymous`](Self::of_anonymous), for all of the ranges.
    pub unsafe fn take_many(self, memory: &[*const [u8]]) -> Result<Vec<Snapshot>, SnapshotError> {
        // SAFETY: `several::take_many` has the contract of this function.
        unsafe { several::take_many(&self, memory) }
    }

    /// Which of several ranges [`take_many`](Self::take_many) would take at once: groups of indices, ascending by address
    /// in each. For epochs, of which one then covers a whole group, from the first byte of its first range to the last
    /// byte of its last one; what lies between two of its ranges, less than a page, belongs to the allocator. System calls
    /// may write it, so that epochs of a group whose ranges do not touch are to be served by threads
    /// ([`FaultMode::Threaded`]).
    ///
    /// Ranges that overlap are in groups of their own.
    #[must_use]
    #[doc(hidden)]
    pub fn neighbours(&self, ranges: &[Range<usize>]) -> Vec<Vec<usize>> {
        several::neighbours(self, ranges)
    }

    /// Takes a snapshot of memory, as [`of_anonymous`](Self::of_anonymous) does, that leaves an [`Epoch`] when it is
    /// delivered. [`in_background`](Self::in_background) is of no use here.
    ///
    /// # Errors
    /// As of [`of_anonymous`](Self::of_anonymous).
    ///
    /// # Safety
    /// As for [`of_anonymous`](Self::of_anonymous), until the last epoch is dropped.
    pub unsafe fn first_epoch(self, memory: *const [u8]) -> Result<Changes, SnapshotError> {
        Changes::first_of_anonymous(&self, range_of(memory)?)
    }

    /// Takes a snapshot of the epoch's memory: of what was written since that began. The granule is the epoch's.
    ///
    /// Memory that was unmapped, discarded or replaced meanwhile counts as written, as far as it is there.
    ///
    /// # Errors
    /// As of [`of_anonymous`](Self::of_anonymous); [`ForkError::OtherEpoch`] of a region's epoch, which [`Changes::since`]
    /// takes; and those of a snapshot that is lost: what was written is not known then, and a
    /// [first epoch](Self::first_epoch) is to be begun.
    ///
    /// # Safety
    /// As for [`first_epoch`](Self::first_epoch).
    pub unsafe fn since(self, epoch: Epoch) -> Result<Changes, SnapshotError> {
        Changes::since_of_anonymous(self, epoch)
    }

    /// By default, writes are handled as those since the epoch before: both are of the same memory.
    pub(super) fn served_like(mut self, before: Option<&Serving>) -> Self {
        if let (FaultMode::Auto, Some(before)) = (self.fault_mode, before) {
            self.fault_mode = before.fault_mode;
        }
        self
    }

    /// Protects a range, once or for epochs.
    pub(super) fn protect(
        &self,
        range: Range<usize>,
        purpose: Purpose<'_>,
    ) -> Result<Anonymous, SnapshotError> {
        headroom::check()?;
        // Before the survey: what we map from now on stays away, whatever the owner unmaps.
        let taken = Taken::new(range.clone()).map_err(SnapshotError::kernel("mmap"))?;
        let mappings = survey::mappings_of(&range)?;
        let granule = match purpose {
            Purpose::Epoch { before: Some(before) } => before.interval().granule_bytes(),
            _ => self.granule_bytes(&range)?,
        };
        let len = range.len();
        let by_default = || limit::by_default(&Root::default(), len, self.together.max(len));
        let cap = self.cap.unwrap_or_else(by_default).max(self.reserved());
        let (populated, reserve) = (self.populated, self.reserve.as_ref());
        let plan = SnapshotPlan {
            range: &range,
            mappings: &mappings,
            granule,
            purpose,
            cap,
            populated,
            reserve,
        };
        plan.protect(self.fault_mode, taken)
    }

    /// Bytes of the reserve.
    pub(super) fn reserved(&self) -> usize {
        self.reserve.as_ref().map_or(0, Reserve::len)
    }

    pub(super) fn granule_bytes(&self, range: &Range<usize>) -> Result<usize, SnapshotError> {
        match self.granule {
            Granule::Huge => Ok(HUGE_PAGE_BYTES),
            Granule::Small => Ok(SMALL),
            Granule::Auto => {
                let whole = inner_of(range, HUGE_PAGE_BYTES);
                let has_huge = !whole.is_empty() && probe_huge_pages(&whole)?;
                Ok(if has_huge { HUGE_PAGE_BYTES } else { SMALL })
            }
        }
    }
}

/// The addresses of memory that can be snapshotted, as far as these say.
pub(super) fn range_of(memory: *const [u8]) -> Result<Range<usize>, SnapshotError> {
    let (start, len) = (memory.cast::<u8>().expose_provenance(), memory.len());
    match start.checked_add(len) {
        Some(end) if len > 0 => Ok(start..end),
        _ => Err(SnapshotError::Empty { start, len }),
    }
}

/// Whether some of the range is on huge pages; where the page map cannot be scanned, whether some of its mappings is.
fn probe_huge_pages(range: &Range<usize>) -> Result<bool, SnapshotError> {
    let map = PageMap::open().map_err(SnapshotError::kernel("/proc/self/pagemap"))?;
    match map.scanned() {
        Some(scanned) => scanned.probe_huge(range).map_err(SnapshotError::kernel("PAGEMAP_SCAN")),
        None => Ok(mappings::probe_huge_pages(&Root::default(), range)?),
    }
}
