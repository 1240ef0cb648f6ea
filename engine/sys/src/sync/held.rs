//! Test hooks: a query if a thread holds an object that a fault may wait for (a claim, a gate, a
//! place among a table's readers), and a signal to the thread at that moment. Compiled with `--cfg
//! hugekit_faults` only.

pub(super) use self::seen::{interrupt, note_released, note_taken};
#[cfg(all(hugekit_faults, not(loom)))]
pub use self::seen::{is_held, is_still_to_be_interrupted, to_be_interrupted};

#[cfg(all(hugekit_faults, not(loom)))]
#[allow(unsafe_code)]
mod seen {
    use std::cell::Cell;

    thread_local! {
        static HELD: Cell<u32> = const { Cell::new(0) };
        static SIGNAL: Cell<Option<(libc::c_int, u32)>> = const { Cell::new(None) };
    }

    pub(in crate::sync) fn note_taken() {
        HELD.set(HELD.get() + 1);
        interrupt();
    }

    pub(in crate::sync) fn note_released() {
        HELD.set(HELD.get() - 1);
    }

    /// Like [`note_taken`], for places that may allocate.
    pub(in crate::sync) fn interrupt() {
        let Some((signal, left)) = SIGNAL.get() else { return };
        SIGNAL.set((left > 0).then(|| (signal, left - 1)));
        if left == 0 {
            // SAFETY: a signal whose handler the test has installed, to the calling thread.
            unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
        }
    }

    /// Makes the calling thread send itself a signal as soon as it holds an object that a fault may
    /// wait for, after `first` times. If the signal is not blocked, its handler runs at that
    /// moment.
    pub fn to_be_interrupted(signal: libc::c_int, first: u32) {
        SIGNAL.set(Some((signal, first)));
    }

    /// Returns true if the thread has not been interrupted yet.
    pub fn is_still_to_be_interrupted() -> bool {
        SIGNAL.get().is_some()
    }

    /// Returns true if this thread holds a gate or a claim. A test's allocator calls this, because
    /// a handler may have interrupted the allocator and wait for this thread.
    pub fn is_held() -> bool {
        HELD.try_with(Cell::get).is_ok_and(|held| held > 0)
    }
}

#[cfg(not(all(hugekit_faults, not(loom))))]
mod seen {
    pub(in crate::sync) fn note_taken() {}
    pub(in crate::sync) fn note_released() {}
    pub(in crate::sync) fn interrupt() {}
}
