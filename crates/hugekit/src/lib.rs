//! hugekit: a huge-page memory engine for user space on Linux.
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod arch;
mod class;
mod clear;
mod copy;
mod cow;
mod cpu_set;
mod engine;
pub mod fault;
pub mod machine;
pub mod parallel;
pub mod pool;
mod populate;
pub mod profile;
pub mod region;
pub mod snapshot;
pub mod sweep;
mod sync;
mod sys;

/// Has the n-th system call refused, for tests: `cargo xtask faults`.
#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub mod injection {
    pub use crate::sys::injection::{Call, Hit, Lasting, Plan, arm, disarm, hit, trace};
}

pub use class::{ErrorClass, system_error};
pub use clear::{Clear, ClearError, clear};
pub use copy::{Copy, CopyError, copy};
pub use engine::{HintError, Method, Operation, Reuse};
pub use parallel::{Cancel, Threads};
pub use pool::{Pool, PoolError};
pub use populate::{Populate, PopulateError};
pub use profile::Profile;
pub use region::{Region, RegionError, SharedRegion};
pub use snapshot::{Snapshot, SnapshotError};

/// Runs the README's programs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the program of the page about snapshots as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/snapshot.md")]
struct SnapshotPage;
