//! A lock that handlers share and that a thread which changes what it guards has alone.
//!
//! ```text
//!   holders:  0 ◀─▶ n sharing ──(a thread wants it alone)──▶ n + ALONE ──(n leave)──▶ ALONE ──▶ 0
//! ```
//!
//! A thread that wants it alone comes before sharers that arrive later, or it would wait for as long as there are
//! faults. A thread never takes it twice: its signals are blocked while it holds it, and it touches no memory
//! then whose faults take it.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use rustix::io;

use super::event::Event;
use super::primitives::{AtomicU32, Ordering, Private};

/// Set while a thread has it alone, or is about to.
const ALONE: u32 = 1 << 31;

#[derive(Debug)]
pub(crate) struct Gate<T> {
    words: Private<Words>,
    value: UnsafeCell<T>,
}

#[derive(Debug)]
struct Words {
    /// How many share it, and [`ALONE`].
    holders: AtomicU32,
    /// Told whenever `holders` changed so that a waiter may go on.
    opened: Event,
}

// SAFETY: the value is reached by many at a time only to be read, and by one alone to be changed.
unsafe impl<T: Send + Sync> Sync for Gate<T> {}

#[derive(Debug)]
pub(crate) struct Shared<'a, T> {
    gate: &'a Gate<T>,
}

#[derive(Debug)]
pub(crate) struct Alone<'a, T> {
    gate: &'a Gate<T>,
}

impl<T> Gate<T> {
    pub(crate) fn new(value: T) -> io::Result<Self> {
        let words = Words { holders: AtomicU32::new(0), opened: Event::new() };
        Ok(Self { words: Private::new(words)?, value: UnsafeCell::new(value) })
    }

    /// Waits until no thread has it alone. Async-signal-safe.
    pub(crate) fn share(&self) -> Shared<'_, T> {
        self.enter(|holders| holders + 1);
        held::begin();
        Shared { gate: self }
    }

    /// Waits until no other thread has it. Async-signal-safe.
    pub(crate) fn alone(&self) -> Alone<'_, T> {
        self.enter(|holders| holders | ALONE);
        let Words { holders, opened } = &*self.words;
        // Acquire: what every sharer did has happened, because each one's leaving continues the others' release.
        opened.wait_for(|| (holders.load(Ordering::Acquire) == ALONE).then_some(()));
        held::begin();
        Alone { gate: self }
    }

    fn enter(&self, next: impl Fn(u32) -> u32) {
        let Words { holders, opened } = &*self.words;
        let enter = |holders: u32| (holders & ALONE == 0).then(|| next(holders));
        // Acquire: what the last thread that had it alone did has happened.
        opened.wait_for(|| holders.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).ok());
    }
}

impl<T> Deref for Shared<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: no thread has it alone as long as this exists.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> Drop for Shared<'_, T> {
    fn drop(&mut self) {
        held::end();
        let Words { holders, opened } = &*self.gate.words;
        // Release: the thread that has it alone next comes behind what was read. The last one may be waited for.
        if holders.fetch_sub(1, Ordering::Release) == ALONE + 1 {
            opened.tell();
        }
    }
}

impl<T> Deref for Alone<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: no other thread has it as long as this exists.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> DerefMut for Alone<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.gate.value.get() }
    }
}

impl<T> Drop for Alone<'_, T> {
    fn drop(&mut self) {
        held::end();
        let Words { holders, opened } = &*self.gate.words;
        // Release: the thread that enters next sees what was changed. No other thread changes it meanwhile.
        holders.store(0, Ordering::Release);
        opened.tell();
    }
}

/// Has unit tests count what a thread allocates while it has a gate: a handler may have interrupted the allocator, and
/// wait for the gate.
#[cfg(all(test, not(loom)))]
pub(crate) mod held {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static GATES: Cell<u32> = const { Cell::new(0) };
        static CALLS: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn begin() {
        GATES.set(GATES.get() + 1);
    }

    pub(super) fn end() {
        GATES.set(GATES.get() - 1);
    }

    /// How often this thread has called the allocator while it had a gate.
    pub(crate) fn allocator_calls() -> u32 {
        CALLS.get()
    }

    struct Counting;

    impl Counting {
        fn count() {
            if GATES.try_with(Cell::get).is_ok_and(|gates| gates > 0) {
                CALLS.set(CALLS.get() + 1);
            }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    // SAFETY: the system's allocator, which is called with what this is called with.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            Self::count();
            // SAFETY: the caller's to promise.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
            Self::count();
            // SAFETY: the caller's to promise.
            unsafe { System.dealloc(start, layout) }
        }

        unsafe fn realloc(&self, start: *mut u8, layout: Layout, len: usize) -> *mut u8 {
            Self::count();
            // SAFETY: the caller's to promise.
            unsafe { System.realloc(start, layout, len) }
        }
    }
}

#[cfg(not(all(test, not(loom))))]
mod held {
    pub(super) fn begin() {}
    pub(super) fn end() {}
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn gate_of_sharers_shows_no_change_half_way_and_loses_none() {
        let gate = Gate::new((0_u64, 0_u64)).unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let mut pair = gate.alone();
                        pair.0 += 1;
                        thread::yield_now();
                        pair.1 += 1;
                    }
                });
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let pair = gate.share();
                        assert_eq!(pair.0, pair.1);
                    }
                });
            }
        });
        assert_eq!(*gate.share(), (4000, 4000));
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    type Watched = Arc<Gate<Cell>>;

    /// Memory of which loom reports every access that is not ordered.
    struct Cell(UnsafeCell<u32>);

    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Sync for Cell {}
    // SAFETY: as above.
    unsafe impl Send for Cell {}

    fn gate() -> Watched {
        Arc::new(Gate::new(Cell(UnsafeCell::new(0))).unwrap())
    }

    fn read(gate: &Watched) -> u32 {
        // SAFETY: shared; loom checks that no thread writes it.
        gate.share().0.with(|value| unsafe { *value })
    }

    fn add(gate: &Watched) {
        // SAFETY: alone; loom checks just that.
        gate.alone().0.with_mut(|value| unsafe { *value += 1 });
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

    /// Two sharers leave while a third thread waits to have it alone: neither the last one nor the waiter is
    /// forgotten.
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
