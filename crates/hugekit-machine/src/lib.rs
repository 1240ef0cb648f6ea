//! What this machine is: caches, nodes, CPUs, limits, huge-page pools, kernel features.
//!
//! Facts only: nothing here prints, judges or changes anything. Every function takes a [`Root`], so
//! that a machine with eight nodes or a broken cgroup tree can be described by a directory of text
//! files. Each fact is read by a function of its own, because one unreadable file must cost one
//! fact, not all. Taken apart by hand, not by a crate for `/proc`: readers take a root, tests have
//! each call refused, and it is a few fields that the engine decides by. What only people want to
//! know is read by `hugekit-doctor`.
//!
//! Words: a *node* is a NUMA node, a *pool* the kernel's huge pages of one size.
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cache;
pub mod cgroup;
pub mod cpu;
mod error;
pub mod hugepages;
pub mod limits;
pub mod mappings;
pub mod memory;
pub mod process;
mod root;
#[cfg(test)]
mod synthetic;
mod text;
pub mod threads;
pub mod topology;
pub mod userfaultfd;

pub use cache::CacheSizes;
pub use error::Error;
pub use memory::Memory;
pub use root::Root;
pub use topology::{Node, Topology};

pub use hugekit_sys::cpu_set::{CpuSet, ParseCpuSetError};
