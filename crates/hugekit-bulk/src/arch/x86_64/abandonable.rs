//! A copy that can be abandoned where it faults: one function in assembly, so that a signal handler knows by the
//! instruction's address that it was this one, and where it ends. It has no frame, keeps nothing anywhere but in
//! registers that a call may change, and may be left between any two instructions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

const STREAM: usize = 0;
const CACHE: usize = 1;
const WHERE: usize = 2;

/// Where [`routine`] goes on when it is abandoned; 0 before it was asked for.
static EXIT: AtomicUsize = AtomicUsize::new(0);

unsafe extern "sysv64" {
    /// Copies `len` bytes, past the cache or by ordinary stores, and returns 0; 1 if it was abandoned. Asked
    /// [`WHERE`], it says where it goes on then, which is behind all that accesses memory.
    ///
    /// # Safety
    /// `dst` may be written where it is mapped, and `src` read; whatever faults and is not served is abandoned.
    #[link_name = "hugekit_abandonable_copy_1"]
    fn routine(dst: *mut u8, src: *const u8, len: usize, what: usize) -> usize;
}

// Weak, so that a program may contain this library twice; the number in the name changes with the code.
core::arch::global_asm!(
    ".pushsection .text",
    ".weak hugekit_abandonable_copy_1",
    ".hidden hugekit_abandonable_copy_1",
    ".type hugekit_abandonable_copy_1, @function",
    ".p2align 4",
    "hugekit_abandonable_copy_1:",
    "cmp rcx, {where_}",
    "je 5f",
    "test rcx, rcx",
    "mov rcx, rdx",
    "jnz 4f",
    // Up to a line of the destination.
    "mov rcx, rdi",
    "neg rcx",
    "and ecx, 63",
    "cmp rcx, rdx",
    "cmova rcx, rdx",
    "sub rdx, rcx",
    "rep movsb",
    "mov rcx, rdx",
    "shr rcx, 7",
    "jz 3f",
    // Two lines at a time.
    "2:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups xmm4, [rsi + 64]",
    "movups xmm5, [rsi + 80]",
    "movups xmm6, [rsi + 96]",
    "movups xmm7, [rsi + 112]",
    "movntps [rdi], xmm0",
    "movntps [rdi + 16], xmm1",
    "movntps [rdi + 32], xmm2",
    "movntps [rdi + 48], xmm3",
    "movntps [rdi + 64], xmm4",
    "movntps [rdi + 80], xmm5",
    "movntps [rdi + 96], xmm6",
    "movntps [rdi + 112], xmm7",
    "sub rsi, -128",
    "sub rdi, -128",
    "dec rcx",
    "jnz 2b",
    "3:",
    "sfence",
    "mov ecx, edx",
    "and ecx, 127",
    "4:",
    "rep movsb",
    "xor eax, eax",
    "ret",
    "5:",
    "lea rax, [rip + 6f]",
    "ret",
    "6:",
    "sfence",
    "mov eax, 1",
    "ret",
    ".size hugekit_abandonable_copy_1, . - hugekit_abandonable_copy_1",
    ".popsection",
    where_ = const WHERE,
);

/// Has copies be recognised from now on.
pub fn prepare() -> bool {
    // SAFETY: asked where it goes on, it touches nothing.
    let exit = unsafe { routine(std::ptr::null_mut(), std::ptr::null(), 0, WHERE) };
    EXIT.store(exit, Ordering::Relaxed);
    true
}

/// Copies bytes, past the cache or not; `false` if it was abandoned after some of them. Async-signal-safe.
///
/// # Safety
/// No other thread uses the `len` bytes from `dst` on, and as many of them as are mapped may be written. Those from
/// `src` on may change meanwhile: the copy is then of no use. A fault at either end is no error if its handler calls
/// [`abandon`].
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, streams: bool) -> bool {
    // SAFETY: `dst` may be written where it is mapped, and `src` is only read: a fault there is served or abandoned
    // (the contract of this function).
    unsafe { routine(dst, src, len, if streams { STREAM } else { CACHE }) == 0 }
}

/// Whether the interrupted instruction is one of the copy's.
///
/// # Safety
/// The context that the kernel gave to a handler.
pub unsafe fn is_interrupted(context: *const c_void) -> bool {
    // SAFETY: `context` is the `ucontext_t` that the kernel gave to a handler: the contract of this function.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let instruction = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    (routine as *const () as usize..EXIT.load(Ordering::Relaxed)).contains(&instruction)
}

/// Abandons the interrupted copy once the handler returns.
///
/// # Safety
/// As for [`is_interrupted`], which has said yes.
pub unsafe fn abandon(context: *mut c_void) {
    // SAFETY: `context` is the `ucontext_t` that the kernel gave to the calling handler, which alone has it until it
    // returns.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = EXIT.load(Ordering::Relaxed) as i64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_of_any_length_writes_exactly_its_bytes() {
        assert!(prepare());
        let source: Vec<u8> = (0..5000).map(|at| (at % 251) as u8 + 1).collect();
        for streams in [true, false] {
            for (at, from) in [(0, 0), (1, 0), (63, 17), (64, 3), (100, 100)] {
                for len in [0, 1, 63, 64, 127, 128, 129, 191, 192, 255, 1000, 4096] {
                    let mut copied = vec![0; 4400];
                    let (to, from) = (copied[at..].as_mut_ptr(), source[from..].as_ptr());
                    // SAFETY: `copied` has `at + len` bytes and more, the source `from + len`.
                    assert!(unsafe { copy(to, from, len, streams) });
                    // SAFETY: the source has `len` bytes from there on.
                    let expected = unsafe { std::slice::from_raw_parts(from, len) };
                    assert_eq!(&copied[at..at + len], expected);
                    assert!(copied[..at].iter().chain(&copied[at + len..]).all(|&byte| byte == 0));
                }
            }
        }
    }

    #[test]
    fn owns_of_any_address_is_its_own_instructions() {
        assert!(prepare());
        // SAFETY: zeroed, the structure is a valid one.
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        let start = routine as *const () as usize;
        let exit = EXIT.load(Ordering::Relaxed);
        for (at, is_its_own) in
            [(start, true), (exit - 1, true), (exit, false), (start - 1, false), (0, false)]
        {
            context.uc_mcontext.gregs[libc::REG_RIP as usize] = at as i64;
            // SAFETY: as the kernel would give it.
            unsafe {
                assert_eq!(is_interrupted((&raw const context).cast()), is_its_own);
                abandon((&raw mut context).cast());
                assert!(!is_interrupted((&raw const context).cast()));
            }
        }
    }
}
