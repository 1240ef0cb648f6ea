//! Waits for a condition without a lock that a handler could find locked: an event count.
//!
//! ```text
//! waiter:  seen = changes;  is it so? ── yes ─▶ go on
//!                              └─ no ─▶ waiters += 1;  sleep while changes is seen;  waiters −= 1;  again
//! teller:  makes it so;  changes += 1;  are there waiters? ── yes ─▶ wake them all
//! ```
//!
//! A waiter that looked too early finds another number in `changes` and does not sleep. A thread
//! that notifies and finds no waiter was earlier than the waiter's count, so the waiter sees the
//! new number. `README.md` has the orderings.

use super::futex::FutexWord;
use super::primitives::{AtomicU32, Ordering};

#[derive(Debug)]
pub struct WakeEvent {
    /// Counts the events. Waiters sleep on this word.
    changes: FutexWord,
    /// The number of threads that sleep or are about to sleep. If it is 0, a notification costs no
    /// system call.
    waiters: AtomicU32,
}

impl WakeEvent {
    pub fn new() -> Self {
        Self { changes: FutexWord::new(), waiters: AtomicU32::new(0) }
    }

    /// Waits until `look` returns a value, and returns it. Calls `look` again after each
    /// notification. Async-signal-safe if `look` is.
    pub fn wait_for<R>(&self, mut look: impl FnMut() -> Option<R>) -> R {
        loop {
            // Acquire: a thread that sees a number sees what was so when it was told.
            let seen = self.changes.load(Ordering::Acquire);
            if let Some(found) = look() {
                return found;
            }
            // Acquire: a teller that this comes behind has changed the number, and the sleep below sees it.
            self.waiters.fetch_add(1, Ordering::AcqRel);
            self.changes.sleep_while(seen);
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notifies every waiter, which then calls `look` again. Async-signal-safe.
    pub fn tell(&self) {
        self.changes.add(1, Ordering::Release);
        // A change of nothing rather than a load, which could find an old number: of two changes to one word
        // the later one sees the earlier one.
        if self.waiters.fetch_add(0, Ordering::AcqRel) > 0 {
            self.changes.wake();
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::super::primitives::AtomicUsize;
    use super::*;

    /// A waiter that sleeps forever is a deadlock, which loom reports.
    #[test]
    fn event_beside_a_waiter_is_not_slept_through() {
        loom::model(|| {
            let shared = Arc::new((WakeEvent::new(), AtomicUsize::new(0)));
            let waits = Arc::clone(&shared);
            let waiter = thread::spawn(move || {
                let (event, done) = &*waits;
                event.wait_for(|| (done.load(Ordering::Relaxed) == 1).then_some(()));
            });
            let (event, done) = &*shared;
            done.store(1, Ordering::Relaxed);
            event.tell();
            waiter.join().unwrap();
        });
    }

    /// Two waiters and two notifying threads: one wake-up wakes all waiters.
    #[test]
    fn event_with_several_waiters_wakes_each() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let shared = Arc::new((WakeEvent::new(), AtomicUsize::new(0)));
            let wait = |least: usize| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (event, done) = &*shared;
                    event.wait_for(|| (done.load(Ordering::Relaxed) >= least).then_some(()));
                })
            };
            let waiters = [wait(1), wait(2)];
            let (event, done) = &*shared;
            for _ in 0..2 {
                done.fetch_add(1, Ordering::Relaxed);
                event.tell();
            }
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        });
    }
}
