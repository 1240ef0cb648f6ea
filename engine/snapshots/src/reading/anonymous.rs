//! A snapshot of anonymous memory: the state that it shares with fault handlers, and all that ends with it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::SnapshotStats;
use crate::making::excluded::ExcludedRange;
use crate::making::tracker::{self, WriteTracker};
use crate::serving::background::Background;
use crate::serving::state::{Delivering, Preserver, SnapshotState};
use hugekit_regions::fault::Serving;
use hugekit_sys::headroom;
use hugekit_sys::thread::without_signals;

/// A snapshot of anonymous memory. The drop lifts the protection that no other snapshot needs.
#[derive(Debug)]
pub(crate) struct Anonymous {
    pub(crate) snapshot: Arc<SnapshotState>,
    pub(crate) tracker: &'static WriteTracker,
    pub(crate) cap: usize,
    /// `None` if nothing had to be protected.
    pub(crate) serving: Option<Serving>,
    pub(crate) background: Option<Background>,
    /// Dropped last, when no address is protected any more.
    pub(crate) _excluded: ExcludedRange,
}

impl Anonymous {
    /// Lets go of the granules that begin in a range: no reader wants them any more.
    pub(super) fn let_go(&self, range: &Range<usize>) {
        self.snapshot.let_go(range);
        self.tracker.lift_unneeded(range);
    }

    /// Frees the memory of copies after the whole snapshot was read. No writer copies anything any more.
    pub(crate) fn end_copies(&self) {
        debug_assert!(!self.snapshot.has_unread(), "a granule could still be copied");
        // SAFETY: every granule was let go, which returns its slot. Only a granule that is still with its owner is
        // copied to a slot, and none is.
        unsafe { self.snapshot.arena().end() };
    }

    /// Stops the recording of writes to a range of granules that were read. They count as written.
    pub(crate) fn stop_watching(&self, range: &Range<usize>) {
        let interval = self.snapshot.interval();
        let granule_at = |address| interval.granule_at(address).0;
        for index in granule_at(range.start)..=granule_at(range.end - 1) {
            without_signals(|blocked| self.snapshot.preserve(index, Preserver::Other, blocked));
        }
        self.tracker.lift_unneeded(range);
    }

    /// Preserves the granule of a part, and lets writes to it through.
    pub(super) fn preserve(&self, part: &Range<usize>) {
        if !self.snapshot.interval().inner().contains(&part.start) {
            return;
        }
        let (index, granule) = self.snapshot.interval().granule_at(part.start);
        without_signals(|blocked| self.snapshot.preserve(index, Preserver::Other, blocked));
        self.tracker.lift_unneeded(&granule);
    }

    /// Starts a delivery if possible: writers copy their granules directly to the destination, so no byte is copied
    /// twice. It is possible if writers serve their own faults, and no fault at the destination could wait for them.
    ///
    /// # Safety
    /// The conditions of [`SnapshotState::deliver_to`], but for faults.
    pub(super) unsafe fn deliver_to(&self, to: *mut u8) -> Option<Delivering<'_>> {
        let range = to.addr()..to.addr() + self.snapshot.interval().range().len();
        let is_plain = self.tracker.is_in_place() && tracker::is_plain(&range);
        // SAFETY: until the delivery ends `to` can be written and only `try_read` writes it, in order (the contract of
        // this function). No snapshot, region or fork has faults there that it handles in place (`is_plain`), and any
        // others wait for no granule.
        is_plain.then(|| unsafe { self.snapshot.deliver_to(to) })
    }

    pub(super) fn stats(&self) -> SnapshotStats {
        let counts = self.snapshot.counts();
        let (held, most_retained) = self.snapshot.arena().held();
        SnapshotStats {
            granules: self.snapshot.granules().len(),
            granule_bytes: self.snapshot.interval().granule_bytes(),
            copied_by_writers: counts.by_writers,
            copied_by_others: counts.by_others,
            // A slot has the bytes of a whole granule. The first and the last granule may be shorter.
            retained: held.min(self.cap),
            most_retained: most_retained.min(self.cap),
            cap: self.cap,
            reserved: self.snapshot.arena().reserved(),
            longest_fault: Duration::from_nanos(counts.longest_nanos),
        }
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        let _lent = headroom::lend();
        let background = self.background.take();
        if self.tracker.is_ours() {
            background.into_iter().for_each(Background::stop);
            self.tracker.remove(&self.snapshot);
        } else {
            background.into_iter().for_each(Background::forget);
        }
    }
}
