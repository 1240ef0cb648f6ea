//! The instructions of the copy that can be abandoned: pairs of vectors, with or without the hint
//! of the table's routines.

use super::abandonable::{PLAIN, WHERE};

/// The version whose loads have the hint.
const ONCE: usize = PLAIN + 1;
/// The version whose loads and stores have the hint.
const STREAMING: usize = PLAIN + 2;

/// The routines whose version is not [`PLAIN`].
pub(in crate::arch) const VERSIONS: &[(&str, usize)] =
    &[("ldnp_stnp", STREAMING), ("ldnp_stp", ONCE)];

// `x4` lines from `x1` to `x0`, at least one.
macro_rules! lines {
    ($label:literal, $load:literal, $store:literal) => {
        concat!(
            $label,
            ":\n",
            $load,
            " q0, q1, [x1]\n",
            $load,
            " q2, q3, [x1, #32]\n",
            $store,
            " q0, q1, [x0]\n",
            $store,
            " q2, q3, [x0, #32]\n",
            "add x1, x1, #64\n",
            "add x0, x0, #64\n",
            "subs x4, x4, #1\n",
            "b.ne ",
            $label,
            "b\n",
        )
    };
}
// As many bytes as `$count` says.
macro_rules! bytes {
    ($count:literal) => {
        concat!(
            "cbz ",
            $count,
            ", 3f\n",
            "2:\n",
            "ldrb w5, [x1], #1\n",
            "strb w5, [x0], #1\n",
            "subs ",
            $count,
            ", ",
            $count,
            ", #1\n",
            "b.ne 2b\n",
            "3:\n",
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
    "cmp x3, {where_}",
    "b.eq 8f",
    // Up to a line of the destination.
    "neg x4, x0",
    "and x4, x4, #63",
    "cmp x4, x2",
    "csel x4, x4, x2, lo",
    "sub x2, x2, x4",
    bytes!("x4"),
    // Lines; the bytes behind them stay in `x2`.
    "lsr x4, x2, #6",
    "and x2, x2, #63",
    "cbz x4, 7f",
    "cmp x3, {once}",
    "b.eq 5f",
    "cmp x3, {streaming}",
    "b.eq 6f",
    lines!("4", "ldp", "stp"),
    "b 7f",
    lines!("5", "ldnp", "stp"),
    "b 7f",
    lines!("6", "ldnp", "stnp"),
    "7:",
    bytes!("x2"),
    "dmb ishst",
    "mov x0, #0",
    "ret",
    "8:",
    "adr x0, 9f",
    "ret",
    "9:",
    "dmb ishst",
    "mov x0, #1",
    "ret",
    ".size hugekit_abandonable_copy_2, . - hugekit_abandonable_copy_2",
    ".popsection",
    where_ = const WHERE,
    once = const ONCE,
    streaming = const STREAMING,
);

/// Returns the interrupted instruction.
pub(in crate::arch) fn instruction(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}

/// Sets the address at which the thread continues when its handler returns.
pub(in crate::arch) fn set_instruction(context: &mut libc::ucontext_t, address: usize) {
    context.uc_mcontext.pc = address as u64;
}
