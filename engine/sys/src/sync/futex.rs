//! A word to sleep on. Async-signal-safe, which std's locks do not promise.
//!
//! In a model loom has no futex, so a lock and a condition variable stand in for the kernel's queue: the word is
//! compared under the lock, as the kernel compares it under that of its hash bucket, and woken under it. The
//! lock also orders what comes before a wake-up before what comes behind the sleep, which the kernel does not
//! promise: no model may rest on that, and none does, because a thread that wakes up looks again.

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
    /// Sleeps while the word is `expected`, until a thread wakes it; or not at all, or shorter: look again.
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
