//! Options for a snapshot.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::excluded::ExcludedRange;
use super::limit;
use super::neighbours;
use super::plan::{Purpose, SnapshotPlan};
use super::survey;
use crate::reading::anonymous::Anonymous;
use crate::reading::source::SnapshotSource;
use crate::reading::staging::Staging;
use crate::serving::background::Background;
use crate::serving::delivery::{Destination, KeptMemory};
use crate::serving::interval::inner_of;
use crate::serving::reserve::Reserve;
use crate::{Changes, Epoch, Snapshot, SnapshotError, Unsuitable};
use hugekit_machine::{Root, mappings};
use hugekit_regions::fault::{FaultMode, Serving};
#[cfg(doc)]
use hugekit_regions::region::ForkError;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::headroom;
use hugekit_sys::pagemap::PageMap;

const SMALL: usize = 64 << 10;

/// The granule: the bytes that the first write copies as a whole, and whose protection is lifted
/// together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Granule {
    /// 2 MiB if some of the memory is on transparent huge pages, otherwise 64 KiB.
    #[default]
    Auto,
    /// 2 MiB. Huge pages stay whole.
    Huge,
    /// 64 KiB. A write waits less. Huge pages are split, so writers have more faults. They also
    /// have more TLB misses until the kernel joins the pages again or the program calls
    /// [`collapse`](crate::collapse()).
    Small,
}

/// Options of a snapshot. [`Snapshot::builder`] makes them.
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
    /// Sets the mode of fault handling for writers. By default [`FaultMode::Auto`]: threaded if
    /// this process may handle faults of system calls, otherwise in place.
    ///
    /// Snapshots of the same memory must have the same mode. The first of these snapshots sets the
    /// number of threads.
    pub fn fault_mode(mut self, fault_mode: FaultMode) -> Self {
        self.fault_mode = fault_mode;
        self
    }

    /// Sets the granule, which is the number of bytes that one write copies. By default
    /// [`Granule::Auto`].
    pub fn granule(mut self, granule: Granule) -> Self {
        self.granule = granule;
        self
    }

    /// Sets the highest number of bytes of copies that the snapshot may hold at a time, in whole
    /// granules. If writers need more, the writers continue, and the snapshot is lost
    /// ([`SnapshotError::CowLimitExceeded`]).
    ///
    /// By default the limit is the length of the memory, so writers never exceed it. If less memory
    /// is available when the snapshot is taken, on the machine or in the control group, the limit
    /// is the available memory, but at least 64 MiB. If `ulimit -v` or `ulimit -d` permits less,
    /// the limit is half of the bytes that the process may still map. The limit is never lower than
    /// the length of a [`reserve`](Self::reserve).
    ///
    /// Copies use memory only when they are made. After a copy is read, it is freed, and later
    /// copies use its memory.
    pub fn max_cow_bytes(mut self, bytes: usize) -> Self {
        self.cap = Some(bytes);
        self
    }

    /// Sets the number of bytes for copies that are populated before the snapshot is taken. By
    /// default 0.
    ///
    /// A write to a granule then does not wait until the kernel has cleared a page for the copy.
    /// The calling thread populates the bytes before the snapshot stops writers. This lasts 0.1 to
    /// 0.2 s per GiB.
    pub fn populate_copies(mut self, bytes: usize) -> Self {
        self.populated = bytes;
        self
    }

    /// Sets the number of bytes of all memory that several calls snapshot at the same time. If
    /// [`max_cow_bytes`](Self::max_cow_bytes) is not set, these snapshots share the memory that is
    /// available for copies. By default only the bytes of the range; [`take_many`](Self::take_many)
    /// counts its own ranges.
    #[doc(hidden)]
    pub fn together(mut self, bytes: usize) -> Self {
        self.together = bytes;
        self
    }

    /// Sets a reserve, whose memory the copies use first. By default none.
    ///
    /// The snapshot keeps the bytes that it uses until the snapshot is dropped. If other snapshots
    /// use all of the reserve, copies use new memory.
    /// [`SnapshotStats::reserved`](crate::SnapshotStats::reserved) contains the number of reserved
    /// bytes. The limit [`max_cow_bytes`](Self::max_cow_bytes) is at least the length of the
    /// reserve.
    pub fn reserve(mut self, reserve: &Reserve) -> Self {
        self.reserve = Some(reserve.clone());
        self
    }

    /// Sets if a low-priority thread also copies granules aside, from the end of the memory, until
    /// half of [`max_cow_bytes`](Self::max_cow_bytes) is used. Writers then have fewer faults, but
    /// some of these copies may be unnecessary. By default false.
    pub fn in_background(mut self, copy: bool) -> Self {
        self.background = copy;
        self
    }

    /// Takes a snapshot of private anonymous memory of this process, from any allocator, on any
    /// page size, in one mapping or several. If the memory starts or ends inside a page, the bytes
    /// on that page are copied at once.
    ///
    /// # Errors
    /// [`SnapshotError`] if the snapshot cannot be taken. If a mapping is the reason, the error
    /// contains it. The memory is unchanged then.
    ///
    /// # Safety
    /// Until the snapshot is dropped:
    /// - No thread that writes to the memory blocks SIGBUS, and no other code replaces hugekit's
    ///   handler of SIGBUS without passing signals on to it.
    /// - No thread has its stack, its alternate signal stack or its thread-local variables in the
    ///   memory. The call refuses memory with those of the C library's threads that it can find.
    /// - No system call writes to the memory unless the program called [`Snapshot::prepare_write`]
    ///   before, or handles EFAULT.
    /// - No other code, in this or another process, handles faults of the memory (`userfaultfd`,
    ///   ptrace, CRIU).
    ///
    /// Other threads may write, unmap, remap, protect, discard and fork the memory meanwhile. If
    /// this removes bytes of the snapshot, a read of the snapshot returns an error.
    pub unsafe fn of_anonymous(self, memory: *const [u8]) -> Result<Snapshot, SnapshotError> {
        let mut made = self.protect(range_of(memory)?, Purpose::Once, None)?;
        if self.background {
            let half = made.cap / 2;
            made.background = Some(Background::start(&made.snapshot, made.tracker, half)?);
        }
        Ok(Snapshot { source: SnapshotSource::Anonymous(made) })
    }

    /// Takes a snapshot of each of several ranges, like calls of
    /// [`of_anonymous`](Self::of_anonymous) one after the other.
    ///
    /// Ranges that touch are snapshotted together, which saves 1 ms per range on huge pages. The
    /// same holds for arrays that an allocator mapped one by one, with some words of its own and
    /// the rest of a page between them. [`max_cow_bytes`](Self::max_cow_bytes) and
    /// [`populate_copies`](Self::populate_copies) apply to each range. Ranges that are snapshotted
    /// together share these bytes, and their [costs](Snapshot::stats) are counted together.
    ///
    /// # Errors
    /// [`SnapshotError`] for the first range that is refused. The call then takes no snapshot.
    ///
    /// # Safety
    /// The conditions of [`of_anonymous`](Self::of_anonymous), for all ranges.
    pub unsafe fn take_many(self, memory: &[*const [u8]]) -> Result<Vec<Snapshot>, SnapshotError> {
        // SAFETY: `neighbours::take_many` has the contract of this function.
        unsafe { neighbours::take_many(&self, memory) }
    }

    /// Stages several ranges as they are now: each group of neighbouring ranges gets memory of its own, to which every byte
    /// is copied once, by a thread that calls [`Staging::copy`] or by whoever writes first. The memory is of `kept` if a
    /// staging of the same length was made before, and goes back there. Options of copies
    /// ([`max_cow_bytes`](Self::max_cow_bytes), [`reserve`](Self::reserve), [`populate_copies`](Self::populate_copies))
    /// have no effect.
    ///
    /// # Errors
    /// The errors of [`of_anonymous`](Self::of_anonymous), for the first range that is refused.
    /// Nothing is staged then. The caller checks before that the memory is available: the kernel would end a process.
    ///
    /// # Safety
    /// The conditions of [`of_anonymous`](Self::of_anonymous), for all ranges, until each staging is copied or dropped.
    #[doc(hidden)]
    pub unsafe fn stage_many(
        self,
        memory: &[*const [u8]],
        kept: &KeptMemory,
    ) -> Result<Vec<Staging>, SnapshotError> {
        // SAFETY: `neighbours::stage_many` has the contract of this function.
        unsafe { neighbours::stage_many(&self, memory, kept) }
    }

    /// Returns the groups of ranges that [`take_many`](Self::take_many) would snapshot at once:
    /// indices of ranges, ascending by address in each group. This is for epochs. One epoch covers
    /// a whole group, from the first byte of its first range to the last byte of its last range.
    /// Between two ranges lies less than a page, which belongs to the allocator. System calls may
    /// write to these bytes, so epochs of a group whose ranges do not touch need threads for their
    /// faults ([`FaultMode::Threaded`]).
    ///
    /// Ranges that overlap are in separate groups.
    #[must_use]
    #[doc(hidden)]
    pub fn neighbours(&self, ranges: &[Range<usize>]) -> Vec<Vec<usize>> {
        neighbours::neighbours(self, ranges)
    }

    /// Takes a snapshot, as [`of_anonymous`](Self::of_anonymous) does, and begins an [`Epoch`],
    /// which [`Changes::deliver`] returns. [`in_background`](Self::in_background) has no effect.
    ///
    /// # Errors
    /// The errors of [`of_anonymous`](Self::of_anonymous).
    ///
    /// # Safety
    /// The conditions of [`of_anonymous`](Self::of_anonymous), until the last epoch is dropped.
    pub unsafe fn first_epoch(self, memory: *const [u8]) -> Result<Changes, SnapshotError> {
        Changes::first_of_anonymous(&self, range_of(memory)?)
    }

    /// Takes a snapshot of the bytes of an epoch's memory that were written since the epoch began.
    /// The granule is the epoch's granule.
    ///
    /// Memory that was unmapped, discarded or replaced since the epoch began counts as written if
    /// it is mapped now.
    ///
    /// # Errors
    /// The errors of [`of_anonymous`](Self::of_anonymous). [`ForkError::OtherEpoch`] for an epoch
    /// of a region: use [`Changes::since`]. If the snapshot is lost, the written bytes are unknown;
    /// begin with a [first epoch](Self::first_epoch) again.
    ///
    /// # Safety
    /// The conditions of [`of_anonymous`](Self::of_anonymous), until the last epoch is dropped.
    pub unsafe fn since(self, epoch: Epoch) -> Result<Changes, SnapshotError> {
        Changes::since_of_anonymous(self, epoch)
    }

    /// Copies have this many bytes, and no memory beforehand.
    pub(crate) fn for_staging(self, bytes: usize) -> Self {
        Self { cap: Some(bytes), populated: 0, reserve: None, ..self }
    }

    /// Sets the fault mode of the previous epoch, if none is set: both snapshots are of the same memory.
    pub(crate) fn served_like(mut self, before: Option<&Serving>) -> Self {
        if let (FaultMode::Auto, Some(before)) = (self.fault_mode, before) {
            self.fault_mode = before.fault_mode;
        }
        self
    }

    /// Protects a range, for one snapshot or for epochs. Granules are delivered to the destination, if there is one.
    pub(crate) fn protect(
        &self,
        range: Range<usize>,
        purpose: Purpose<'_>,
        destination: Option<&Arc<Destination>>,
    ) -> Result<Anonymous, SnapshotError> {
        headroom::check()?;
        // This comes before the survey: from now on hugekit maps nothing there, even if the owner unmaps memory.
        let excluded = ExcludedRange::new(range.clone()).map_err(SnapshotError::kernel("mmap"))?;
        let mappings = survey::mappings_of(&range)?;
        let granule = match purpose {
            Purpose::Epoch { before: Some(before) } => before.interval().granule_bytes(),
            _ => self.granule_bytes(&range)?,
        };
        let len = range.len();
        let by_default = || limit::by_default(&Root::default(), len, self.together.max(len));
        let cap = self.cap.unwrap_or_else(by_default).max(self.reserved());
        let (populated, reserve) = (self.populated, self.reserve.as_ref());
        let plan = |cap| SnapshotPlan {
            range: &range,
            mappings: &mappings,
            granule,
            purpose,
            cap,
            populated,
            reserve,
            destination,
        };
        let made = plan(cap).protect(self.fault_mode, excluded);
        // Nobody asked for as many.
        let fewer = match made {
            Err(SnapshotError::NoRoom { .. }) if self.cap.is_none() => {
                limit::within_addresses(&Root::default(), cap)
            }
            _ => None,
        };
        let Some(fewer) = fewer else { return made };
        let excluded = ExcludedRange::new(range.clone()).map_err(SnapshotError::kernel("mmap"))?;
        plan(fewer).protect(self.fault_mode, excluded)
    }

    /// Returns for each range the reason why it cannot be snapshotted, as far as hugekit can see.
    /// `None` if it can. The program must copy ranges with a reason.
    ///
    /// # Errors
    /// [`SnapshotError::Machine`] if `/proc/self` cannot be read.
    #[doc(hidden)]
    pub fn unsuitable(ranges: &[Range<usize>]) -> Result<Vec<Option<Unsuitable>>, SnapshotError> {
        survey::unsuitable(ranges)
    }

    /// Returns the bytes of the reserve.
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

/// Returns the addresses of memory. It must have bytes.
pub(crate) fn range_of(memory: *const [u8]) -> Result<Range<usize>, SnapshotError> {
    let (start, len) = (memory.cast::<u8>().expose_provenance(), memory.len());
    match start.checked_add(len) {
        Some(end) if len > 0 => Ok(start..end),
        _ => Err(SnapshotError::Empty { start, len }),
    }
}

/// Returns true if some of the range is on huge pages. If the page map cannot be scanned, returns
/// true if one of its mappings has huge pages.
fn probe_huge_pages(range: &Range<usize>) -> Result<bool, SnapshotError> {
    let map = PageMap::open().map_err(SnapshotError::kernel("/proc/self/pagemap"))?;
    match map.scanned() {
        Some(scanned) => {
            scanned.probe_huge_data(range).map_err(SnapshotError::kernel("PAGEMAP_SCAN"))
        }
        None => Ok(mappings::probe_huge_pages(&Root::default(), range)?),
    }
}
