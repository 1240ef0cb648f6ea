//! Why a region could not be forked, in figures.

use std::io;
use std::ops::Range;

use crate::fault::FaultMode;
use crate::pool::{FaultError, PoolError, Size};
use hugekit_bulk::parallel::JobError;
use hugekit_bulk::populate::PopulateError;
use hugekit_sys::ErrorKind;
use hugekit_sys::headroom::HeapShortage;

/// Why a region could not be forked, or a fork not given back. A region that could not be forked is as it
/// was, and nothing of the pool was taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// Nothing smaller than a page of 1 GiB can be protected or mapped there.
    #[error("memory on pages of 1 GiB cannot be forked: nothing smaller can be protected there")]
    Gigantic,
    /// The granule is no power of two, or the memory cannot be shared in such pieces.
    #[error(
        "cannot share granules of {}: powers of two from {} to {} can be shared here",
        Size(*granule), Size(*least), Size(*most)
    )]
    Granule {
        /// Bytes asked for.
        granule: usize,
        /// The least possible.
        least: usize,
        /// The most possible.
        most: usize,
    },
    /// A range that the fork is not to inherit does not lie within the region.
    #[error("bytes {}..{} lie outside a region of {len} bytes", range.start, range.end)]
    OutOfRange {
        /// Offsets asked for.
        range: Range<usize>,
        /// Bytes of the region.
        len: usize,
    },
    /// An earlier fork has decided for the fork group.
    #[error("the region shares granules of {} with its forks, not of {}", Size(*granule), Size(*asked))]
    GranuleDiffers {
        /// Bytes asked for.
        asked: usize,
        /// Bytes of the group's granules.
        granule: usize,
    },
    /// An earlier fork has decided for the fork group.
    #[error("faults of the region and its forks are served by {fault_mode:?}, not by {asked:?}")]
    FaultModeDiffers {
        /// What was asked for.
        asked: FaultMode,
        /// What serves the fork group.
        fault_mode: FaultMode,
    },
    /// The pool cannot keep room for the fork's copies.
    #[error("no room for the fork's copies")]
    Pool(#[from] PoolError),
    /// Faults cannot be served.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// A program was given the region's file, and writes past every protection.
    #[error("the region's file was given away: who has it writes past any protection")]
    FileGiven,
    /// The fork would cost more mappings than there are for forks.
    #[error("the fork needs {needed} mappings, {left} of {most} are left for forks")]
    Mappings {
        /// Mappings of the fork.
        needed: usize,
        /// Mappings that are left.
        left: usize,
        /// Mappings of the process, or of the fork group, that forks may cost.
        most: usize,
    },
    /// The process has no address or no mapping left.
    #[error("cannot map the fork, which needs {mappings} mappings")]
    NotMapped {
        /// Mappings of the fork.
        mappings: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// What the region has could not be made ready to be shared.
    #[error("the region could not be made ready")]
    NotReady(#[source] JobError<PopulateError>),
    /// What changed since an epoch was asked of other memory than it is of, or of memory that has begun another epoch
    /// since, or was truncated.
    #[error("the epoch is not the last one of this memory: begin with a first one")]
    OtherEpoch,
    /// What the fork needs a copy of at once could not be copied.
    #[error("the fork's pinned bytes could not be copied")]
    Copy(#[source] PopulateError),
    /// The kernel would not take the memory back.
    #[error("the kernel does not take the memory back")]
    Kept(#[source] io::Error),
    /// The heap has no room for the call.
    #[error(transparent)]
    Heap(#[from] HeapShortage),
    /// Any other refusal of the kernel.
    #[error("{call} failed")]
    Kernel {
        /// What was asked.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
    /// This process was forked from the region's, which alone has its memory.
    #[error("the region belongs to the process that this one was forked from")]
    Forked,
}

impl ForkError {
    /// What an administrator or the caller can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Pool(error) => return error.remedy(),
            Self::Fault(error) => return error.remedy(),
            Self::Heap(shortage) => shortage.remedy(),
            Self::Mappings { .. } | Self::NotMapped { .. } => "raise vm.max_map_count".to_owned(),
            _ => return None,
        })
    }

    /// What the kernel said, of an error that is only that.
    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Kernel { source, .. } | Self::Kept(source) => source.kind(),
            _ => io::ErrorKind::Other,
        }
    }
}

impl ForkError {
    /// What it means for a program.
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
