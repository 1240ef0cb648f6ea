//! AVX-512 by assembly, a line at a time. Before Rust 1.89, the compiler has neither the intrinsics
//! nor the target feature of AVX-512.
//!
//! All loops use zmm16, which only AVX-512 has. Code that is compiled without AVX-512 keeps no
//! value in zmm16, and no `vzeroupper` is needed afterwards. It would be needed after zmm0 to
//! zmm15.

use core::arch::asm;
use core::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};

use crate::arch::all::blocks::clear_by_blocks;
use crate::arch::all::vector::{Moved, copy_interleaved, copy_streaming};

const LINE: usize = 64;

/// Bytes that one turn of the loop clears: one store per cycle then hides the cost of the loop.
const TOGETHER: usize = 4 * LINE;

/// A line that is read at the moment when it is stored: the loops store each line right after its
/// load.
#[derive(Clone, Copy)]
struct Line(*const u8);

impl Moved for Line {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        Self(src)
    }

    #[inline(always)]
    unsafe fn store(self, dst: *mut u8) {
        // SAFETY: the contract of `load` makes 64 bytes readable at `self.0`; that of `store` makes 64 writable at
        // `dst`, which is aligned.
        unsafe {
            asm!(
                "vmovdqu64 zmm16, [{src}]",
                "vmovdqa64 [{dst}], zmm16",
                src = in(reg) self.0,
                dst = in(reg) dst,
                out("zmm16") _,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: the contract of `load` makes 64 bytes readable at `self.0`; that of `stream` makes 64 writable at
        // `dst`, which is aligned.
        unsafe {
            asm!(
                "vmovdqu64 zmm16, [{src}]",
                "vmovntdq [{dst}], zmm16",
                src = in(reg) self.0,
                dst = in(reg) dst,
                out("zmm16") _,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    fn prefetch_once(address: *const u8) {
        // SAFETY: SSE is part of x86-64, and a prefetch accesses no memory that any thread could notice.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(address.cast()) }
    }
}

/// Clears with stores of one kind.
macro_rules! clear {
    ($name:ident, $store:literal) => {
        /// # Safety
        /// The CPU has AVX-512F; `dst` is valid for writes of `len` bytes.
        pub(super) unsafe fn $name(dst: *mut u8, len: usize) {
            let lines = |first: *mut u8, bytes: usize| {
                let end = first.wrapping_add(bytes);
                let together = first.wrapping_add(bytes - bytes % TOGETHER);
                // SAFETY: whole lines from `first` to `end` are the caller's to write, aligned; nothing is stored where
                // there is none.
                unsafe {
                    asm!(
                        "vpxorq zmm16, zmm16, zmm16",
                        "2:",
                        "cmp {at}, {together}",
                        "je 3f",
                        concat!($store, " [{at}], zmm16"),
                        concat!($store, " [{at} + 64], zmm16"),
                        concat!($store, " [{at} + 128], zmm16"),
                        concat!($store, " [{at} + 192], zmm16"),
                        "add {at}, {step}",
                        "jmp 2b",
                        "3:",
                        "cmp {at}, {end}",
                        "je 4f",
                        concat!($store, " [{at}], zmm16"),
                        "add {at}, 64",
                        "jmp 3b",
                        "4:",
                        at = inout(reg) first => _,
                        together = in(reg) together,
                        end = in(reg) end,
                        step = const TOGETHER,
                        out("zmm16") _,
                        options(nostack),
                    );
                }
            };
            // SAFETY: passed on from the caller; the closure stores within the lines that it is given.
            unsafe { clear_by_blocks(dst, len, LINE, lines) }
        }
    };
}

clear!(clear_avx512_cached, "vmovdqa64");
clear!(clear_avx512_streaming, "vmovntdq");

/// # Safety
/// The CPU has AVX-512F; `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
pub(super) unsafe fn copy_avx512_streaming(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { copy_streaming::<Line>(dst, src, len) }
}

/// # Safety
/// The conditions of [`copy_avx512_streaming`].
pub(super) unsafe fn copy_avx512_interleaved(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { copy_interleaved::<Line>(dst, src, len) }
}
