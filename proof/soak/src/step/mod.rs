//! A signal after every instruction, where a CPU lets a thread trap itself: of those that hugekit runs on, x86-64.
//! Elsewhere nothing is stepped, and `POSSIBLE` says so before anything is asked for.

#[cfg(not(target_arch = "x86_64"))]
mod other;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::ffi::c_void;
use std::sync::atomic::AtomicU32;

#[cfg(not(target_arch = "x86_64"))]
use other as cpu;
#[cfg(target_arch = "x86_64")]
use x86_64 as cpu;

pub use cpu::{POSSIBLE, Paused};

/// Instructions that are stepped together. A signal that arrives from elsewhere begins a stretch: operations of
/// millions of instructions, most of which read text, come to an end, and what follows a system call is stepped
/// often, because signals are delivered there.
pub static STRETCH: AtomicU32 = AtomicU32::new(512);

/// Installs the handler of steps. Call it once, before any thread is stepped.
pub fn install() {
    cpu::install();
}

/// Runs `work` with a signal after this many instructions of this thread each time. Without signals, if the number is 0
/// or threads cannot be stepped.
pub fn every<R>(instructions: u32, work: impl FnOnce() -> R) -> R {
    let _stepped = (instructions > 0).then(|| cpu::Stepped::new(instructions));
    work()
}

impl Default for Paused {
    fn default() -> Self {
        Self::new()
    }
}

/// Has an interrupted thread go on as it was stepped before. Async-signal-safe.
///
/// # Safety
/// The data that the kernel gave to a handler.
pub(crate) unsafe fn go_on(context: *mut c_void) {
    // SAFETY: `cpu::go_on` has the contract of this function.
    unsafe { cpu::go_on(context) };
}
