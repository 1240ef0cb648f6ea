//! String instructions: the instruction gets the whole length, so the microcode can choose a
//! method.
//!
//! Milan stops allocating cache lines above about 32 MiB of one instruction's length; Ice Lake-X
//! never does (published in 2023; `docs/replication.md`).

use core::arch::asm;

/// # Safety
/// `dst` is valid for writes of `len` bytes.
pub(super) unsafe fn clear_stosb(dst: *mut u8, len: usize) {
    // SAFETY: stores AL = 0 to RDI upwards, RCX times: exactly the caller's bytes. The ABI keeps
    // the direction flag clear, and asm! assumes memory is written.
    unsafe {
        asm!(
            "rep stosb",
            inout("rdi") dst => _,
            inout("rcx") len => _,
            in("al") 0_u8,
            options(nostack, preserves_flags),
        );
    }
}

/// Clears eight bytes per step, then the rest byte by byte.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes.
pub(super) unsafe fn clear_stosq(dst: *mut u8, len: usize) {
    let end: *mut u8;
    // SAFETY: stores RAX = 0 to RDI upwards, len / 8 times eight bytes, at most the caller's.
    unsafe {
        asm!(
            "rep stosq",
            inout("rdi") dst => end,
            inout("rcx") len / 8 => _,
            in("rax") 0_u64,
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: `end` is where the instruction stopped: len % 8 of the caller's bytes are left.
    unsafe { clear_stosb(end, len % 8) };
}

/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
pub(super) unsafe fn copy_movsb(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: moves RCX bytes from RSI to RDI upwards: exactly the caller's. The ABI keeps the
    // direction flag clear, and asm! assumes memory is read and written.
    unsafe {
        asm!(
            "rep movsb",
            inout("rdi") dst => _,
            inout("rsi") src => _,
            inout("rcx") len => _,
            options(nostack, preserves_flags),
        );
    }
}
