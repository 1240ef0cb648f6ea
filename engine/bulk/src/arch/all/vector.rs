//! The vector loops, written once for all vector widths.
//!
//! An instruction set implements [`Vector`] and wraps the loops in functions that carry its
//! `#[target_feature]`. All functions here are `#[inline(always)]`, so that the compiler compiles
//! the loops with those features.

use super::blocks::{clear_by_blocks, copy_by_blocks};

/// Bytes per cache line, and per block of the loops. A write-combining buffer can flush a whole
/// line without a read of memory.
const LINE: usize = 64;

/// Bytes per page of an interleaved copy.
const PAGE: usize = 4096;

/// The number of pages in which an interleaved copy advances together. With more pages, more
/// hardware prefetchers run ahead, one for each page. The design measured four on Granite Rapids;
/// on Milan every number above one is slower than one (`docs/decisions/0002-crossovers.md`).
const PAGES: usize = 4;

/// A unit of loads and stores.
pub(crate) trait Moved: Copy {
    /// The unit's size in bytes, which divides a line.
    const BYTES: usize = size_of::<Self>();

    /// Loads from `src`. The store of this value follows before any other of these calls.
    ///
    /// # Safety
    /// The CPU has the instruction set; `src` is valid for reads, at any alignment.
    unsafe fn load(src: *const u8) -> Self;

    /// Stores through the cache.
    ///
    /// # Safety
    /// The CPU has the instruction set; `dst` is valid for writes and aligned to `BYTES`.
    unsafe fn store(self, dst: *mut u8);

    /// Stores past the cache, weakly ordered.
    ///
    /// # Safety
    /// The conditions of [`store`](Self::store).
    unsafe fn stream(self, dst: *mut u8);

    /// Prefetches the line of `address`, with the hint that the line is read once. The prefetch
    /// never faults, for any address.
    fn prefetch_once(address: *const u8);
}

/// A vector register.
pub(crate) trait Vector: Moved {
    /// Returns a vector of zeroes.
    ///
    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn zero() -> Self;
}

/// Clears with ordinary stores.
///
/// # Safety
/// The CPU has `V`'s instruction set; `dst` is valid for writes of `len` bytes.
#[inline(always)]
pub(crate) unsafe fn clear_cached<V: Vector>(dst: *mut u8, len: usize) {
    // SAFETY: passed on from the caller; the closure stores within the lines it is given.
    unsafe { clear_lines::<V>(dst, len, |zero, at| zero.store(at)) }
}

/// Clears with streaming stores.
///
/// # Safety
/// The conditions of [`clear_cached`].
#[inline(always)]
pub(crate) unsafe fn clear_streaming<V: Vector>(dst: *mut u8, len: usize) {
    // SAFETY: passed on from the caller; the closure stores within the lines it is given.
    unsafe { clear_lines::<V>(dst, len, |zero, at| zero.stream(at)) }
}

/// # Safety
/// The conditions of [`clear_cached`]; `put` stores one vector at the address that it gets.
#[inline(always)]
unsafe fn clear_lines<V: Vector>(dst: *mut u8, len: usize, put: impl Fn(V, *mut u8)) {
    const { assert!(LINE % V::BYTES == 0) };
    // SAFETY: LINE is a power of two; every vector lies within the lines given to the closure.
    unsafe {
        let zero = V::zero();
        clear_by_blocks(dst, len, LINE, |first, bytes| {
            for offset in (0..bytes).step_by(V::BYTES) {
                put(zero, first.add(offset));
            }
        });
    }
}

/// Copies with ordinary stores.
///
/// # Safety
/// The CPU has `V`'s instruction set; `src` is valid for reads and `dst` for writes of `len` bytes,
/// and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_cached<V: Moved>(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller; lines of both sides lie within the bytes given.
    unsafe {
        copy_by_blocks(dst, src, len, LINE, |dst, src, bytes| {
            for offset in (0..bytes).step_by(V::BYTES) {
                V::load(src.add(offset)).store(dst.add(offset));
            }
        });
    }
}

/// The distance of prefetches ahead of the loads, for a source that is read once. On Milan,
/// distances from 512 B to 4 KiB are equally fast.
const AHEAD: usize = 512;

/// Copies with ordinary stores from a source that is read once. The destination stays in the cache;
/// the source does not.
///
/// # Safety
/// The conditions of [`copy_cached`].
#[inline(always)]
pub(crate) unsafe fn copy_cached_once<V: Moved>(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller; lines of both sides lie within the bytes given.
    unsafe {
        copy_by_blocks(dst, src, len, LINE, |dst, src, bytes| {
            for line in (0..bytes).step_by(LINE) {
                let (dst, src) = (dst.add(line), src.add(line));
                V::prefetch_once(src.wrapping_add(AHEAD));
                for offset in (0..LINE).step_by(V::BYTES) {
                    V::load(src.add(offset)).store(dst.add(offset));
                }
            }
        });
    }
}

/// Copies with streaming stores, in ascending order.
///
/// # Safety
/// The conditions of [`copy_cached`].
#[inline(always)]
pub(crate) unsafe fn copy_streaming<V: Moved>(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller; lines of both sides lie within the bytes given.
    unsafe {
        copy_by_blocks(dst, src, len, LINE, |dst, src, bytes| stream_lines::<V>(dst, src, bytes));
    }
}

/// Copies with streaming stores, in several pages that advance together.
///
/// # Safety
/// The conditions of [`copy_cached`].
#[inline(always)]
pub(crate) unsafe fn copy_interleaved<V: Moved>(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller; groups and what is left of them lie within the bytes given.
    unsafe {
        copy_by_blocks(dst, src, len, LINE, |dst, src, bytes| {
            let whole = bytes - bytes % (PAGES * PAGE);
            for group in (0..whole).step_by(PAGES * PAGE) {
                stream_group::<V>(dst.add(group), src.add(group));
            }
            stream_lines::<V>(dst.add(whole), src.add(whole), bytes - whole);
        });
    }
}

/// Copies a line of each page in turn.
///
/// # Safety
/// The conditions of [`copy_cached`], for `PAGES * PAGE` bytes; `dst` is aligned to a line.
#[inline(always)]
unsafe fn stream_group<V: Moved>(dst: *mut u8, src: *const u8) {
    for line in (0..PAGE).step_by(LINE) {
        for page in 0..PAGES {
            let offset = page * PAGE + line;
            // SAFETY: the line lies within the group.
            unsafe { stream_lines::<V>(dst.add(offset), src.add(offset), LINE) };
        }
    }
}

/// # Safety
/// The conditions of [`copy_cached`]; `dst` is aligned to a line and `bytes` a multiple of it.
#[inline(always)]
unsafe fn stream_lines<V: Moved>(dst: *mut u8, src: *const u8, bytes: usize) {
    for offset in (0..bytes).step_by(V::BYTES) {
        // SAFETY: every vector lies within the bytes.
        unsafe { V::load(src.add(offset)).stream(dst.add(offset)) };
    }
}
