//! What this machine is: caches, nodes, CPUs, limits, huge-page pools, kernel features.
//!
//! Facts only: nothing here prints, judges or changes anything. Every function takes a [`Root`], so
//! that a machine with eight nodes or a broken cgroup tree can be described by a directory of text files.
//! Each fact is read by a function of its own, because one unreadable file must cost one fact, not all.
//!
//! Words: a *node* is a NUMA node, a *pool* the kernel's huge pages of one size, *THP* a transparent huge
//! page, *mTHP* a transparent huge page smaller than the processor's own.

pub mod cache;
pub mod cgroup;
mod error;
pub mod host;
pub mod hugepages;
mod hypervisor;
pub mod kvm;
pub mod limits;
pub mod mappings;
pub mod memory;
pub mod process;
mod root;
#[cfg(test)]
pub(crate) mod synthetic;
mod text;
pub mod thp;
pub mod threads;
pub mod topology;
pub mod userfaultfd;

pub use cache::CacheSizes;
pub use error::Error;
pub use memory::Memory;
pub use root::Root;
pub use thp::Thp;
pub use topology::{Node, Topology};

pub use crate::cpu_set::{CpuSet, ParseCpuSetError};
