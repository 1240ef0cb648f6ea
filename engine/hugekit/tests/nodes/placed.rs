//! The nodes of this machine, memory that is put on them, and what the kernel says of where it is.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::ptr;
use std::sync::LazyLock;

use hugekit_machine::limits::Allowed;
use hugekit_machine::{CpuSet, Node, Root, Topology};
use rustix::param::page_size;

use crate::memory::Memory;

/// Nodes with memory and CPUs that this process may use both of.
pub(crate) fn nodes() -> &'static [Node] {
    static NODES: LazyLock<Vec<Node>> = LazyLock::new(|| {
        let allowed = Allowed::read(&Root::default()).unwrap();
        let nodes = Topology::read(&Root::default()).unwrap().nodes.into_iter();
        nodes
            .map(|node| Node { cpus: node.cpus.intersection(&allowed.cpus), ..node })
            .filter(|node| !node.cpus.is_empty() && allowed.nodes.contains(node.id))
            .filter(|node| node.memory_total > 0)
            .collect()
    });
    &NODES
}

pub(crate) fn ids() -> Vec<u32> {
    nodes().iter().map(|node| node.id).collect()
}

pub(crate) fn node_of_cpu(cpu: u32) -> Option<u32> {
    nodes().iter().find(|node| node.cpus.contains(cpu)).map(|node| node.id)
}

pub(crate) fn current_cpu() -> u32 {
    // SAFETY: no precondition.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap()
}

/// Runs `run` on the CPUs of a node.
pub(crate) fn on<R>(node: &Node, run: impl FnOnce() -> R) -> R {
    let _everywhere_after = Everywhere;
    run_on(&node.cpus);
    run()
}

/// The tests that follow have all CPUs again, however this one ends.
struct Everywhere;

impl Drop for Everywhere {
    fn drop(&mut self) {
        run_on(&nodes().iter().flat_map(|node| node.cpus.iter()).collect());
    }
}

fn run_on(cpus: &CpuSet) {
    let mut mask = vec![0_u8; 1 << 13];
    cpus.iter().for_each(|cpu| mask[cpu as usize / 8] |= 1 << (cpu % 8));
    // The kernel counts in words, and the architectures of the fleet are little-endian.
    // SAFETY: `mask` is read.
    let answer = unsafe { libc::sched_setaffinity(0, mask.len(), mask.as_ptr().cast()) };
    assert_eq!(answer, 0);
}

/// How memory comes to its nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placing {
    /// One part after the other touched first by a thread on a node.
    FirstTouch,
    /// One part after the other bound to a node.
    Bound,
    /// Page by page, of what size they are.
    Interleaved,
}

impl Placing {
    pub(crate) const ALL: [Self; 3] = [Self::FirstTouch, Self::Bound, Self::Interleaved];

    /// Memory of which each node has `share` bytes.
    pub(crate) fn memory(self, share: usize, huge: bool) -> Memory {
        let memory = Memory::untouched(share * nodes().len(), huge);
        let parts =
            || nodes().iter().zip(0..).map(|(node, at)| (node, part(&memory, at * share, share)));
        match self {
            Self::FirstTouch => parts().for_each(|(node, part)| on(node, || touch(part))),
            Self::Bound => {
                parts().for_each(|(node, part)| bind(part, libc::MPOL_BIND, &[node.id], 0));
            }
            Self::Interleaved => bind(memory.range(), libc::MPOL_INTERLEAVE, &ids(), 0),
        }
        touch(memory.range());
        let holders = holders(memory.range());
        for node in ids() {
            let held = holders.iter().filter(|holder| **holder == Some(node)).count();
            assert_eq!(held * page_size(), share, "{self:?}: of node {node}");
        }
        memory
    }
}

pub(crate) fn part(memory: &Memory, at: usize, len: usize) -> *const [u8] {
    ptr::slice_from_raw_parts(memory.start().wrapping_add(at), len)
}

/// Writes to each page of memory that only this test uses.
pub(crate) fn touch(memory: *const [u8]) {
    for at in (0..memory.len()).step_by(page_size()) {
        // SAFETY: within the test's own mapping, which no other thread uses.
        unsafe { memory.cast::<u8>().cast_mut().add(at).write_volatile(0xd1) };
    }
}

/// Has pages move that are elsewhere and that no other process has.
pub(crate) const AND_MOVE: c_long = 1 << 1;

/// Sets where pages come from that are not there yet.
pub(crate) fn bind(memory: *const [u8], mode: c_int, nodes: &[u32], flags: c_long) {
    let mask = mask(nodes);
    // SAFETY: `mask` is read; a policy changes no byte.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory.cast::<c_void>(),
            memory.len(),
            c_long::from(mode),
            mask.as_ptr(),
            BITS + 1,
            flags,
        )
    };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

const BITS: usize = 1024;

pub(crate) fn mask(nodes: &[u32]) -> [c_ulong; BITS / 64] {
    let mut mask = [0; BITS / 64];
    nodes.iter().for_each(|&node| mask[node as usize / 64] |= 1 << (node % 64));
    mask
}

/// By base page, the node that holds it; `None` where there is no page.
pub(crate) fn holders(memory: *const [u8]) -> Vec<Option<u32>> {
    move_pages(memory, None).into_iter().map(|node| u32::try_from(node).ok()).collect()
}

/// What `move_pages` says of each base page after it has moved them to a node, or of where they are.
pub(crate) fn move_pages(memory: *const [u8], to: Option<u32>) -> Vec<c_int> {
    let pages: Vec<*const u8> = (0..memory.len())
        .step_by(page_size())
        .map(|at| memory.cast::<u8>().wrapping_add(at))
        .collect();
    let to = to.map(|node| vec![c_int::try_from(node).unwrap(); pages.len()]);
    let to = to.as_ref().map_or(ptr::null(), Vec::as_ptr);
    let mut status = vec![c_int::MIN; pages.len()];
    // SAFETY: as many addresses and nodes are read, and answers written, as there are pages; a page that moves keeps
    // its bytes and its address.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            to,
            status.as_mut_ptr(),
            MOVE_ALL,
        )
    };
    assert!(answer >= 0, "{}", std::io::Error::last_os_error());
    status
}

/// Pages that several mappings have, too, as those of pools: root may.
const MOVE_ALL: c_int = 1 << 2;

/// The node that holds the page of an address, by the other call that says so.
pub(crate) fn holder(address: *const u8) -> Option<u32> {
    let mut node: c_int = -1;
    let (none, of_the_page) = (ptr::null::<c_ulong>(), c_long::from(1 << 0 | 1 << 1));
    // SAFETY: one number is written.
    let answer = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut node, none, 0, address, of_the_page)
    };
    (answer == 0).then(|| u32::try_from(node).unwrap())
}

/// Whether both calls are permitted, and the one also to move pages of several mappings, which takes `CAP_SYS_NICE`.
pub(crate) fn is_told() -> bool {
    let here = 0_u8;
    // SAFETY: of no page at all, nothing is read and nothing moves.
    let may_move = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            0,
            ptr::null::<u8>(),
            ptr::null::<u8>(),
            ptr::null::<u8>(),
            MOVE_ALL,
        )
    };
    may_move == 0 && holder(&raw const here).is_some()
}
