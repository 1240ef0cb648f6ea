//! A word on which threads sleep. It is async-signal-safe, which std's locks do not promise.
//!
//! Loom has no futex, so in models a lock and a condition variable replace the kernel's queue.
//! Under the lock, the word is compared and threads are woken, as in the kernel under the lock of a
//! hash bucket. The lock also orders everything before a wake-up before everything after the sleep,
//! which the kernel does not promise. No model depends on that order, because a thread that wakes
//! up looks again.

use super::primitives::{AtomicU32, Ordering};

#[derive(Debug)]
pub(super) struct FutexWord {
    value: AtomicU32,
    #[cfg(loom)]
    queue: (super::primitives::Mutex<()>, super::primitives::Condvar),
}

impl FutexWord {
    pub(super) fn new() -> Self {
        Self {
            value: AtomicU32::new(0),
            #[cfg(loom)]
            queue: Default::default(),
        }
    }

    pub(super) fn load(&self, ordering: Ordering) -> u32 {
        self.value.load(ordering)
    }

    pub(super) fn add(&self, number: u32, ordering: Ordering) {
        self.value.fetch_add(number, ordering);
    }
}

#[cfg(not(loom))]
impl FutexWord {
    /// Sleeps while the word is `expected`, until a thread wakes the caller. The function may
    /// return earlier, or at once, so the caller must look again.
    pub(super) fn sleep_while(&self, expected: u32) {
        use rustix::thread::futex::{Flags, wait};

        use crate::injection::{Call, pass};
        if pass(Call::FutexWait).is_ok() {
            let _ = wait(&self.value, Flags::PRIVATE, expected, None);
        }
    }

    /// Wakes every thread that sleeps on the word.
    pub(super) fn wake(&self) {
        use rustix::thread::futex::{Flags, wake};
        let _ = wake(&self.value, Flags::PRIVATE, i32::MAX as u32);
    }
}

#[cfg(loom)]
impl FutexWord {
    pub(super) fn sleep_while(&self, expected: u32) {
        let (lock, woken) = &self.queue;
        let locked = lock.lock().unwrap();
        if self.value.load(Ordering::Relaxed) == expected {
            drop(woken.wait(locked).unwrap());
        }
    }

    pub(super) fn wake(&self) {
        let (lock, woken) = &self.queue;
        drop(lock.lock().unwrap());
        woken.notify_all();
    }
}
