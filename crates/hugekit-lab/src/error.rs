//! Reasons to end a run early.

use crate::observer::Interrupted;
use crate::size::Size;

/// Why a run could not go on. Settings are back as they were when this is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// More memory was asked for than there is; nothing was mapped.
    #[error("{asked} of memory were asked for, {available} are available")]
    TooLittleMemory {
        /// The memory that was asked for.
        asked: Size,
        /// The memory that the machine, or the control group, would still give.
        available: Size,
    },
    /// Less memory was asked for than the smallest experiment needs.
    #[error("{asked} of memory are too few to measure on: at least {least} are needed")]
    MemoryTooSmall {
        /// The memory that was asked for.
        asked: Size,
        /// The least there must be.
        least: Size,
    },
    /// The files that describe the machine could not be read.
    #[error(transparent)]
    Machine(#[from] hugekit_machine::Error),
    /// The kernel refused to map or populate memory.
    #[error("cannot map {len} to measure on")]
    Map {
        /// The memory that was to be mapped.
        len: Size,
        /// The kernel's word.
        #[source]
        cause: std::io::Error,
    },
    /// `perf bench` was not run, or did not say what it measured.
    #[error("perf bench did not measure")]
    Perf(#[source] std::io::Error),
    /// The kernel refused to copy this process.
    #[error("cannot fork a process that has {len} of memory to share")]
    Fork {
        /// The memory that the child was to share.
        len: Size,
        /// The kernel's word.
        #[source]
        cause: std::io::Error,
    },
    /// A setting of the machine could not be read, changed or put back.
    #[error("cannot {verb} {path}")]
    Setting {
        /// `read`, `change`, `restore`, `write to` or `lock`.
        verb: &'static str,
        /// The file.
        path: String,
        /// The kernel's word.
        #[source]
        cause: std::io::Error,
    },
    /// The kernel, or a filter of system calls, refused to take memory back.
    #[error("cannot give {len} back to the kernel")]
    GiveBack {
        /// The memory that was to be given back.
        len: Size,
        /// The kernel's word.
        #[source]
        cause: std::io::Error,
    },
    /// Of so many writers, not all were ready in time.
    #[error("of {0} writers, not all were ready to begin in time")]
    Writers(usize),
    /// No further thread could be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// This user may not change the machine's settings.
    #[error("settings of the machine are changed by root only: cannot write to {path}")]
    NotRoot {
        /// Where it would be noted what is changed.
        path: String,
        /// The kernel's word.
        #[source]
        cause: std::io::Error,
    },
    /// Another lab may change the machine's settings now, and did not end while it was waited for.
    #[error("{holder} has the machine's settings; it was waited for, {waited} s")]
    Busy {
        /// The other lab, in words.
        holder: String,
        /// For how many seconds.
        waited: u64,
    },
    /// An experiment panicked: a mistake of hugekit's.
    #[error("a mistake in hugekit: {0}")]
    Panicked(String),
    /// The kernel did not say which CPUs this process may use.
    #[error("cannot find out which CPUs may be used")]
    Cpus(#[source] std::io::Error),
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
    Broker(#[source] std::io::Error),
    /// The broker gave no lease.
    #[error(transparent)]
    Lease(#[from] hugekit::lease::LeaseError),
    /// QEMU did not start, or its guest did not run.
    #[error("QEMU did not run its guest")]
    Emulator(#[source] std::io::Error),
    /// A process to measure could not be tended.
    #[error(transparent)]
    Tend(#[from] hugekit_tend::TendError),
    /// A program to measure could not be started, has ended, or does not answer.
    #[error("{name} does not do what is asked")]
    Program {
        /// Which.
        name: &'static str,
        /// What was seen.
        #[source]
        cause: std::io::Error,
    },
    /// What was written of memory to measure could not be saved.
    #[error("a state could not be saved")]
    Saved(#[source] std::io::Error),
    /// A state to measure could not be saved as a delta.
    #[error(transparent)]
    Delta(#[from] hugekit_delta::DeltaError),
    /// The kernel does not note writes by itself.
    #[error("the kernel notes no writes (userfaultfd with WP_ASYNC, Linux 6.7)")]
    Notes(#[source] std::io::Error),
    /// The observer stopped the run.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl LabError {
    pub(crate) fn notes(errno: rustix::io::Errno) -> Self {
        Self::Notes(errno.into())
    }
}
