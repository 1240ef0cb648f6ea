//! No copy that can be abandoned: for architectures that have none of their own.

use std::ffi::c_void;

use crate::arch::CopyRoutine;

/// Returns true if copies can be abandoned: not on this architecture.
pub fn prepare() -> bool {
    false
}

/// # Safety
/// None: it copies nothing.
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
