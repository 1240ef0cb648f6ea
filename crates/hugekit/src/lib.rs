//! Zeroed huge pages in microseconds, and forks and snapshots of live memory without stopping its
//! owner: a huge-page memory engine for user space on Linux. It also clears and copies any memory
//! close to what the hardware allows, by the routine that is fastest for that length on that CPU.
//!
//! ```toml
//! [dependencies]
//! hugekit = "0.1"
//! ```
//!
//! | you want | use |
//! | --- | --- |
//! | zero or copy bytes that the program has | [`clear()`], [`copy()`] |
//! | the same, knowing who uses the bytes next, or on several threads | [`ClearOptions`], [`CopyOptions`] |
//! | pages there before the first access | [`PopulateOptions`] for any memory, [`Region::populate`] |
//! | zeroed memory at once, again and again | [`Pool`] and [`Region`] |
//! | memory that guests, devices or racing threads write | [`SharedRegion`] |
//! | memory that forked children keep | [`PoolBuilder::build_inherited`](pool::PoolBuilder::build_inherited) |
//! | the same bytes twice, each side writing its own | [`Region::fork`] |
//! | a dump of a moment, while writers go on | [`Snapshot`] |
//! | what has changed since the last one | [`first_epoch`](snapshot::Builder::first_epoch), [`since`](snapshot::Builder::since) |
//! | a system call that writes what is forked or snapshotted | `prepare_write` of the [region](Region::prepare_write) or the [snapshot](Snapshot::prepare_write) |
//! | memory that another process has populated | [`lease`] |
//! | work of the program's own on each node's bytes | [`parallel::Job`] |
//! | what the machine has, what an error means for the program | [`machine`], [`ErrorKind`] |
//!
//! # Clear and copy
//!
//! Any memory will do. Short lengths are `memset` and `memcpy`; where streaming past the cache is
//! faster, and the bytes are not used next, that is what happens.
//!
//! ```
//! use hugekit::{ClearOptions, CopyOptions, Reuse, clear};
//!
//! let mut state = vec![0xff_u8; 4 << 20];
//! clear(&mut state); // by length
//!
//! let mut checkpoint = vec![0_u8; 4 << 20]; // that no thread reads soon
//! CopyOptions::new().reuse(Reuse::None).run(&mut checkpoint, &state)?;
//!
//! // A fault at this offset: its neighbourhood is cleared last, and stays in the cache.
//! ClearOptions::new().target(0x1234).reuse(Reuse::Target).run(&mut state[..2 << 20])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Pools, regions and forks
//!
//! A pool is a file of memory, on huge pages where there are any; a region is a part of it with one
//! owner, zeroed and committed when the owner gets it. What a dropped region leaves is cleared in
//! the background. A fork is the same bytes again, of which a granule is copied when one side
//! writes it; it needs userfaultfd(2), and a refusal names the remedy.
//!
//! ```
//! use hugekit::Pool;
//!
//! let pool = Pool::builder(8 << 20).build()?; // takes what the machine has, and says what and why
//! println!("{}", pool.backing());
//! let mut parent = pool.region(2 << 20)?; // a slice of zeroes
//! parent[0x1234] = 1;
//! match parent.fork() {
//!     Ok(mut child) => {
//!         child[0x1234] = 2;
//!         assert_eq!(parent[0x1234], 1);
//!     }
//!     Err(refused) => println!("{refused:?}"), // the message, and the remedy
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Snapshots
//!
//! A snapshot is a moment of memory that the program has already. Its writers go on: what one of
//! them meets first is copied aside, 2 MiB or 64 KiB at a time, until that was read.
//!
//! ```
//! use hugekit::Snapshot;
//!
//! let mut state = vec![7_u8; 4 << 20];
//! // SAFETY: no thread blocks SIGBUS, and no system call writes to `state` meanwhile.
//! match unsafe { Snapshot::of_anonymous(&raw const state[..]) } {
//!     Ok(moment) => {
//!         state[0x1234] = 8;
//!         let mut dump = Vec::new();
//!         moment.write_to(&mut dump)?; // a file, a socket
//!         assert_eq!(dump[0x1234], 7);
//!     }
//!     Err(refused) => println!("{refused:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # More to know
//!
//! - **Folio**: what is processed as a whole, a page of the pool's backing; [`HUGE_PAGE_BYTES`] on
//!   huge pages.
//! - **Lazy clearing** ([`pool::Clearing::OnFault`]): what is dirty is allocated as it is, and each
//!   folio cleared when it is touched first, by userfaultfd(2). Where the kernel does not permit
//!   that, the region is cleared at allocation, and [`Region::fallback`] says why.
//! - **Profile**: which routine clears or copies how much, as data. One is built in for each kind of
//!   CPU, and corrected by what operations [learn](learning) from their own work;
//!   [`Profile::install`] takes another one, which is gone by as it is.
//! - **Guest memory**: a [`SharedRegion`] is a mapping that `vm-memory`'s `GuestMemoryMmap` takes as it
//!   is (`examples/vm_memory.rs`), and `examples/guest_memory.rs` runs a guest of KVM on one.
//!
//! # Without huge pages
//!
//! Everything works, and less of it is fast. A pool asks for reserved huge pages first, then for
//! transparent ones, then for base pages; [`Pool::backing_report`] says what it took, and why not
//! what stands above. [`strict`](pool::PoolBuilder::strict) has it fail instead. Clears, copies and
//! snapshots take memory on whichever pages it is. `hugekit doctor`, the command of this project,
//! says what a machine lacks and how to get it.
//!
//! # Platforms and compilers
//!
//! Linux only. x86-64 is measured and tested, aarch64 tested under emulation; on other architectures
//! clears and copies are libc's, and the rest is not tested. Rust 1.85 builds it, which a test of
//! this project does; so does a later one. Kernels: [kernels.md] lists what each part needs, 5.14
//! for snapshots, 5.19 for forks, and what takes its place.
//!
//! # Features
//!
//! None is on unless asked for; a default build has libc, rustix, raw-cpuid and thiserror.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `tracing` | events of the crate tracing: what the library works around, and what pools are made of. |
//! | `fault-injection` | for this library's own tests: never in a program. |
//!
//! # Guides
//!
//! [Design], [words], [virtual machine monitors][vmm], [databases and snapshots][snapshots],
//! [what is promised, and the test that holds it][reliability], [what was measured][machines].
//!
//! [Design]: https://github.com/hugekit/hugekit/blob/main/docs/design.md
//! [words]: https://github.com/hugekit/hugekit/blob/main/docs/glossary.md
//! [vmm]: https://github.com/hugekit/hugekit/blob/main/docs/vmm.md
//! [snapshots]: https://github.com/hugekit/hugekit/blob/main/docs/snapshot.md
//! [reliability]: https://github.com/hugekit/hugekit/blob/main/docs/reliability.md
//! [machines]: https://github.com/hugekit/hugekit/blob/main/docs/machines.md
//! [kernels.md]: https://github.com/hugekit/hugekit/blob/main/docs/kernels.md
//!
//! # Files and calls
//!
//! The library writes no file but what [`Snapshot::write_to`] is given, prints nothing, reads no
//! environment variable and no file of the user's. With the feature `tracing` it reports as events
//! what it works around. Of the machine it reads:
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
//! A child of `fork(2)` has none of a pool's memory: calls are refused there, and an access ends in
//! SIGSEGV; [`pool::InheritedMemory`] is what it keeps. Bytes that stream past the cache are not
//! there for the next reader: `Reuse` is a promise of the caller's, and a wrong one costs time, never
//! data. The guide on reliability lists what is promised, and what is not.
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub use hugekit_bulk::parallel::{Done, JobError, Progress, Report};
pub use hugekit_bulk::{
    Cancel, ClearError, ClearOptions, CopyError, CopyOptions, HintError, Method, Operation,
    PopulateError, PopulateOptions, Profile, Reuse, Threads, clear, copy,
};
pub use hugekit_regions::{Pool, PoolError, Region, RegionError, SharedRegion};
pub use hugekit_snapshots::{Snapshot, SnapshotError};
pub use hugekit_sys::{ErrorKind, HUGE_PAGE_BYTES, HeapShortage, system_error};

/// Pools of clean memory.
pub mod pool {
    pub use hugekit_regions::pool::{
        Backing, BackingReport, Clearing, Fallback, FaultError, InheritedMemory, NodePolicy, Pool,
        PoolBuilder, PoolError, Stats,
    };
}

/// How page faults of regions, forks and snapshots are served.
pub mod fault {
    pub use hugekit_regions::fault::{FaultMode, MOST_THREADS, Serving, take_back_signals};
}

/// Regions of a pool, and their forks.
pub mod region {
    pub use hugekit_regions::region::{
        ForkBuilder, ForkError, PinnedRange, Region, RegionBuilder, RegionError, SharedRegion,
    };
}

/// Points in time of memory, and what has changed since.
pub mod snapshot {
    pub use hugekit_snapshots::{
        Builder, Changes, Collapsed, Epoch, Granule, Holder, Reserve, Snapshot, SnapshotError,
        SnapshotReader, Stats, Unsuitable, View, collapse,
    };
}

/// Runs the README's programs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs those of the crate's own README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;

/// Runs the programs of the guide as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;

/// Runs the program of the page about snapshots as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/snapshot.md")]
struct SnapshotPage;
