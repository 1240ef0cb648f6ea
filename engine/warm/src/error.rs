//! Errors of checks and warm-ups of files, with figures.

use std::io;

use hugekit_machine::available::{Available, MemoryBudget};
use hugekit_machine::size::{Exact, Size};
use hugekit_sys::{ErrorKind, HeapShortage, Remedy};

/// An error of a check or a warm-up of a file. The page cache stays usable after every error. At
/// most one window of the file was dropped and not read again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WarmError {
    /// The file cannot be opened for reading, or is not a regular file.
    #[error("the file cannot be opened")]
    Open(#[source] io::Error),
    /// The file has no whole unit, which is an aligned 2 MiB.
    #[error("the file has {bytes} bytes, and a huge page has 2 MiB")]
    TooSmall {
        /// Bytes of the file.
        bytes: u64,
    },
    /// All units of the file are holes.
    #[error("the file has no data: {holes} holes of 2 MiB{}", Remedy(self.remedy()))]
    NoData {
        /// Units without data.
        holes: u64,
    },
    /// The kernel does not report to this user which pages of the file are in memory.
    #[error(
        "the kernel tells only the owner of the file, and who may write to it, which pages are in memory{}",
        Remedy(self.remedy())
    )]
    NotTold,
    /// The file is in hugetlbfs, where all pages are huge.
    #[error("the file is in hugetlbfs: all of its pages are huge")]
    Hugetlbfs,
    /// The kernel has no transparent huge pages of 2 MiB.
    #[error("this kernel has no transparent huge pages of 2 MiB")]
    NoHugePages,
    /// Huge pages are disabled for this process (`PR_SET_THP_DISABLE`).
    #[error(
        "huge pages are switched off for this process (PR_SET_THP_DISABLE){}",
        Remedy(self.remedy())
    )]
    Disabled,
    /// The machine or a control group has less available memory than the file needs.
    #[error(
        "{} of the file are to be in memory, and {left} MiB are left to others: {available}{remedy}",
        size(needed),
        left = MemoryBudget::RESERVE >> 20,
        remedy = Remedy(self.remedy())
    )]
    NoMemory {
        /// Bytes of the file that the call would put into memory.
        needed: u64,
        /// The available memory, and the limit.
        available: Available,
    },
    /// This process may not lock as much memory as the file needs.
    #[error(
        "{} of the file are to be locked, and this process may lock {}{}",
        size(needed),
        size(limit),
        Remedy(self.remedy())
    )]
    LockLimit {
        /// Bytes of the file that the call would lock.
        needed: u64,
        /// The limit (`RLIMIT_MEMLOCK`) in bytes.
        limit: u64,
    },
    /// The file became shorter.
    #[error("the file was truncated meanwhile: it had {had} bytes, and has {has}{}", Remedy(self.remedy()))]
    Truncated {
        /// Bytes of the file when the call began.
        had: u64,
        /// Bytes of the file now.
        has: u64,
    },
    /// The path now names another file, or no file.
    #[error("the file was replaced or removed meanwhile{}", Remedy(self.remedy()))]
    Replaced,
    /// The file cannot be read.
    #[error("the file cannot be read at byte {at}")]
    Read {
        /// The offset in bytes.
        at: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// The call was cancelled.
    #[error("cancelled: {huge} of {units} units are huge")]
    Cancelled {
        /// Units that are huge.
        huge: u64,
        /// Units of the file.
        units: u64,
    },
    /// The heap has no room for the call.
    #[error(transparent)]
    Heap(#[from] HeapShortage),
    /// The kernel refused another system call.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

fn size(bytes: &u64) -> Exact {
    Size(usize::try_from(*bytes).unwrap_or(usize::MAX)).exact()
}

impl WarmError {
    /// Returns a step by which a user or the program can prevent this error; `None` if no step is
    /// known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::NoData { .. } => "fill the holes with memory: --fill-holes".to_owned(),
            Self::NotTold => "check as the owner of the file or as root".to_owned(),
            Self::Disabled => {
                "start it without PR_SET_THP_DISABLE, which children inherit".to_owned()
            }
            Self::NoMemory { .. } => {
                "free memory, or raise the limit of the control group".to_owned()
            }
            Self::LockLimit { .. } => {
                "ulimit -l unlimited (LimitMEMLOCK=infinity of a unit), or keep it as root"
                    .to_owned()
            }
            Self::Truncated { .. } => {
                "warm it again when the program that writes it is done".to_owned()
            }
            Self::Replaced => "warm the file that has the name now".to_owned(),
            Self::Heap(shortage) => shortage.remedy(),
            _ => return None,
        })
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Open(source) if source.kind() == io::ErrorKind::InvalidInput => {
                ErrorKind::Invalid
            }
            Self::TooSmall { .. } | Self::NoData { .. } | Self::Hugetlbfs => ErrorKind::Invalid,
            Self::NotTold => ErrorKind::NotPermitted,
            Self::NoHugePages | Self::Disabled => ErrorKind::Unsupported,
            Self::NoMemory { .. } | Self::LockLimit { .. } | Self::Heap(_) => ErrorKind::NoMemory,
            Self::Truncated { .. } | Self::Replaced => ErrorKind::Conflict,
            Self::Cancelled { .. } => ErrorKind::Cancelled,
            Self::Open(source) | Self::Read { source, .. } | Self::Kernel { source, .. } => {
                source.kind().into()
            }
        }
    }

    pub(crate) fn of(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::Kernel { call, source: errno.into() }
    }
}
