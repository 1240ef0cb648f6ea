//! `ldnp` and `stnp`: these load and store pairs of registers, with the hint that no thread uses
//! the bytes soon.

use core::arch::asm;

use crate::arch::all::blocks::{clear_by_blocks, copy_by_blocks};

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

/// A copy of whole lines, 32 bytes at a time. `ldnp` loads the bytes and `$store` stores them.
macro_rules! copy {
    ($name:ident, $store:literal) => {
        /// # Safety
        /// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
        pub(super) unsafe fn $name(dst: *mut u8, src: *const u8, len: usize) {
            // SAFETY: two pairs of 16 bytes make one line, and lines of both sides lie within the
            // caller's bytes; the registers used are declared as overwritten.
            unsafe {
                copy_by_blocks(dst, src, len, LINE, |dst, src, bytes| {
                    for offset in (0..bytes).step_by(LINE) {
                        asm!(
                            "ldnp q0, q1, [{src}]",
                            "ldnp q2, q3, [{src}, #32]",
                            concat!($store, " q0, q1, [{dst}]"),
                            concat!($store, " q2, q3, [{dst}, #32]"),
                            src = in(reg) src.add(offset),
                            dst = in(reg) dst.add(offset),
                            out("v0") _,
                            out("v1") _,
                            out("v2") _,
                            out("v3") _,
                            options(nostack, preserves_flags),
                        );
                    }
                });
            }
        }
    };
}

copy!(copy_ldnp_stnp, "stnp");
copy!(copy_ldnp_stp, "stp");
