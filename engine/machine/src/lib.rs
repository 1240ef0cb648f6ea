//! Facts about this machine: caches, nodes, CPUs, limits, huge-page pools, kernel features.
//!
//! This crate only reads facts. It prints, judges and changes nothing. Every function takes a
//! [`Root`], so a directory of text files can describe a machine with eight nodes or a broken
//! cgroup tree. A separate function reads each fact, so one unreadable file costs only one fact.
//!
//! The crate parses the files itself and uses no crate for `/proc`. Its readers take a root, and
//! tests refuse each call. The engine needs only a few fields. `hugekit-doctor` reads the facts
//! that only people need.
//!
//! Words: a *node* is a NUMA node, and a *pool* is the kernel's huge pages of one size.
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod available;
pub mod cache;
pub mod cgroup;
pub mod cpu;
mod error;
pub mod hugepages;
pub mod limits;
pub mod mappings;
pub mod memory;
mod plain;
pub mod process;
pub mod processes;
mod root;
pub mod size;
#[cfg(test)]
mod synthetic;
mod text;
pub mod threads;
pub mod topology;
pub mod userfaultfd;

pub use cache::CacheSizes;
pub use error::Error;
pub use memory::Memory;
pub use plain::{is_unprintable, plain};
pub use root::Root;
pub use topology::{Node, Topology};

pub use hugekit_sys::cpu_set::{CpuSet, ParseCpuSetError};
