//! Instructions that write a whole cache line past the cache: `movdir64b` (Intel, recent AMD) and
//! `clzero` (AMD since Zen). Both are weakly ordered like streaming stores.

use core::arch::asm;

use crate::arch::all::blocks::clear_by_blocks;

const LINE: usize = 64;

#[repr(align(64))]
struct Line([u8; LINE]);

static ZEROES: Line = Line([0; LINE]);

/// # Safety
/// The CPU has MOVDIR64B; `dst` is valid for writes of `len` bytes.
pub(super) unsafe fn clear_movdir64b(dst: *mut u8, len: usize) {
    // SAFETY: every line is aligned, as MOVDIR64B demands, and within the caller's bytes; its
    // source is 64 readable zeroes. The destination goes in a register, the source is memory.
    unsafe {
        clear_by_blocks(dst, len, LINE, |first, bytes| {
            for offset in (0..bytes).step_by(LINE) {
                asm!(
                    "movdir64b {line}, [{zeroes}]",
                    line = in(reg) first.add(offset),
                    zeroes = in(reg) ZEROES.0.as_ptr(),
                    options(nostack, preserves_flags),
                );
            }
        });
    }
}

/// # Safety
/// The CPU has CLZERO, with lines of 64 bytes as on every Zen; `dst` is valid for writes of `len`
/// bytes.
pub(super) unsafe fn clear_clzero(dst: *mut u8, len: usize) {
    // SAFETY: CLZERO clears the line that RAX lies in, and every one is within the caller's bytes.
    unsafe {
        clear_by_blocks(dst, len, LINE, |first, bytes| {
            for offset in (0..bytes).step_by(LINE) {
                asm!("clzero", in("rax") first.add(offset), options(nostack, preserves_flags));
            }
        });
    }
}
