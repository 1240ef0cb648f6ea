//! `stnp`: pairs of registers stored with the hint that nobody reads them soon.

use core::arch::asm;

use crate::arch::all::blocks::clear_by_blocks;

const LINE: usize = 64;

/// # Safety
/// `dst` is valid for writes of `len` bytes.
pub(super) unsafe fn clear_stnp(dst: *mut u8, len: usize) {
    // SAFETY: four pairs of eight bytes make one line, and every line is within the caller's bytes.
    unsafe {
        clear_by_blocks(dst, len, LINE, |first, bytes| {
            for offset in (0..bytes).step_by(LINE) {
                asm!(
                    "stnp xzr, xzr, [{line}]",
                    "stnp xzr, xzr, [{line}, #16]",
                    "stnp xzr, xzr, [{line}, #32]",
                    "stnp xzr, xzr, [{line}, #48]",
                    line = in(reg) first.add(offset),
                    options(nostack, preserves_flags),
                );
            }
        });
    }
}
