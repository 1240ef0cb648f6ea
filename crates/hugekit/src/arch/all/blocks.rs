//! Unaligned head, whole aligned blocks, tail.
//!
//! Instructions that write a whole block at once want it aligned. What does not fill a block at
//! either end goes through `memset`, which knows short lengths best.

use super::memset;

/// Clears `len` bytes from `dst`: whole blocks of `block` bytes through `clear_blocks(first,
/// bytes)`, the rest through `memset`.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes, and `block` is a power of two. `clear_blocks` writes
/// within the bytes it is given, which are aligned to `block` and a multiple of it.
#[inline(always)]
pub(crate) unsafe fn clear_by_blocks(
    dst: *mut u8,
    len: usize,
    block: usize,
    clear_blocks: impl FnOnce(*mut u8, usize),
) {
    let head = dst.addr().wrapping_neg() & (block - 1);
    if head >= len {
        // SAFETY: the caller's bytes, all of them.
        return unsafe { memset(dst, len) };
    }
    let body = (len - head) & !(block - 1);
    let tail = len - head - body;
    // SAFETY: head + body + tail = len, so the three parts lie within the caller's bytes.
    unsafe {
        if head > 0 {
            memset(dst, head);
        }
        clear_blocks(dst.add(head), body);
        if tail > 0 {
            memset(dst.add(head + body), tail);
        }
    }
}
