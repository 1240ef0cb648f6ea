//! A copy that cannot be abandoned, for architectures without instructions for such a copy.

use std::ffi::c_void;

use crate::arch::CopyRoutine;

/// Returns false: copies cannot be abandoned on this architecture.
pub fn prepare() -> bool {
    false
}

/// # Safety
/// None: the function copies nothing.
pub unsafe fn copy(_dst: *mut u8, _src: *const u8, _len: usize, _routine: &CopyRoutine) -> bool {
    false
}

/// # Safety
/// None.
pub unsafe fn is_interrupted(_context: *const c_void) -> bool {
    false
}

/// # Safety
/// None.
pub unsafe fn abandon(_context: *mut c_void) {}
