//! hugekit: a huge-page memory engine for user space on Linux.
//!
//! It clears and copies memory measured in gigabytes close to what the hardware allows, allocates
//! memory that was cleared before the program asked, forks that memory within a process, and takes
//! snapshots of any memory without a second process.
//!
//! # Which interface for which need
//!
//! | need | interface |
//! | --- | --- |
//! | zero or copy bytes that the program has | [`clear()`], [`copy()`] |
//! | the same, knowing who uses the bytes next, or on several threads | [`ClearOptions`], [`CopyOptions`] |
//! | pages there before the first access | [`PopulateOptions`] for any memory, [`Region::populate`] |
//! | zeroed memory at once, again and again | [`Pool`] and [`Region`] |
//! | memory that guests, devices or racing threads write | [`SharedRegion`] |
//! | the same bytes twice, each side writing its own | [`Region::fork`] |
//! | a dump of a moment, while writers go on | [`Snapshot`] |
//! | a system call that writes what is forked or snapshotted | `prepare_write` of the [region](Region::prepare_write) or the [snapshot](Snapshot::prepare_write) |
//! | work of the program's own on each node's bytes | [`parallel::Job`] |
//! | what the machine has, what an error means for the program | [`machine`], [`ErrorKind`] |
//!
//! # Concepts, each with a program
//!
//! The programs ask for base pages, so that they run on any machine; without `backing`, a pool
//! takes reserved huge pages first, then transparent ones, then base pages, and
//! [says](pool::BackingReport) what it took and why.
//!
//! **Folio**: what is processed as a whole, a page of the pool's backing; [`HUGE_PAGE_BYTES`] on
//! huge pages. A fault names one *target* in it: its neighbourhood is processed last and stays in
//! the cache, the rest streams past it.
//!
//! ```
//! use hugekit::{ClearOptions, HUGE_PAGE_BYTES, Reuse};
//!
//! let mut folio = vec![0xff_u8; HUGE_PAGE_BYTES];
//! ClearOptions::new().target(0x1234).reuse(Reuse::Target).run(&mut folio)?;
//! assert!(folio.iter().all(|&byte| byte == 0));
//! # Ok::<(), hugekit::ClearError>(())
//! ```
//!
//! **Pool** and **region**: a pool is a file of memory, a region a part of it with one owner,
//! zeroed and committed when the owner gets it. What a dropped region leaves is cleared in the
//! background.
//!
//! ```
//! use hugekit::pool::{Backing, Pool};
//!
//! let pool = Pool::builder(4 << 20).backing(Backing::Base).build()?;
//! let mut region = pool.region(1 << 20)?;
//! region[0x1234] = 1; // it is a slice
//! drop(region);
//! assert_eq!(pool.region(1 << 20)?[0x1234], 0);
//! # Ok::<(), hugekit::PoolError>(())
//! ```
//!
//! **Lazy clearing** ([`pool::Clearing::OnFault`]): what is dirty is allocated as it is, and each
//! folio cleared when it is touched first, by userfaultfd(2). Where the kernel does not permit
//! that, the region is cleared at allocation, and [`Region::fallback`] says why.
//!
//! ```
//! use hugekit::pool::{Backing, Clearing, Pool};
//!
//! let pool = Pool::builder(4 << 20).backing(Backing::Base).clearing(Clearing::OnFault).build()?;
//! pool.region(4 << 20)?.fill(7); // dropped dirty
//! let sparse = pool.region(4 << 20)?;
//! assert_eq!(sparse[0x1234], 0); // cleared at the latest by this access
//! # Ok::<(), hugekit::PoolError>(())
//! ```
//!
//! **Fork** and **snapshot**: a fork is the same bytes again, of which a granule is copied when one
//! side writes it; a snapshot is one that is only read. Both need userfaultfd(2), and a refusal
//! names the remedy.
//!
//! ```
//! use hugekit::pool::{Backing, Pool};
//!
//! let pool = Pool::builder(8 << 20).backing(Backing::Base).build()?;
//! let mut parent = pool.region(1 << 20)?;
//! match parent.fork() {
//!     Ok(mut child) => {
//!         (parent[5], child[5]) = (1, 2);
//!         let moment = child.snapshot()?;
//!         child[5] = 3;
//!         let mut dump = Vec::new();
//!         moment.write_to(&mut dump)?;
//!         assert_eq!((parent[5], child[5], dump[5]), (1, 3, 2));
//!     }
//!     Err(refused) => println!("{refused:?}"), // the message, and the remedy
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Profile**: which routine clears or copies how much, as data. One is built in for each kind of
//! CPU, and corrected by what operations [learn](learning) from their own work; [`Profile::install`]
//! takes another one, which is gone by as it is. With the feature `profile-file`,
//! `Profile::load()?.install()?` takes what `hugekit tune` measured.
//!
//! ```
//! use hugekit::Profile;
//!
//! let mut profile = Profile::builtin_here();
//! profile.thread_cap = 2; // this program shares its machine
//! profile.install()?;
//! println!("1 MiB by {}", Profile::current().clear.warm.routine_for(1 << 20).name());
//! # Ok::<(), hugekit::profile::AlreadyInstalled>(())
//! ```
//!
//! # Files and calls
//!
//! The library writes no file but what [`Snapshot::write_to`] is given, prints nothing, reads no
//! environment variable and no file of the user's unless the program calls `Profile::load`. With the
//! feature `tracing` it reports as events what it works around. Of the machine it reads:
//!
//! - at the first clear or copy of 4 KiB or more: CPUID, in a virtual machine the allowed CPUs; on
//!   other architectures `/sys/devices/system/cpu` (caches), once. The first of 256 KiB or more, or
//!   of 16 KiB that need not be in the cache, maps 16 KiB for what is learned;
//! - at the first job on several threads: nodes in `/sys/devices/system/node`, allowed CPUs and
//!   quotas in `/proc/self` and `/sys/fs/cgroup`;
//! - when a pool, a region or a [`snapshot::Reserve`] is made: what is free, by `/proc/meminfo`,
//!   the huge pages of `/sys`, and the limits of control groups;
//! - when a snapshot or a fork is made: the process's mappings, threads and limits in `/proc`; and,
//!   where userfaultfd(2) is refused, what refuses it.
//!
//! # Signals
//!
//! - **Calls.** [`Cancel::cancel`] may be called by a signal handler. No other function promises
//!   that: the rest may allocate or lock.
//! - **Memory.** A handler may read and write memory of regions, forks and snapshots, whatever it
//!   interrupts. The exceptions are handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP and SIGSYS
//!   that run while their thread makes a snapshot: they may not write what it snapshots.
//! - **Handlers of the library's.** The first region, fork or snapshot that is served *in place*
//!   ([`fault::FaultMode`]) takes SIGBUS; on x86-64 the first fork or snapshot of any kind takes
//!   SIGBUS and SIGSEGV. They are kept. What is not hugekit's goes once to the handler that was
//!   there before, so that a program installs its own ones first.
//! - **Masks.** No thread may block SIGBUS while it touches memory that is served in place: the
//!   kernel ends the process. Threads of the library block all signals but those of instructions.
//!
//! # Limits
//!
//! Linux only; x86-64 is measured, aarch64 tested under emulation, other architectures use libc's
//! routines. Without huge pages, reserved or permitted, a pool works on base pages. Snapshots of
//! memory that no pool has need Linux 5.14, forks of regions 5.19; `docs/kernels.md` lists what takes
//! the place of newer features. A child of `fork(2)` has none of a pool's memory: calls
//! are refused there, and an access ends in SIGSEGV. `docs/reliability.md` lists what is promised,
//! with the test that holds it, and what is not.
//!
//! # Features
//!
//! None is on unless asked for. `profile-file`: stored profiles, by serde and toml.
//! `fault-injection`: for this library's own tests.
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "hugekit runs on Linux only: it is built on memfd_create(2), userfaultfd(2) and Linux's huge pages"
);

pub mod arch;
mod backing;
mod clear;
mod copy;
mod cow;
mod cpu_set;
mod engine;
mod error_kind;
mod events;
pub mod fault;
mod huge_page;
pub mod learning;
pub mod lease;
pub mod machine;
pub mod parallel;
pub mod pool;
mod populate;
pub mod profile;
pub mod region;
mod remedy;
mod size;
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

pub use clear::{ClearError, ClearOptions, clear};
pub use copy::{CopyError, CopyOptions, copy};
pub use engine::{HintError, Method, Operation, Reuse};
pub use error_kind::{ErrorKind, system_error};
pub use huge_page::HUGE_PAGE_BYTES;
pub use parallel::{Cancel, Threads};
pub use pool::{Pool, PoolError};
pub use populate::{PopulateError, PopulateOptions};
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
