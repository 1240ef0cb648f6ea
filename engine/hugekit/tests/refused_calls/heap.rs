//! A process that may allocate only so many bytes more on the heap.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};

/// No process has as much.
const UNLIMITED: i64 = 1 << 60;

static LEFT: AtomicI64 = AtomicI64::new(UNLIMITED);

/// The system's allocator, which answers null when the bytes that are left do not suffice.
struct Limited;

#[global_allocator]
static ALLOCATOR: Limited = Limited;

// SAFETY: memory is the system allocator's, or null.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let cost = cost(layout);
        if LEFT.fetch_sub(cost, Ordering::SeqCst) < cost {
            LEFT.fetch_add(cost, Ordering::SeqCst);
            return ptr::null_mut();
        }
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LEFT.fetch_add(cost(layout), Ordering::SeqCst);
        // SAFETY: the caller's, from `alloc`.
        unsafe { System.dealloc(start, layout) }
    }
}

/// The block that an operation looks for, as it counts here.
pub(crate) const ROOM: usize = (64 << 10) + 16;

/// As the C library counts: a word for itself, and at least as much as a free piece needs. What is smaller than the
/// block that operations look for counts twice, so that they must do with half of it.
fn cost(layout: Layout) -> i64 {
    let bytes = (layout.size() + 8).max(32).next_multiple_of(16);
    if bytes < ROOM { 2 * bytes as i64 } else { bytes as i64 }
}

/// A limit of the heap of this process. The drop lifts it.
pub(crate) struct HeapLimit(());

impl HeapLimit {
    /// Has every allocation fail that would exceed these bytes, of all threads; what is freed meanwhile counts as left.
    pub(crate) fn of_heap(bytes: usize) -> Self {
        LEFT.store(bytes as i64, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for HeapLimit {
    fn drop(&mut self) {
        LEFT.store(UNLIMITED, Ordering::SeqCst);
    }
}
