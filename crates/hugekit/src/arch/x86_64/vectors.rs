//! SSE2, AVX2 and AVX-512: thin wrappers that carry the target feature around the shared loops.

use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_setzero_si128, _mm_stream_si128, _mm256_setzero_si256,
    _mm256_stream_si256, _mm512_setzero_si512, _mm512_stream_si512,
};

use crate::arch::all::vector::{Vector, clear_cached, clear_streaming};

/// `store` is volatile in all three: LLVM recognises a plain loop of zero stores and calls
/// `memset` instead, which is a routine of its own.
macro_rules! vector {
    ($type:ty, $zero:ident, $stream:ident) => {
        impl Vector for $type {
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller vouches for the instruction set.
                unsafe { $zero() }
            }

            #[inline(always)]
            unsafe fn store(self, dst: *mut u8) {
                // SAFETY: the caller vouches for `dst`: valid, and aligned to the vector.
                unsafe { dst.cast::<Self>().write_volatile(self) }
            }

            #[inline(always)]
            unsafe fn stream(self, dst: *mut u8) {
                // SAFETY: as above, and for the instruction set.
                unsafe { $stream(dst.cast(), self) }
            }
        }
    };
}

vector!(__m128i, _mm_setzero_si128, _mm_stream_si128);
vector!(__m256i, _mm256_setzero_si256, _mm256_stream_si256);
vector!(__m512i, _mm512_setzero_si512, _mm512_stream_si512);

/// # Safety
/// `dst` is valid for writes of `len` bytes.
pub(super) unsafe fn clear_sse2_streaming(dst: *mut u8, len: usize) {
    // SAFETY: SSE2 is part of x86-64; the bytes are the caller's.
    unsafe { clear_streaming::<__m128i>(dst, len) }
}

/// # Safety
/// The CPU has AVX2; `dst` is valid for writes of `len` bytes.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn clear_avx2_cached(dst: *mut u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { clear_cached::<__m256i>(dst, len) }
}

/// # Safety
/// The CPU has AVX2; `dst` is valid for writes of `len` bytes.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn clear_avx2_streaming(dst: *mut u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { clear_streaming::<__m256i>(dst, len) }
}

/// # Safety
/// The CPU has AVX-512F; `dst` is valid for writes of `len` bytes.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn clear_avx512_cached(dst: *mut u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { clear_cached::<__m512i>(dst, len) }
}

/// # Safety
/// The CPU has AVX-512F; `dst` is valid for writes of `len` bytes.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn clear_avx512_streaming(dst: *mut u8, len: usize) {
    // SAFETY: passed on from the caller.
    unsafe { clear_streaming::<__m512i>(dst, len) }
}
