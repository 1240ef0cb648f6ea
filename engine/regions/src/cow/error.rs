//! Errors of forks. [`ForkError`] contains figures for callers. [`Refused`] and [`Failed`] are for
//! threads that hold the gate.

use std::io;
use std::ops::Range;

use rustix::io::Errno;

use crate::fault::FaultMode;
use crate::pool::{FaultError, PoolError, Size};
use hugekit_bulk::parallel::JobError;
use hugekit_bulk::populate::PopulateError;
use hugekit_sys::headroom::HeapShortage;
use hugekit_sys::{ErrorKind, Remedy};

/// An error of a fork, or of returning its memory. The region and the pool are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The region is on pages of 1 GiB. The kernel can only protect or map whole pages there.
    #[error("memory on pages of 1 GiB cannot be forked: nothing smaller can be protected there")]
    Gigantic,
    /// The granule is not a power of two, or the memory cannot be shared in such granules.
    #[error(
        "cannot share granules of {}: powers of two from {} to {} can be shared here",
        Size(*granule), Size(*least), Size(*most)
    )]
    Granule {
        /// Bytes of the requested granule.
        granule: usize,
        /// Bytes of the smallest granule of this memory.
        least: usize,
        /// Bytes of the largest granule of this memory.
        most: usize,
    },
    /// A range that the fork should leave out lies outside the region.
    #[error("bytes {}..{} lie outside a region of {len} bytes", range.start, range.end)]
    OutOfRange {
        /// The requested range.
        range: Range<usize>,
        /// Bytes of the region.
        len: usize,
    },
    /// An earlier fork has set another granule for the fork group.
    #[error("the region shares granules of {} with its forks, not of {}", Size(*granule), Size(*asked))]
    GranuleDiffers {
        /// Bytes of the requested granule.
        asked: usize,
        /// Bytes of the group's granules.
        granule: usize,
    },
    /// An earlier fork has set another fault mode for the fork group.
    #[error("faults of the region and its forks are handled by {fault_mode:?}, not by {asked:?}")]
    FaultModeDiffers {
        /// The requested mode.
        asked: FaultMode,
        /// The mode of the fork group.
        fault_mode: FaultMode,
    },
    /// The pool cannot reserve memory for the copies of a fork or a snapshot.
    #[error("no room for the copies that writers make")]
    Pool(#[from] PoolError),
    /// Faults cannot be handled.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// A program has the descriptor of the region's file, so it could write without a fault.
    #[error("a program has the region's file, and could write to it past the protection")]
    FileGiven,
    /// The fork needs more mappings than are left for forks.
    #[error(
        "the fork needs {needed} mappings, {left} of {most} are left for forks{}",
        Remedy(Some(RAISE_MAPPINGS))
    )]
    Mappings {
        /// Mappings that the fork needs.
        needed: usize,
        /// Mappings that are left.
        left: usize,
        /// The highest number of mappings for forks, of the process or of the fork group.
        most: usize,
    },
    /// The process has no address or no mapping left.
    #[error("cannot map the fork, which needs {mappings} mappings{}", Remedy(Some(RAISE_MAPPINGS)))]
    NotMapped {
        /// Mappings that the fork needs.
        mappings: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Memory of the region could not be populated or cleared for the fork.
    #[error("the region could not be made ready")]
    NotReady(#[source] JobError<PopulateError>),
    /// The epoch belongs to other memory, or is not the last epoch of this memory, or the memory
    /// was truncated since the epoch began.
    #[error("the epoch is not the last one of this memory: begin with a first one")]
    OtherEpoch,
    /// Pinned bytes could not be copied. A fork copies them at once.
    #[error("the fork's pinned bytes could not be copied")]
    Copy(#[source] PopulateError),
    /// The kernel did not free the memory.
    #[error("the kernel did not free the memory")]
    Kept(#[source] io::Error),
    /// The heap has no room for the call.
    #[error(transparent)]
    Heap(#[from] HeapShortage),
    /// The kernel refused another system call.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// This process is a forked child; the region belongs to the parent process.
    #[error("not available in a forked child: the region belongs to the parent process")]
    Forked,
}

const RAISE_MAPPINGS: &str = "raise vm.max_map_count";

impl ForkError {
    /// Returns a step by which an administrator or the program can prevent this error; `None` if no
    /// step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Pool(error) => return error.remedy(),
            Self::Fault(error) => return error.remedy(),
            Self::Heap(shortage) => shortage.remedy(),
            Self::Mappings { .. } | Self::NotMapped { .. } => RAISE_MAPPINGS.to_owned(),
            _ => return None,
        })
    }

    /// Returns the kind of the kernel's error. `Other` if the error has another cause.
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Kernel { source, .. } | Self::Kept(source) => source.kind(),
            _ => io::ErrorKind::Other,
        }
    }
}

impl ForkError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Gigantic => ErrorKind::Unsupported,
            Self::Granule { .. }
            | Self::OutOfRange { .. }
            | Self::GranuleDiffers { .. }
            | Self::FaultModeDiffers { .. } => ErrorKind::Invalid,
            Self::Pool(error) => error.kind(),
            Self::Fault(error) => error.kind(),
            Self::FileGiven | Self::OtherEpoch => ErrorKind::Conflict,
            Self::Mappings { .. } | Self::Heap(_) => ErrorKind::NoMemory,
            Self::NotMapped { source, .. } => source.kind().into(),
            Self::NotReady(error) => error.kind(),
            Self::Copy(error) => error.kind(),
            Self::Kept(source) | Self::Kernel { source, .. } => source.kind().into(),
            Self::Forked => ErrorKind::Forked,
        }
    }
}

/// The reason why a slot did not get what an event needs. A thread that holds the gate makes it without allocation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// The fork would need more mappings than are left for forks, or than the process has left.
    Mappings,
    /// The memory of the fork has failed.
    Broken,
    /// The kernel has no page for the memory.
    Unpopulated(PopulateError),
    Kernel(Errno),
}

impl Refused {
    /// Returns true if the event may succeed after the whole region is mapped anew.
    pub(super) fn is_for_mappings(self) -> bool {
        matches!(self, Self::Mappings | Self::Kernel(_))
    }
}

impl From<Refused> for PopulateError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Mappings | Refused::Kernel(Errno::NOMEM) => Self::OutOfMemory,
            Refused::Broken => Self::Poisoned,
            Refused::Unpopulated(error) => error,
            Refused::Kernel(errno) => Self::Kernel(io::Error::from(errno).kind()),
        }
    }
}

/// The reason why a fork failed. A thread that holds the gate makes it without allocation.
#[derive(Debug)]
pub(super) enum Failed {
    Error(ForkError),
    Refused(Refused),
}

impl From<ForkError> for Failed {
    fn from(error: ForkError) -> Self {
        Self::Error(error)
    }
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Failed> for ForkError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Error(error) => error,
            Failed::Refused(Refused::Mappings) => kernel("mmap", Errno::NOMEM),
            Failed::Refused(Refused::Broken) => Self::Copy(PopulateError::Poisoned),
            Failed::Refused(Refused::Unpopulated(error)) => Self::Copy(error),
            Failed::Refused(Refused::Kernel(errno)) => kernel("mmap", errno),
        }
    }
}

/// Makes the error for words of a mapping that cannot be mapped.
pub(super) fn unmapped(errno: Errno) -> ForkError {
    ForkError::NotMapped { mappings: 1, source: errno.into() }
}

pub(super) fn kernel(call: &'static str, errno: Errno) -> ForkError {
    ForkError::Kernel { call, source: errno.into() }
}
