//! A lock that handlers share. A thread that changes the guarded data holds it exclusively.
//!
//! ```text
//!   holders:  0 ◀─▶ n sharing ──(a thread wants it alone)──▶ n + ALONE ──(n leave)──▶ ALONE ──▶ 0
//! ```
//!
//! A thread that wants exclusive access comes before sharers that arrive later; otherwise it would
//! wait as long as there are faults. A thread never locks the gate twice: its signals are blocked
//! while it holds the gate, and it then touches no memory whose faults lock the gate.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use rustix::io;

use super::event::WakeEvent;
use super::held;
use super::primitives::{AtomicU32, Ordering, Private};
use crate::thread::SignalsBlocked;

/// Set while a thread has exclusive access, or is about to get it.
const ALONE: u32 = 1 << 31;

#[derive(Debug)]
pub struct Gate<T> {
    words: Private<GateWords>,
    value: UnsafeCell<T>,
}

#[derive(Debug)]
struct GateWords {
    /// The number of threads that share the gate, and [`ALONE`].
    holders: AtomicU32,
    /// Notified when `holders` changed so that a waiter may continue.
    opened: WakeEvent,
}

// SAFETY: the value is reached by many at a time only to be read, and by one alone to be changed.
unsafe impl<T: Send + Sync> Sync for Gate<T> {}

#[derive(Debug)]
pub struct SharedGuard<'a, T> {
    gate: &'a Gate<T>,
}

#[derive(Debug)]
pub struct ExclusiveGuard<'a, T> {
    gate: &'a Gate<T>,
}

impl<T> Gate<T> {
    pub fn new(value: T) -> io::Result<Self> {
        let words = GateWords { holders: AtomicU32::new(0), opened: WakeEvent::new() };
        Ok(Self { words: Private::new(words)?, value: UnsafeCell::new(value) })
    }

    /// Waits until no thread has exclusive access, and shares the gate. Async-signal-safe.
    pub fn share<'a>(&'a self, _: &'a SignalsBlocked) -> SharedGuard<'a, T> {
        self.enter(|holders| holders + 1);
        held::note_taken();
        SharedGuard { gate: self }
    }

    /// Waits until no other thread holds the gate, and gets exclusive access. Async-signal-safe.
    pub fn alone<'a>(&'a self, _: &'a SignalsBlocked) -> ExclusiveGuard<'a, T> {
        self.enter(|holders| holders | ALONE);
        let GateWords { holders, opened } = &*self.words;
        // Acquire: what every sharer did has happened, because each one's leaving continues the others' release.
        opened.wait_for(|| (holders.load(Ordering::Acquire) == ALONE).then_some(()));
        held::note_taken();
        ExclusiveGuard { gate: self }
    }

    fn enter(&self, next: impl Fn(u32) -> u32) {
        let GateWords { holders, opened } = &*self.words;
        let enter = |holders: u32| (holders & ALONE == 0).then(|| next(holders));
        // Acquire: what the last thread that had it alone did has happened.
        opened.wait_for(|| holders.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).ok());
    }
}

impl<T> Deref for SharedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: no thread has it alone as long as this exists.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> Drop for SharedGuard<'_, T> {
    fn drop(&mut self) {
        held::note_released();
        let GateWords { holders, opened } = &*self.gate.words;
        // Release: the thread that has it alone next comes behind what was read. The last one may be waited for.
        if holders.fetch_sub(1, Ordering::Release) == ALONE + 1 {
            opened.tell();
        }
    }
}

impl<T> Deref for ExclusiveGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: no other thread has it as long as this exists.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> DerefMut for ExclusiveGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: no other thread has the value as long as this exists, and `&mut self` makes this reference the only
        // one.
        unsafe { &mut *self.gate.value.get() }
    }
}

impl<T> Drop for ExclusiveGuard<'_, T> {
    fn drop(&mut self) {
        held::note_released();
        let GateWords { holders, opened } = &*self.gate.words;
        // Release: the thread that enters next sees what was changed. No other thread changes it meanwhile.
        holders.store(0, Ordering::Release);
        opened.tell();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;
    use crate::thread::without_signals;

    #[test]
    fn gate_of_sharers_shows_no_change_half_way_and_loses_none() {
        let gate = Gate::new((0_u64, 0_u64)).unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        without_signals(|blocked| {
                            let mut pair = gate.alone(blocked);
                            pair.0 += 1;
                            thread::yield_now();
                            pair.1 += 1;
                        });
                    }
                });
                scope.spawn(|| {
                    for _ in 0..2000 {
                        without_signals(|blocked| {
                            let pair = gate.share(blocked);
                            assert_eq!(pair.0, pair.1);
                        });
                    }
                });
            }
        });
        without_signals(|blocked| assert_eq!(*gate.share(blocked), (4000, 4000)));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const BLOCKED: SignalsBlocked = SignalsBlocked::in_a_model();

    type Watched = Arc<Gate<Cell>>;

    /// Memory of which loom reports every access that is not ordered.
    struct Cell(UnsafeCell<u32>);

    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Sync for Cell {}
    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Send for Cell {}

    fn gate() -> Watched {
        Arc::new(Gate::new(Cell(UnsafeCell::new(0))).unwrap())
    }

    fn read(gate: &Watched) -> u32 {
        // SAFETY: shared; loom checks that no thread writes it.
        gate.share(&BLOCKED).0.with(|value| unsafe { *value })
    }

    fn add(gate: &Watched) {
        // SAFETY: alone; loom checks just that.
        gate.alone(&BLOCKED).0.with_mut(|value| unsafe { *value += 1 });
    }

    fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    #[test]
    fn gate_of_a_sharer_and_one_alone_keeps_them_apart() {
        check(3, || {
            let gate = gate();
            let other = Arc::clone(&gate);
            let other = thread::spawn(move || {
                read(&other);
            });
            add(&gate);
            other.join().unwrap();
            assert_eq!(read(&gate), 1);
        });
    }

    #[test]
    fn gate_of_two_alone_loses_nothing() {
        check(3, || {
            let gate = gate();
            let other = Arc::clone(&gate);
            let other = thread::spawn(move || add(&other));
            add(&gate);
            other.join().unwrap();
            assert_eq!(read(&gate), 2);
        });
    }

    /// Two sharers leave while a third thread waits for exclusive access. Neither the last sharer
    /// nor the waiter is forgotten.
    #[test]
    fn gate_left_by_the_last_sharer_lets_the_next_one_in() {
        check(2, || {
            let gate = gate();
            let share = |_| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    read(&gate);
                })
            };
            let sharers = [0, 1].map(share);
            add(&gate);
            sharers.into_iter().for_each(|sharer| sharer.join().unwrap());
            assert_eq!(read(&gate), 1);
        });
    }
}
