//! Leases: memory that a broker, another process, has populated before this one asked.
//!
//! [`Lease::ask`] takes one, and a pool is made of it ([`PoolBuilder::lease`]); or
//! [`PoolBuilder::broker`] does both. The broker is `hugekit broker`, or any program that speaks the
//! [`protocol`]. `docs/vmm.md` shows programs that are given leases without being changed.
//!
//! What is leased comes from the kernel, is populated and was never any other process's: all of its
//! bytes are zero. The broker has kept neither a descriptor nor a mapping of it, and when the last of
//! this process's is gone, the memory is the kernel's again.
//!
//! [`PoolBuilder::lease`]: hugekit_regions::pool::PoolBuilder::lease
//! [`PoolBuilder::broker`]: hugekit_regions::pool::PoolBuilder::broker
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod client;
mod error;
mod memory_file;
pub mod protocol;

pub use client::{DEFAULT_WAIT, Lease, Peer, peer, status};
pub use error::{LeaseError, Unfit};
pub use memory_file::MemoryFile;
