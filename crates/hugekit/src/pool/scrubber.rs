//! The scrubber: threads that clear dirty folios where nobody else wants the CPU.
//!
//! A piece is taken under the lock, cleared without it, and put back. Pieces are small, because a
//! thread of the lowest priority may lose its CPU in the middle of one, and a hand-out may be waiting
//! for exactly that piece.

use std::sync::{Arc, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::core::Core;
use super::stats::Scrubbed;
use crate::parallel::Cancel;
use crate::sys::thread::{without_signals, yield_to_everybody};
use crate::{Clear, Reuse};

/// Bytes of a piece: 0.1 to 0.2 ms, and long enough to stream well.
const PIECE_BYTES: usize = 2 << 20;

/// The threads of one pool. Dropped, they stop and are waited for.
#[derive(Debug)]
pub(super) struct Scrubber {
    core: Arc<Core>,
    cancel: Arc<Cancel>,
    threads: Vec<JoinHandle<()>>,
}

impl Scrubber {
    /// Starts so many threads; fewer if the system has no more, which is logged.
    pub(super) fn start(core: &Arc<Core>, threads: usize) -> Self {
        let cancel = Arc::new(Cancel::new());
        let start = |_| {
            let (core, cancel) = (Arc::clone(core), Arc::clone(&cancel));
            let builder = Builder::new().name("hugekit-scrub".to_owned());
            let started = without_signals(|| builder.spawn(move || serve(&core, &cancel)));
            started.inspect_err(|error| tracing::warn!("no thread to scrub with: {error}")).ok()
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
        for thread in threads {
            // A panic was printed when it happened, and the folios it was at are lost.
            let _ = thread.join();
        }
    }
}

fn serve(core: &Core, cancel: &Cancel) {
    // Anybody may; should a system-call filter object, the scrubber is an ordinary thread.
    let _ = yield_to_everybody();
    let most = (PIECE_BYTES / core.memory.page_size()).max(1);
    let clear = Clear::new().reuse(Reuse::None);
    // Only what takes long can be stopped in the middle: being stoppable costs microseconds.
    let clear = if core.memory.page_size() > PIECE_BYTES { clear.cancel(cancel) } else { clear };
    loop {
        let mut state = core.lock();
        let dirty = loop {
            if state.orders.stop {
                return;
            }
            match state.take_for_background(most) {
                Some(dirty) => break dirty,
                None => {
                    state = core.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(state);
        let count = dirty.folios().len();
        let part = match core.memory.scrub(dirty, &clear) {
            Ok(clean) => {
                core.counters.scrubbed(Scrubbed::InBackground, core.memory.bytes(&clean));
                clean.into()
            }
            Err((dirty, _stopped)) => dirty.into(),
        };
        core.put_scrubbed(part, count, true);
    }
}
