//! Leases: memory that a broker, another process, has populated before this one asked.
//!
//! [`Lease::ask`] asks a broker for one. `hugekit::pool::PoolBuilder::lease` makes a pool of it. The broker is
//! `hugekit broker`, or any program that speaks the [`protocol`]. `docs/vmm.md` shows programs that are given leases
//! without being changed.
//!
//! What is leased comes from the kernel, is populated and was never any other process's: all of its
//! bytes are zero. The broker has kept neither a descriptor nor a mapping of it, and when the last of
//! this process's is gone, the memory is the kernel's again.
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod client;
mod error;
pub mod images;
mod memory_file;
pub mod protocol;

pub use client::{DEFAULT_WAIT, Lease, Peer, peer, status};
pub use error::{LeaseError, Unfit};
pub use memory_file::MemoryFile;
