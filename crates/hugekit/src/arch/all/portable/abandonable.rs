//! No copy that can be abandoned: for architectures that have none of their own.

use std::ffi::c_void;

pub(crate) fn prepare() -> bool {
    false
}

/// # Safety
/// None: it copies nothing.
pub(crate) unsafe fn copy(_dst: *mut u8, _src: *const u8, _len: usize, _streams: bool) -> bool {
    false
}

/// # Safety
/// None.
pub(crate) unsafe fn is_interrupted(_context: *const c_void) -> bool {
    false
}

/// # Safety
/// None.
pub(crate) unsafe fn abandon(_context: *mut c_void) {}
