//! A lock that faults share and that whoever changes the family has alone.
//!
//! Signal handlers take it, so it neither allocates nor looks at thread-local state. Whoever wants it
//! alone comes before sharers that arrive later, or a fork would wait for as long as somebody writes. A
//! thread never takes it twice: its signals are blocked while it holds it, and it touches no memory then
//! that is served.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::futex;

/// Set while somebody has it alone, or is about to.
const ALONE: u32 = 1 << 31;

#[derive(Debug)]
pub(super) struct Gate<T> {
    /// How many share it, and [`ALONE`].
    holders: AtomicU32,
    /// Changes whenever `holders` did so that somebody who waits may go on.
    changes: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by many at a time only to be read, and by one alone to be changed.
unsafe impl<T: Send + Sync> Sync for Gate<T> {}

#[derive(Debug)]
pub(super) struct Shared<'a, T> {
    gate: &'a Gate<T>,
}

#[derive(Debug)]
pub(super) struct Alone<'a, T> {
    gate: &'a Gate<T>,
}

impl<T> Gate<T> {
    pub(super) fn new(value: T) -> Self {
        let zero = || AtomicU32::new(0);
        Self { holders: zero(), changes: zero(), value: UnsafeCell::new(value) }
    }

    /// Waits until nobody has it alone. Async-signal-safe.
    pub(super) fn share(&self) -> Shared<'_, T> {
        self.enter(|holders| (holders & ALONE == 0).then_some(holders + 1));
        Shared { gate: self }
    }

    /// Waits until nobody else has it. Async-signal-safe.
    pub(super) fn alone(&self) -> Alone<'_, T> {
        self.enter(|holders| (holders & ALONE == 0).then_some(holders | ALONE));
        loop {
            let seen = self.changes.load(Ordering::SeqCst);
            if self.holders.load(Ordering::SeqCst) == ALONE {
                return Alone { gate: self };
            }
            futex::wait(&self.changes, seen);
        }
    }

    fn enter(&self, next: impl Fn(u32) -> Option<u32>) {
        loop {
            let seen = self.changes.load(Ordering::SeqCst);
            if self.holders.fetch_update(Ordering::SeqCst, Ordering::SeqCst, &next).is_ok() {
                return;
            }
            futex::wait(&self.changes, seen);
        }
    }

    /// Lets those go on who wait.
    fn tell(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.changes);
    }
}

impl<T> Deref for Shared<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: nobody has it alone as long as this exists.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> Drop for Shared<'_, T> {
    fn drop(&mut self) {
        // The last one may be waited for.
        if self.gate.holders.fetch_sub(1, Ordering::SeqCst) == ALONE + 1 {
            self.gate.tell();
        }
    }
}

impl<T> Deref for Alone<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: nobody else has it as long as this exists.
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
        self.gate.holders.store(0, Ordering::SeqCst);
        self.gate.tell();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn sharers_see_no_change_half_way_and_no_change_is_lost() {
        let gate = Gate::new((0_u64, 0_u64));
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
