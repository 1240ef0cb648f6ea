//! A thread that copies granules ahead of writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use super::lifecycle::Phase;
use super::state::{Preserver, SnapshotState};
use crate::SnapshotError;
use crate::making::tracker::WriteTracker;
use hugekit_sys::thread::{SignalsBlocked, spawn, yield_to_all_threads};

/// The time between checks of the bytes of copies, while enough copies exist.
const PAUSE: Duration = Duration::from_millis(1);

/// The thread of one snapshot.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Background {
    /// Starts the thread. It copies until the copies of the snapshot, including those of writers, have `most` bytes.
    pub(crate) fn start(
        snapshot: &Arc<SnapshotState>,
        tracker: &'static WriteTracker,
        most: usize,
    ) -> Result<Self, SnapshotError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (snapshot, stopped) = (Arc::clone(snapshot), Arc::clone(&stop));
        let copy = move |blocked: &SignalsBlocked| {
            preserve_all(&snapshot, tracker, most, &stopped, blocked);
        };
        let thread = spawn("hugekit-copy", copy).map_err(SnapshotError::NotStarted)?;
        Ok(Self { stop, thread })
    }

    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic was printed when it happened.
        let _ = self.thread.join();
    }

    /// Forgets the thread, in a forked child, which does not have it.
    pub(crate) fn forget(self) {
        std::mem::forget(self.thread);
    }
}

/// Copies from the end on, because a reader of the whole snapshot comes there last.
fn preserve_all(
    snapshot: &SnapshotState,
    tracker: &WriteTracker,
    most: usize,
    stop: &AtomicBool,
    blocked: &SignalsBlocked,
) {
    let _ = yield_to_all_threads();
    for index in (0..snapshot.granules().len()).rev() {
        let is_enough = || snapshot.arena().held().0 + snapshot.interval().granule_bytes() > most;
        while is_enough() && !stop.load(Ordering::Relaxed) {
            sleep(PAUSE);
        }
        if stop.load(Ordering::Relaxed) || snapshot.phase() != Phase::Live {
            return;
        }
        let granule = snapshot.interval().granule(index);
        if snapshot.needs(granule.start) {
            snapshot.preserve(index, Preserver::Other, blocked);
            tracker.lift_unneeded(&granule);
        }
    }
}
