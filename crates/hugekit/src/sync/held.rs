//! What unit tests see of a thread that has something a fault may wait for: a claim, a gate, a place among a table's
//! readers. Nothing outside of them.

#[cfg(all(test, not(loom)))]
pub(crate) use self::seen::{allocator_calls, is_still_to_be_interrupted, to_be_interrupted};
pub(super) use self::seen::{begin, end, interrupt};

/// Counts what a thread allocates meanwhile: a handler may have interrupted the allocator, and wait for the thread. And
/// interrupts it by a signal as soon as it has that, if it asked to be.
#[cfg(all(test, not(loom)))]
#[allow(unsafe_code)]
mod seen {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static HELD: Cell<u32> = const { Cell::new(0) };
        static CALLS: Cell<u32> = const { Cell::new(0) };
        static SIGNAL: Cell<Option<(libc::c_int, u32)>> = const { Cell::new(None) };
    }

    pub(in crate::sync) fn begin() {
        HELD.set(HELD.get() + 1);
        interrupt();
    }

    pub(in crate::sync) fn end() {
        HELD.set(HELD.get() - 1);
    }

    /// As [`begin`], where it may allocate.
    pub(in crate::sync) fn interrupt() {
        let Some((signal, left)) = SIGNAL.get() else { return };
        SIGNAL.set((left > 0).then(|| (signal, left - 1)));
        if left == 0 {
            // SAFETY: a signal whose handler the test has installed, to the calling thread.
            unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
        }
    }

    /// The calling thread sends itself a signal as soon as it has something that a fault may wait for, after `first`
    /// times that it had: where signals are open, its handler runs while it has that.
    pub(crate) fn to_be_interrupted(signal: libc::c_int, first: u32) {
        SIGNAL.set(Some((signal, first)));
    }

    /// Whether it did not come to that.
    pub(crate) fn is_still_to_be_interrupted() -> bool {
        SIGNAL.get().is_some()
    }

    /// How often this thread has called the allocator while it had a gate or a claim.
    pub(crate) fn allocator_calls() -> u32 {
        CALLS.get()
    }

    struct Counting;

    impl Counting {
        fn count() {
            if HELD.try_with(Cell::get).is_ok_and(|held| held > 0) {
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
mod seen {
    pub(in crate::sync) fn begin() {}
    pub(in crate::sync) fn end() {}
    pub(in crate::sync) fn interrupt() {}
}
