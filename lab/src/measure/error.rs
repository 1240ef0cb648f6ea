//! Reasons to end a run early.

use std::io;

use hugekit_machine::size::Size;

use crate::measure::observer::Interrupted;

/// The reason why a run could not continue. The settings were restored before this error is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what the message prints, and the system's error")]
pub enum LabError {
    /// More memory was asked for than there is; nothing was mapped.
    #[error("not enough memory: {asked} requested, {available} available")]
    TooLittleMemory { asked: Size, available: Size },
    /// Less memory was asked for than the smallest experiment needs.
    #[error("not enough memory to measure on: {asked}, at least {least} needed")]
    MemoryTooSmall { asked: Size, least: Size },
    /// The files that describe the machine could not be read.
    #[error(transparent)]
    Machine(#[from] hugekit_machine::Error),
    /// The kernel refused to map or populate memory.
    #[error("cannot map {len} to measure on")]
    Map { len: Size, source: io::Error },
    /// `perf bench` was not run, or did not say what it measured.
    #[error("perf bench did not measure")]
    Perf(#[source] io::Error),
    /// The kernel refused to copy this process.
    #[error("cannot fork a process that has {len} of memory to share")]
    Fork { len: Size, source: io::Error },
    /// The kernel gave too few folios of a size, after it had given them before.
    #[error("the kernel gives too few folios of {0} any more")]
    Folios(Size),
    /// A setting of the machine could not be read, changed or put back.
    #[error("cannot {verb} {path}")]
    Setting { verb: &'static str, path: String, source: io::Error },
    /// The kernel, or a filter of system calls, refused to take memory back.
    #[error("cannot give {len} back to the kernel")]
    GiveBack { len: Size, source: io::Error },
    /// Some of this many writers were not ready in time.
    #[error("only some of {0} writers started in time")]
    Writers(usize),
    /// No further thread could be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// This user may not change the machine's settings.
    #[error("only root can change settings of the machine: cannot write to {path}")]
    NotRoot { path: String, source: io::Error },
    /// Another lab may change the machine's settings now, and did not end in time.
    #[error("{holder} has the machine's settings and did not end within {waited} s")]
    Busy { holder: String, waited: u64 },
    /// An experiment panicked.
    #[error("a mistake in hugekit: {0}")]
    Panicked(String),
    /// The kernel did not say which CPUs this process may use.
    #[error("cannot find out which CPUs may be used")]
    Cpus(#[source] io::Error),
    /// A pool to measure could not be made, or could not allocate memory.
    #[error(transparent)]
    Pool(#[from] hugekit::PoolError),
    /// A region to measure could not be prefaulted.
    #[error(transparent)]
    Region(#[from] hugekit::RegionError),
    /// A region to measure could not be forked.
    #[error(transparent)]
    RegionFork(#[from] hugekit::region::ForkError),
    /// Memory to measure could not be snapshotted, or not be saved.
    #[error(transparent)]
    Snapshot(#[from] hugekit::SnapshotError),
    /// A broker did not start, or did not do what it was started for.
    #[error("the broker of this run did not serve")]
    Broker(#[source] io::Error),
    /// The broker gave no lease.
    #[error(transparent)]
    Lease(#[from] hugekit_lease::LeaseError),
    /// QEMU did not start, or its guest did not run.
    #[error("QEMU did not run its guest")]
    Emulator(#[source] io::Error),
    /// A process to measure could not be tended.
    #[error(transparent)]
    Tend(#[from] hugekit_tend::TendError),
    /// A program to measure could not be started, has ended, or does not answer.
    #[error("{name} does not do what is asked")]
    Program { name: &'static str, source: io::Error },
    /// The writes to measured memory could not be saved.
    #[error("a state could not be saved")]
    Saved(#[source] io::Error),
    /// A state to measure could not be saved as a delta.
    #[error(transparent)]
    Delta(#[from] hugekit_delta::DeltaError),
    /// The kernel does not note writes by itself.
    #[error("the kernel notes no writes (userfaultfd with WP_ASYNC, Linux 6.7)")]
    Notes(#[source] io::Error),
    /// An image to restore from could not be loaded.
    #[error(transparent)]
    Image(#[from] hugekit::image::ImageError),
    /// A pager to restore by did not start.
    #[error(transparent)]
    Pager(#[from] hugekit_vm::pager::PagerError),
    /// A running VM could not be saved.
    #[error(transparent)]
    Checkpoint(#[from] hugekit_vm::checkpoint::CheckpointError),
    /// A running VM could not be forked.
    #[error(transparent)]
    VmFork(#[from] hugekit_vm::checkpoint::ForkError),
    /// The observer stopped the run.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl LabError {
    pub fn notes(errno: rustix::io::Errno) -> Self {
        Self::Notes(errno.into())
    }
}
