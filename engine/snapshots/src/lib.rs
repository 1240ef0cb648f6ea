//! Snapshots: memory at one point in time, while writers continue.
//!
//! [`Snapshot::of_anonymous`] protects memory against writes and returns. Before a *granule*
//! changes, its writer, or a thread of the library, copies the granule aside. A reader of the
//! snapshot reads each granule from this copy, or from the owner's memory if no thread wrote to the
//! granule. The library lifts the protection of granules that were read. Only granules that are
//! read or written are copied. There is no second process, and page tables stay unchanged.
//!
//! [`Snapshot::of_region`] does the same for memory of a pool, by a read-only fork. Its memory for
//! copies is reserved. So writers cannot make the snapshot fail, and the owner cannot remove bytes
//! from it.
//!
//! The snapshot contains the same bytes as a child of `fork(2)`, granule by granule. A store that
//! happened before the call is included. A store that begins after the call has returned is not
//! included. A store that races with the call may be included or not. The library does not see
//! writes by devices, or by system calls through pages that the kernel held before the snapshot
//! (`io_uring` fixed buffers, `vmsplice`, `O_DIRECT` reads in flight).
//!
//! # System calls
//! *Threaded* ([`FaultMode`]), a thread of the library handles each write fault and copies. A
//! program notices only that the write lasts longer, even in system calls and KVM. *In place*, the
//! writer itself copies, in a handler of SIGBUS. The kernel does not run this handler for its own
//! writes: a system call that writes to a protected granule fails with EFAULT and transfers
//! nothing. [`Snapshot::prepare_write`] preserves the granules of a range before such a call. No
//! thread may block SIGBUS while it writes, because the kernel would end the process. System calls
//! that read the memory work in both modes. [`Snapshot::serving`] returns the mode.
//!
//! `README.md` beside this file draws the steps of a write, the states and the locks, and lists the
//! races that were considered.
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

// A snapshot, for programs.
mod snapshot;
// Making it.
mod making;
// Serving writes to its memory.
mod serving;
// Reading it.
mod reading;
// The changes from one snapshot to the next.
mod changes;
// Its costs, its errors, and the huge pages that it split.
mod collapse;
mod error;
mod stats;

pub use self::changes::epoch::{Changes, Epoch};
pub use self::collapse::{Collapsed, collapse};
pub use self::error::{SnapshotError, Unsuitable};
pub use self::making::builder::{Builder, Granule};
pub use self::reading::reader::SnapshotReader;
#[doc(hidden)]
pub use self::reading::staging::{StagedMemory, Staging};
pub use self::reading::view::{Holder, View};
#[doc(hidden)]
pub use self::serving::delivery::KeptMemory;
pub use self::serving::reserve::Reserve;
pub use self::snapshot::Snapshot;
pub use self::stats::SnapshotStats;
#[cfg(doc)]
use hugekit_regions::fault::FaultMode;
