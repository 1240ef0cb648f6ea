//! The functions of an architecture that has no routines of its own. They are compiled on every
//! architecture, so that the compiler checks them.

pub mod abandonable;

use super::{MEMCPY, MEMSET};
use crate::arch::{ClearRoutine, CopyRoutine};

pub(in crate::arch) const CLEAR_ROUTINES: &[ClearRoutine] = &[MEMSET];
pub(in crate::arch) const COPY_ROUTINES: &[CopyRoutine] = &[MEMCPY];
pub(in crate::arch) const COPY_ONCE: CopyRoutine = MEMCPY;

/// Returns false: hugekit knows no request to Valgrind for this architecture.
pub fn runs_on_valgrind() -> bool {
    false
}

/// Returns `None`: hugekit cannot read the cause of a fault from the context of a signal on this
/// architecture.
///
/// # Safety
/// The context that the kernel gave to a handler.
pub unsafe fn is_write(_context: *const std::ffi::c_void) -> Option<bool> {
    None
}

/// Returns 0: no clock without a system call is known, so nothing is learned.
pub(in crate::arch) fn ticks() -> u64 {
    0
}

pub(in crate::arch) fn store_fence() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
