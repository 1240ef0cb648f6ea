//! A latch: a wait until a number of threads have arrived at a point.

use super::event::WakeEvent;
use super::primitives::{AtomicUsize, Ordering};

#[derive(Debug)]
pub struct Latch {
    arrived: AtomicUsize,
    arrival: WakeEvent,
}

impl Latch {
    pub fn new() -> Self {
        Self { arrived: AtomicUsize::new(0), arrival: WakeEvent::new() }
    }

    /// Records the arrival of the calling thread. Writes only to the latch.
    pub fn arrive(&self) {
        // Release: what it did before has happened for the thread that waits.
        self.arrived.fetch_add(1, Ordering::Release);
        self.arrival.tell();
    }

    /// Waits until this many threads have arrived.
    pub fn wait_for(&self, threads: usize) {
        let all = || (self.arrived.load(Ordering::Acquire) >= threads).then_some(());
        self.arrival.wait_for(all);
    }
}

#[cfg(all(test, loom))]
#[allow(unsafe_code)]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Each thread writes its cell before it arrives; loom reports a read that is not ordered behind it.
    struct LatchedCells(Latch, [UnsafeCell<u32>; 2]);

    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Sync for LatchedCells {}
    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Send for LatchedCells {}

    #[test]
    fn latch_after_arrival_shows_what_was_done_before() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let cells = [UnsafeCell::new(0), UnsafeCell::new(0)];
            let shared = Arc::new(LatchedCells(Latch::new(), cells));
            let threads = [0, 1].map(|index| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    // SAFETY: its own cell; loom checks just that.
                    shared.1[index].with_mut(|cell| unsafe { *cell = 1 });
                    shared.0.arrive();
                })
            });
            shared.0.wait_for(2);
            for cell in &shared.1 {
                // SAFETY: written before its writer arrived; loom checks just that.
                assert_eq!(cell.with(|cell| unsafe { *cell }), 1);
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
