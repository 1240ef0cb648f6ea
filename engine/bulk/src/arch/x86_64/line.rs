//! Instructions that write a whole cache line past the cache: `movdir64b` (Intel, recent AMD) and
//! `clzero` (AMD since Zen). Both are weakly ordered like streaming stores.

use core::arch::asm;

use crate::arch::all::blocks::{clear_by_blocks, copy_by_blocks};

const LINE: usize = 64;

#[repr(align(64))]
struct AlignedLine([u8; LINE]);

static ZEROES: AlignedLine = AlignedLine([0; LINE]);

/// # Safety
/// The CPU has MOVDIR64B; `dst` is valid for writes of `len` bytes.
pub(super) unsafe fn clear_movdir64b(dst: *mut u8, len: usize) {
    // SAFETY: every line is aligned, as MOVDIR64B demands, and within the caller's bytes; its
    // source is 64 readable zeroes.
    unsafe {
        clear_by_blocks(dst, len, LINE, |first, bytes| {
            for offset in (0..bytes).step_by(LINE) {
                move_line(first.add(offset), ZEROES.0.as_ptr());
            }
        });
    }
}

/// # Safety
/// The CPU has MOVDIR64B; `src` is valid for reads and `dst` for writes of `len` bytes, and they do
/// not overlap.
pub(super) unsafe fn copy_movdir64b(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: lines of the destination are aligned, as MOVDIR64B demands, and lines of both sides
    // lie within the caller's bytes.
    unsafe {
        copy_by_blocks(dst, src, len, LINE, |dst, src, bytes| {
            for offset in (0..bytes).step_by(LINE) {
                move_line(dst.add(offset), src.add(offset));
            }
        });
    }
}

/// Moves a line of 64 bytes. The source may have any alignment.
///
/// # Safety
/// The CPU has MOVDIR64B; `dst` is an aligned line valid for writes, `src` is valid for reads of 64
/// bytes.
#[inline(always)]
unsafe fn move_line(dst: *mut u8, src: *const u8) {
    // SAFETY: reads one line and writes one line, both the caller's.
    unsafe {
        asm!(
            "movdir64b {dst}, [{src}]",
            dst = in(reg) dst,
            src = in(reg) src,
            options(nostack, preserves_flags),
        );
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
