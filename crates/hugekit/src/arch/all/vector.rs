//! The vector loops, written once for every vector width.
//!
//! An instruction set implements [`Vector`] and wraps the loops in functions that carry its
//! `#[target_feature]`; everything here is `#[inline(always)]`, so that the loops are compiled
//! with those features.

use super::blocks::clear_by_blocks;

/// Bytes per cache line, and per block of the loops: whole lines are what a write-combining
/// buffer can flush without reading memory.
const LINE: usize = 64;

/// A vector register full of zeroes that can be stored.
pub(crate) trait Vector: Copy {
    /// Bytes per vector; divides a line.
    const BYTES: usize = size_of::<Self>();

    /// A vector of zeroes.
    ///
    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn zero() -> Self;

    /// Stores through the cache.
    ///
    /// # Safety
    /// The CPU has the instruction set; `dst` is valid for writes and aligned to `BYTES`.
    unsafe fn store(self, dst: *mut u8);

    /// Stores past the cache, weakly ordered.
    ///
    /// # Safety
    /// As [`store`](Self::store).
    unsafe fn stream(self, dst: *mut u8);
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
/// As [`clear_cached`].
#[inline(always)]
pub(crate) unsafe fn clear_streaming<V: Vector>(dst: *mut u8, len: usize) {
    // SAFETY: passed on from the caller; the closure stores within the lines it is given.
    unsafe { clear_lines::<V>(dst, len, |zero, at| zero.stream(at)) }
}

/// # Safety
/// As [`clear_cached`]; `put` stores one vector at the address it is given.
#[inline(always)]
unsafe fn clear_lines<V: Vector>(dst: *mut u8, len: usize, put: impl Fn(V, *mut u8)) {
    const { assert!(LINE.is_multiple_of(V::BYTES)) };
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
