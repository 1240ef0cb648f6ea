//! Routines of every architecture: `memset`, `memcpy`, and the frame of a routine that works by
//! blocks.

#[allow(dead_code, reason = "the portable architecture has no block-wise routines")]
pub(super) mod blocks;
#[allow(dead_code, reason = "an architecture uses as much of it as it has nothing better for")]
#[allow(unreachable_pub, reason = "public where this is the architecture")]
pub(super) mod portable;
#[allow(dead_code, reason = "only architectures with several vector widths share the loops")]
pub(super) mod vector;

use super::{ClearFn, ClearRoutine, CopyFn, CopyRoutine};

/// `memset` of the C library that the program uses.
pub(super) const MEMSET: ClearRoutine = ClearRoutine::libc("memset", memset as ClearFn);

/// `memcpy` of the C library that the program uses.
pub(super) const MEMCPY: CopyRoutine = CopyRoutine::libc("memcpy", memcpy as CopyFn);

/// # Safety
/// `dst` is valid for writes of `len` bytes.
pub(super) unsafe fn memset(dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise; a byte needs no alignment.
    unsafe { dst.write_bytes(0, len) };
}

/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
pub(super) unsafe fn memcpy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise; a byte needs no alignment.
    unsafe { dst.copy_from_nonoverlapping(src, len) };
}
