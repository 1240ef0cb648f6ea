//! Division of a range into an unaligned head, whole aligned blocks, and a tail.
//!
//! Instructions that write a whole block at once need an aligned block. The head and the tail go
//! through `memset` or `memcpy`, which are best for short lengths. A copy aligns its destination;
//! the source may have any alignment.

use super::{memcpy, memset};

/// Clears `len` bytes from `dst` on: whole blocks of `block` bytes through `clear_blocks(first,
/// bytes)`, the rest through `memset`.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes, and `block` is a power of two. `clear_blocks` writes
/// only the bytes that it gets. Their address and length are multiples of `block`.
#[inline(always)]
pub(crate) unsafe fn clear_by_blocks(
    dst: *mut u8,
    len: usize,
    block: usize,
    clear_blocks: impl FnOnce(*mut u8, usize),
) {
    let is_whole = (dst.addr() | len) & (block - 1) == 0;
    let (first, bytes) = if is_whole {
        (dst, len)
    } else {
        // SAFETY: passed on from the caller.
        unsafe { clear_edges(dst, len, block) }
    };
    clear_blocks(first, bytes);
}

/// Clears the head and the tail. Returns the start of the whole blocks and their number of bytes.
/// Out of line: a page has no head and no tail, and need not save registers for the calls.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes, and `block` is a power of two.
#[inline(never)]
unsafe fn clear_edges(dst: *mut u8, len: usize, block: usize) -> (*mut u8, usize) {
    let head = (dst.addr().wrapping_neg() & (block - 1)).min(len);
    let body = (len - head) & !(block - 1);
    // SAFETY: head + body <= len, so both ends, and the blocks between, are the caller's bytes.
    unsafe {
        memset(dst, head);
        memset(dst.add(head + body), len - head - body);
        (dst.add(head), body)
    }
}

/// Copies `len` bytes from `src` to `dst`: whole blocks of `block` bytes of the destination through
/// `copy_blocks(first_dst, first_src, bytes)`, the rest through `memcpy`.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, they do not overlap, and `block`
/// is a power of two. `copy_blocks` writes only the bytes that it gets. The address of the
/// destination and the length are multiples of `block`.
#[inline(always)]
pub(crate) unsafe fn copy_by_blocks(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    block: usize,
    copy_blocks: impl FnOnce(*mut u8, *const u8, usize),
) {
    let is_whole = (dst.addr() | len) & (block - 1) == 0;
    let (head, bytes) = if is_whole {
        (0, len)
    } else {
        // SAFETY: passed on from the caller.
        unsafe { copy_edges(dst, src, len, block) }
    };
    // SAFETY: the edges end within the caller's bytes.
    let (first, from) = unsafe { (dst.add(head), src.add(head)) };
    copy_blocks(first, from, bytes);
}

/// Copies the head and the tail of the destination. Returns the length of the head and the number
/// of bytes of the whole blocks.
///
/// # Safety
/// The conditions of [`copy_by_blocks`].
#[inline(never)]
unsafe fn copy_edges(dst: *mut u8, src: *const u8, len: usize, block: usize) -> (usize, usize) {
    let head = (dst.addr().wrapping_neg() & (block - 1)).min(len);
    let body = (len - head) & !(block - 1);
    // SAFETY: head + body <= len, so both ends, and the blocks between, are the caller's bytes.
    unsafe {
        memcpy(dst, src, head);
        memcpy(dst.add(head + body), src.add(head + body), len - head - body);
    }
    (head, body)
}
