//! The memory of both kinds of regions, and the operations on it.

#![allow(unsafe_code)]

use hugekit_bulk::PopulateOptions;
use hugekit_sys::error_chain;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use crate::cow::{
    CowHandle, ForkError, ForkGroup, ForkMaker, FoundingRegion, NextEpoch, Terms, UnsharedSlots,
};
use crate::fault::Serving;
use crate::pool::{Content, FaultError, Mapped, Pool, Size};
use hugekit_bulk::ClearError;
use hugekit_bulk::parallel::{Bytes, Done, JobError, Report, Threads};
use hugekit_bulk::populate::PopulateError;
use hugekit_sys::ErrorKind;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::headroom::{self, HeapShortage};
use hugekit_sys::memory;

/// An error of a region. The bytes of the region are unchanged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The range does not lie within the region.
    #[error("bytes {}..{} lie outside a region of {len} bytes", range.start, range.end)]
    OutOfRange {
        /// The requested range.
        range: Range<usize>,
        /// Bytes of the region.
        len: usize,
    },
    /// The offset is not a multiple of the length of the access.
    #[error("offset {offset} is not a multiple of {align}")]
    Unaligned {
        /// The offset.
        offset: usize,
        /// The length of the access in bytes, of which the offset must be a multiple.
        align: usize,
    },
    /// Only whole folios can be released.
    #[error(
        "bytes {}..{} are not whole pages of {}: nothing smaller can be released here",
        range.start, range.end, Size(*page_size)
    )]
    NotWholeFolios {
        /// The requested range.
        range: Range<usize>,
        /// Bytes of a folio.
        page_size: usize,
    },
    /// A region must have at least one byte.
    #[error("a region cannot be shortened to 0 bytes: drop it")]
    NoBytes,
    /// Memory could not be populated: the number of threads is 0, the hardware of a page is
    /// defective, or no memory is left.
    #[error("cannot populate the region")]
    Populate(#[from] JobError<PopulateError>),
    /// Memory could not be cleared: the number of threads of the pool is 0.
    #[error("cannot clear the released bytes")]
    Clear(#[from] ClearError),
    /// The kernel did not free the memory.
    #[error("the kernel did not free the memory: {0}")]
    Kept(std::io::ErrorKind),
    /// Bytes that the region shares with forks could not be copied.
    #[error("the bytes that the region shares with forks cannot be copied")]
    Copy(#[source] PopulateError),
    /// The region was forked or is a fork. Its memory lies in several places of the file, and other
    /// regions share some of them.
    #[error("the region shares memory with forks: a writer of its file would change theirs")]
    Forks,
    /// The heap has no room for the call.
    #[error(transparent)]
    Heap(#[from] HeapShortage),
    /// This process is a forked child; the region belongs to the parent process.
    #[error("not available in a forked child: the region belongs to the parent process")]
    Forked,
}

impl RegionError {
    /// Returns the bytes of the region that a failed populate has populated; `None` for other
    /// errors.
    #[must_use]
    pub const fn done(&self) -> Option<&Done> {
        match self {
            Self::Populate(error) => error.done(),
            _ => None,
        }
    }
}

/// An extent in use. A drop returns it to its pool.
#[derive(Debug)]
pub(super) struct RegionMemory {
    holds: RwLock<Holds>,
    /// The group that handles the region's faults from the beginning, if accesses can cause faults
    /// other than for mapping.
    first_group: Option<Arc<ForkGroup>>,
    /// The reason why the memory was cleared at allocation although it was to be cleared at the
    /// fault.
    fallback: Option<FaultError>,
    /// The group with which the region shares memory after its first fork.
    group: OnceLock<Arc<ForkGroup>>,
    /// Ranges that every fork copies at once.
    pins: Mutex<Vec<Range<usize>>>,
    /// True if a program may have a descriptor of the file.
    file_given: AtomicBool,
    /// True if the folios return to the kernel when the region is dropped.
    retires: AtomicBool,
    pool: Pool,
    start: NonNull<u8>,
    mapped_len: usize,
    len: usize,
}

// SAFETY: an address; the code that follows it says why that is sound.
unsafe impl Send for RegionMemory {}
// SAFETY: an address; atomics and locks guard all else.
unsafe impl Sync for RegionMemory {}

/// The source of a region's memory. Changed only by its first fork and at the end.
#[derive(Debug)]
enum Holds {
    /// An extent of its own, which is completely ready.
    Plain(Mapped),
    /// A mapping in a group. The table of the group describes each granule.
    Grouped(CowHandle),
    /// Nothing: the region is being dropped.
    Nothing,
}

impl Holds {
    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Nothing)
    }
}

impl RegionMemory {
    pub(super) fn new(pool: Pool, mapped: Mapped, len: usize) -> Self {
        let (start, mapped_len) = (mapped.mapping().start(), mapped.mapping().len());
        Self::at(start, mapped_len, Holds::Plain(mapped), pool, len)
    }

    /// Makes a member of a group: a region that is cleared at the fault, or a fork.
    pub(super) fn in_group(pool: Pool, handle: CowHandle, len: usize) -> Self {
        let start = ptr::with_exposed_provenance_mut(handle.start);
        let start = NonNull::new(start).expect("nothing is mapped at 0");
        let (mapped_len, group) = (handle.mapped_len(), Arc::clone(&handle.group));
        let mut memory = Self::at(start, mapped_len, Holds::Grouped(handle), pool, len);
        memory.first_group = Some(group);
        memory
    }

    fn at(start: NonNull<u8>, mapped_len: usize, holds: Holds, pool: Pool, len: usize) -> Self {
        Self {
            holds: RwLock::new(holds),
            first_group: None,
            fallback: None,
            group: OnceLock::new(),
            pins: Mutex::new(Vec::new()),
            file_given: AtomicBool::new(false),
            retires: AtomicBool::new(false),
            pool,
            start,
            mapped_len,
            len,
        }
    }

    /// Records that the region was cleared at allocation, and the reason if this was not requested.
    pub(super) fn cleared_because(mut self, fallback: Option<FaultError>) -> Self {
        self.fallback = fallback;
        self
    }

    /// Locks the memory for reading. Only a caller's progress callback can panic meanwhile, and it
    /// does not change the memory.
    fn holds(&self) -> RwLockReadGuard<'_, Holds> {
        self.holds.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn holds_mut(&mut self) -> &mut Holds {
        self.holds.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn serving(&self) -> Option<&Serving> {
        self.group.get().or(self.first_group.as_ref()).map(|group| group.serving())
    }

    pub(super) fn fallback(&self) -> Option<&FaultError> {
        self.fallback.as_ref()
    }

    /// Returns the region's offset in the pool's file, for code that may write there. The file has
    /// no bytes of other owners there.
    pub(super) fn file_offset(&self) -> Result<u64, RegionError> {
        self.check_ours()?;
        // From then on the region cannot be forked: a writer of the file passes every protection.
        let give = || self.file_given.store(true, Ordering::SeqCst);
        match &*self.holds() {
            Holds::Plain(mapped) => {
                give();
                Ok(self.pool.memory().offset(mapped.extent()))
            }
            Holds::Grouped(region) if !region.group.is_shared() => {
                give();
                region.bulk().show_through_file(self.mapped_len, self.pool.threads());
                Ok(region.file_offset())
            }
            Holds::Grouped(_) | Holds::Nothing => Err(RegionError::Forks),
        }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the number of requested bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of mapped bytes: whole folios.
    pub(super) fn mapped_len(&self) -> usize {
        self.mapped_len
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the range, if all of it lies within the region.
    pub(super) fn within(&self, range: Range<usize>) -> Result<Range<usize>, RegionError> {
        if range.start <= range.end && range.end <= self.len {
            Ok(range)
        } else {
            Err(RegionError::OutOfRange { range, len: self.len })
        }
    }

    fn check_ours(&self) -> Result<(), RegionError> {
        if self.pool.memory().is_ours() { Ok(()) } else { Err(RegionError::Forked) }
    }

    /// Maps the folios of the range in the page tables.
    pub(super) fn populate(
        &self,
        range: Range<usize>,
        options: &PopulateOptions<'_>,
    ) -> Result<Report, RegionError> {
        self.check_ours()?;
        headroom::check()?;
        let range = self.within(range)?;
        match &*self.holds() {
            Holds::Grouped(region) => Ok(region.bulk().prefault(range, options)?),
            _ => Ok(self.populate_plain(range, options)?),
        }
    }

    fn populate_plain(
        &self,
        range: Range<usize>,
        options: &PopulateOptions<'_>,
    ) -> Result<Report, JobError<PopulateError>> {
        let page_size = self.pool.page_size();
        let first = range.start - range.start % page_size;
        let len = range.end.next_multiple_of(page_size) - first;
        let start = Bytes(self.start().as_ptr());
        let job = options.job(len).min_chunk(page_size.max(HUGE_PAGE_BYTES));
        let populated = job.run(|chunk| {
            let (start, len) = (start.at(first + chunk.start), chunk.len());
            memory::populate_read(start, len).map_err(|errno| {
                let start = start.addr();
                PopulateError::from_errno(errno, &(start..start + len))
            })
        });
        populated.map_err(|error| error.shifted_into(first, range))
    }

    /// Makes the range writable without a fault from now on.
    pub(super) fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check_ours()?;
        headroom::check()?;
        let range = self.within(range)?;
        if let Holds::Grouped(region) = &*self.holds() {
            region.bulk().own(range, self.pool.threads())?;
        }
        Ok(())
    }

    /// Clears whole folios through the pool's own mapping, or at their next access.
    pub(super) fn release(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check_ours()?;
        headroom::check()?;
        let range = self.whole_folios(range)?;
        match &*self.holds() {
            Holds::Grouped(region) => {
                // Of pinned memory, a device may write what would be cleared later.
                let at_once = self.has_pins_in(&range);
                region.bulk().release(range, at_once).map_err(RegionError::Copy)?;
            }
            Holds::Plain(mapped) => self.pool.clear_in_use(mapped.extent(), range)?,
            Holds::Nothing => {}
        }
        Ok(())
    }

    /// Returns the memory behind the first `len` bytes to the pool.
    pub(super) fn truncate(&mut self, len: usize) -> Result<(), RegionError> {
        self.check_ours()?;
        headroom::check()?;
        self.within(0..len)?;
        if len == 0 {
            return Err(RegionError::NoBytes);
        }
        self.mapped_len = self.give_back_tail(len)?;
        self.len = len;
        Ok(())
    }

    /// Returns the memory behind the folios, or granules, of the first `len` bytes to the pool.
    /// Returns the number of remaining bytes.
    fn give_back_tail(&mut self, len: usize) -> Result<usize, RegionError> {
        let (pool, page_size, before) = (self.pool.clone(), self.pool.page_size(), self.mapped_len);
        let kept = len.next_multiple_of(page_size);
        match self.holds_mut() {
            _ if kept == before => Ok(before),
            Holds::Grouped(region) => {
                region.truncate(len).map_err(|error| RegionError::Kept(error.io_kind()))
            }
            Holds::Plain(mapped) => {
                let contents = [((before - kept) / page_size, Content::Dirty)];
                // SAFETY: every borrow of bytes behind `len` has ended, because `self` is borrowed mutably.
                let taken = unsafe { pool.take_tail(mapped, len, &contents) };
                taken.map(|()| kept).map_err(|error| RegionError::Kept(error.kind()))
            }
            Holds::Nothing => Ok(before),
        }
    }

    /// Makes a drop return the folios to the kernel.
    pub(super) fn retire_when_dropped(&self) {
        self.retires.store(true, Ordering::Relaxed);
    }

    /// Returns the folios to the kernel.
    pub(super) fn retire(mut self) -> Result<(), RegionError> {
        headroom::check()?;
        self.give_to_kernel()
    }

    fn give_to_kernel(&mut self) -> Result<(), RegionError> {
        self.check_ours()?;
        match self.holds_mut().take() {
            Holds::Grouped(region) => {
                region.leave(true).map_err(|error| RegionError::Kept(error.io_kind()))
            }
            Holds::Plain(mapped) => {
                // SAFETY: every borrow of this has ended; code that kept a bare address has promised not to use it any
                // more.
                let retired = unsafe { self.pool.retire(mapped) };
                retired.map_err(|error| RegionError::Kept(error.kind()))
            }
            Holds::Nothing => Ok(()),
        }
    }

    /// Returns the range, if it consists of whole folios; the last one may be cut by the end of the
    /// region.
    fn whole_folios(&self, range: Range<usize>) -> Result<Range<usize>, RegionError> {
        let (range, page_size) = (self.within(range)?, self.pool.page_size());
        let end = if range.end == self.len { self.mapped_len() } else { range.end };
        if range.start % page_size == 0 && end % page_size == 0 {
            Ok(range.start..end)
        } else {
            Err(RegionError::NotWholeFolios { range, page_size })
        }
    }
}

impl RegionMemory {
    /// Makes a mapping with the same bytes. `terms` are the terms of the first fork, `agree` checks
    /// a later fork, `left_out` are the ranges that the fork does not inherit. An epoch of the
    /// region may begin with the fork.
    pub(super) fn fork(
        &self,
        left_out: &[Range<usize>],
        terms: impl FnOnce(&Pool) -> Result<Terms, ForkError>,
        agree: impl FnOnce(&Arc<ForkGroup>) -> Result<(), ForkError>,
        epoch: Option<&mut NextEpoch<'_>>,
    ) -> Result<CowHandle, ForkError> {
        if !self.pool.memory().is_ours() {
            return Err(ForkError::Forked);
        }
        headroom::check()?;
        if let Some(range) = left_out.iter().find(|range| self.within((*range).clone()).is_err()) {
            return Err(ForkError::OutOfRange { range: range.clone(), len: self.len });
        }
        let mut holds = self.holds.write().unwrap_or_else(PoisonError::into_inner);
        if self.file_given.load(Ordering::SeqCst) {
            return Err(ForkError::FileGiven);
        }
        let (granule_bytes, terms) = match &*holds {
            Holds::Grouped(region) if region.group.is_shared() => {
                agree(&region.group)?;
                (region.granule_bytes(), None)
            }
            _ => {
                let terms = terms(&self.pool)?;
                (terms.granule_bytes, Some(terms))
            }
        };
        // First, because it is what is most likely to fail.
        let place = self.pool.reserve(self.mapped_len, granule_bytes)?;
        if let Some(Err(error)) = terms.map(|terms| self.begin_to_share(&mut holds, terms)) {
            for (extent, contents) in place {
                // SAFETY: no user has mapped or written them.
                unsafe { self.pool.give_back(extent, &contents) };
            }
            return Err(error);
        }
        let Holds::Grouped(parent) = &*holds else { unreachable!("it has just become one") };
        let unshared = &self.unshared_slots(left_out, granule_bytes);
        ForkMaker { parent, unshared, bytes: self.mapped_len }.fork(place, epoch)
    }

    /// Makes the region a member of a group that shares memory on these terms: its own group, or a
    /// new one.
    fn begin_to_share(&self, holds: &mut Holds, terms: Terms) -> Result<(), ForkError> {
        let group = match holds {
            Holds::Grouped(region) if region.group.suits(&terms) => {
                region.group.share(terms.max_vmas)?;
                Arc::clone(&region.group)
            }
            _ => self.found_group(holds, terms)?,
        };
        self.group.get_or_init(|| group);
        Ok(())
    }

    /// Makes a new group with this region. If the region is in another group, which shares nothing,
    /// all of it is made ready before.
    fn found_group(&self, holds: &mut Holds, terms: Terms) -> Result<Arc<ForkGroup>, ForkError> {
        let group = ForkGroup::create(&self.pool, self.mapped_len, terms)?;
        if let Holds::Grouped(region) = holds {
            if let Err(error) = region.bulk().supply(0..self.mapped_len, self.pool.threads()) {
                group.end();
                return Err(ForkError::NotReady(error));
            }
        }
        let mapped = match holds.take() {
            Holds::Plain(mapped) => mapped,
            Holds::Grouped(region) => region.become_plain(),
            Holds::Nothing => unreachable!("a region that is being dropped is not forked"),
        };
        match FoundingRegion::join(&group, mapped, None) {
            Ok(region) => *holds = Holds::Grouped(region),
            Err((mapped, error)) => {
                *holds = Holds::Plain(mapped);
                group.end();
                return Err(error.into());
            }
        }
        Ok(group)
    }

    /// Returns the slots that a fork does not share.
    fn unshared_slots(&self, left_out: &[Range<usize>], granule_bytes: usize) -> UnsharedSlots {
        let to_the_end = |range: &Range<usize>| match range.end == self.len {
            true => range.start..self.mapped_len,
            false => range.clone(),
        };
        let left_out: Vec<_> = left_out.iter().map(to_the_end).collect();
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        UnsharedSlots::new(&pins, &left_out, granule_bytes, self.mapped_len)
    }

    /// Makes every fork copy the range at once, until [`unpin`](Self::unpin).
    pub(super) fn pin(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check_ours()?;
        headroom::check()?;
        let range = self.within(range)?;
        let holds = self.holds();
        if let Holds::Grouped(region) = &*holds {
            region.bulk().own(range.clone(), Threads::One)?;
        }
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).push(range);
        Ok(())
    }

    fn has_pins_in(&self, range: &Range<usize>) -> bool {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        pins.iter().any(|pin| pin.start < range.end && range.start < pin.end)
    }

    pub(super) fn unpin(&self, range: &Range<usize>) {
        if !self.pool.memory().is_ours() {
            return; // Another thread may have held the lock when this process was forked.
        }
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = pins.iter().position(|pin| pin == range) {
            pins.swap_remove(at);
        }
    }

    /// Returns the number of bytes that the region shares with other regions at this moment.
    pub(super) fn shared_bytes(&self) -> Result<usize, RegionError> {
        self.check_ours()?;
        Ok(match &*self.holds() {
            Holds::Grouped(region) => region.count_shared(),
            _ => 0,
        })
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        let _lent = headroom::lend();
        if *self.retires.get_mut() && self.pool.memory().is_ours() {
            if let Err(error) = self.give_to_kernel() {
                hugekit_sys::events::error!("folios are lost: {}", error_chain(&error));
            }
            return;
        }
        match self.holds_mut().take() {
            Holds::Grouped(region) => drop(region),
            // SAFETY: every borrow of this has ended; code that kept a bare address has promised not to use it any
            // more.
            Holds::Plain(mapped) => unsafe { self.pool.reclaim(mapped) },
            Holds::Nothing => {}
        }
    }
}

impl RegionError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfRange { .. }
            | Self::Unaligned { .. }
            | Self::NotWholeFolios { .. }
            | Self::NoBytes => ErrorKind::Invalid,
            Self::Populate(error) => error.kind(),
            Self::Clear(error) => error.kind(),
            Self::Kept(kind) => ErrorKind::from(*kind),
            Self::Copy(error) => error.kind(),
            Self::Forks => ErrorKind::Conflict,
            Self::Heap(_) => ErrorKind::NoMemory,
            Self::Forked => ErrorKind::Forked,
        }
    }
}
