//! A point in time of memory, while writers go on.
//!
//! [`Snapshot::of_anonymous`] protects memory against writes, which takes microseconds a gigabyte, and returns.
//! A writer copies the *granule* that it meets aside before the granule changes; a reader of the
//! snapshot takes each granule from there, or from the owner if it was not written, and lifts the protection
//! behind itself. Nothing is copied but what is read or written, there is no second process, and page tables
//! stay as they are.
//!
//! [`Snapshot::of_region`] does the same for memory of a pool, by a fork that is only read: the bytes that it may
//! take to retain granules are reserved, so that writers never outrun it and nothing that the owner does
//! takes anything from it.
//!
//! The snapshot is what `fork(2)` would have given a child, granule by granule: a store that happened before the
//! call is in it, one that begins after its return is not, and one that races with the call lands on either
//! side. Not seen at all are writes by devices, and by system calls through pages that the kernel held
//! before the snapshot (`io_uring` fixed buffers, `vmsplice`, `O_DIRECT` reads in flight).
//!
//! # System calls
//! *Threaded* ([`FaultMode`]), a thread of ours is told of each write and copies; no program notices
//! more than that it takes longer, system calls and KVM included. *In place*, the writer itself
//! copies, in a handler of SIGBUS. The kernel has no such handler: a system call that is to write
//! into a granule that is still protected fails with EFAULT and transfers nothing.
//! [`Snapshot::prepare_write`] preserves the granules of a range before such a call. No thread may
//! block SIGBUS while it writes: the kernel ends a process for that. System calls that read the
//! memory work either way. [`Snapshot::serving`] says which it is.
//!
//! `README.md` beside this file draws states and locks and names the races that were considered.
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod anonymous;
mod arena;
mod background;
mod buffer;
mod builder;
mod collapse;
mod costs;
mod delivery;
mod edges;
mod epoch;
mod error;
mod granules;
mod heat;
mod interval;
mod lifecycle;
mod limit;
mod piece;
mod plan;
mod protect_helper;
mod read_ahead;
mod reader;
mod region;
mod reserve;
mod segment;
mod several;
mod snapshot;
mod source;
mod state;
mod stats;
mod stream;
mod survey;
mod taken;
mod tracker;
mod view;
mod write_protector;

pub use self::builder::{Builder, Granule};
pub use self::collapse::{Collapsed, collapse};
pub use self::epoch::{Changes, Epoch};
pub use self::error::{SnapshotError, Unsuitable};
pub use self::reader::SnapshotReader;
pub use self::reserve::Reserve;
pub use self::snapshot::Snapshot;
pub use self::stats::SnapshotStats;
pub use self::view::{Holder, View};
#[cfg(doc)]
use hugekit_regions::fault::FaultMode;
