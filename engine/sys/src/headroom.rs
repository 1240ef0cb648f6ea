//! Room on the heap for the allocations of an operation.
//!
//! A failed allocation ends a Rust program, unless the code checks for the failure. Most of std
//! does not check: `Arc`, maps, threads, paths, error messages. So an operation that promises an
//! error when memory is short first checks that the allocator has `BYTES` in one piece. No
//! operation makes unchecked allocations of more than half of this at a time, which
//! `tests/refused_calls` counts. Code that may need more memory checks its allocations.
//!
//! The room is not reserved: other threads of the program may allocate it in the meantime.
//!
//! An operation that cannot fail, such as dropping a region, borrows a block that the process keeps
//! (`KEPT`).
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::Remedy;

/// The length of the block. It is below the length that the C library maps separately, so a freed
/// block stays in the heap.
const BYTES: usize = 64 << 10;

const LAYOUT: Layout = match Layout::from_size_align(BYTES, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two, and a length that no multiple of it overflows"),
};

/// The block for operations that cannot fail. Null until the first operation, and while the block
/// is lent.
static KEPT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

const REMEDY: &str = "free memory, or raise vm.max_map_count, ulimit -v or ulimit -d";

/// The heap has no room for the operation. Nothing was changed. The remedy is in the error's
/// `Display`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the call needs {} KiB of heap in one piece, and the allocator has less{}",
    BYTES >> 10, Remedy(Some(REMEDY))
)]
pub struct HeapShortage;

impl HeapShortage {
    /// Checks that the heap has room for an operation of this library. Each operation checks by
    /// itself, too. This function is for bindings, which make small allocations of their own before
    /// and after the operation.
    ///
    /// # Errors
    /// [`HeapShortage`] if the heap has no room. The check leaves nothing allocated, and the error
    /// itself allocates nothing.
    #[doc(hidden)]
    pub fn check() -> Result<(), Self> {
        check()
    }

    /// Returns a step by which an administrator or the program can prevent this error. This
    /// function is for bindings. Errors that wrap this one have the same remedy.
    #[doc(hidden)]
    #[must_use]
    pub fn remedy(&self) -> String {
        REMEDY.to_owned()
    }
}

/// Checks that the heap has room for an operation.
///
/// # Errors
/// [`HeapShortage`] if the heap has no room. The check leaves nothing allocated, and the error
/// itself allocates nothing.
pub fn check() -> Result<(), HeapShortage> {
    keep()?;
    HeapBlock::new().map(drop)
}

/// Lends a block to an operation that cannot fail, if the heap has no room for it.
#[must_use = "the block is lent until this is dropped"]
pub fn lend() -> Lent {
    if HeapBlock::new().is_err() {
        drop(take_kept());
    }
    Lent(())
}

/// A block of the heap that is lent until this is dropped.
#[derive(Debug)]
pub struct Lent(());

impl Drop for Lent {
    fn drop(&mut self) {
        // Else the next operation tries again, and is refused if it cannot.
        let _ = keep();
    }
}

/// Makes the process keep a block.
fn keep() -> Result<(), HeapShortage> {
    if KEPT.load(Ordering::Relaxed).is_null() {
        let block = HeapBlock::new()?.into_raw();
        let before = KEPT.swap(block, Ordering::SeqCst);
        // Another thread may have kept one meanwhile.
        drop(HeapBlock::from_raw(before));
    }
    Ok(())
}

fn take_kept() -> Option<HeapBlock> {
    HeapBlock::from_raw(KEPT.swap(ptr::null_mut(), Ordering::SeqCst))
}

/// A block of the heap, freed when dropped.
struct HeapBlock(ptr::NonNull<u8>);

impl HeapBlock {
    fn new() -> Result<Self, HeapShortage> {
        // SAFETY: the layout has bytes.
        let start = black_box(unsafe { alloc(LAYOUT) });
        ptr::NonNull::new(start).map(Self).ok_or(HeapShortage)
    }

    fn into_raw(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// Takes back the pointer of [`into_raw`](Self::into_raw), once for each call of it. `None` if
    /// the pointer is null.
    fn from_raw(start: *mut u8) -> Option<Self> {
        ptr::NonNull::new(start).map(Self)
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout, and only this value owns it: `KEPT` is swapped, never copied.
        unsafe { dealloc(self.0.as_ptr(), LAYOUT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_there_and_a_block_is_kept_and_lent() {
        check().unwrap();
        assert!(!KEPT.load(Ordering::SeqCst).is_null());
        drop(take_kept());
        drop(lend());
        assert!(!KEPT.load(Ordering::SeqCst).is_null());
    }
}
