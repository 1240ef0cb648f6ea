//! CPUs on which no thread can trap itself. On aarch64 the bit for it belongs to the kernel, which sets it for a
//! tracer alone.

use std::ffi::c_void;

pub const POSSIBLE: bool = false;

pub(super) fn install() {}

/// The stepping of a thread, which does nothing here.
pub(super) struct Stepped;

impl Stepped {
    pub(super) fn new(_every: u32) -> Self {
        Self
    }
}

/// Held where a thread is not to be stepped, which it is nowhere.
#[derive(Debug)]
pub struct Paused(());

impl Paused {
    #[must_use]
    pub fn new() -> Self {
        Self(())
    }
}

/// # Safety
/// None is needed: nothing of it is read.
pub(super) unsafe fn go_on(_context: *mut c_void) {}
