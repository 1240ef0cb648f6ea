//! Which node memory comes from: mbind(2), which neither rustix nor libc wraps.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_ulong};

use rustix::io;

use super::injection::{Call, pass};
use super::last_error;
use super::mapping::Mapping;
use crate::cpu_set::CpuSet;

/// How the kernel chooses a node for a page; values of `linux/mempolicy.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Mode {
    Preferred = 1,
    Bind = 2,
    Interleave = 3,
    Local = 4,
}

const BITS: usize = c_ulong::BITS as usize;

/// Node numbers that a mask holds; the kernel's own limit is 1,024.
const MOST_NODES: u32 = 1024;

/// Sets where pages come from that are not there yet and are faulted in through this mapping.
/// (Of shared memory the policy then belongs to the file, of huge pages to the mapping alone.)
/// `EINVAL` for nodes that do not exist or may not be used.
pub(crate) fn bind(mapping: &Mapping, mode: Mode, nodes: &CpuSet) -> io::Result<()> {
    let mut mask: [c_ulong; MOST_NODES as usize / BITS] = [0; MOST_NODES as usize / BITS];
    for node in nodes.iter() {
        let word = mask.get_mut(node as usize / BITS).ok_or(io::Errno::INVAL)?;
        *word |= 1 << (node as usize % BITS);
    }
    // The kernel takes one bit off the count.
    let bits = if nodes.is_empty() { 0 } else { c_ulong::from(MOST_NODES) + 1 };
    let mask = if nodes.is_empty() { std::ptr::null() } else { mask.as_ptr() };
    let (start, len) = (mapping.start().as_ptr(), mapping.len());
    pass(Call::Mbind)?;
    // SAFETY: the kernel reads MOST_NODES bits, which `mask` holds, or none; a policy changes no
    // byte of any mapping.
    let answer: c_long =
        unsafe { libc::syscall(libc::SYS_mbind, start, len, mode as c_int, mask, bits, 0) };
    last_error(answer != 0)
}
