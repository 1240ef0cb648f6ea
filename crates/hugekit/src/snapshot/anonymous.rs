//! A snapshot of anonymous memory as its owner has it: the image that is shared with fault handlers, and what
//! has to end with it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::Stats;
use super::background::Background;
use super::image::{By, Delivery, Image};
use super::taken::Taken;
use super::watch::{self, Watch};
use crate::fault::Serving;
use crate::sys::thread::without_signals;

/// Dropped, it lifts the protection that no other snapshot needs.
#[derive(Debug)]
pub(super) struct Anonymous {
    pub(super) image: Arc<Image>,
    pub(super) watch: &'static Watch,
    pub(super) cap: usize,
    /// `None` if nothing had to be protected.
    pub(super) serving: Option<Serving>,
    pub(super) background: Option<Background>,
    /// Goes last, when no address is protected any more.
    pub(super) _taken: Taken,
}

impl Anonymous {
    /// No reader wants the granules that begin in a range any more.
    pub(super) fn let_go(&self, range: &Range<usize>) {
        self.image.let_go(range);
        self.watch.lift_unneeded(range);
    }

    /// Puts the granule of a part aside, and lets it be written.
    pub(super) fn put_aside(&self, part: &Range<usize>) {
        if !self.image.inner().contains(&part.start) {
            return;
        }
        let (index, granule) = self.image.granule_at(part.start);
        without_signals(|| self.image.put_aside(index, By::Others));
        self.watch.lift_unneeded(&granule);
    }

    /// Has writers copy their granules to where all of it is being copied, so that no byte is copied twice: if
    /// they copy themselves, and no fault there could be one that waits for them.
    ///
    /// # Safety
    /// As for [`Image::deliver_to`], but for faults.
    pub(super) unsafe fn deliver_to(&self, to: *mut u8) -> Option<Delivery<'_>> {
        let range = to.addr()..to.addr() + self.image.range().len();
        let is_plain = self.watch.is_in_place() && watch::is_plain(&range);
        // SAFETY: the caller's to promise; no snapshot, region or fork has faults there that it handles in place.
        is_plain.then(|| unsafe { self.image.deliver_to(to) })
    }

    pub(super) fn stats(&self) -> Stats {
        let (copied_by_writers, copied_by_others, nanos) = self.image.counts();
        let (held, most_held) = self.image.arena().held();
        Stats {
            granules: self.image.granules().len(),
            granule_bytes: self.image.granule_bytes(),
            copied_by_writers,
            copied_by_others,
            // A slot is as long as a whole granule, which the first and the last need not be.
            held: held.min(self.cap),
            most_held: most_held.min(self.cap),
            cap: self.cap,
            reserved: self.image.arena().reserved(),
            longest_fault: Duration::from_nanos(nanos),
        }
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        let background = self.background.take();
        if self.watch.is_ours() {
            background.into_iter().for_each(Background::stop);
            self.watch.remove(&self.image);
        } else {
            background.into_iter().for_each(Background::forget);
        }
    }
}
