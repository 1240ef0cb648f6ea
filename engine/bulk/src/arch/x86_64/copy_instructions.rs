//! The instructions of the copy that can be abandoned: string instructions, or the instructions of
//! another routine of the table.

use super::abandonable::{PLAIN, WHERE};

/// The versions. Those of [`INTERLEAVED`] advance in four pages together.
const SSE: usize = PLAIN + 1;
const AVX: usize = 2;
const AVX512: usize = 3;
const DIRECT: usize = 4;
const AVX_CACHED: usize = 5;
const INTERLEAVED: usize = 8;

/// The routines whose version is not [`PLAIN`], which uses string instructions.
pub(in crate::arch) const VERSIONS: &[(&str, usize)] = &[
    ("sse2_streaming", SSE),
    ("sse2_interleaved", SSE | INTERLEAVED),
    ("avx2_streaming", AVX),
    ("avx2_interleaved", AVX | INTERLEAVED),
    ("avx512_streaming", AVX512),
    ("avx512_interleaved", AVX512 | INTERLEAVED),
    ("movdir64b", DIRECT),
    ("avx2_cached", AVX_CACHED),
];

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

/// Returns the interrupted instruction.
pub(in crate::arch) fn instruction(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

/// Sets the address at which the thread continues when its handler returns.
pub(in crate::arch) fn set_instruction(context: &mut libc::ucontext_t, address: usize) {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = address as i64;
}
