//! The scrubber: threads that clear dirty folios when no other thread needs the CPU.
//!
//! A piece is taken under the lock, cleared without it, and put back. Pieces are small, because a
//! thread of the lowest priority may lose its CPU in the middle of one, and an allocation may be waiting
//! for exactly that piece.
//!
//! While regions come and go, a piece is followed by a nap. As long as a thread of this process runs
//! on another CPU, each unmapping interrupts that CPU, and costs 30 µs more: clearing in the background
//! then saves the user nothing, and doubles the CPU time (`docs/decisions/0008-scrub-when-calm.md`).

use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::core::{Core, PoolState};
use super::extent::{Dirty, Extent};
use super::stats::Scrubbed;
use hugekit_bulk::parallel::Cancel;
use hugekit_bulk::{ClearOptions, Reuse};
use hugekit_sys::thread::{spawn, yield_to_all_threads};

/// Bytes of a piece: 0.1 to 0.2 ms, and long enough to stream well.
const PIECE_BYTES: usize = 2 << 20;

/// The length of a nap. The pool is calm if no folio comes or goes for as long.
const NAP: Duration = Duration::from_millis(1);

/// The scrubber threads of one pool. A drop stops them and waits for them.
#[derive(Debug)]
pub(super) struct Scrubber {
    core: Arc<Core>,
    cancel: Arc<Cancel>,
    threads: Vec<JoinHandle<()>>,
}

impl Scrubber {
    /// Starts `threads` threads. If the system refuses some, fewer run, which is logged.
    pub(super) fn start(core: &Arc<Core>, threads: usize) -> Self {
        let cancel = Arc::new(Cancel::new());
        let start = |_| {
            let (core, cancel) = (Arc::clone(core), Arc::clone(&cancel));
            let started = spawn("hugekit-scrub", move |_| serve(&core, &cancel));
            started
                .inspect_err(|error| hugekit_sys::events::warn!("no thread to scrub with: {error}"))
                .ok()
        };
        let threads = (0..threads).map_while(start).collect();
        Self { core: Arc::clone(core), cancel, threads }
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        if !self.core.memory.is_ours() {
            // A forked child has no such threads to wait for, nor may it detach them.
            threads.into_iter().for_each(std::mem::forget);
            return;
        }
        self.cancel.cancel();
        self.core.lock().orders.stop = true;
        self.core.wanted.notify_all();
        self.core.stopped.notify_all();
        for thread in threads {
            // A panic was printed when it happened, and the folios it was at are lost.
            let _ = thread.join();
        }
    }
}

fn serve(core: &Core, cancel: &Cancel) {
    // Any thread may; should a system-call filter object, the scrubber is an ordinary thread.
    let _ = yield_to_all_threads();
    let most = (PIECE_BYTES / core.memory.page_size()).max(1);
    let clear = ClearOptions::new().reuse(Reuse::None);
    // Only what takes long can be stopped in the middle: being stoppable costs microseconds.
    let clear = if core.memory.page_size() > PIECE_BYTES { clear.cancel(cancel) } else { clear };
    let mut seen = 0;
    while let Some(dirty) = next(core, most, &mut seen) {
        let count = dirty.folios().len();
        let parts = match core.memory.scrub(dirty, &clear) {
            Ok(clean) => {
                core.counters.scrubbed(Scrubbed::InBackground, core.memory.bytes(&clean));
                vec![clean.into()]
            }
            Err((dirty, _stopped_or_failed)) => core.without_failed(dirty.into()),
        };
        core.put_scrubbed(parts, count, true);
    }
}

/// Returns a piece to clear, after a nap if the pool was used since the last one; `None` to stop.
fn next(core: &Core, most: usize, seen: &mut u64) -> Option<Extent<Dirty>> {
    let mut state = core.lock();
    while !state.orders.stop {
        if state.wants_scrubbing() && !state.orders.urgent && state.traffic != *seen {
            state = nap(core, state);
            *seen = state.traffic;
        } else if let Some(dirty) = state.take_for_background(most) {
            return Some(dirty);
        } else {
            state = core.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
    None
}

fn nap<'a>(core: &Core, state: MutexGuard<'a, PoolState>) -> MutexGuard<'a, PoolState> {
    core.stopped.wait_timeout(state, NAP).unwrap_or_else(PoisonError::into_inner).0
}
