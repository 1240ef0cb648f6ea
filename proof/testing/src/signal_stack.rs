//! A signal stack that has room for a fault inside the handling of another.
//!
//! The standard library gives its threads 8 KiB, unless the kernel asks for more. A frame is 3.5 KiB where the CPU has
//! AVX-512 or protection keys, so that two of them and what handlers use do not fit there.
#![allow(unsafe_code)]

use std::ptr;

const BYTES: usize = 64 << 10;

/// Gives the calling thread such a stack for as long as the process lives.
pub fn make_large() {
    let ss_sp = Box::leak(vec![0_u8; BYTES].into_boxed_slice()).as_mut_ptr().cast();
    let stack = libc::stack_t { ss_sp, ss_flags: 0, ss_size: BYTES };
    // SAFETY: no signal is handled on the old one now, and the new one is memory for good.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) }, 0);
}
