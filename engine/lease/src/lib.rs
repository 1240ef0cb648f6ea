//! Leases: memory that another process, a broker, populated before this process requested it.
//!
//! [`Lease::ask`] requests a lease from a broker. `hugekit::pool::PoolBuilder::lease` makes a pool
//! from the lease. The broker is `hugekit broker`, or any program that implements the [`protocol`].
//! `docs/qemu.md` describes unmodified programs that use leases.
//!
//! Leased memory is new memory of the kernel. It is populated, and no other process ever used it,
//! so all of its bytes are zero. The broker keeps neither a descriptor nor a mapping of the memory.
//! When this process has closed its last descriptor and its last mapping, the kernel frees the
//! memory.
#![warn(missing_docs, clippy::incompatible_msrv)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod client;
mod error;
mod exchange;
pub mod images;
mod memory_file;
pub mod protocol;

pub use client::{DEFAULT_WAIT, Lease, Peer, give_back, peer, status};
pub use error::{LeaseError, Unfit};
pub use memory_file::MemoryFile;
