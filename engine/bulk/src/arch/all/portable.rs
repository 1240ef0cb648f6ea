//! What an architecture has that has nothing of its own. Always compiled, so that it stays right.

pub mod abandonable;

use super::{MEMCPY, MEMSET};
use crate::arch::{ClearRoutine, CopyRoutine};

pub(in crate::arch) const CLEAR_ROUTINES: &[ClearRoutine] = &[MEMSET];
pub(in crate::arch) const COPY_ROUTINES: &[CopyRoutine] = &[MEMCPY];
pub(in crate::arch) const COPY_ONCE: CopyRoutine = MEMCPY;

/// Valgrind runs this architecture by requests that are not known here, or not at all.
pub fn runs_on_valgrind() -> bool {
    false
}

/// Returns true if a fault was a write, if the context of its signal says so.
///
/// # Safety
/// The context that the kernel gave to a handler.
pub unsafe fn is_write(_context: *const std::ffi::c_void) -> Option<bool> {
    None
}

/// No clock without a system call is known: nothing is learned.
pub(in crate::arch) fn ticks() -> u64 {
    0
}

pub(in crate::arch) fn store_fence() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
