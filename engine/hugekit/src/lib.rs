//! Huge-page memory for Linux programs that use gigabytes of memory.
//!
//! hugekit allocates zeroed memory from pools, forks memory regions inside a process, and takes
//! consistent snapshots of live memory without `fork(2)`. It also clears, copies and populates any
//! memory. For each clear and copy, it chooses the routine that is fastest for the length on this
//! CPU.
//!
//! ```toml
//! [dependencies]
//! hugekit = { path = "../hugekit/engine/hugekit" } # 0.1 is not released: the interface may change
//! ```
//!
//! | you want to | use |
//! | --- | --- |
//! | clear or copy bytes on one thread | [`clear()`], [`copy()`] |
//! | clear or copy with hints about the next use, or on several threads | [`ClearOptions`], [`CopyOptions`] |
//! | populate pages before the first access | [`PopulateOptions`] for any memory, [`Region::populate`] |
//! | get zeroed memory many times | [`Pool`] and [`Region`] |
//! | share memory with guests, devices or racing threads | [`SharedRegion`] |
//! | keep memory in forked children | [`PoolBuilder::build_inherited`](pool::PoolBuilder::build_inherited) |
//! | get a second copy of the same bytes, and change the copies separately | [`Region::fork`] |
//! | save the present state of memory while threads write to the memory | [`Snapshot`] |
//! | save only the changes since the last snapshot | [`first_epoch`](snapshot::Builder::first_epoch), [`since`](snapshot::Builder::since), [`Changes`](snapshot::Changes) |
//! | let a system call write to forked or snapshotted memory | `prepare_write` of the [region](Region::prepare_write) or the [snapshot](Snapshot::prepare_write) |
//! | load memory once, and map it privately in several processes | [`image::Image`] |
//! | use memory that another process populated | [`PoolBuilder::broker`](pool::PoolBuilder::broker) |
//! | map a file by huge pages, without a copy | `warm()` of the crate `hugekit-warm` |
//! | run your own function on each NUMA node's bytes | `parallel::Job` of the crate `hugekit-bulk` |
//! | decide how the program continues after an error | [`ErrorKind`] |
//!
//! # Clear and copy
//!
//! Short lengths use `memset` and `memcpy`. Longer lengths stream past the cache if streaming is
//! faster.
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
//! A [`Pool`] owns memory on huge pages, or on base pages if there are no huge pages. A [`Region`]
//! is a part of a pool: zeroed, committed, with one owner. A dropped region is cleared in the
//! background. A fork has the same bytes as its region. When the region or the fork is written, the
//! granule that contains the byte is copied first. The region and its forks are in the same
//! process. Forks need userfaultfd(2).
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
//! A snapshot write-protects memory and returns. This takes 0.4 to 2 ms per GiB on huge pages. On
//! base pages, it takes 12 to 27 ms per GiB of anonymous memory, and up to 67 ms per GiB of a
//! region ([benchmarks.md]). After that, the first write to each granule (2 MiB, or 64 KiB on base
//! pages) copies the granule before the write changes it. By default all of the memory may be
//! copied. If less memory is available, the snapshot fails when writers change granules faster than
//! the reader reads them.
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
//! This crate only re-exports. The engine is in the crates `hugekit-sys`, `hugekit-machine`,
//! `hugekit-bulk`, `hugekit-lease`, `hugekit-image`, `hugekit-regions` and `hugekit-snapshots`. The
//! interfaces of these crates may change in any release. A program that only clears and copies can
//! depend on `hugekit-bulk`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`pool`], [`region`] | pools, regions, forks and their builders |
//! | [`image`] | sealed memory that many processes map privately |
//! | [`fault`] | modes of fault handling: in place or by threads |
//! | [`snapshot`] | snapshots, epochs, reserves |
//!
//! The crate `hugekit-bulk` contains jobs on several threads, profiles and routines. The crate
//! `hugekit-lease` contains leases and the protocol of brokers.
//!
//! # Terms
//!
//! - **Folio**: bytes that are populated, mapped and cleared as a whole. A folio is a page of the
//!   pool's backing: [`HUGE_PAGE_BYTES`] on huge pages.
//! - **Granule**: bytes that a fork or a snapshot copies as a whole: 2 MiB, or 64 KiB on base
//!   pages.
//! - **Lazy clearing** ([`pool::Clearing::OnFault`]): each folio is cleared at the first access to
//!   it. If the kernel does not permit this, the region is cleared at allocation, and
//!   [`Region::fallback`] returns the reason.
//! - **Profile**: a table with the routine for each length. By default the process uses a built-in
//!   profile, and corrects it by timings of its own operations. [`Profile::install`] sets a fixed
//!   profile.
//!
//! # Errors
//!
//! The `Display` of an error contains its message and its remedy, but not its source. Print the
//! sources as well, as the crate anyhow does. Errors of pools, forks, faults, images, snapshots and
//! leases have a method `remedy()`, which returns a step for an administrator or for the program.
//! To print the remedy separately, print the error by [`error_chain`]: its `{}` contains all
//! sources and no remedy. `kind()` returns the [`ErrorKind`].
//!
//! # Without huge pages
//!
//! All functions work, but more slowly. A pool tries reserved huge pages, then transparent huge
//! pages, then base pages. [`Pool::backing_report`] returns the backing that the pool uses, and the
//! reasons. With [`strict`](pool::PoolBuilder::strict), the build of the pool fails instead. The
//! command `hugekit doctor` prints the settings that a machine lacks, and how to enable them.
//!
//! # Platforms and compilers
//!
//! hugekit runs only on Linux, and needs Rust 1.85. x86-64 is measured and tested. aarch64 is
//! tested under emulation. On other architectures clears and copies use libc, and the rest is
//! untested. [kernels.md] lists the kernel that each part needs: 5.14 for pools and snapshots, 5.19
//! for forks.
//!
//! # Features
//!
//! A default build depends on libc, rustix, thiserror and, on x86-64, raw-cpuid.
//!
//! | feature | adds |
//! | --- | --- |
//! | `tracing` | `tracing` events: the backing of a pool, worked-around kernel limits |
//!
//! # Files and calls
//!
//! The library writes only to the writer that the program passes to [`Snapshot::write_to`]. It
//! prints nothing, and reads no environment variable and no file of the user. It reads these facts
//! about the machine:
//!
//! - At the first clear or copy of 4 KiB or more: CPUID, and in a virtual machine the allowed CPUs.
//!   On other architectures than x86-64: the caches in `/sys/devices/system/cpu`. The first clear
//!   or copy of 256 KiB or more maps 16 KiB for timings. If the bytes need not be in the cache, 16
//!   KiB are enough for this.
//! - At the first job on several threads: nodes in `/sys/devices/system/node`, allowed CPUs and
//!   quotas in `/proc/self` and `/sys/fs/cgroup`.
//! - When a pool, a region or a [`snapshot::Reserve`] is made: free memory in `/proc/meminfo`, huge
//!   pages in `/sys`, and the limits of control groups.
//! - When a snapshot or a fork is made: the process's mappings, threads and limits in `/proc`. If
//!   userfaultfd(2) is refused: the reason.
//!
//! # Signals
//!
//! - **Calls.** A signal handler may call [`Cancel::cancel`]. Other functions may allocate memory
//!   or lock a mutex.
//! - **Memory.** A handler may read and write memory of regions, forks and snapshots, whichever
//!   code the signal interrupts. There is one exception. Handlers of SIGSEGV, SIGBUS, SIGFPE,
//!   SIGILL, SIGTRAP and SIGSYS must not write to that memory if they run while their thread makes
//!   a snapshot.
//! - **The library's handlers.** The first region whose faults are handled *in place*
//!   ([`fault::FaultMode`]) installs a handler of SIGBUS. On x86-64 and aarch64, the first fork or
//!   snapshot installs handlers of SIGBUS and SIGSEGV. These handlers are process-wide and
//!   permanent. They pass other faults to the handler that was installed before, so install your
//!   own handlers first.
//! - **Masks.** No thread may block SIGBUS while it accesses memory whose faults are handled in
//!   place: the kernel would end the process. The library's own threads block all signals except
//!   synchronous signals.
//!
//! # Limits
//!
//! - A child of `fork(2)` does not inherit pool memory. In the child, calls are refused, and an
//!   access to the memory ends in SIGSEGV. Only [`pool::InheritedMemory`] is inherited.
//! - If faults are handled in place, a system call that writes to lazily cleared, forked or
//!   snapshotted memory fails with EFAULT unless the program called `prepare_write` before.
//! - Streamed bytes are not in the cache for the next reader. A wrong [`Reuse`] costs time, but
//!   never changes data.
//!
//! [limits.md] lists all limits. [reliability.md] lists the promises and their tests. Guides:
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

/// Pools of zeroed memory.
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
