//! Threads that have a gate or a claim: they do not allocate, and a signal to them at that moment hangs no thread. Run by
//! `cargo xtask faults`, which compiles the library with its test hooks (`--cfg hugekit_faults`).
#![cfg(hugekit_faults)]

mod forks;
mod interrupted;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use hugekit_sys::sync::held;

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// How often this thread has called the allocator while it had a gate or a claim.
fn allocator_calls() -> u32 {
    CALLS.get()
}

struct Counting;

impl Counting {
    fn count() {
        if held::is_held() {
            CALLS.set(CALLS.get() + 1);
        }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed to the system's allocator with its own arguments.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the arguments of a call to this function, whose contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        Self::count();
        // SAFETY: the arguments of a call to this function, whose contract is the same; the system's allocator made
        // the block.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the arguments of a call to this function, whose contract is the same; the system's allocator made
        // the block.
        unsafe { System.realloc(start, layout, len) }
    }
}
