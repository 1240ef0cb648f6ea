//! x86-64: string instructions, vector stores, and the instructions that write a whole line.

mod avx512;
pub(super) mod copy_instructions;
mod line;
mod movnti;
mod string;
mod valgrind;
mod vectors;

use hugekit_machine::cpu::{has_clzero, has_movdir64b};

pub use self::valgrind::runs_on_valgrind;
use super::all::{MEMCPY, MEMSET, always};
use super::{ClearRoutine, CopyFn, CopyRoutine, Kind, Routine};

pub(super) const CLEAR_ROUTINES: &[ClearRoutine] = &[
    MEMSET,
    row("rep_stosb", Kind::Cached, "nothing", always, string::clear_stosb),
    row("rep_stosq", Kind::Cached, "nothing", always, string::clear_stosq),
    row("avx2_cached", Kind::Cached, "AVX2", has_avx2, vectors::clear_avx2_cached),
    row("avx512_cached", Kind::Cached, "AVX-512F", has_avx512f, avx512::clear_avx512_cached),
    row("movnti", Kind::Streaming, "nothing", always, movnti::clear_movnti),
    row("sse2_streaming", Kind::Streaming, "nothing", always, vectors::clear_sse2_streaming),
    row("avx2_streaming", Kind::Streaming, "AVX2", has_avx2, vectors::clear_avx2_streaming),
    row(
        "avx512_streaming",
        Kind::Streaming,
        "AVX-512F",
        has_avx512f,
        avx512::clear_avx512_streaming,
    ),
    row("movdir64b", Kind::Streaming, "MOVDIR64B", has_movdir64b, line::clear_movdir64b),
    row("clzero", Kind::Streaming, "CLZERO (AMD Zen)", has_clzero, line::clear_clzero),
];

pub(super) const COPY_ROUTINES: &[CopyRoutine] = &[
    MEMCPY,
    row("rep_movsb", Kind::Cached, "nothing", always, string::copy_movsb),
    row("avx2_cached", Kind::Cached, "AVX2", has_avx2, vectors::copy_avx2_cached),
    COPY_ONCE,
    streaming_copy("sse2_streaming", "nothing", always, vectors::copy_sse2_streaming),
    streaming_copy("sse2_interleaved", "nothing", always, vectors::copy_sse2_interleaved),
    streaming_copy("avx2_streaming", "AVX2", has_avx2, vectors::copy_avx2_streaming),
    streaming_copy("avx2_interleaved", "AVX2", has_avx2, vectors::copy_avx2_interleaved),
    streaming_copy("avx512_streaming", "AVX-512F", has_avx512f, avx512::copy_avx512_streaming),
    streaming_copy("avx512_interleaved", "AVX-512F", has_avx512f, avx512::copy_avx512_interleaved),
    streaming_copy("movdir64b", "MOVDIR64B", has_movdir64b, line::copy_movdir64b),
];

pub(super) const COPY_ONCE: CopyRoutine =
    row("sse2_cached_once", Kind::Cached, "nothing", always, vectors::copy_sse2_cached_once);

const fn row<F: Copy>(
    name: &'static str,
    kind: Kind,
    needs: &'static str,
    is_available: fn() -> bool,
    run: F,
) -> Routine<F> {
    Routine { name, kind, needs, is_available, run }
}

const fn streaming_copy(
    name: &'static str,
    needs: &'static str,
    is_available: fn() -> bool,
    run: CopyFn,
) -> CopyRoutine {
    row(name, Kind::Streaming, needs, is_available, run)
}

fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

fn has_avx512f() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
}

/// The time-stamp counter. Loads before it have arrived, stores have at least begun.
#[inline]
pub(super) fn ticks() -> u64 {
    // SAFETY: both are part of x86-64, and neither touches memory. A process that `prctl(PR_SET_TSC)` keeps
    // from the counter does not ask (`sys::thread::may_read_ticks`).
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

/// Returns whether a fault was a write: the page-fault error code of the CPU, bit 1 (Intel SDM 3A, 4.7).
///
/// # Safety
/// The context that the kernel gave to a handler.
pub unsafe fn is_write(context: *const std::ffi::c_void) -> Option<bool> {
    // SAFETY: `context` is the `ucontext_t` that the kernel gave to a handler: the contract of this function.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    Some(context.uc_mcontext.gregs[libc::REG_ERR as usize] & 1 << 1 != 0)
}

pub(super) fn store_fence() {
    // SAFETY: SFENCE touches no memory, and SSE is part of x86-64.
    unsafe { core::arch::x86_64::_mm_sfence() };
}
