//! A signal stack that has room for a fault inside the handling of another.
//!
//! The standard library gives its threads 8 KiB, unless the kernel asks for more. A frame is 3.5 KiB where the CPU has
//! AVX-512 or protection keys, so that two of them and what handlers use do not fit there.
#![allow(unsafe_code)]

use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

const BYTES: usize = 64 << 10;

/// Gives the calling thread such a stack for as long as the process lives. Only the kernel knows where the stack is, so it
/// is mapped: of an allocation, the leak sanitizer would say that nothing points to it.
pub fn make_large() {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces none.
    let mapped = unsafe { mmap_anonymous(ptr::null_mut(), BYTES, prot, MapFlags::PRIVATE) };
    let stack = libc::stack_t { ss_sp: mapped.unwrap(), ss_flags: 0, ss_size: BYTES };
    // SAFETY: no signal is handled on the old one now, and the new one is never unmapped.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) }, 0);
}
