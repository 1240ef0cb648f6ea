//! A thread that puts granules aside before writers meet them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use super::SnapshotError;
use super::image::{By, Image, Phase};
use super::watch::Watch;
use crate::sys::thread::{spawn, yield_to_everybody};

/// Between looks at how much is held, while it is enough.
const PAUSE: Duration = Duration::from_millis(1);

/// The thread of one snapshot.
#[derive(Debug)]
pub(super) struct Background {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Background {
    /// Holds no more aside than `most` bytes, those of writers included.
    pub(super) fn start(
        image: &Arc<Image>,
        watch: &'static Watch,
        most: usize,
    ) -> Result<Self, SnapshotError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (image, stopped) = (Arc::clone(image), Arc::clone(&stop));
        let copy = move || put_all_aside(&image, watch, most, &stopped);
        let thread = spawn("hugekit-copy", copy).map_err(SnapshotError::NotStarted)?;
        Ok(Self { stop, thread })
    }

    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic was printed when it happened.
        let _ = self.thread.join();
    }

    /// In a forked child, which has no such thread.
    pub(super) fn forget(self) {
        std::mem::forget(self.thread);
    }
}

/// From the end on: a reader of all of it in order comes there last.
fn put_all_aside(image: &Image, watch: &Watch, most: usize, stop: &AtomicBool) {
    let _ = yield_to_everybody();
    for index in (0..image.granules().len()).rev() {
        let is_enough = || image.arena().held().0 + image.granule_bytes() > most;
        while is_enough() && !stop.load(Ordering::Relaxed) {
            sleep(PAUSE);
        }
        if stop.load(Ordering::Relaxed) || image.phase() != Phase::Live {
            return;
        }
        let granule = image.granule(index);
        if image.needs(granule.start) {
            image.put_aside(index, By::Others);
            watch.lift_unneeded(&granule);
        }
    }
}
