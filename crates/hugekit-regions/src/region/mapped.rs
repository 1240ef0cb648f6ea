//! What both kinds of region do with their memory.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use crate::cow::{CowHandle, ForkError, ForkGroup, Fresh, Terms, Turn};
use crate::fault::{Faults, Service, Serving};
use crate::pool::{Content, FaultError, Mapped, Pool, Size};
use hugekit_bulk::ClearError;
use hugekit_bulk::parallel::{Bytes, Done, Job, JobError, Progress, Report, Threads};
use hugekit_bulk::populate::{self, PopulateError};
use hugekit_sys::ErrorKind;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::headroom::{self, HeapShortage};
use hugekit_sys::memory;
use hugekit_sys::thread::without_signals;

/// Why a region could not do what was asked. Its contents are as they were.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The range does not lie within the region.
    #[error("bytes {}..{} lie outside a region of {len} bytes", range.start, range.end)]
    OutOfRange {
        /// Offsets asked for.
        range: Range<usize>,
        /// Bytes of the region.
        len: usize,
    },
    /// The address is not a multiple of what is accessed there.
    #[error("offset {offset} is not a multiple of {align}")]
    Unaligned {
        /// The offset.
        offset: usize,
        /// Bytes of what is accessed.
        align: usize,
    },
    /// Only whole folios can be released.
    #[error(
        "bytes {}..{} are not whole pages of {}: nothing smaller can be released here",
        range.start, range.end, Size(*page_size)
    )]
    NotWholeFolios {
        /// Offsets asked for.
        range: Range<usize>,
        /// Bytes of a folio.
        page_size: usize,
    },
    /// A region has at least one byte.
    #[error("a region cannot be cut to no bytes: drop it")]
    NoBytes,
    /// Populating failed: no thread was asked for, memory is broken, or none is left.
    #[error("cannot populate: {0}")]
    Populate(#[from] JobError<PopulateError>),
    /// Clearing failed: no thread was asked for when the pool was made.
    #[error("cannot clear what is released: {0}")]
    Clear(#[from] ClearError),
    /// The kernel would not take the memory back.
    #[error("the kernel does not take the memory back: {0}")]
    Kept(std::io::ErrorKind),
    /// What the region shares with forks could not be copied.
    #[error("what is shared with forks cannot be copied: {0}")]
    Copy(PopulateError),
    /// A region that was forked lies in several places of the file, some of which are others' too.
    #[error("the region shares memory with forks: who writes its file would write theirs")]
    Forks,
    /// The heap has no room for the call.
    #[error(transparent)]
    Heap(#[from] HeapShortage),
    /// This process was forked from the region's, which alone has its memory.
    #[error("the region belongs to the process that this one was forked from")]
    Forked,
}

impl RegionError {
    /// Of a populate that failed on the way, which bytes of the region it was done with.
    #[must_use]
    pub const fn done(&self) -> Option<&Done> {
        match self {
            Self::Populate(error) => error.done(),
            _ => None,
        }
    }
}

/// An extent in use, given back to its pool when dropped.
#[derive(Debug)]
pub(super) struct Memory {
    holds: RwLock<Holds>,
    /// How its faults are served until it is forked, if they are not plain ones.
    serving: Option<Serving>,
    /// Why they are plain ones although it was to be cleared at the fault.
    fallback: Option<FaultError>,
    /// What it shares memory in, once it was forked.
    group: OnceLock<Arc<ForkGroup>>,
    /// Ranges that a fork copies at once.
    pins: Mutex<Vec<Range<usize>>>,
    /// Whether a program may have the file behind it.
    file_given: AtomicBool,
    /// Whether its folios go back to the kernel when it is dropped.
    retires: AtomicBool,
    pool: Pool,
    start: NonNull<u8>,
    mapped_len: usize,
    len: usize,
}

// SAFETY: an address; the code that follows it says why that is sound.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// What a region has its memory from. Changed only by forking and at the end.
#[derive(Debug)]
enum Holds {
    /// An extent of its own.
    Plain(Mapped),
    /// An extent of its own, of which folios are made ready by the faults that a service answers.
    Lazy(Mapped, Service),
    /// A mapping in a fork group.
    CopyOnWrite(CowHandle),
    /// Nothing: it is being dropped.
    Nothing,
}

impl Holds {
    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Nothing)
    }

    /// An extent of its own, and the service of its faults if they are not plain ones.
    fn into_extent(self) -> Option<(Mapped, Option<Service>)> {
        match self {
            Self::Plain(mapped) => Some((mapped, None)),
            Self::Lazy(mapped, service) => Some((mapped, Some(service))),
            Self::CopyOnWrite(_) | Self::Nothing => None,
        }
    }
}

impl Memory {
    pub(super) fn new(
        pool: Pool,
        mapped: Mapped,
        len: usize,
        mut service: Option<Service>,
    ) -> Self {
        let (start, mapped_len) = (mapped.mapping().start(), mapped.mapping().len());
        let serving = service.as_mut().map(Service::take_serving);
        let holds = match service {
            None => Holds::Plain(mapped),
            Some(service) => Holds::Lazy(mapped, service),
        };
        Self::with(pool, holds, serving, (start, mapped_len, len))
    }

    fn with(
        pool: Pool,
        holds: Holds,
        serving: Option<Serving>,
        (start, mapped_len, len): (NonNull<u8>, usize, usize),
    ) -> Self {
        Self {
            holds: RwLock::new(holds),
            serving,
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

    /// It was cleared at allocation, for this reason if that was not what was asked for.
    pub(super) fn cleared_because(mut self, fallback: Option<FaultError>) -> Self {
        self.fallback = fallback;
        self
    }

    /// Nothing panics while it is held but a caller's progress callback, which leaves it as it is.
    fn holds(&self) -> RwLockReadGuard<'_, Holds> {
        self.holds.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn holds_mut(&mut self) -> &mut Holds {
        self.holds.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn serving(&self) -> Option<&Serving> {
        self.group.get().map(|group| group.serving()).or(self.serving.as_ref())
    }

    pub(super) fn fallback(&self) -> Option<&FaultError> {
        self.fallback.as_ref()
    }

    /// Where in the pool's file it lies, for code that may write there: no other owner's bytes are there.
    pub(super) fn file_offset(&self) -> Result<u64, RegionError> {
        self.check_ours()?;
        match &*self.holds() {
            Holds::Plain(mapped) => Ok(self.give_file(mapped)),
            Holds::Lazy(mapped, service) => {
                let offset = self.give_file(mapped);
                service.served().show_through_file();
                Ok(offset)
            }
            Holds::CopyOnWrite(_) | Holds::Nothing => Err(RegionError::Forks),
        }
    }

    /// From now on the region cannot be forked: a writer of the file passes every protection.
    fn give_file(&self, mapped: &Mapped) -> u64 {
        self.file_given.store(true, Ordering::SeqCst);
        self.pool.memory().offset(mapped.extent())
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes asked for.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes mapped: whole folios.
    pub(super) fn mapped_len(&self) -> usize {
        self.mapped_len
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The range, if all of it lies within the region.
    pub(super) fn within(&self, range: Range<usize>) -> Result<Range<usize>, RegionError> {
        if range.start <= range.end && range.end <= self.len {
            Ok(range)
        } else {
            Err(RegionError::OutOfRange { range, len: self.len })
        }
    }

    /// Its mapping in a fork group, of a region that is a fork.
    pub(super) fn as_fork<R>(&self, act: impl FnOnce(&CowHandle) -> R) -> R {
        match &*self.holds() {
            Holds::CopyOnWrite(fork) => act(fork),
            _ => unreachable!("a fork is one of its group as long as it exists"),
        }
    }

    fn check_ours(&self) -> Result<(), RegionError> {
        if self.pool.memory().is_ours() { Ok(()) } else { Err(RegionError::Forked) }
    }

    /// Enters the folios on which the range lies into the page tables.
    pub(super) fn populate(
        &self,
        range: Range<usize>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Report, RegionError> {
        self.check_ours()?;
        headroom::check()?;
        let range = self.within(range)?;
        match &*self.holds() {
            Holds::CopyOnWrite(fork) => return Ok(fork.prefault(range, threads, progress)?),
            Holds::Lazy(_, service) => {
                service.served().prepare_write(range.clone(), threads, progress)?;
                if self.pool.backing().is_reserved() {
                    return Ok(self.populate_plain(range, Threads::One, None)?);
                }
            }
            _ => {}
        }
        Ok(self.populate_plain(range, threads, progress)?)
    }

    fn populate_plain(
        &self,
        range: Range<usize>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Report, JobError<PopulateError>> {
        let page_size = self.pool.page_size();
        let first = range.start - range.start % page_size;
        let len = range.end.next_multiple_of(page_size) - first;
        let start = Bytes(self.start().as_ptr());
        let job = Job::new(len).min_chunk(page_size.max(HUGE_PAGE_BYTES)).threads(threads);
        let job = progress.into_iter().fold(job, Job::progress);
        let populated = job.run(|chunk| {
            let (start, len) = (start.at(first + chunk.start), chunk.len());
            memory::populate_read(start, len).map_err(|errno| populate::meaning(errno, start, len))
        });
        populated.map_err(|error| error.shifted_into(first, range))
    }

    /// Makes the range writable without a fault from now on.
    pub(super) fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check_ours()?;
        headroom::check()?;
        let range = self.within(range)?;
        match &*self.holds() {
            Holds::CopyOnWrite(fork) => drop(fork.own(range, self.pool.threads())?),
            Holds::Lazy(_, service) => {
                service.served().prepare_write(range, self.pool.threads(), None)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Clears whole folios through the pool's own mapping, or has them cleared when they are touched.
    pub(super) fn release(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check_ours()?;
        headroom::check()?;
        let range = self.whole_folios(range)?;
        match &*self.holds() {
            Holds::CopyOnWrite(fork) => fork.release(range).map_err(RegionError::Copy)?,
            Holds::Lazy(_, service) => service.served().release(range),
            Holds::Plain(mapped) => self.pool.clear_in_use(mapped.extent(), range)?,
            Holds::Nothing => {}
        }
        Ok(())
    }

    /// Gives back what lies behind the first `len` bytes.
    pub(super) fn truncate(&mut self, len: usize) -> Result<(), RegionError> {
        self.check_ours()?;
        headroom::check()?;
        self.within(0..len)?;
        if len == 0 {
            return Err(RegionError::NoBytes);
        }
        self.mapped_len = self.cut(len)?;
        self.len = len;
        Ok(())
    }

    /// Gives back what lies behind the folios of the first `len` bytes, or their granules; how many bytes
    /// stay.
    fn cut(&mut self, len: usize) -> Result<usize, RegionError> {
        let (pool, page_size, cut) = (self.pool.clone(), self.pool.page_size(), self.mapped_len);
        let kept = len.next_multiple_of(page_size);
        let (mapped, service) = match self.holds_mut() {
            _ if kept == cut => return Ok(cut),
            Holds::CopyOnWrite(fork) => {
                return fork.truncate(len).map_err(|error| RegionError::Kept(error.io_kind()));
            }
            Holds::Plain(mapped) => (mapped, None),
            Holds::Lazy(mapped, service) => (mapped, Some(service)),
            Holds::Nothing => return Ok(cut),
        };
        let contents = match &service {
            Some(service) => service.cut(kept, page_size),
            None => vec![((cut - kept) / page_size, Content::Dirty)],
        };
        // SAFETY: every borrow of bytes behind `len` has ended, because `self` is borrowed mutably.
        let taken = unsafe { pool.take_tail(mapped, len, &contents) };
        taken.map(|()| kept).map_err(|error| {
            // Its tail is served again.
            service.into_iter().for_each(|service| service.restore(cut));
            RegionError::Kept(error.kind())
        })
    }

    /// Has the folios go back to the kernel when it is dropped.
    pub(super) fn retire_when_dropped(&self) {
        self.retires.store(true, Ordering::Relaxed);
    }

    /// Gives the folios back to the kernel.
    pub(super) fn retire(mut self) -> Result<(), RegionError> {
        headroom::check()?;
        self.give_to_kernel()
    }

    fn give_to_kernel(&mut self) -> Result<(), RegionError> {
        self.check_ours()?;
        let kept = |error: ForkError| RegionError::Kept(error.io_kind());
        match self.holds_mut().take() {
            Holds::CopyOnWrite(fork) => fork.leave(true).map_err(kept),
            extent => match extent.into_extent() {
                Some((mapped, mut service)) => {
                    service.iter_mut().for_each(Service::end);
                    // SAFETY: as for `drop`.
                    unsafe { self.pool.retire(mapped) }
                        .map_err(|error| RegionError::Kept(error.kind()))
                }
                None => Ok(()),
            },
        }
    }

    /// The range, if it consists of whole folios; the last one may be cut by the end of the region.
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

impl Memory {
    /// A region with the same bytes. `terms` are those of the first fork; `agree` is what a later one has
    /// to say; an epoch of the region may begin with it.
    pub(super) fn fork(
        &self,
        terms: impl FnOnce(&Pool) -> Result<Terms, ForkError>,
        agree: impl FnOnce(&Arc<ForkGroup>) -> Result<(), ForkError>,
        turn: Option<&mut Turn<'_>>,
    ) -> Result<Self, ForkError> {
        if !self.pool.memory().is_ours() {
            return Err(ForkError::Forked);
        }
        headroom::check()?;
        let mut holds = self.holds.write().unwrap_or_else(PoisonError::into_inner);
        if self.file_given.load(Ordering::SeqCst) {
            return Err(ForkError::FileGiven);
        }
        let (granule_bytes, terms) = match &*holds {
            Holds::CopyOnWrite(fork) => {
                agree(&fork.group)?;
                (fork.granule_bytes(), None)
            }
            _ => {
                let terms = terms(&self.pool)?;
                (terms.granule_bytes, Some(terms))
            }
        };
        // First, because it is what is most likely to fail.
        let place = self.pool.reserve(self.mapped_len, granule_bytes)?;
        if let Some(Err(error)) = terms.map(|terms| self.begin(&mut holds, terms)) {
            for (extent, contents) in place {
                // SAFETY: no user has mapped or written them.
                unsafe { self.pool.give_back(extent, &contents) };
            }
            return Err(error);
        }
        let Holds::CopyOnWrite(fork) = &*holds else { unreachable!("it has just become one") };
        let fresh = fork.fork(place, &self.pinned(granule_bytes), self.mapped_len, turn)?;
        Ok(self.child(fresh))
    }

    /// Founds a fork group with this region.
    fn begin(&self, holds: &mut Holds, terms: Terms) -> Result<(), ForkError> {
        let group = ForkGroup::found(&self.pool, self.mapped_len, terms)?;
        // What is still to be made ready is, before any region shares it.
        if let Holds::Lazy(_, service) = holds {
            let ready =
                service.served().prepare_write(0..self.mapped_len, self.pool.threads(), None);
            if let Err(error) = ready {
                group.end();
                return Err(ForkError::NotReady(error));
            }
            let _ = without_signals(|blocked| service.served().give_up(blocked));
            service.end();
        }
        let (mapped, service) =
            holds.take().into_extent().expect("only a region without a fork group begins one");
        let (extent, mapping) = mapped.into_parts();
        let begun = group.begin(extent, mapping).map_err(|(extent, mapping, error)| {
            *holds = Holds::Plain(Mapped::of_parts(extent, mapping));
            group.end();
            error
        });
        *holds = Holds::CopyOnWrite(begun?);
        drop(service);
        self.group.get_or_init(|| group);
        Ok(())
    }

    fn child(&self, fresh: Fresh) -> Self {
        let Fresh { handle, bytes } = fresh;
        let start = ptr::with_exposed_provenance_mut(handle.start);
        let start = NonNull::new(start).expect("nothing is mapped at 0");
        let group = Arc::clone(&handle.group);
        let holds = Holds::CopyOnWrite(handle);
        let child = Self::with(self.pool.clone(), holds, None, (start, bytes, self.len));
        child.group.get_or_init(|| group);
        child
    }

    /// The slots on which a byte of a pinned range lies, in ascending order.
    fn pinned(&self, granule_bytes: usize) -> Vec<usize> {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = |pin: &Range<usize>| pin.start / granule_bytes..pin.end.div_ceil(granule_bytes);
        let slots: BTreeSet<usize> = pins.iter().flat_map(slots).collect();
        slots.into_iter().collect()
    }

    /// Has every fork copy the range at once, until [`unpin`](Self::unpin).
    pub(super) fn pin(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check_ours()?;
        headroom::check()?;
        let range = self.within(range)?;
        let holds = self.holds();
        if let Holds::CopyOnWrite(fork) = &*holds {
            fork.own(range.clone(), Threads::One)?;
        }
        self.pins.lock().unwrap_or_else(PoisonError::into_inner).push(range);
        Ok(())
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

    /// Bytes that it shares with others at this moment.
    pub(super) fn shared_bytes(&self) -> Result<usize, RegionError> {
        self.check_ours()?;
        Ok(match &*self.holds() {
            Holds::CopyOnWrite(fork) => fork.count_shared(),
            _ => 0,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _lent = headroom::lend();
        if *self.retires.get_mut() && self.pool.memory().is_ours() {
            if let Err(error) = self.give_to_kernel() {
                hugekit_sys::events::error!("folios are lost: {error}");
            }
            return;
        }
        // Its descriptor is closed only when nothing is mapped there any more: what it guards may be
        // another owner's bytes.
        let extent = match self.holds_mut().take() {
            Holds::CopyOnWrite(fork) if self.pool.memory().is_ours() => {
                if let Err(error) = fork.leave(false) {
                    hugekit_sys::events::error!("folios are lost: {error}");
                }
                return;
            }
            Holds::CopyOnWrite(fork) => return fork.group.forget_handlers(),
            extent => extent.into_extent(),
        };
        let Some((mapped, mut service)) = extent else { return };
        let contents = service.as_mut().map(|service| service.stop(self.pool.page_size()));
        // SAFETY: every borrow of this has ended; code that kept a bare address has promised not to use it
        // any more. What the folios hold is what faults have made of them.
        unsafe {
            match contents {
                Some(contents) => self.pool.reclaim_as(mapped, &contents),
                None => self.pool.reclaim(mapped),
            }
        }
    }
}

impl RegionError {
    /// What it means for a program.
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
