//! The shared part of a pool's handles, its regions and its scrubber: the memory, and the state of
//! each folio.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io;

use super::extent::{Clean, Content, Dirty, Extent, Hole, Idle, InUse};
use super::folios::FreeFolios;
use super::memory::{Failure, Mapped, PoolMemory, parts_of};
use super::stats::{Counters, PoolStats, Scrubbed};
use super::{PoolError, limits};
use hugekit_bulk::parallel::{Progress, Threads};
use hugekit_bulk::{ClearError, ClearOptions, Reuse};
use hugekit_machine::Root;
use hugekit_sys::headroom;

/// The highest number of bytes of one round of [`Core::scrub_all`]: enough for many threads, but so
/// few that an allocation which needs the folios does not wait long.
const ROUND_BYTES: usize = 256 << 20;

#[derive(Debug)]
pub(crate) struct Core {
    pub(super) memory: PoolMemory,
    pub(super) root: Root,
    /// Determined when the pool is made, because reading control groups at each allocation would
    /// last longer than the mapping.
    holes_may_wait: bool,
    state: Mutex<PoolState>,
    /// Returned memory that the kernel did not unmap, and the content of its folios. The unmapping
    /// is repeated when folios are short.
    unreturned: Mutex<Vec<Unreturned>>,
    /// Signalled when folios return or the scrubber pauses. Callers wait for it.
    returned: Condvar,
    /// Signalled when there are dirty folios or orders. The scrubber waits for it.
    pub(super) wanted: Condvar,
    /// Signalled only to stop the scrubber. The scrubber waits for it during a nap.
    pub(super) stopped: Condvar,
    pub(super) counters: Counters,
}

/// An extent that its owner overwrites before a user sees it, and the content of each run of its
/// folios.
pub(crate) type Reserved = (Extent<InUse>, Vec<(usize, Content)>);

/// Memory that no thread uses any more and is still mapped, and the content of its folios.
type Unreturned = (Mapped, Vec<(usize, Content)>);

/// The state under the lock. No thread clears, populates or maps while it holds the lock.
#[derive(Debug)]
pub(super) struct PoolState {
    pub(super) folios: FreeFolios,
    capacity: usize,
    /// The number of folios that are being scrubbed, by any thread.
    scrubbing: usize,
    /// The number of these folios that the scrubber's own threads clear.
    pub(super) in_background: usize,
    /// The number of allocations that need folios which are being scrubbed. The scrubber takes no
    /// more folios meanwhile.
    waiting: usize,
    /// The number of times that folios were allocated or returned.
    pub(super) traffic: u64,
    pub(super) orders: Orders,
}

/// The orders to the scrubber.
#[derive(Debug)]
pub(super) struct Orders {
    pub(super) stop: bool,
    pub(super) paused: bool,
    /// True if the scrubber must not wait until the pool is calm.
    pub(super) urgent: bool,
    /// The scrubber begins if there are fewer clean folios than this.
    pub(super) low: usize,
    /// The scrubber rests if there are this many clean folios.
    pub(super) high: usize,
    /// True between the watermarks on the way up.
    pub(super) filling: bool,
}

impl PoolState {
    /// Returns true if the scrubber has work.
    pub(super) fn wants_scrubbing(&mut self) -> bool {
        let (clean, orders) = (self.folios.clean(), &mut self.orders);
        orders.filling = if orders.filling { clean < orders.high } else { clean < orders.low };
        orders.filling && !orders.paused && self.waiting == 0 && self.folios.dirty() > 0
    }

    /// Returns a piece for the scrubber.
    pub(super) fn take_for_background(&mut self, most: usize) -> Option<Extent<Dirty>> {
        if !self.wants_scrubbing() {
            return None;
        }
        let missing = self.orders.high - self.folios.clean();
        let extent = self.take_dirty(most.min(missing))?;
        self.in_background += extent.folios().len();
        Some(extent)
    }

    fn take_dirty(&mut self, most: usize) -> Option<Extent<Dirty>> {
        let extent = self.folios.take_dirty(most)?;
        self.scrubbing += extent.folios().len();
        Some(extent)
    }
}

impl Core {
    pub(super) fn new(
        memory: PoolMemory,
        root: Root,
        capacity: usize,
        orders: Orders,
    ) -> io::Result<Self> {
        let state = PoolState {
            folios: FreeFolios::new(capacity),
            capacity,
            scrubbing: 0,
            in_background: 0,
            waiting: 0,
            traffic: 0,
            orders,
        };
        Ok(Self {
            holes_may_wait: limits::holes_may_wait(&root, memory.backing()),
            memory,
            root,
            state: Mutex::new(state),
            unreturned: Mutex::default(),
            returned: Condvar::new(),
            wanted: Condvar::new(),
            stopped: Condvar::new(),
            counters: Counters::new()?,
        })
    }

    /// Locks the state. Under the lock, only a failed check of a debug build can panic half-way.
    pub(super) fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error in a forked child, where locks may be held by threads that do not exist.
    pub(super) fn check_ours(&self) -> Result<(), PoolError> {
        if self.memory.is_ours() { Ok(()) } else { Err(PoolError::Forked) }
    }

    /// Maps `count` zeroed folios for one user.
    pub(super) fn allocate(
        &self,
        count: usize,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Mapped, PoolError> {
        self.check_ours()?;
        headroom::check()?;
        let parts = self.make_clean(self.claim(count, FreeFolios::take)?, threads, progress)?;
        let clean = parts.into_iter().reduce(Extent::join).expect("an extent has a folio");
        let mapped = self.memory.map(clean).map_err(|(clean, error)| {
            self.put_back([clean.into()]);
            error
        })?;
        self.counters.handed_out();
        Ok(mapped)
    }

    /// Like [`allocate`](Self::allocate), but dirty folios stay dirty, and holes stay holes if a
    /// fault can always populate them. Returns the content of each run of folios, unless all are
    /// clean.
    ///
    /// # Safety
    /// The conditions of [`PoolMemory::map_unready`].
    #[allow(unsafe_code)]
    pub(super) unsafe fn hand_out_unready(
        &self,
        count: usize,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<(Mapped, Vec<(usize, Content)>), PoolError> {
        self.check_ours()?;
        headroom::check()?;
        let parts = self.claim(count, FreeFolios::take)?;
        let parts = self.populate_what_may_not_wait(parts, threads, progress)?;
        let contents = parts.iter().map(|part| (part.folios().len(), part.content())).collect();
        // SAFETY: every access waits until its folio is clean.
        match unsafe { self.memory.map_unready(parts) } {
            Ok(mapped) => {
                self.counters.handed_out();
                Ok((mapped, contents))
            }
            Err((parts, error)) => {
                self.put_back(parts);
                Err(error)
            }
        }
    }

    /// Takes folios for a caller that overwrites them, in pieces of whole units of `unit` folios,
    /// and in one piece if there is one. Returns the content of each run of folios. There are holes
    /// only if a write to them is sure to find memory.
    pub(super) fn reserve(
        &self,
        count: usize,
        unit: usize,
        threads: Threads,
    ) -> Result<Vec<Reserved>, PoolError> {
        self.check_ours()?;
        headroom::check()?;
        let parts = self.claim(count, |folios, count| folios.take_in_pieces(count, unit))?;
        let parts = self.populate_what_may_not_wait(parts, threads, None)?;
        let mut pieces: Vec<Reserved> = Vec::new();
        for part in parts {
            let (count, content) = (part.folios().len(), part.content());
            let extent = part.reserved();
            match pieces.last_mut() {
                Some((last, contents)) if last.folios().end == extent.folios().start => {
                    last.append(extent);
                    contents.push((count, content));
                }
                _ => pieces.push((extent, vec![(count, content)])),
            }
        }
        Ok(pieces)
    }

    /// Takes back an extent that is not mapped.
    ///
    /// # Safety
    /// The folios are mapped nowhere any more, and each run of folios holds what `contents` says.
    #[allow(unsafe_code)]
    pub(super) unsafe fn give_back(&self, extent: Extent<InUse>, contents: &[(usize, Content)]) {
        // SAFETY: the folios are mapped nowhere but in the alias mapping, and the runs hold what they say.
        self.put_back(unsafe { parts_of(extent.become_(), contents) });
    }

    /// Like [`give_back`](Self::give_back), but the folios go to the kernel.
    ///
    /// # Safety
    /// The folios are mapped nowhere any more.
    #[allow(unsafe_code)]
    pub(super) unsafe fn give_back_as_holes(&self, extent: Extent<InUse>) -> std::io::Result<()> {
        // SAFETY: the folios are mapped nowhere but in the alias mapping.
        let hole = self.memory.punch(unsafe { extent.become_() })?;
        self.put_back([hole.into()]);
        Ok(())
    }

    /// Populates the holes, unless a fault can always populate them. If that fails, all parts are
    /// in the pool again.
    fn populate_what_may_not_wait(
        &self,
        parts: Vec<Idle>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Vec<Idle>, PoolError> {
        let has_holes = parts.iter().any(|part| part.content() == Content::Hole);
        if !has_holes || self.holes_may_wait {
            return Ok(parts);
        }
        self.make_each(parts, |part| match part {
            Idle::Hole(hole) => self.populate(hole, threads, progress).map(Idle::from),
            other => Ok(other),
        })
    }

    /// Takes a contiguous extent out of the pool. If necessary, waits for folios that are being
    /// scrubbed, or unmaps folios that could not be unmapped before.
    fn claim(
        &self,
        count: usize,
        take: impl Fn(&mut FreeFolios, usize) -> Option<Vec<Idle>>,
    ) -> Result<Vec<Idle>, PoolError> {
        match self.claim_idle(count, &take) {
            Err(_) if self.return_again() => self.claim_idle(count, &take),
            claimed => claimed,
        }
    }

    fn claim_idle(
        &self,
        count: usize,
        take: impl Fn(&mut FreeFolios, usize) -> Option<Vec<Idle>>,
    ) -> Result<Vec<Idle>, PoolError> {
        let mut state = self.lock();
        let mut waits = false;
        let parts = loop {
            if let Some(parts) = take(&mut state.folios, count) {
                break Ok(parts);
            }
            if state.scrubbing == 0 {
                break Err(self.no_room(&state.folios, count));
            }
            if !waits {
                waits = true;
                state.waiting += 1;
                self.counters.waited();
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.waiting -= usize::from(waits);
        state.traffic += 1;
        if state.wants_scrubbing() {
            self.wanted.notify_all();
        }
        parts
    }

    fn no_room(&self, folios: &FreeFolios, count: usize) -> PoolError {
        let page_size = self.memory.page_size();
        PoolError::NoRoom {
            wanted: count * page_size,
            free: folios.free() * page_size,
            longest: folios.longest_free() * page_size,
        }
    }

    /// Populates the holes and clears dirty folios. If anything fails, all folios are in the pool
    /// again, in their present state.
    fn make_clean(
        &self,
        parts: impl IntoIterator<Item = Idle>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Vec<Extent<Clean>>, PoolError> {
        self.make_each(parts, |part| match part {
            Idle::Clean(extent) => Ok(extent),
            Idle::Hole(extent) => self.populate(extent, threads, progress),
            Idle::Dirty(extent) => self.scrub_for_user(extent, threads, progress),
        })
    }

    /// Calls `make` for each part. If a call fails, all parts are in the pool again, in their
    /// present state.
    fn make_each<T: Into<Idle>>(
        &self,
        parts: impl IntoIterator<Item = Idle>,
        make: impl Fn(Idle) -> Result<T, (Idle, Failure)>,
    ) -> Result<Vec<T>, PoolError> {
        let mut parts = parts.into_iter();
        let mut made = Vec::new();
        while let Some(part) = parts.next() {
            match make(part) {
                Ok(ready) => made.push(ready),
                Err((part, failure)) => {
                    let made = made.into_iter().map(T::into);
                    self.put_back(made.chain(self.without_failed(part)).chain(parts));
                    return Err(failure.into_error());
                }
            }
        }
        Ok(made)
    }

    fn scrub_for_user(
        &self,
        extent: Extent<Dirty>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Extent<Clean>, (Idle, Failure)> {
        let clear = ClearOptions::new().reuse(Reuse::None).threads(threads);
        let clear = progress.into_iter().fold(clear, ClearOptions::progress);
        let scrubbed = self.memory.scrub(extent, &clear);
        let clean = scrubbed.map_err(|(dirty, failure)| (dirty.into(), failure))?;
        self.counters.scrubbed(Scrubbed::OnAllocation, self.memory.bytes(&clean));
        Ok(clean)
    }

    fn populate(
        &self,
        hole: Extent<Hole>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Extent<Clean>, (Idle, Failure)> {
        let bytes = self.memory.bytes(&hole);
        if let Err(refusal) = limits::check_use(&self.root, self.memory.backing(), bytes) {
            return Err((hole.into(), Failure::Refused(refusal)));
        }
        let populated = self.memory.populate(hole, threads, progress);
        let clean = populated.map_err(|(hole, failure)| (hole.into(), failure))?;
        self.counters.populated(bytes);
        Ok(clean)
    }

    /// Populates every hole.
    pub(super) fn populate_all(
        &self,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<(), PoolError> {
        let holes = self.lock().folios.take_holes();
        let clean = self.make_clean(holes.into_iter().map(Idle::from), threads, progress)?;
        self.put_back(clean.into_iter().map(Idle::from));
        Ok(())
    }

    /// Counts every hole as clean, without a check.
    ///
    /// # Safety
    /// The memory was populated before, and all of its bytes are zero.
    #[allow(unsafe_code)]
    pub(super) unsafe fn take_for_clean(&self) {
        let holes = self.lock().folios.take_holes();
        // SAFETY: the memory was populated before, and all of its bytes are zero.
        let clean = holes.into_iter().map(|hole| unsafe { hole.become_::<Clean>() });
        self.put_back(clean.map(Idle::from));
    }

    /// Takes folios back, and notifies the callers that wait for folios.
    pub(super) fn put_back(&self, parts: impl IntoIterator<Item = Idle>) {
        let mut state = self.lock();
        parts.into_iter().for_each(|part| state.folios.put(part));
        state.traffic += 1;
        self.tell(&mut state);
    }

    /// Returns the parts of a part that could not be populated or cleared, without folios that have
    /// failed permanently.
    pub(super) fn without_failed(&self, part: Idle) -> Vec<Idle> {
        match part {
            Idle::Dirty(dirty) => self.memory.without_failed(dirty),
            other => vec![other],
        }
    }

    /// Takes back `count` scrubbed folios, except those that have failed.
    pub(super) fn put_scrubbed(
        &self,
        parts: impl IntoIterator<Item = Idle>,
        count: usize,
        in_background: bool,
    ) {
        let mut state = self.lock();
        parts.into_iter().for_each(|part| state.folios.put(part));
        state.scrubbing -= count;
        if in_background {
            state.in_background -= count;
        }
        self.tell(&mut state);
    }

    fn tell(&self, state: &mut PoolState) {
        self.returned.notify_all();
        if state.wants_scrubbing() {
            self.wanted.notify_all();
        }
    }

    /// Takes back the addresses and the folios of a user. Does nothing in a forked child, which has
    /// neither.
    ///
    /// # Safety
    /// The user is done with the addresses.
    #[allow(unsafe_code)]
    pub(super) unsafe fn reclaim(&self, mapped: Mapped) {
        let contents = [(mapped.extent().folios().len(), Content::Dirty)];
        // SAFETY: no thread uses the addresses any more, and dirty is true of any folio.
        unsafe { self.reclaim_as(mapped, &contents) }
    }

    /// Like [`reclaim`](Self::reclaim), if the content of each run of folios is known.
    ///
    /// # Safety
    /// The user is done with the addresses, and each run of folios holds what `contents` says.
    #[allow(unsafe_code)]
    pub(super) unsafe fn reclaim_as(&self, mapped: Mapped, contents: &[(usize, Content)]) {
        if !self.memory.is_ours() {
            return;
        }
        // SAFETY: this process made the memory; no thread uses the addresses; the runs hold what they say.
        match unsafe { self.memory.unmap_as(mapped, contents) } {
            Ok(parts) => self.put_back(parts),
            Err((mapped, errno)) => {
                let error = std::io::Error::from(errno);
                hugekit_sys::events::warn!(
                    "a region cannot be unmapped, and is kept until it can: {error}"
                );
                self.lock_unreturned().push((mapped, contents.to_vec()));
            }
        }
    }

    fn lock_unreturned(&self) -> MutexGuard<'_, Vec<Unreturned>> {
        self.unreturned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unmaps memory that could not be unmapped when it was returned. Returns true if there was
    /// any.
    #[allow(unsafe_code)]
    fn return_again(&self) -> bool {
        let unreturned = std::mem::take(&mut *self.lock_unreturned());
        let any = !unreturned.is_empty();
        for (mapped, contents) in unreturned {
            // SAFETY: its user was done with it when it was given back.
            unsafe { self.reclaim_as(mapped, &contents) };
        }
        any
    }

    /// Like [`reclaim_as`](Self::reclaim_as), for all folios except the first `count`. There are
    /// more than `count`.
    ///
    /// # Safety
    /// The user is done with the addresses of these folios, each run of them holds what `contents` says, and this is
    /// the process that made the memory.
    #[allow(unsafe_code)]
    pub(super) unsafe fn take_tail(
        &self,
        mapped: &mut Mapped,
        count: usize,
        contents: &[(usize, Content)],
    ) -> std::io::Result<()> {
        // SAFETY: this process made the memory; no thread uses the addresses behind; the runs hold what they say.
        let parts = unsafe { self.memory.unmap_tail(mapped, count, contents) }?;
        self.put_back(parts);
        Ok(())
    }

    /// Like [`reclaim`](Self::reclaim), but the folios go back to the kernel.
    ///
    /// # Safety
    /// The user is done with the addresses, as far as this process can know, and this is the process that made the
    /// memory.
    #[allow(unsafe_code)]
    pub(super) unsafe fn retire(&self, mapped: Mapped) -> std::io::Result<()> {
        // SAFETY: this process made the memory, and no thread uses the addresses any more.
        let dirty = unsafe { self.memory.unmap(mapped) }.map_err(|(_, errno)| errno)?;
        let hole = self.memory.punch(dirty)?;
        self.put_back([hole.into()]);
        Ok(())
    }

    /// Clears bytes of an extent that stays in use.
    pub(super) fn clear_in_use(
        &self,
        extent: &Extent<InUse>,
        bytes: Range<usize>,
        threads: Threads,
    ) -> Result<(), ClearError> {
        let how = ClearOptions::new().reuse(Reuse::None).threads(threads);
        self.memory.clear_in_use(extent, bytes.clone(), &how)?;
        self.counters.scrubbed(Scrubbed::AtRelease, bytes.len());
        Ok(())
    }

    /// Clears all dirty folios, on the calling thread and its helpers. Returns the number of
    /// cleared bytes.
    pub(super) fn scrub_all(&self, threads: Threads) -> Result<u64, PoolError> {
        self.check_ours()?;
        headroom::check()?;
        let clear = ClearOptions::new().reuse(Reuse::None).threads(threads);
        let most = ROUND_BYTES / self.memory.page_size();
        let mut total = 0;
        loop {
            let Some(dirty) = self.lock().take_dirty(most) else { return Ok(total) };
            let (count, bytes) = (dirty.folios().len(), self.memory.bytes(&dirty));
            match self.memory.scrub(dirty, &clear) {
                Ok(clean) => self.put_scrubbed([clean.into()], count, false),
                Err((dirty, failure)) => {
                    self.put_scrubbed(self.without_failed(dirty.into()), count, false);
                    return Err(failure.into_error());
                }
            }
            self.counters.scrubbed(Scrubbed::OnRequest, bytes);
            total += bytes as u64;
        }
    }

    /// Waits until the scrubber's threads have finished their current pieces.
    pub(super) fn pause(&self) {
        let mut state = self.lock();
        state.orders.paused = true;
        while state.orders.paused && state.in_background > 0 {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn resume(&self) {
        self.lock().orders.paused = false;
        self.wanted.notify_all();
    }

    pub(super) fn stats(&self) -> PoolStats {
        let state = self.lock();
        let folios = &state.folios;
        PoolStats {
            page_size: self.memory.page_size(),
            holes: folios.holes(),
            clean: folios.clean(),
            in_use: state.capacity - folios.free() - state.scrubbing,
            dirty: folios.dirty() + state.scrubbing,
            fragmented: self.memory.fragmented(),
            ..self.counters.read()
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.memory.is_ours() {
            self.return_again();
        }
    }
}
