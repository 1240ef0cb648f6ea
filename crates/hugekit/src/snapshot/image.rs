//! One snapshot as fault handlers, readers and its owner share it: which granules it has, where each one's bytes
//! are, and how they get from one place to another.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};

use rustix::param::page_size;

use super::arena::Arena;
use super::edges::Edges;
use super::granules::{Granules, Place};
use super::line::Line;
use super::reserve::Reserve;
use crate::fault::unsure;
use crate::profile::Profile;
use crate::sweep::{Order, Reach};
use crate::sys::own::Own;
use crate::{CopyOptions, Reuse};

/// What writers that meet the snapshot have to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// Nothing: none of its memory is protected yet.
    Forming,
    /// Wait: its memory is being protected at this moment.
    Arming,
    /// Put a granule aside before it changes.
    Live,
    /// Nothing: no thread reads it any more.
    Ended,
}

/// Why the snapshot is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Outrun,
    Changed(usize),
    /// The thread that served writes died.
    Unserved,
    /// The kernel refuses what it permitted before.
    Refused,
}

/// The bytes of a range at one point in time.
#[derive(Debug)]
pub(super) struct Image {
    /// What was asked for.
    range: Range<usize>,
    /// Whole pages of it: these are protected, and cut into granules at multiples of their size, so that the first
    /// and the last one may be shorter. Empty if there is none.
    inner: Range<usize>,
    granule_bytes: usize,
    granules: Granules,
    arena: Arena,
    /// The bytes before and behind the whole pages, copied when it was made.
    edges: Edges,
    line: Arc<Line>,
    live: Own<Live>,
}

/// What fault handlers write, in memory of our own.
#[derive(Debug)]
struct Live {
    phase: AtomicU8,
    /// 0, or why it failed: 1, 3, 5, or the address of a page with bit 1 set.
    failure: AtomicUsize,
    /// Granules put aside by writers, and by others.
    by_writers: AtomicU64,
    by_others: AtomicU64,
    longest_nanos: AtomicU64,
    /// Where all of the snapshot is being copied to, if the thread that puts a granule aside may put it there; or 0.
    destination: AtomicUsize,
    /// The granule that is being copied there by the reader of the snapshot: no other thread may write it there.
    reading: AtomicUsize,
}

/// All of the snapshot is copied to memory, and the thread that puts a granule aside puts it there. Dropped, no thread writes
/// there any more.
#[derive(Debug)]
pub(super) struct Delivery<'a>(&'a Image);

/// Why bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Failed(Failure),
    /// The kernel may not read the owner's bytes, or not write where they should go.
    Refused,
}

/// Who puts a granule aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// A thread that wants to write to this address.
    Writer(usize),
    Others,
}

impl Image {
    /// The image of a range that nothing is protected of yet, of which `cap` bytes can be put aside, in whole
    /// granules or all of it, the first of them to the reserve.
    pub(super) fn new(
        range: Range<usize>,
        granule_bytes: usize,
        cap: usize,
        reserve: Option<&Reserve>,
        line: Arc<Line>,
    ) -> rustix::io::Result<Self> {
        // The first look at it may allocate, which no fault may.
        let _ = Profile::current();
        let inner = inner_of(&range, page_size());
        let origin = inner.start - inner.start % granule_bytes;
        let count = (inner.end - origin).div_ceil(granule_bytes) * usize::from(!inner.is_empty());
        let slots = if cap >= range.len() { count } else { count.min(cap / granule_bytes) };
        let reserved = reserve.and_then(Reserve::lease);
        let live = Live {
            phase: AtomicU8::new(Phase::Forming as u8),
            failure: AtomicUsize::new(0),
            by_writers: AtomicU64::new(0),
            by_others: AtomicU64::new(0),
            longest_nanos: AtomicU64::new(0),
            destination: AtomicUsize::new(0),
            reading: AtomicUsize::new(usize::MAX),
        };
        Ok(Self {
            edges: Edges::new(&range, &inner)?,
            range,
            inner,
            granule_bytes,
            granules: Granules::new(count)?,
            arena: Arena::new(slots, granule_bytes, reserved)?,
            line,
            live: Own::new(live)?,
        })
    }

    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }

    pub(super) fn inner(&self) -> &Range<usize> {
        &self.inner
    }

    pub(super) fn granule_bytes(&self) -> usize {
        self.granule_bytes
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(super) fn phase(&self) -> Phase {
        match self.live.phase.load(Ordering::SeqCst) {
            0 => Phase::Forming,
            1 => Phase::Arming,
            2 => Phase::Live,
            _ => Phase::Ended,
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.live.phase.store(phase as u8, Ordering::SeqCst);
    }

    pub(super) fn edges(&self) -> &Edges {
        &self.edges
    }

    /// A multiple of a granule: where the first one would begin if it were whole.
    pub(super) fn origin(&self) -> usize {
        self.inner.start - self.inner.start % self.granule_bytes
    }

    /// Where the granule lies that holds an address of the inner range.
    pub(super) fn granule_at(&self, address: usize) -> (usize, Range<usize>) {
        let index = (address - self.origin()) / self.granule_bytes;
        (index, self.granule(index))
    }

    pub(super) fn granule(&self, index: usize) -> Range<usize> {
        let start = self.origin() + index * self.granule_bytes;
        start.max(self.inner.start)..(start + self.granule_bytes).min(self.inner.end)
    }

    /// Whether the bytes at an address of the inner range are still wanted from their owner.
    pub(super) fn needs(&self, address: usize) -> bool {
        let (index, _) = self.granule_at(address);
        self.phase() == Phase::Live && self.granules.needs_owner(index)
    }

    /// Sees to it that a granule may change, near the address that is written last. Async-signal-safe.
    pub(super) fn put_aside(&self, index: usize, by: By) {
        let Some(busy) = self.granules.claim(index) else { return };
        let place = match self.failure() {
            Some(_) => Place::Lost,
            None => self.copy_aside(index, by),
        };
        busy.finish(place);
    }

    fn copy_aside(&self, index: usize, by: By) -> Place {
        let (place, to) = if let Some(to) = self.destination_of(index) {
            (Place::Gone, to)
        } else if let Some(slot) = self.arena.take() {
            (Place::Slot(slot), self.arena.slot(slot))
        } else {
            self.fail(Failure::Outrun);
            return Place::Lost;
        };
        let granule = self.granule(index);
        let target = match by {
            By::Writer(address) => Some(address - granule.start),
            By::Others => None,
        };
        // SAFETY: a slot is as long as a granule, and no other value has them; so is its part of the destination.
        let copied = unsafe { copy_from_owner(&granule, to, target) };
        if copied.is_err() || !self.line.is_protected(&granule) {
            if let Place::Slot(slot) = place {
                self.arena.give_back(slot);
            }
            self.fail_at(granule.start);
            return Place::Lost;
        }
        let counter = if by == By::Others { &self.live.by_others } else { &self.live.by_writers };
        counter.fetch_add(1, Ordering::Relaxed);
        place
    }

    /// Has each thread that puts a granule aside put it where all of the snapshot is being copied to.
    ///
    /// # Safety
    /// As many bytes of `to` as the snapshot has may be written until the delivery ends, by any thread's signal
    /// handler; none but [`try_read`](Self::try_read), in order, writes them, and no fault there waits for a
    /// granule of the snapshot.
    pub(super) unsafe fn deliver_to(&self, to: *mut u8) -> Delivery<'_> {
        self.live.destination.store(to.expose_provenance(), Ordering::SeqCst);
        Delivery(self)
    }

    /// Where a granule belongs that is busy: not where another thread may be writing it already, because what it has
    /// read may be newer.
    fn destination_of(&self, index: usize) -> Option<*mut u8> {
        let to = self.live.destination.load(Ordering::SeqCst);
        let is_free = to != 0 && self.live.reading.load(Ordering::SeqCst) != index;
        let offset = || self.granule(index).start - self.range.start;
        is_free.then(|| std::ptr::with_exposed_provenance_mut(to + offset()))
    }

    /// Copies bytes of one granule, or of one edge, as they were at the snapshot.
    ///
    /// # Safety
    /// As many bytes of `to` may be written, by the kernel too, and no other thread uses them.
    pub(super) unsafe fn read(&self, part: &Range<usize>, to: *mut u8) -> Result<(), Failure> {
        // SAFETY: the caller's to promise.
        match unsafe { self.try_read(part, to, Reuse::All) } {
            Ok(()) => Ok(()),
            Err(Trouble::Failed(failure)) => Err(failure),
            Err(Trouble::Refused) => Err(self.fail_at(part.start)),
        }
    }

    /// As [`read`](Self::read), to where the kernel may refuse to write, past the cache unless the bytes are used soon.
    ///
    /// # Safety
    /// As for [`read`](Self::read), but for the kernel.
    pub(super) unsafe fn try_read(
        &self,
        part: &Range<usize>,
        to: *mut u8,
        reuse: Reuse,
    ) -> Result<(), Trouble> {
        if let Some(failure) = self.failure() {
            return Err(Trouble::Failed(failure));
        }
        if !self.inner.contains(&part.start) {
            let kept = self.edges.at(part.start);
            // SAFETY: the edges have these bytes, which no thread writes any more.
            unsafe { to.copy_from_nonoverlapping(kept, part.len()) };
            return Ok(());
        }
        let (index, granule) = self.granule_at(part.start);
        debug_assert!(part.end <= granule.end);
        // Before it is looked at: who makes it busy afterwards sees this.
        self.live.reading.store(index, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let is_delivered = self.live.destination.load(Ordering::SeqCst) != 0;
        loop {
            match self.granules.settled(index) {
                Place::Slot(slot) => {
                    let kept = self.arena.slot(slot).wrapping_add(part.start - granule.start);
                    // SAFETY: the slot holds the granule, and is given back by its last reader.
                    let copied =
                        unsafe { CopyOptions::new().reuse(reuse).run_raw(to, kept, part.len()) };
                    debug_assert!(
                        copied.is_ok(),
                        "no other thread has the slot, and no caller cancels"
                    );
                    return Ok(());
                }
                Place::Owner => {
                    // SAFETY: the caller's to promise.
                    let read = unsafe {
                        unsure::copy(
                            to,
                            part.start,
                            std::iter::once((0..part.len(), reuse == Reuse::None)),
                        )
                    };
                    let is_protected = self.line.is_protected(part);
                    // Protection is lifted only after it has left its owner.
                    if !self.granules.is_still_with_owner(index) {
                        continue;
                    }
                    return match read {
                        Ok(()) if is_protected => Ok(()),
                        Err(_) if is_protected => Err(Trouble::Refused),
                        _ => Err(Trouble::Failed(self.fail_at(part.start))),
                    };
                }
                Place::Gone if is_delivered => return Ok(()),
                Place::Gone | Place::Lost => {
                    let failure = self.failure().unwrap_or(Failure::Changed(part.start));
                    return Err(Trouble::Failed(failure));
                }
            }
        }
    }

    /// Bytes of one granule that was put aside, if it was. They do not change until it is let go.
    pub(super) fn kept(&self, part: &Range<usize>) -> Option<*const u8> {
        if !self.inner.contains(&part.start) {
            return None;
        }
        let (index, granule) = self.granule_at(part.start);
        match self.granules.settled(index) {
            Place::Slot(slot) => {
                Some(self.arena.slot(slot).wrapping_add(part.start - granule.start))
            }
            _ => None,
        }
    }

    /// No reader wants the granules of a range any more, which were read.
    pub(super) fn let_go(&self, range: &Range<usize>) {
        if range.is_empty() {
            return;
        }
        for index in self.granule_at(range.start).0..=self.granule_at(range.end - 1).0 {
            if let Place::Slot(slot) = self.granules.let_go(index) {
                self.arena.give_back(slot);
            }
        }
    }

    /// Sees to it that what is still with its owner is unchanged, so that another snapshot may protect it anew.
    pub(super) fn check_owner(&self, range: &Range<usize>) {
        let (line, mut next) = (&self.line, range.start);
        while next < range.end {
            next = line.protected_until(&(next..range.end));
            if next < range.end {
                let (index, granule) = self.granule_at(next);
                if self.granules.settled(index) == Place::Owner
                    && !line.is_protected(&(next..granule.end.min(range.end)))
                    && self.granules.settled(index) == Place::Owner
                {
                    self.fail_at(next);
                    return;
                }
                next = granule.end;
            }
        }
    }

    /// Marks it lost, because its owner's memory is not protected any more, as far as the kernel tells. Returns the
    /// first cause: the owner's deed, unless the kernel refuses to be asked.
    fn fail_at(&self, address: usize) -> Failure {
        let is_answered = self.line.is_answered(address);
        self.fail(if is_answered { Failure::Changed(address) } else { Failure::Refused })
    }

    /// Marks it lost; returns the first cause.
    pub(super) fn fail(&self, failure: Failure) -> Failure {
        let word = match failure {
            Failure::Outrun => 1,
            Failure::Unserved => 3,
            Failure::Refused => 5,
            Failure::Changed(address) => address & !3 | 2,
        };
        let failed = &self.live.failure;
        let _ = failed.compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst);
        self.failure().unwrap_or(failure)
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        match self.live.failure.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(Failure::Outrun),
            3 => Some(Failure::Unserved),
            5 => Some(Failure::Refused),
            word => Some(Failure::Changed(word & !3)),
        }
    }

    /// A write waited so long.
    pub(super) fn count_fault(&self, nanos: u64) {
        self.live.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    /// Granules put aside by writers and by others, and the longest wait of a write in nanoseconds.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let live = &*self.live;
        let [by_writers, by_others, nanos] =
            [&live.by_writers, &live.by_others, &live.longest_nanos]
                .map(|count| count.load(Ordering::Relaxed));
        (by_writers, by_others, nanos)
    }

    pub(super) fn granules(&self) -> &Granules {
        &self.granules
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        let Self(image) = self;
        image.live.destination.store(0, Ordering::SeqCst);
        (0..image.granules.len()).for_each(|index| {
            image.granules.settled(index);
        });
    }
}

/// Copies a whole granule, what lies around the target last.
///
/// # Safety
/// As many bytes of `to` may be written, and no other thread uses them.
unsafe fn copy_from_owner(
    granule: &Range<usize>,
    to: *mut u8,
    target: Option<usize>,
) -> rustix::io::Result<()> {
    let near_bytes = Profile::current().near_bytes;
    let order = Order::for_folio(granule.len(), target);
    let extents = order.extents(granule.len(), target, near_bytes);
    let pieces = extents.map(|extent| (extent.bytes, extent.reach == Reach::Far));
    // SAFETY: the extents lie within the granule; the rest is the caller's to promise.
    unsafe { unsure::copy(to, granule.start, pieces) }
}

/// The whole units of a range, at multiples of their size; an empty one at its end if there is none.
pub(super) fn inner_of(range: &Range<usize>, unit: usize) -> Range<usize> {
    let end = range.end - range.end % unit;
    match range.start.checked_next_multiple_of(unit) {
        Some(start) if start < end => start..end,
        _ => range.end..range.end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_units_lie_within() {
        assert_eq!(inner_of(&(5..100), 10), 10..100);
        assert_eq!(inner_of(&(10..109), 10), 10..100);
        assert_eq!(inner_of(&(11..19), 10), 19..19);
        assert_eq!(inner_of(&(11..29), 10), 29..29);
        assert_eq!(inner_of(&(usize::MAX - 3..usize::MAX), 16), usize::MAX..usize::MAX);
    }
}
