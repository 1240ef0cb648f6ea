//! x86-64: string instructions, vector stores, and the instructions that write a whole line.

#[path = "../abandonable.rs"]
pub mod abandonable;
mod avx512;
mod copy_instructions;
mod line;
mod movnti;
mod string;
mod valgrind;
mod vectors;

use hugekit_machine::cpu::{has_avx512f, has_clzero, has_movdir64b};

pub use self::valgrind::runs_on_valgrind;
use super::all::{MEMCPY, MEMSET};
use super::{ANY_CPU, ClearRoutine, Compared, CopyRoutine, Feature, Preset};

const AVX2: Feature =
    Feature { name: "AVX2", is_available: || std::arch::is_x86_feature_detected!("avx2") };
const AVX512: Feature = Feature { name: "AVX-512F", is_available: has_avx512f };
const MOVDIR64B: Feature = Feature { name: "MOVDIR64B", is_available: has_movdir64b };
const CLZERO: Feature = Feature { name: "CLZERO (AMD Zen)", is_available: has_clzero };

// AVX-512 has no preset for streaming, because AVX2 saturates the write-combining buffers as well, and 256-bit stores do
// not lower the clock of older CPUs.
pub(super) const CLEAR_ROUTINES: &[ClearRoutine] = {
    use ClearRoutine as R;
    use Compared::Held;
    use Preset::{Cached, Lines, Streaming};
    &[
        MEMSET,
        R::cached("rep_stosb", ANY_CPU, None, Held, string::clear_stosb),
        R::cached("rep_stosq", ANY_CPU, None, Held, string::clear_stosq),
        R::cached("avx2_cached", AVX2, Some(Cached), Held, vectors::clear_avx2_cached),
        R::cached("avx512_cached", AVX512, None, Held, avx512::clear_avx512_cached),
        R::streaming("movnti", ANY_CPU, None, movnti::clear_movnti),
        R::streaming("sse2_streaming", ANY_CPU, Some(Streaming), vectors::clear_sse2_streaming),
        R::streaming("avx2_streaming", AVX2, Some(Streaming), vectors::clear_avx2_streaming),
        R::streaming("avx512_streaming", AVX512, None, avx512::clear_avx512_streaming),
        R::streaming("movdir64b", MOVDIR64B, None, line::clear_movdir64b),
        R::streaming("clzero", CLZERO, Some(Lines), line::clear_clzero),
    ]
};

pub(super) const COPY_ROUTINES: &[CopyRoutine] = {
    use Compared::Held;
    use CopyRoutine as R;
    use Preset::{Cached, Interleaved, Streaming};
    &[
        MEMCPY,
        R::cached("rep_movsb", ANY_CPU, None, Held, string::copy_movsb),
        R::cached("avx2_cached", AVX2, Some(Cached), Held, vectors::copy_avx2_cached),
        COPY_ONCE,
        R::streaming("sse2_streaming", ANY_CPU, Some(Streaming), vectors::copy_sse2_streaming),
        R::streaming(
            "sse2_interleaved",
            ANY_CPU,
            Some(Interleaved),
            vectors::copy_sse2_interleaved,
        ),
        R::streaming("avx2_streaming", AVX2, Some(Streaming), vectors::copy_avx2_streaming),
        R::streaming("avx2_interleaved", AVX2, Some(Interleaved), vectors::copy_avx2_interleaved),
        R::streaming("avx512_streaming", AVX512, None, avx512::copy_avx512_streaming),
        R::streaming("avx512_interleaved", AVX512, None, avx512::copy_avx512_interleaved),
        R::streaming("movdir64b", MOVDIR64B, None, line::copy_movdir64b),
    ]
};

pub(super) const COPY_ONCE: CopyRoutine = CopyRoutine::cached(
    "sse2_cached_once",
    ANY_CPU,
    None,
    Compared::Held,
    vectors::copy_sse2_cached_once,
);

/// Returns the time-stamp counter. Earlier loads have completed; earlier stores have at least
/// begun.
#[inline]
pub(super) fn ticks() -> u64 {
    // SAFETY: both are part of x86-64, and neither touches memory. A process that `prctl(PR_SET_TSC)` keeps
    // from the counter does not ask (`hugekit_sys::process::may_read_ticks`).
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

/// Returns true if a fault was a write: bit 1 of the CPU's page-fault error code (Intel SDM 3A,
/// 4.7).
///
/// # Safety
/// `context` is the context that the kernel passed to a handler.
pub unsafe fn is_write(context: *const std::ffi::c_void) -> Option<bool> {
    // SAFETY: `context` is the `ucontext_t` that the kernel gave to a handler: the contract of this function.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    Some(context.uc_mcontext.gregs[libc::REG_ERR as usize] & 1 << 1 != 0)
}

pub(super) fn store_fence() {
    // SAFETY: SFENCE touches no memory, and SSE is part of x86-64.
    unsafe { core::arch::x86_64::_mm_sfence() };
}
