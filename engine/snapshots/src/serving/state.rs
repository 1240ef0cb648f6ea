//! One snapshot as fault handlers, readers and its owner share it: where each granule's bytes are, and how they get
//! from one place to another.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::arena::Arena;
use super::delivery::Delivery;
use super::granules::{AfterRead, GranulePlace, Granules};
use super::interval::Interval;
use super::lifecycle::{Lifecycle, LossCause, Phase};
use super::reserve::Reserve;
use super::write_protector::WriteProtector;
use crate::making::edges::Edges;
use crate::stats::{CostCounts, Costs};
use hugekit_bulk::learning;
use hugekit_bulk::profile::Profile;
use hugekit_bulk::sweep::Order;
use hugekit_bulk::{CopyOptions, Reuse};
use hugekit_regions::fault::no_fault;
use hugekit_sys::private_pages::Private;
use hugekit_sys::thread::{SignalsBlocked, without_signals};

/// The bytes of an interval at one point in time.
#[derive(Debug)]
pub(crate) struct SnapshotState {
    interval: Interval,
    granules: Granules,
    after_read: AfterRead,
    arena: Arena,
    /// The bytes before and behind the whole pages, copied when it was made.
    edges: Edges,
    protector: Arc<WriteProtector>,
    shared: Private<SharedWords>,
}

/// The words that fault handlers write, in memory that no snapshot can protect.
#[derive(Debug)]
struct SharedWords {
    lifecycle: Lifecycle,
    delivery: Delivery,
    costs: Costs,
}

/// All of the snapshot is copied to memory, and a thread that preserves a granule puts it there. Dropped, no thread
/// writes there any more.
#[derive(Debug)]
pub(crate) struct Delivering<'a>(&'a SnapshotState);

/// The reason why bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    Failed(LossCause),
    /// The kernel may not read the owner's bytes, or not write where they should go.
    Refused,
}

/// Which thread preserves a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preserver {
    /// A thread that wants to write to this address.
    Writer(usize),
    Other,
}

impl SnapshotState {
    /// The state of an interval of which nothing is protected yet. `cap` bytes of it can be preserved, in whole granules
    /// or all of it, the first of them in the reserve.
    pub(crate) fn new(
        interval: Interval,
        after_read: AfterRead,
        cap: usize,
        reserve: Option<&Reserve>,
        protector: Arc<WriteProtector>,
    ) -> rustix::io::Result<Self> {
        // The first look at it may allocate, which no fault may.
        learning::prepare();
        let (range, granule_bytes) = (interval.range(), interval.granule_bytes());
        let count = interval.granules();
        let slots = if cap >= range.len() { count } else { count.min(cap / granule_bytes) };
        let reserved = reserve.and_then(|reserve| reserve.take_part(slots * granule_bytes));
        let shared = SharedWords {
            lifecycle: Lifecycle::new(),
            delivery: Delivery::none(),
            costs: Costs::default(),
        };
        Ok(Self {
            edges: Edges::new(range, interval.inner())?,
            granules: Granules::new(count)?,
            arena: Arena::new(slots, granule_bytes, reserved)?,
            protector,
            shared: Private::new(shared)?,
            interval,
            after_read,
        })
    }

    pub(crate) fn interval(&self) -> &Interval {
        &self.interval
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn edges(&self) -> &Edges {
        &self.edges
    }

    pub(super) fn phase(&self) -> Phase {
        self.shared.lifecycle.phase()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.shared.lifecycle.enter(phase);
    }

    pub(crate) fn failure(&self) -> Option<LossCause> {
        self.shared.lifecycle.failure()
    }

    /// Marks it lost; returns the first cause.
    pub(super) fn fail(&self, failure: LossCause) -> LossCause {
        self.shared.lifecycle.fail(failure)
    }

    /// A write waited so long.
    pub(super) fn count_wait(&self, nanos: u64) {
        self.shared.costs.count_wait(nanos);
    }

    pub(crate) fn counts(&self) -> CostCounts {
        self.shared.costs.counts()
    }

    /// Returns whether a write to an address of the inner range is to be known before it is done.
    pub(super) fn needs(&self, address: usize) -> bool {
        let (index, _) = self.interval.granule_at(address);
        self.phase() == Phase::Live && self.granules.needs_protection(index)
    }

    /// Sees to it that a granule may change, near the address that is written last. Async-signal-safe.
    pub(crate) fn preserve(&self, index: usize, preserver: Preserver, blocked: &SignalsBlocked) {
        let Some(busy) = self.granules.claim(index, blocked) else { return };
        let place = match (busy.state(), self.failure()) {
            // No reader wants it: that it changes is all there is to know.
            (GranulePlace::Saved, _) => GranulePlace::Gone,
            (_, Some(_)) => GranulePlace::Lost,
            (_, None) => self.copy_to_preserve(index, preserver),
        };
        busy.finish(place);
    }

    fn copy_to_preserve(&self, index: usize, preserver: Preserver) -> GranulePlace {
        let granule = self.interval.granule(index);
        let offset = granule.start - self.interval.range().start;
        let (place, to) = if let Some(to) = self.shared.delivery.place_for(index, offset) {
            (GranulePlace::Gone, to)
        } else if let Some(slot) = self.arena.take_slot() {
            (GranulePlace::Slot(slot), self.arena.slot(slot))
        } else {
            self.fail(LossCause::CowLimitExceeded);
            return GranulePlace::Lost;
        };
        let target = match preserver {
            Preserver::Writer(address) => Some(address - granule.start),
            Preserver::Other => None,
        };
        // SAFETY: the slot, or the granule's part of the destination, is as long as the granule, and no other thread uses it.
        let copied = unsafe { copy_from_owner(&granule, to, target) };
        if copied.is_err() || !self.protector.is_protected(&granule) {
            if let GranulePlace::Slot(slot) = place {
                self.arena.give_back(slot);
            }
            self.fail_at(granule.start);
            return GranulePlace::Lost;
        }
        self.shared.costs.count(preserver);
        place
    }

    /// Has each thread that preserves a granule put it where all of the snapshot is being copied to.
    ///
    /// # Safety
    /// The bytes of `to`, as many as the snapshot has, may be written until the delivery ends, by any thread's signal
    /// handler; none but [`try_read`](Self::try_read), in order, writes them, and no fault there waits for a
    /// granule of the snapshot.
    pub(crate) unsafe fn deliver_to(&self, to: *mut u8) -> Delivering<'_> {
        self.shared.delivery.start(to);
        Delivering(self)
    }

    /// Copies bytes of one granule, or of one edge, as they were at the snapshot.
    ///
    /// # Safety
    /// `to` can be written for the part's length, by the kernel too, and no other thread uses it.
    pub(crate) unsafe fn read(&self, part: &Range<usize>, to: *mut u8) -> Result<(), LossCause> {
        // SAFETY: `to` can be written for the part's length, and no other thread uses it: the contract of this
        // function.
        match unsafe { self.try_read(part, to, Reuse::All) } {
            Ok(()) => Ok(()),
            Err(ReadError::Failed(failure)) => Err(failure),
            Err(ReadError::Refused) => Err(self.fail_at(part.start)),
        }
    }

    /// Like [`read`](Self::read), to where the kernel may refuse to write, past the cache unless the bytes are used
    /// soon.
    ///
    /// # Safety
    /// The conditions of [`read`](Self::read), but the kernel need not be able to write to `to`.
    pub(crate) unsafe fn try_read(
        &self,
        part: &Range<usize>,
        to: *mut u8,
        reuse: Reuse,
    ) -> Result<(), ReadError> {
        if let Some(failure) = self.failure() {
            return Err(ReadError::Failed(failure));
        }
        if !self.interval.inner().contains(&part.start) {
            let kept = self.edges.at(part.start);
            // SAFETY: the edges have these bytes, which no thread writes any more.
            unsafe { to.copy_from_nonoverlapping(kept, part.len()) };
            return Ok(());
        }
        let (index, granule) = self.interval.granule_at(part.start);
        debug_assert!(part.end <= granule.end);
        // Before it is looked at, because a preserver may claim it afterwards.
        let is_delivered = self.shared.delivery.note_reading(index);
        loop {
            match self.granules.settled(index) {
                GranulePlace::Slot(slot) => {
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
                GranulePlace::Owner => {
                    // SAFETY: `to` can be written for the part's length, and no other thread uses it: the contract of
                    // this function.
                    let read = unsafe { self.read_from_owner(index, part, to, reuse) };
                    if let Some(read) = read {
                        return read;
                    }
                }
                GranulePlace::Gone if is_delivered => return Ok(()),
                GranulePlace::Gone | GranulePlace::Saved | GranulePlace::Lost => {
                    let failure = self.failure().unwrap_or(LossCause::Changed(part.start));
                    return Err(ReadError::Failed(failure));
                }
            }
        }
    }

    /// Copies bytes that are still with their owner; `None` if a writer took them meanwhile.
    ///
    /// Optimistic, as a reader of a sequence lock: the bytes are copied first, and looked at afterwards, in this
    /// order: is the page protected, is the granule still with its owner? A writer goes the other way: it claims the
    /// granule, copies it, says where it is now, and lifts the protection last. So what was copied while both answers
    /// are yes, no thread has written meanwhile. Asked the other way round, a writer that did all of that between the
    /// two questions would look like an owner that has discarded the page. Where the granule is still the owner's and
    /// the page is not protected, that is what the owner did.
    ///
    /// # Safety
    /// The conditions of [`try_read`](Self::try_read).
    unsafe fn read_from_owner(
        &self,
        index: usize,
        part: &Range<usize>,
        to: *mut u8,
        reuse: Reuse,
    ) -> Option<Result<(), ReadError>> {
        let whole = std::iter::once((0..part.len(), no_fault::reach_of(reuse)));
        // SAFETY: the one piece is as long as the part, for which `to` can be written, and no other thread uses it:
        // the contract of this function.
        let read = unsafe { no_fault::copy(to, part.start, whole) };
        let is_protected = self.protector.is_protected(part);
        if !self.granules.is_still_with_owner(index) {
            return None;
        }
        Some(match read {
            Ok(()) if is_protected => Ok(()),
            Err(_) if is_protected => Err(ReadError::Refused),
            _ => Err(ReadError::Failed(self.fail_at(part.start))),
        })
    }

    /// Bytes of one granule that was preserved, if it was. They do not change until it is let go.
    pub(crate) fn kept(&self, part: &Range<usize>) -> Option<*const u8> {
        if !self.interval.inner().contains(&part.start) {
            return None;
        }
        let (index, granule) = self.interval.granule_at(part.start);
        match self.granules.settled(index) {
            GranulePlace::Slot(slot) => {
                Some(self.arena.slot(slot).wrapping_add(part.start - granule.start))
            }
            _ => None,
        }
    }

    /// No reader wants the granules of a range any more, which were read. A thread has its signals blocked while a
    /// granule is its: a handler that it ran could touch what is protected, and be served by a thread that waits for
    /// that granule. Not for long, however many there are.
    pub(crate) fn let_go(&self, range: &Range<usize>) {
        const TOGETHER: usize = 64;
        if range.is_empty() {
            return;
        }
        let granule_at = |address| self.interval.granule_at(address).0;
        let end = granule_at(range.end - 1) + 1;
        for first in (granule_at(range.start)..end).step_by(TOGETHER) {
            without_signals(|blocked| {
                for index in first..end.min(first + TOGETHER) {
                    if let GranulePlace::Slot(slot) =
                        self.granules.let_go(index, self.after_read, blocked)
                    {
                        self.arena.give_back(slot);
                    }
                }
            });
        }
    }

    /// Begins where another one has saved all of the same interval: what did not change since is saved here, too. The
    /// other one notes nothing from now on, and keeps what it has noted. Writers wait for the caller meanwhile.
    pub(crate) fn go_on_from(&self, before: &Self, blocked: &SignalsBlocked) {
        debug_assert_eq!(before.granules.len(), self.granules.len());
        for index in before.saved() {
            self.granules.let_go(index, AfterRead::Watched, blocked);
        }
        before.enter(Phase::Ended);
    }

    /// Returns whether a writer may still have to copy a granule.
    pub(crate) fn has_unread(&self) -> bool {
        (0..self.granules.len()).any(|index| self.granules.settled(index) == GranulePlace::Owner)
    }

    /// Granules that are as they were when they were read.
    fn saved(&self) -> impl Iterator<Item = usize> {
        (0..self.granules.len())
            .filter(|&index| self.granules.settled(index) == GranulePlace::Saved)
    }

    /// Addresses of granules that are not as they were when they were read, ascending, neighbours together.
    pub(crate) fn unsaved(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for index in 0..self.granules.len() {
            if self.granules.settled(index) == GranulePlace::Saved {
                continue;
            }
            let granule = self.interval.granule(index);
            match ranges.last_mut() {
                Some(last) if last.end == granule.start => last.end = granule.end,
                _ => ranges.push(granule),
            }
        }
        ranges
    }

    /// Sees to it that what is still with its owner is unchanged, so that another snapshot may protect it anew; what was
    /// saved and is not protected any more has changed, as far as is known.
    pub(crate) fn check_owner(&self, range: &Range<usize>) {
        let (protector, mut next) = (&self.protector, range.start);
        while next < range.end {
            let (index, granule) = self.interval.granule_at(next);
            // The page map is walked to the next page that is protected: not anew for each granule of those that are known
            // to have changed, which lie side by side.
            if !matches!(self.granules.settled(index), GranulePlace::Owner | GranulePlace::Saved) {
                next = granule.end;
                continue;
            }
            next = protector.protected_until(&(next..range.end));
            if next < range.end {
                let (index, granule) = self.interval.granule_at(next);
                let place = self.granules.settled(index);
                if matches!(place, GranulePlace::Owner | GranulePlace::Saved)
                    && !protector.is_protected(&(next..granule.end.min(range.end)))
                    && self.granules.settled(index) == place
                {
                    if place == GranulePlace::Owner {
                        self.fail_at(next);
                        return;
                    }
                    without_signals(|blocked| self.preserve(index, Preserver::Other, blocked));
                }
                next = granule.end;
            }
        }
    }

    /// Marks it lost, because its owner's memory is not protected any more, as far as the kernel tells. Returns the
    /// first cause: the owner's deed, unless the kernel refuses to be asked.
    fn fail_at(&self, address: usize) -> LossCause {
        let is_answered = self.protector.is_answered(address);
        self.fail(if is_answered { LossCause::Changed(address) } else { LossCause::Refused })
    }

    pub(crate) fn granules(&self) -> &Granules {
        &self.granules
    }
}

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        let Self(snapshot) = self;
        snapshot.shared.delivery.end();
        (0..snapshot.granules.len()).for_each(|index| {
            snapshot.granules.settled(index);
        });
    }
}

/// Copies a whole granule, what lies around the target last.
///
/// # Safety
/// The bytes of `to` may be written, and no other thread uses them.
unsafe fn copy_from_owner(
    granule: &Range<usize>,
    to: *mut u8,
    target: Option<usize>,
) -> rustix::io::Result<()> {
    let near_bytes = Profile::current().near_bytes;
    let order = Order::for_folio(granule.len(), target);
    let extents = order.extents(granule.len(), target, near_bytes);
    let pieces = extents.map(|extent| (extent.bytes, extent.reach));
    // SAFETY: the extents lie within the granule, for whose length `to` can be written, and no other thread uses it:
    // the contract of this function.
    unsafe { no_fault::copy(to, granule.start, pieces) }
}
