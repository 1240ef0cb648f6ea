//! SSE2 and AVX2: thin functions that carry the target feature around the shared loops.

use core::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_NTA, _mm_prefetch, _mm_setzero_si128, _mm_stream_si128,
    _mm256_setzero_si256, _mm256_stream_si256,
};

use crate::arch::all::vector::{
    Moved, Vector, clear_cached, clear_streaming, copy_cached, copy_cached_once, copy_interleaved,
    copy_streaming,
};

/// `store` is volatile in both instruction sets. LLVM recognises plain loops and calls `memset` or
/// `memcpy` instead, which are routines of their own.
macro_rules! vector {
    ($type:ty, $zero:ident, $stream:ident) => {
        impl Vector for $type {
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the CPU has the instruction set: the contract of `zero`.
                unsafe { $zero() }
            }
        }

        impl Moved for $type {
            #[inline(always)]
            unsafe fn load(src: *const u8) -> Self {
                // SAFETY: `src` is valid for reads of a vector (the contract of `load`), and the read needs no
                // alignment.
                unsafe { src.cast::<Self>().read_unaligned() }
            }

            #[inline(always)]
            unsafe fn store(self, dst: *mut u8) {
                // SAFETY: `dst` is valid for writes of a vector and aligned to it: the contract of `store`.
                unsafe { dst.cast::<Self>().write_volatile(self) }
            }

            #[inline(always)]
            unsafe fn stream(self, dst: *mut u8) {
                // SAFETY: `dst` is valid for writes of a vector and aligned to it, and the CPU has the instruction
                // set: the contract of `stream`.
                unsafe { $stream(dst.cast(), self) }
            }

            #[inline(always)]
            fn prefetch_once(address: *const u8) {
                // SAFETY: SSE is part of x86-64, and a prefetch accesses no memory that any thread
                // could notice.
                unsafe { _mm_prefetch::<_MM_HINT_NTA>(address.cast()) }
            }
        }
    };
}

vector!(__m128i, _mm_setzero_si128, _mm_stream_si128);
vector!(__m256i, _mm256_setzero_si256, _mm256_stream_si256);

/// Wraps a shared loop in a function that carries the target feature.
macro_rules! clear {
    ($name:ident, $feature:literal, $loop:ident, $vector:ty) => {
        /// # Safety
        /// The CPU has the target feature; `dst` is valid for writes of `len` bytes.
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $name(dst: *mut u8, len: usize) {
            // SAFETY: passed on from the caller.
            unsafe { $loop::<$vector>(dst, len) }
        }
    };
}

clear!(clear_sse2_streaming, "sse2", clear_streaming, __m128i);
clear!(clear_avx2_cached, "avx2", clear_cached, __m256i);
clear!(clear_avx2_streaming, "avx2", clear_streaming, __m256i);

/// Like `clear`, for copies.
macro_rules! copy {
    ($name:ident, $feature:literal, $loop:ident, $vector:ty) => {
        /// # Safety
        /// The CPU has the target feature; `src` is valid for reads and `dst` for writes of `len`
        /// bytes, and they do not overlap.
        #[target_feature(enable = $feature)]
        pub(super) unsafe fn $name(dst: *mut u8, src: *const u8, len: usize) {
            // SAFETY: passed on from the caller.
            unsafe { $loop::<$vector>(dst, src, len) }
        }
    };
}

copy!(copy_avx2_cached, "avx2", copy_cached, __m256i);
copy!(copy_sse2_cached_once, "sse2", copy_cached_once, __m128i);
copy!(copy_sse2_streaming, "sse2", copy_streaming, __m128i);
copy!(copy_sse2_interleaved, "sse2", copy_interleaved, __m128i);
copy!(copy_avx2_streaming, "avx2", copy_streaming, __m256i);
copy!(copy_avx2_interleaved, "avx2", copy_interleaved, __m256i);
