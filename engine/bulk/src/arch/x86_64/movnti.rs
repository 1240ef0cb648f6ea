//! `movnti`, unrolled over a cache line: the loop of the 2020 proposal, without its fence.

use core::arch::x86_64::_mm_stream_si64;

use crate::arch::all::blocks::clear_by_blocks;

const LINE: usize = 64;
const WORD: usize = size_of::<i64>();

/// # Safety
/// `dst` is valid for writes of `len` bytes.
pub(super) unsafe fn clear_movnti(dst: *mut u8, len: usize) {
    // SAFETY: MOVNTI is part of SSE2, which every x86-64 CPU has. `clear_by_blocks` passes only whole, aligned lines within
    // the `len` bytes that the caller may write, and eight words make one line.
    unsafe {
        clear_by_blocks(dst, len, LINE, |first, bytes| {
            for line in (0..bytes).step_by(LINE) {
                for word in 0..LINE / WORD {
                    _mm_stream_si64(first.add(line + word * WORD).cast(), 0);
                }
            }
        });
    }
}
