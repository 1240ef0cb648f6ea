//! A snapshot of anonymous memory as its owner has it: the image that is shared with fault handlers, and what
//! has to end with it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::Stats;
use super::background::Background;
use super::image::{By, Image};
use super::watch::Watch;
use crate::fault::Serving;
use crate::sys::thread::without_signals;

/// Dropped, it lifts the protection that no other snapshot needs.
#[derive(Debug)]
pub(super) struct Anonymous {
    pub(super) image: Arc<Image>,
    /// `None` if nothing had to be protected.
    pub(super) watch: Option<&'static Watch>,
    pub(super) cap: usize,
    pub(super) serving: Option<Serving>,
    pub(super) background: Option<Background>,
}

impl Anonymous {
    /// Nobody wants the granules that begin in a range any more.
    pub(super) fn let_go(&self, range: &Range<usize>) {
        let Some(watch) = self.watch else { return };
        self.image.let_go(range);
        watch.lift_unneeded(range);
    }

    /// Puts the granule of a part aside, and lets it be written.
    pub(super) fn put_aside(&self, part: &Range<usize>) {
        let Some(watch) = self.watch.filter(|_| self.image.inner().contains(&part.start)) else {
            return;
        };
        let (index, granule) = self.image.granule_at(part.start);
        without_signals(|| self.image.put_aside(index, By::Others));
        watch.lift_unneeded(&granule);
    }

    pub(super) fn stats(&self) -> Stats {
        let (copied_by_writers, copied_by_others, nanos) = self.image.counts();
        let (held, most_held) = self.image.arena().held();
        Stats {
            granules: self.image.granules().len(),
            granule_bytes: self.image.granule_bytes(),
            copied_by_writers,
            copied_by_others,
            held,
            most_held,
            cap: self.cap,
            longest_fault: Duration::from_nanos(nanos),
        }
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        let background = self.background.take();
        match self.watch {
            Some(watch) if watch.is_ours() => {
                background.into_iter().for_each(Background::stop);
                watch.remove(&self.image);
            }
            _ => background.into_iter().for_each(Background::forget),
        }
    }
}
