//! One snapshot, which fault handlers, readers and its owner share: preserves granules, reads them, and lets them go.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::arena::Arena;
use super::delivery::{Delivery, Destination};
use super::granules::{AfterRead, GranulePlace, Granules};
use super::interval::Interval;
use super::lifecycle::{Lifecycle, LossCause, Phase};
use super::reserve::Reserve;
use super::runs::WriteRuns;
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

/// The most bytes that are preserved for one write, if writes come in order and a granule has fewer. Their copy takes about
/// as long as ten faults.
const RUN: usize = 512 << 10;

/// The same for a staging, of which a thread copies all bytes soon: few faults matter more than short ones.
const STAGED_RUN: usize = 2 << 20;

/// The bytes of a range at one point in time.
#[derive(Debug)]
pub(crate) struct SnapshotState {
    interval: Interval,
    granules: Granules,
    after_read: AfterRead,
    arena: Arena,
    /// The bytes before and behind the whole pages. They were copied when the snapshot was made.
    edges: Edges,
    protector: Arc<WriteProtector>,
    shared: Private<SharedWords>,
    /// The memory to which granules are delivered from the beginning on. A handler that has this state may write there,
    /// so it is kept.
    _destination: Option<Arc<Destination>>,
}

/// The words that fault handlers write. No snapshot can protect their memory.
#[derive(Debug)]
struct SharedWords {
    lifecycle: Lifecycle,
    delivery: Delivery,
    runs: WriteRuns,
    costs: Costs,
}

/// A running copy of the whole snapshot to memory. A thread that preserves a granule puts it there. After the drop,
/// no thread writes there any more.
#[derive(Debug)]
pub(crate) struct Delivering<'a>(&'a SnapshotState);

/// The reason why bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    Failed(LossCause),
    /// The kernel cannot read the owner's bytes, or cannot write to the destination.
    Refused,
}

/// The thread that preserves a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preserver {
    /// A thread that wants to write to this address.
    Writer(usize),
    Other,
}

impl SnapshotState {
    /// Makes the state of an interval of which nothing is protected yet. Copies may use `cap` bytes, in whole
    /// granules or for all of it. The first copies use the reserve. If there is a destination, granules are delivered
    /// to it as soon as the snapshot is live.
    pub(crate) fn new(
        interval: Interval,
        after_read: AfterRead,
        cap: usize,
        reserve: Option<&Reserve>,
        destination: Option<Arc<Destination>>,
        protector: Arc<WriteProtector>,
    ) -> rustix::io::Result<Self> {
        // The first call may allocate, which no fault may do.
        learning::prepare();
        let (range, granule_bytes) = (interval.range(), interval.granule_bytes());
        let count = interval.granules();
        let slots = if cap >= range.len() { count } else { count.min(cap / granule_bytes) };
        let reserved = reserve.and_then(|reserve| reserve.take_part(slots * granule_bytes));
        let run_bytes = if destination.is_some() { STAGED_RUN } else { RUN };
        let shared = SharedWords {
            lifecycle: Lifecycle::new(),
            delivery: Delivery::none(),
            runs: WriteRuns::new(run_bytes, granule_bytes),
            costs: Costs::default(),
        };
        if let Some(destination) = &destination {
            shared.delivery.start(destination.start());
        }
        Ok(Self {
            edges: Edges::new(range, interval.inner())?,
            granules: Granules::new(count)?,
            arena: Arena::new(slots, granule_bytes, reserved)?,
            protector,
            shared: Private::new(shared)?,
            interval,
            after_read,
            _destination: destination,
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

    /// Marks the snapshot as lost. Returns the first cause.
    pub(super) fn fail(&self, failure: LossCause) -> LossCause {
        self.shared.lifecycle.fail(failure)
    }

    /// Counts a write that waited for this time.
    pub(super) fn count_wait(&self, nanos: u64) {
        self.shared.costs.count_wait(nanos);
    }

    pub(crate) fn counts(&self) -> CostCounts {
        self.shared.costs.counts()
    }

    /// Returns true if a write to an address of the inner range must be recorded or preserved
    /// first.
    pub(super) fn needs(&self, address: usize) -> bool {
        let (index, _) = self.interval.granule_at(address);
        self.phase() == Phase::Live && self.granules.needs_protection(index)
    }

    /// Preserves the granule of a write, so it may change. If writes come in order, preserves the granules behind it that
    /// are within `limit`, too: their writes have no fault then. Returns the end of what may change.
    /// Async-signal-safe.
    pub(super) fn preserve_run(
        &self,
        index: usize,
        address: usize,
        limit: &Range<usize>,
        blocked: &SignalsBlocked,
    ) -> usize {
        self.preserve(index, Preserver::Writer(address), blocked);
        let mut end = self.interval.granule(index).end;
        // In an epoch, a granule that is preserved counts as changed.
        if self.after_read == AfterRead::Nothing {
            let bytes = self.interval.granule_bytes();
            let run = self.shared.runs.next(index, 1 + limit.end.saturating_sub(end) / bytes);
            for next in index + 1..index + run {
                if self.failure().is_some() || !self.granules.needs_protection(next) {
                    break;
                }
                let granule = self.interval.granule(next);
                self.preserve(next, Preserver::Writer(granule.start), blocked);
                end = granule.end;
            }
        }
        end
    }

    /// Preserves a granule, so it may change. The bytes around the writer's address are copied last.
    /// Async-signal-safe.
    pub(crate) fn preserve(&self, index: usize, preserver: Preserver, blocked: &SignalsBlocked) {
        let Some(busy) = self.granules.claim(index, blocked) else { return };
        let place = match (busy.state(), self.failure()) {
            // No reader wants the bytes. Only the change is recorded.
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
        // SAFETY: the slot, or the granule's part of the destination, is as long as the granule. No other thread uses
        // it.
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

    /// Starts a delivery: each thread that preserves a granule puts it into the destination.
    ///
    /// # Safety
    /// `to` has as many bytes as the snapshot. Until the delivery ends, signal handlers of any thread may write to
    /// them. Only [`try_read`](Self::try_read) writes them besides, in order. No fault there waits for a granule of
    /// the snapshot.
    pub(crate) unsafe fn deliver_to(&self, to: *mut u8) -> Delivering<'_> {
        self.shared.delivery.start(to);
        Delivering(self)
    }

    /// Returns the delivery that began with the snapshot, if it has a destination. The delivery ends with this value.
    pub(crate) fn delivery(&self) -> Delivering<'_> {
        Delivering(self)
    }

    /// Copies bytes of one granule or one edge, as they were when the snapshot was taken.
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

    /// Like [`read`](Self::read), but the kernel may refuse to write to `to`. Bypasses the cache if the bytes are not
    /// used soon.
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
            // SAFETY: the copy of the edges contains these bytes, and no thread writes to it any more.
            unsafe { to.copy_from_nonoverlapping(kept, part.len()) };
            return Ok(());
        }
        let (index, granule) = self.interval.granule_at(part.start);
        debug_assert!(part.end <= granule.end);
        // The note comes before the look at the state, because a writer may claim the granule afterwards.
        let is_delivered = self.shared.delivery.note_reading(index);
        loop {
            match self.granules.settled(index) {
                GranulePlace::Slot(slot) => {
                    let kept = self.arena.slot(slot).wrapping_add(part.start - granule.start);
                    // SAFETY: the slot contains the granule, and its last reader returns it.
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

    /// Copies bytes that are still with their owner. Returns `None` if a writer has taken them.
    ///
    /// This read is optimistic, like a read under a sequence lock. It copies the bytes first, and then asks two
    /// questions in this order: is the page protected, and is the granule still with its owner? A writer works in the
    /// opposite order: it claims the granule, copies it, records the new place, and lifts the protection last. So if
    /// both answers are yes, no thread has written to the bytes. In the other order, a writer that did all of this
    /// between the two questions would look like an owner that has discarded the page. If the granule is still with
    /// its owner and the page is not protected, the owner has discarded or replaced the page.
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
        // SAFETY: the one piece is as long as the part. `to` can be written for this length, and no other thread uses
        // it: the contract of this function.
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

    /// Returns the bytes of a preserved granule. They do not change until the granule is let go. `None` if the
    /// granule is not preserved.
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

    /// Lets the granules of a range go, which were read. Signals are blocked while the thread has claimed granules: a
    /// signal handler could access protected memory, and wait for a thread that waits for such a granule. They are
    /// blocked for at most 64 granules at a time.
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

    /// Continues the epoch of another snapshot of the same interval. Granules that did not change since are saved
    /// here, too. The other snapshot records nothing from now on, and keeps its records. Writers wait meanwhile.
    pub(crate) fn go_on_from(&self, before: &Self, blocked: &SignalsBlocked) {
        debug_assert_eq!(before.granules.len(), self.granules.len());
        for index in before.saved() {
            self.granules.let_go(index, AfterRead::Watched, blocked);
        }
        before.enter(Phase::Ended);
    }

    /// Returns true if a writer may still have to copy a granule.
    pub(crate) fn has_unread(&self) -> bool {
        (0..self.granules.len()).any(|index| self.granules.settled(index) == GranulePlace::Owner)
    }

    /// Returns the granules that have not changed since they were read.
    fn saved(&self) -> impl Iterator<Item = usize> {
        (0..self.granules.len())
            .filter(|&index| self.granules.settled(index) == GranulePlace::Saved)
    }

    /// Returns the addresses of granules that have changed since they were read, ascending. Neighbours are joined.
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

    /// Checks that granules that are still with their owner are unchanged, so another snapshot may protect them
    /// again. A saved granule that is no longer protected counts as changed.
    pub(crate) fn check_owner(&self, range: &Range<usize>) {
        let (protector, mut next) = (&self.protector, range.start);
        while next < range.end {
            let (index, granule) = self.interval.granule_at(next);
            // The page map is walked to the next protected page. Neighbouring granules that are known to have changed
            // are skipped, so it is not walked again for each of them.
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

    /// Marks the snapshot as lost. Returns the first cause: `Changed`, because the owner's memory is no longer
    /// protected, or `Refused`, if the kernel refuses to be asked.
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

/// Copies a whole granule. The bytes around the target are copied last.
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
