//! A copy that can be abandoned where it faults: one function in assembly, so that a signal handler knows by the
//! instruction's address that it was this one, and where it ends. It has no frame, keeps nothing anywhere but in
//! registers that a call may change, and may be left between any two instructions.
//!
//! It has a version of each routine of the table that is not libc's own.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::CopyRoutine;

/// The versions. Those of [`INTERLEAVED`] advance four pages together.
const STRING: usize = 0;
const SSE: usize = 1;
const AVX: usize = 2;
const AVX512: usize = 3;
const DIRECT: usize = 4;
const AVX_CACHED: usize = 5;
const INTERLEAVED: usize = 8;
const WHERE: usize = 16;

/// The routines whose version is not [`STRING`].
const VERSIONS: [(&str, usize); 8] = [
    ("sse2_streaming", SSE),
    ("sse2_interleaved", SSE | INTERLEAVED),
    ("avx2_streaming", AVX),
    ("avx2_interleaved", AVX | INTERLEAVED),
    ("avx512_streaming", AVX512),
    ("avx512_interleaved", AVX512 | INTERLEAVED),
    ("movdir64b", DIRECT),
    ("avx2_cached", AVX_CACHED),
];

/// Where [`function`] goes on when it is abandoned; 0 before it was asked for.
static EXIT: AtomicUsize = AtomicUsize::new(0);

unsafe extern "sysv64" {
    /// Copies `len` bytes by a version, and returns 0; 1 if it was abandoned. Asked [`WHERE`], it says where it goes on
    /// then, which is behind all that accesses memory.
    ///
    /// # Safety
    /// `dst` may be written where it is mapped, and `src` read; whatever faults and is not served is abandoned. The CPU
    /// has the version's instructions.
    #[link_name = "hugekit_abandonable_copy_2"]
    fn function(dst: *mut u8, src: *const u8, len: usize, version: usize) -> usize;
}

// One line at an offset from `rsi` to the same offset from `rdi`, which is aligned to a line.
macro_rules! sse {
    ($at:literal) => {
        concat!(
            "movups xmm0, [rsi + ",
            $at,
            "]\n",
            "movups xmm1, [rsi + ",
            $at,
            " + 16]\n",
            "movups xmm2, [rsi + ",
            $at,
            " + 32]\n",
            "movups xmm3, [rsi + ",
            $at,
            " + 48]\n",
            "movntps [rdi + ",
            $at,
            "], xmm0\n",
            "movntps [rdi + ",
            $at,
            " + 16], xmm1\n",
            "movntps [rdi + ",
            $at,
            " + 32], xmm2\n",
            "movntps [rdi + ",
            $at,
            " + 48], xmm3\n",
        )
    };
}
macro_rules! avx {
    ($at:literal, $store:literal) => {
        concat!(
            "vmovups ymm0, [rsi + ",
            $at,
            "]\n",
            "vmovups ymm1, [rsi + ",
            $at,
            " + 32]\n",
            $store,
            " [rdi + ",
            $at,
            "], ymm0\n",
            $store,
            " [rdi + ",
            $at,
            " + 32], ymm1\n",
        )
    };
    ($at:literal) => {
        avx!($at, "vmovntps")
    };
}
macro_rules! avx_cached {
    ($at:literal) => {
        avx!($at, "vmovaps")
    };
}
// A register that needs no `vzeroupper`.
macro_rules! avx512 {
    ($at:literal) => {
        concat!("vmovdqu64 zmm16, [rsi + ", $at, "]\n", "vmovntdq [rdi + ", $at, "], zmm16\n",)
    };
}
macro_rules! direct {
    ($at:literal) => {
        "movdir64b rdi, [rsi]\n"
    };
}

// The lines of whole groups of four pages, of which `r9` has the number, and then `r8` lines.
macro_rules! interleaved {
    ($version:literal, $line:ident) => {
        concat!(
            "2",
            $version,
            ":\n",
            "test r9, r9\n",
            "jz 5",
            $version,
            "f\n",
            "3",
            $version,
            ":\n",
            "mov r10d, 64\n",
            "4",
            $version,
            ":\n",
            $line!("0"),
            $line!("4096"),
            $line!("8192"),
            $line!("12288"),
            "add rsi, 64\n",
            "add rdi, 64\n",
            "dec r10d\n",
            "jnz 4",
            $version,
            "b\n",
            "add rsi, 12288\n",
            "add rdi, 12288\n",
            "dec r9\n",
            "jnz 3",
            $version,
            "b\n",
            straight!($version, $line)
        )
    };
}
// `r8` lines.
macro_rules! straight {
    ($version:literal, $line:ident) => {
        concat!(
            "5",
            $version,
            ":\n",
            "test r8, r8\n",
            "jz 7f\n",
            "6",
            $version,
            ":\n",
            $line!("0"),
            "add rsi, 64\n",
            "add rdi, 64\n",
            "dec r8\n",
            "jnz 6",
            $version,
            "b\n",
        )
    };
}

// Weak, so that a program may contain this library twice; the number in the name changes with the code.
core::arch::global_asm!(
    ".pushsection .text",
    ".weak hugekit_abandonable_copy_2",
    ".hidden hugekit_abandonable_copy_2",
    ".type hugekit_abandonable_copy_2, @function",
    ".p2align 4",
    "hugekit_abandonable_copy_2:",
    "cmp ecx, {where_}",
    "je 8f",
    "mov r11d, ecx",
    "mov rcx, rdx",
    "test r11d, r11d",
    "jz 77f",
    // Up to a line of the destination.
    "mov rcx, rdi",
    "neg rcx",
    "and ecx, 63",
    "cmp rcx, rdx",
    "cmova rcx, rdx",
    "sub rdx, rcx",
    "rep movsb",
    // Groups and lines; the bytes behind them stay in `edx`.
    "xor r9d, r9d",
    "mov r8, rdx",
    "and edx, 63",
    "test r11d, {interleaved}",
    "jz 99f",
    "mov r9, r8",
    "shr r9, 14",
    "and r8d, 16383",
    "99:",
    "shr r8, 6",
    "and r11d, {interleaved} - 1",
    "cmp r11d, {avx}",
    "je 22f",
    "cmp r11d, {avx512}",
    "je 23f",
    "cmp r11d, {direct}",
    "je 54f",
    "cmp r11d, {avx_cached}",
    "je 55f",
    interleaved!("1", sse),
    "jmp 7f",
    interleaved!("2", avx),
    "vzeroupper",
    "jmp 7f",
    interleaved!("3", avx512),
    "jmp 7f",
    straight!("4", direct),
    "jmp 7f",
    straight!("5", avx_cached),
    "vzeroupper",
    "7:",
    "sfence",
    "mov ecx, edx",
    "77:",
    "rep movsb",
    "xor eax, eax",
    "ret",
    "8:",
    "lea rax, [rip + 9f]",
    "ret",
    "9:",
    "sfence",
    "mov eax, 1",
    "ret",
    ".size hugekit_abandonable_copy_2, . - hugekit_abandonable_copy_2",
    ".popsection",
    where_ = const WHERE,
    interleaved = const INTERLEAVED,
    avx = const AVX,
    avx512 = const AVX512,
    direct = const DIRECT,
    avx_cached = const AVX_CACHED,
);

/// Has copies be recognised from now on.
pub fn prepare() -> bool {
    // SAFETY: asked where it goes on, it touches nothing.
    let exit = unsafe { function(std::ptr::null_mut(), std::ptr::null(), 0, WHERE) };
    EXIT.store(exit, Ordering::Relaxed);
    true
}

/// Copies bytes as a routine does, or by string instructions; `false` if it was abandoned after some of them.
/// Async-signal-safe.
///
/// # Safety
/// The routine is available. No other thread uses the `len` bytes from `dst` on, and as many of them as are mapped may be
/// written. Those from `src` on may change meanwhile: the copy is then of no use. A fault at either end is no error if its
/// handler calls [`abandon`].
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, routine: &CopyRoutine) -> bool {
    let version = VERSIONS.iter().find(|(name, _)| *name == routine.name());
    let version = version.map_or(STRING, |&(_, version)| version);
    // SAFETY: `dst` may be written where it is mapped, and `src` is only read: a fault there is served or abandoned;
    // the CPU can run the routine, and so its version (the contract of this function).
    unsafe { function(dst, src, len, version) == 0 }
}

/// Whether the interrupted instruction is one of the copy's.
///
/// # Safety
/// The context that the kernel gave to a handler.
pub unsafe fn is_interrupted(context: *const c_void) -> bool {
    // SAFETY: `context` is the `ucontext_t` that the kernel gave to a handler: the contract of this function.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let instruction = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    (function as *const () as usize..EXIT.load(Ordering::Relaxed)).contains(&instruction)
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
        let versions = VERSIONS.iter().filter(|(_, version)| *version != AVX_CACHED);
        assert_eq!(names, versions.map(|(name, _)| *name).collect::<Vec<_>>());
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
