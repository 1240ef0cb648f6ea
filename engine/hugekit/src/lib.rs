//! Memory measured in gigabytes for Linux programs.
//!
//! hugekit hands out memory that is already zeroed, forks a memory region inside a process, and
//! takes consistent snapshots of live memory without `fork(2)`. It also clears, copies and
//! populates any memory, by the routine that is fastest for this length on this CPU.
//!
//! ```toml
//! [dependencies]
//! hugekit = { path = "../hugekit/engine/hugekit" } # 0.1 is not released: the interface may change
//! ```
//!
//! | you want to | use |
//! | --- | --- |
//! | clear or copy bytes | [`clear()`], [`copy()`] |
//! | the same, if you know who uses the bytes next, or on several threads | [`ClearOptions`], [`CopyOptions`] |
//! | populate pages before the first access | [`PopulateOptions`] for any memory, [`Region::populate`] |
//! | get zeroed memory many times | [`Pool`] and [`Region`] |
//! | share memory with guests, devices or racing threads | [`SharedRegion`] |
//! | keep memory in forked children | [`PoolBuilder::build_inherited`](pool::PoolBuilder::build_inherited) |
//! | have the same bytes twice, and change each copy separately | [`Region::fork`] |
//! | save memory as it is now while threads write to it | [`Snapshot`] |
//! | save only the changes since the last snapshot | [`first_epoch`](snapshot::Builder::first_epoch), [`since`](snapshot::Builder::since), [`Changes`](snapshot::Changes) |
//! | let a system call write to forked or snapshotted memory | `prepare_write` of the [region](Region::prepare_write) or the [snapshot](Snapshot::prepare_write) |
//! | share memory that is loaded once among processes, each writing its own | [`image::Image`] |
//! | use memory that another process populated | [`PoolBuilder::broker`](pool::PoolBuilder::broker) |
//! | map a file by huge pages, without a copy | `warm()` of the crate `hugekit-warm` |
//! | run your own work on each node's bytes | `parallel::Job` of the crate `hugekit-bulk` |
//! | know what an error means for the program | [`ErrorKind`] |
//!
//! # Clear and copy
//!
//! Short lengths use `memset` and `memcpy`. Longer ones stream past the cache if that is faster.
//!
//! ```
//! use hugekit::{ClearOptions, CopyOptions, Reuse, clear};
//!
//! let mut state = vec![0xff_u8; 4 << 20];
//! clear(&mut state);
//!
//! let mut checkpoint = vec![0_u8; 4 << 20]; // no thread reads it soon
//! CopyOptions::new().reuse(Reuse::None).run(&mut checkpoint, &state)?;
//!
//! // The bytes around this offset are used next: they are cleared last and stay in the cache.
//! ClearOptions::new().target(0x1234).reuse(Reuse::Target).run(&mut state[..2 << 20])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Pools, regions and forks
//!
//! A pool is memory on huge pages, if there are any. A region is a part of it with one owner,
//! zeroed and committed. A dropped region is cleared in the background. A fork has the same bytes
//! as its region and copies a granule when one side writes to it. Both live in the same process.
//! Forks need userfaultfd(2).
//!
//! ```
//! use hugekit::Pool;
//!
//! let pool = Pool::builder(8 << 20).build()?; // uses the best backing that the machine has
//! println!("{}", pool.backing());
//! let mut parent = pool.region(2 << 20)?; // a slice of zeroes
//! parent[0x1234] = 1;
//! match parent.fork() {
//!     Ok(mut child) => {
//!         child[0x1234] = 2;
//!         assert_eq!(parent[0x1234], 1);
//!     }
//!     Err(refused) => println!("{:#}", hugekit::error_chain(&refused)), // with the remedy
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Snapshots
//!
//! A snapshot write-protects memory and returns. This takes 0.4 to 2 ms per GiB on huge pages, and
//! 12 to 27 ms per GiB on base pages. After that, the first write to each granule (2 MiB, or 64 KiB
//! on base pages) copies the granule before changing it. By default all of the memory may be
//! copied. If less memory is available, writers that outrun the reader make the snapshot fail.
//!
//! ```
//! use hugekit::Snapshot;
//!
//! let mut state = vec![7_u8; 4 << 20];
//! // SAFETY: until the snapshot is dropped,
//! // - no thread that writes to `state` blocks SIGBUS, and no handler keeps hugekit's faults;
//! // - no stack, signal stack or thread-local variable lies in `state`;
//! // - no system call writes to `state`;
//! // - no other userfaultfd and no CRIU handles its faults.
//! match unsafe { Snapshot::of_anonymous(&raw const state[..]) } {
//!     Ok(snapshot) => {
//!         state[0x1234] = 8;
//!         let mut dump = Vec::new();
//!         snapshot.write_to(&mut dump)?; // a file, a socket
//!         assert_eq!(dump[0x1234], 7);
//!     }
//!     Err(refused) => println!("{:#}", hugekit::error_chain(&refused)), // with the remedy
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Snapshot::of_region`] needs no `unsafe`.
//!
//! # Modules and crates
//!
//! This crate only re-exports. The engine is in `hugekit-sys`, `hugekit-machine`, `hugekit-bulk`,
//! `hugekit-lease`, `hugekit-image`, `hugekit-regions` and `hugekit-snapshots`. Their own interfaces may change in
//! any release. A program that only clears and copies can depend on `hugekit-bulk`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`pool`], [`region`] | pools, regions, forks and their builders |
//! | [`image`] | sealed memory that many processes map privately |
//! | [`fault`] | how faults are handled: in place or by threads |
//! | [`snapshot`] | snapshots, epochs, reserves |
//!
//! The crate `hugekit-bulk` has jobs on several threads, profiles and routines. The crate
//! `hugekit-lease` has leases and the protocol of brokers.
//!
//! # Terms
//!
//! - **Folio**: bytes that are populated, mapped and cleared as a whole: a page of the pool's
//!   backing, [`HUGE_PAGE_BYTES`] on huge pages.
//! - **Granule**: bytes that a fork or a snapshot copies as a whole: 2 MiB, or 64 KiB on base
//!   pages.
//! - **Lazy clearing** ([`pool::Clearing::OnFault`]): each folio is cleared at its first touch. If
//!   the kernel does not permit this, the region is cleared at allocation, and [`Region::fallback`]
//!   has the reason.
//! - **Profile**: data that names the routine for each length. A built-in one is corrected by
//!   timings of the program's own operations. [`Profile::install`] sets a fixed one.
//!
//! # Errors
//!
//! The `Display` of an error is its message and its remedy, without its source: print the sources
//! as well, as the crate anyhow does. Errors of pools, forks, faults, images, snapshots and leases
//! have a method `remedy()`, which names what an administrator or the program can do. To print the
//! remedy separately, print the error by [`error_chain`]: its `{}` contains all sources and no
//! remedy. `kind()` is the [`ErrorKind`].
//!
//! # Without huge pages
//!
//! Everything works, more slowly. A pool tries reserved huge pages, then transparent ones, then
//! base pages. [`Pool::backing_report`] names the one it uses and the reasons.
//! [`strict`](pool::PoolBuilder::strict) makes it fail instead. The command `hugekit doctor` prints
//! what a machine lacks and how to enable it.
//!
//! # Platforms and compilers
//!
//! Linux only, Rust 1.85. x86-64 is measured and tested, aarch64 is tested under emulation. On
//! other architectures clears and copies are libc's, and the rest is untested. [kernels.md] lists
//! what each part needs: 5.14 for pools and snapshots, 5.19 for forks.
//!
//! # Features
//!
//! A default build depends on libc, rustix, thiserror and, on x86-64, raw-cpuid.
//!
//! | feature | adds |
//! | --- | --- |
//! | `tracing` | `tracing` events: the backing of pools, and kernel limits that are worked around |
//!
//! # Files and calls
//!
//! The library writes only to the writer that [`Snapshot::write_to`] is given. It prints nothing
//! and reads no environment variable and no file of the user's. It reads of the machine:
//!
//! - at the first clear or copy of 4 KiB or more: CPUID, and in a virtual machine the allowed CPUs;
//!   on other architectures the caches in `/sys/devices/system/cpu`. The first of 256 KiB or more,
//!   or of 16 KiB that need not be in the cache, maps 16 KiB for timings;
//! - at the first job on several threads: nodes in `/sys/devices/system/node`, allowed CPUs and
//!   quotas in `/proc/self` and `/sys/fs/cgroup`;
//! - when a pool, a region or a [`snapshot::Reserve`] is made: free memory in `/proc/meminfo`, huge
//!   pages in `/sys`, and the limits of control groups;
//! - when a snapshot or a fork is made: the process's mappings, threads and limits in `/proc`; and,
//!   if userfaultfd(2) is refused, the reason.
//!
//! # Signals
//!
//! - **Calls.** A signal handler may call [`Cancel::cancel`]. Other functions may allocate or lock.
//! - **Memory.** A handler may read and write memory of regions, forks and snapshots, whatever it
//!   interrupts. There is one exception: handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP and
//!   SIGSYS that run while their thread makes a snapshot must not write to that memory.
//! - **The library's handlers.** The first region that is handled *in place* ([`fault::FaultMode`])
//!   installs a handler of SIGBUS. On x86-64 the first fork or snapshot installs handlers of SIGBUS
//!   and SIGSEGV. They are process-wide and stay. Other faults go to the handler that was there
//!   before, so install your own handlers first.
//! - **Masks.** No thread may block SIGBUS while it touches memory that is handled in place: the
//!   kernel would end the process. The library's own threads block all signals except synchronous
//!   ones.
//!
//! # Limits
//!
//! - A child of `fork(2)` does not inherit pool memory. Calls are refused there, and an access ends
//!   in SIGSEGV. [`pool::InheritedMemory`] is inherited.
//! - In place, a system call that writes to lazily cleared, forked or snapshotted memory fails with
//!   EFAULT unless `prepare_write` came first.
//! - Streamed bytes are not in the cache for the next reader. A wrong [`Reuse`] costs time, never
//!   data.
//!
//! [limits.md] lists all limits, [reliability.md] the promises and their tests. Guides:
//! [snapshots][snapshot.md], [Rust][rust.md], [concepts][concepts.md],
//! [measurements][benchmarks.md].
//!
//! [limits.md]: https://github.com/hugekit/hugekit/blob/main/docs/limits.md
//! [reliability.md]: https://github.com/hugekit/hugekit/blob/main/docs/reliability.md
//! [snapshot.md]: https://github.com/hugekit/hugekit/blob/main/docs/snapshot.md
//! [rust.md]: https://github.com/hugekit/hugekit/blob/main/docs/rust.md
//! [concepts.md]: https://github.com/hugekit/hugekit/blob/main/docs/concepts.md
//! [benchmarks.md]: https://github.com/hugekit/hugekit/blob/main/docs/benchmarks.md
//! [kernels.md]: https://github.com/hugekit/hugekit/blob/main/docs/kernels.md
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub use hugekit_bulk::parallel::{Done, JobError, Progress, Report};
pub use hugekit_bulk::{
    Cancel, ClearError, ClearOptions, CopyError, CopyOptions, HintError, Method, Operation,
    PopulateError, PopulateOptions, Profile, Reuse, Threads, clear, copy,
};
pub use hugekit_regions::{Pool, PoolError, Region, RegionError, SharedRegion};
pub use hugekit_snapshots::{Snapshot, SnapshotError};
#[doc(hidden)]
pub use hugekit_sys::error_chain;
pub use hugekit_sys::{ErrorKind, HUGE_PAGE_BYTES, HeapShortage, system_error};

/// Pools of clean memory.
pub mod pool {
    pub use hugekit_regions::pool::{
        Backing, BackingReport, Clearing, Fallback, FaultError, InheritedMemory, NodePolicy, Pool,
        PoolBuilder, PoolError, PoolStats,
    };
}

/// Sealed memory on huge pages that many processes map privately.
pub mod image {
    pub use hugekit_image::{Image, ImageBuilder, ImageError, ImageRange, Misfit, PrivateMapping};
}

/// The ways to handle page faults of regions, forks and snapshots.
pub mod fault {
    pub use hugekit_regions::fault::{FaultMode, Serving, take_back_signals};
}

/// Regions of a pool, and forks of regions.
pub mod region {
    pub use hugekit_regions::region::{
        ForkBuilder, ForkError, PinnedRange, Region, RegionBuilder, RegionError, SharedRegion,
    };
}

/// Snapshots of memory, and the changes since a snapshot.
pub mod snapshot {
    pub use hugekit_snapshots::{
        Builder, Changes, Collapsed, Epoch, Granule, Holder, Reserve, Snapshot, SnapshotError,
        SnapshotReader, SnapshotStats, Unsuitable, View, collapse,
    };
    #[doc(hidden)]
    pub use hugekit_snapshots::{KeptMemory, StagedMemory, Staging};
}

/// Runs the README's programs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the programs of this crate's README as tests.
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
