//! A copy that can be abandoned if it faults. The copy is one function in assembly, so a signal
//! handler recognises the function by the instruction's address, and knows where the function ends.
//! The function has no frame, keeps its state only in registers that a call may change, and may be
//! left between any two instructions.
//!
//! It has a version of each routine of the table that is not libc's own. Each architecture that has instructions for it, in
//! `copy_instructions.rs`, includes this file as its module.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::copy_instructions::{VERSIONS, instruction, set_instruction};
use crate::arch::CopyRoutine;

/// The version for all other routines.
pub(super) const PLAIN: usize = 0;

/// A value instead of a version: the function then returns the address at which it continues after
/// it was abandoned.
pub(super) const WHERE: usize = 16;

/// The address at which an abandoned [`function`] continues; 0 until [`prepare`] is called.
static EXIT: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    /// Copies `len` bytes by a version. Returns 0, or 1 if the copy was abandoned. For [`WHERE`],
    /// returns the address at which an abandoned copy continues, which lies behind all instructions
    /// that access memory.
    ///
    /// # Safety
    /// `dst` may be written where it is mapped, and `src` may be read where it is mapped. A fault
    /// that no handler serves abandons the copy. The CPU has the version's instructions.
    #[link_name = "hugekit_abandonable_copy_2"]
    fn function(dst: *mut u8, src: *const u8, len: usize, version: usize) -> usize;
}

/// Prepares the recognition of copies. Returns true if copies can be abandoned.
pub fn prepare() -> bool {
    // SAFETY: asked where it goes on, it touches nothing.
    let exit = unsafe { function(std::ptr::null_mut(), std::ptr::null(), 0, WHERE) };
    EXIT.store(exit, Ordering::Relaxed);
    true
}

/// Copies bytes by the instructions of a routine, or by plain instructions if the routine has no
/// version here. Returns `false` if the copy was abandoned; some bytes may be copied then.
/// Async-signal-safe.
///
/// # Safety
/// The routine is available. No other thread uses the `len` bytes from `dst` on, and those of them
/// that are mapped may be written. If bytes from `src` on change during the call, the copied bytes
/// are unspecified. A fault at source or destination is permitted if the handler of the fault calls
/// [`abandon`].
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, routine: &CopyRoutine) -> bool {
    let version = VERSIONS.iter().find(|(name, _)| *name == routine.name());
    let version = version.map_or(PLAIN, |&(_, version)| version);
    // SAFETY: `dst` may be written where it is mapped, and `src` is only read: a fault there is served or abandoned;
    // the CPU can run the routine, and so its version (the contract of this function).
    unsafe { function(dst, src, len, version) == 0 }
}

/// Returns true if the interrupted instruction belongs to the copy.
///
/// # Safety
/// `context` is the context that the kernel passed to a handler.
pub unsafe fn is_interrupted(context: *const c_void) -> bool {
    // SAFETY: `context` is the `ucontext_t` that the kernel gave to a handler: the contract of this function.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    (function as *const () as usize..EXIT.load(Ordering::Relaxed)).contains(&instruction(context))
}

/// Abandons the interrupted copy once the handler returns.
///
/// # Safety
/// The conditions of [`is_interrupted`], which has returned true for this context.
pub unsafe fn abandon(context: *mut c_void) {
    // SAFETY: `context` is the `ucontext_t` that the kernel gave to the calling handler, which alone has it until it
    // returns.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    set_instruction(context, EXIT.load(Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Kind, copy_routines};

    #[test]
    fn copy_of_any_length_writes_exactly_its_bytes() {
        assert!(prepare());
        let source: Vec<u8> = (0..70_000).map(|at| (at % 251) as u8 + 1).collect();
        for routine in copy_routines().iter().filter(|routine| routine.is_available()) {
            for (at, from) in [(0, 0), (1, 0), (63, 17), (64, 3), (100, 100)] {
                for len in [0, 1, 63, 64, 127, 128, 129, 1000, 4096, 16_384, 16_447, 40_000, 65_537]
                {
                    let mut copied = vec![0; len + 200];
                    let (to, from) = (copied[at..].as_mut_ptr(), source[from..].as_ptr());
                    // SAFETY: `copied` has `at + len` bytes and more, the source `from + len`; the routine is available.
                    assert!(unsafe { copy(to, from, len, routine) });
                    // SAFETY: the source has `len` bytes from there on.
                    let expected = unsafe { std::slice::from_raw_parts(from, len) };
                    assert!(copied[at..at + len] == *expected, "{} {at} {len}", routine.name());
                    assert!(copied[..at].iter().chain(&copied[at + len..]).all(|&byte| byte == 0));
                }
            }
        }
    }

    /// Abandons copies; another fault ends the process.
    extern "C" fn on_fault(signal: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gave the context to this handler; the default action is valid for each signal.
        unsafe {
            if is_interrupted(context) {
                abandon(context);
            } else {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }

    #[test]
    fn copy_from_and_to_forbidden_memory_is_abandoned() {
        const HALF: usize = 1 << 16;
        assert!(prepare());
        // SAFETY: zeroed, the structure is a valid one; the handler is of the kind that SA_SIGINFO says; the mapping is
        // new, and its second half is forbidden.
        let start = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()), 0);
            let (access, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(std::ptr::null_mut(), 2 * HALF, access, kind, -1, 0);
            assert_eq!(libc::mprotect(start.byte_add(HALF), HALF, libc::PROT_NONE), 0);
            start.cast::<u8>()
        };
        let mut other = vec![1; 2 * HALF];
        for routine in copy_routines().iter().filter(|routine| routine.is_available()) {
            for len in [HALF + 1, HALF + 100, 2 * HALF] {
                // SAFETY: what is forbidden of the mapping faults and is abandoned; `other` has as many bytes.
                unsafe {
                    assert!(!copy(other.as_mut_ptr(), start, len, routine), "{}", routine.name());
                    assert!(!copy(start, other.as_ptr(), len, routine), "{}", routine.name());
                    assert!(copy(start, other.as_ptr(), HALF, routine), "{}", routine.name());
                }
            }
        }
        // SAFETY: the mapping is this test's own.
        assert_eq!(unsafe { libc::munmap(start.cast(), 2 * HALF) }, 0);
    }

    #[test]
    fn version_of_each_streaming_routine_is_its_own() {
        let streaming = copy_routines().iter().filter(|routine| routine.kind() == Kind::Streaming);
        let names: Vec<_> = streaming.map(CopyRoutine::name).collect();
        assert!(
            names.iter().all(|name| VERSIONS.iter().any(|(version, _)| version == name)),
            "{names:?}"
        );
    }

    #[test]
    fn owns_of_any_address_is_its_own_instructions() {
        assert!(prepare());
        // SAFETY: zeroed, the structure is a valid one.
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        let start = function as *const () as usize;
        let exit = EXIT.load(Ordering::Relaxed);
        for (at, is_its_own) in
            [(start, true), (exit - 1, true), (exit, false), (start - 1, false), (0, false)]
        {
            set_instruction(&mut context, at);
            // SAFETY: as the kernel would give it.
            unsafe {
                assert_eq!(is_interrupted((&raw const context).cast()), is_its_own);
                abandon((&raw mut context).cast());
                assert!(!is_interrupted((&raw const context).cast()));
            }
        }
    }
}
