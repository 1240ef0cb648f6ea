//! Memory policies: `mbind` and `get_mempolicy`, which neither rustix nor libc wraps.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_ulong};
use std::ptr;

use rustix::io;

use super::injection::{Call, pass};
use super::last_error;
use super::mapping::SharedMapping;
use crate::cpu_set::CpuSet;

/// The policy by which the kernel chooses a node for a page. The values are those of `linux/mempolicy.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Mode {
    Preferred = 1,
    Bind = 2,
    Interleave = 3,
    Local = 4,
}

/// Modes that programs set and this crate does not.
const PREFERRED_MANY: c_int = 5;
const WEIGHTED_INTERLEAVE: c_int = 6;

/// Flags of a mode: the permission to move pages, and the meaning of the numbers of nodes.
const MODE_FLAGS: c_int =
    libc::MPOL_F_STATIC_NODES | libc::MPOL_F_RELATIVE_NODES | libc::MPOL_F_NUMA_BALANCING;

/// Requests the policy of an address instead of the calling thread's policy.
const OF_ADDRESS: c_int = 1 << 1;

const BITS: usize = c_ulong::BITS as usize;

/// The highest number of nodes in a mask; the kernel's own limit is 1,024.
const MOST_NODES: u32 = 1024;

type NodeMask = [c_ulong; MOST_NODES as usize / BITS];

/// Sets the nodes of missing pages that are faulted in through this mapping. (For shared memory the
/// policy then belongs to the file; for huge pages, only to the mapping.) `EINVAL` for nodes that
/// do not exist or may not be used.
pub fn bind(mapping: &SharedMapping, mode: Mode, nodes: &CpuSet) -> io::Result<()> {
    let mut mask = NodeMask::default();
    for node in nodes.iter() {
        let word = mask.get_mut(node as usize / BITS).ok_or(io::Errno::INVAL)?;
        *word |= 1 << (node as usize % BITS);
    }
    // The kernel takes one bit off the count.
    let bits = if nodes.is_empty() { 0 } else { c_ulong::from(MOST_NODES) + 1 };
    let mask = if nodes.is_empty() { ptr::null() } else { mask.as_ptr() };
    let (start, len) = (mapping.start().as_ptr(), mapping.len());
    pass(Call::Mbind)?;
    // SAFETY: the kernel reads MOST_NODES bits, which `mask` holds, or none; a policy changes no
    // byte of any mapping.
    let answer: c_long =
        unsafe { libc::syscall(libc::SYS_mbind, start, len, mode as c_int, mask, bits, 0) };
    last_error(answer != 0)
}

/// The source of missing pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageSource {
    /// The node of the CPU that faults the pages in.
    Local,
    /// These nodes, beginning with the nearest.
    Nodes(CpuSet),
    /// The nodes in turn.
    InTurn,
}

/// Returns the source of a page that a fault of the calling thread at this address allocates: by
/// the policy of the mapping, or by the policy of the thread if the mapping has none. `EFAULT` if
/// the address is not mapped.
pub fn policy_of(address: *const u8) -> io::Result<PageSource> {
    match asked(address, OF_ADDRESS)? {
        (libc::MPOL_DEFAULT, _) => asked(ptr::null(), 0).map(source),
        policy => Ok(source(policy)),
    }
}

fn source((mode, nodes): (c_int, CpuSet)) -> PageSource {
    match mode {
        libc::MPOL_PREFERRED | libc::MPOL_BIND | PREFERRED_MANY if !nodes.is_empty() => {
            PageSource::Nodes(nodes)
        }
        libc::MPOL_INTERLEAVE | WEIGHTED_INTERLEAVE => PageSource::InTurn,
        _ => PageSource::Local,
    }
}

fn asked(address: *const u8, flags: c_int) -> io::Result<(c_int, CpuSet)> {
    let (mut mode, mut mask): (c_int, NodeMask) = Default::default();
    let bits = c_ulong::from(MOST_NODES) + 1; // As above.
    pass(Call::GetMempolicy)?;
    // SAFETY: the kernel writes a mode and MOST_NODES bits, which `mask` holds; it follows no address.
    let answer: c_long = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            bits,
            address,
            c_long::from(flags),
        )
    };
    last_error(answer != 0)?;
    let is_set = |&node: &u32| mask[node as usize / BITS] >> (node as usize % BITS) & 1 == 1;
    Ok((mode & !MODE_FLAGS, (0..MOST_NODES).filter(is_set).collect()))
}

#[cfg(test)]
mod tests {
    use rustix::param::page_size;

    use super::*;
    use crate::memfd::{self, FilePages};

    #[test]
    fn policy_that_was_set_is_the_one_in_force() {
        let file = memfd::create(c"hugekit-test", FilePages::Shmem).unwrap();
        memfd::size_for_good(&file, page_size() as u64).unwrap();
        let mapping = SharedMapping::new(&file, 0, page_size(), page_size()).unwrap();
        let node = || CpuSet::from_iter([0]);
        let expected = [
            (Mode::Bind, node(), PageSource::Nodes(node())),
            (Mode::Preferred, node(), PageSource::Nodes(node())),
            (Mode::Interleave, node(), PageSource::InTurn),
            (Mode::Local, CpuSet::default(), PageSource::Local),
        ];
        for (mode, nodes, source) in expected {
            if bind(&mapping, mode, &nodes).is_err() {
                return; // A sandbox without mbind(2), or an emulator.
            }
            let within = mapping.start().as_ptr().wrapping_add(page_size() - 1);
            assert_eq!(policy_of(within), Ok(source), "{mode:?}");
        }
        assert_eq!(policy_of(ptr::without_provenance(page_size())), Err(io::Errno::FAULT));
        // SAFETY: the test's own mapping, which nothing else uses.
        unsafe { mapping.unmap() }.unwrap();
    }
}
