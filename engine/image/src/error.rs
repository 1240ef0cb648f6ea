//! Why there is no image, in figures.

use std::io;

use hugekit_bulk::PopulateError;
#[cfg(feature = "delta")]
use hugekit_delta::DeltaError;
use hugekit_lease::LeaseError;
use hugekit_lease::protocol::{ImageRange, SAVE_MEMORY};
use hugekit_machine::available::{Available, MemoryBudget};
use hugekit_machine::size::{Exact, Size};
use hugekit_sys::headroom::HeapShortage;
use hugekit_sys::{ErrorKind, Remedy};

use crate::range::Misfit;

/// The reason why an image could not be made or used. Sources are numbered from 0 in the order in which they were
/// given. Memory that was loaded is given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// No source was given, or only empty ones.
    #[error("there is nothing to load: no source, or an empty one{}", Remedy(self.remedy()))]
    Nothing,
    /// A source is a pipe, a device, a folder: its bytes cannot be read at any place, or it has no length.
    #[error("source {nth} is no regular file{}", Remedy(self.remedy()))]
    NoFile {
        /// Which source.
        nth: usize,
    },
    /// A source is the state of a VM that QEMU has saved with its memory (`migrate` to a file, also
    /// with `mapped-ram`, or `virsh save`): its memory has other places in it.
    #[error("source {nth} is a saved VM of QEMU, and no raw memory file{}", Remedy(self.remedy()))]
    SavedVm {
        /// Which source.
        nth: usize,
    },
    /// A range makes no sense.
    #[error(
        "a range of {} bytes from byte {} of the file to byte {} of the image: {why}",
        range.len,
        range.from,
        range.to
    )]
    Range {
        /// The range.
        range: ImageRange,
        /// The reason.
        why: Misfit,
    },
    /// A source was changed, or became shorter, while it was read.
    #[error(
        "source {nth} was changed while it was read: it had {had} bytes, and has {has}{}",
        Remedy(self.remedy())
    )]
    Changed {
        /// Which source.
        nth: usize,
        /// Bytes that it had when the load began.
        had: u64,
        /// Bytes that it has.
        has: u64,
    },
    /// A source could not be read.
    #[error("source {nth} cannot be read at byte {at}")]
    Read {
        /// Which source.
        nth: usize,
        /// The offset in bytes.
        at: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// A delta was refused.
    #[cfg(feature = "delta")]
    #[error("source {nth} is refused")]
    Delta {
        /// Which source.
        nth: usize,
        /// The reason.
        source: DeltaError,
    },
    /// The sources have more memory than may be populated for them.
    #[error(
        "the image needs more than the {} that may be populated for it{}",
        size(most),
        Remedy(self.remedy())
    )]
    TooLarge {
        /// Bytes that may be populated.
        most: u64,
    },
    /// Memory is short, and the rest is left to other processes.
    #[error("the image needs more memory, and the load leaves the last {left} MiB to others: {0}{remedy}", left = MemoryBudget::RESERVE >> 20, remedy = Remedy(self.remedy()))]
    NoMemory(Available),
    /// The image could not be populated.
    #[error("the image could not be populated{}", Remedy(self.remedy()))]
    Populate(#[from] PopulateError),
    /// The load was cancelled.
    #[error("the load was cancelled")]
    Cancelled,
    /// No thread was asked for.
    #[error("`threads` must be at least 1")]
    NoThreads,
    /// The file is no image: it is no file of memory, or its bytes could be changed.
    #[error("the file is no image: it is not sealed against writes and other lengths{}", Remedy(self.remedy()))]
    NotSealed,
    /// The folder is in no file system of shared memory.
    #[error("the folder is in no tmpfs{}", Remedy(self.remedy()))]
    NoTmpfs,
    /// There are sources behind the first one, and the crate was built without the feature `delta`.
    #[error("this program cannot read deltas: it was built without the feature `delta`")]
    NoDeltas,
    /// The broker has no such image, or cannot be asked.
    #[error(transparent)]
    Broker(#[from] LeaseError),
    /// The heap has no room for the call.
    #[error(transparent)]
    Heap(#[from] HeapShortage),
    /// Any other refusal of the kernel.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Its error.
        source: io::Error,
    },
}

fn size(bytes: &u64) -> Exact {
    Size::from(*bytes).exact()
}

const FREE_MEMORY: &str = "free memory, or raise the limit of the control group or of the tmpfs";

fn free_memory(error: &PopulateError) -> Option<&'static str> {
    matches!(error, PopulateError::OutOfMemory | PopulateError::NothingBehind)
        .then_some(FREE_MEMORY)
}

impl ImageError {
    /// Returns what the program or a user can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Nothing | Self::NoFile { .. } => {
                "name a memory file, or a chain of deltas that begins with a full one".to_owned()
            }
            Self::SavedVm { .. } => SAVE_MEMORY.to_owned(),
            Self::Changed { .. } => {
                "load it when the program that writes it is done, or load a copy".to_owned()
            }
            Self::NotSealed => "load an image from the file: hugekit image load".to_owned(),
            Self::NoTmpfs => "name a folder in a tmpfs, such as /dev/shm".to_owned(),
            Self::TooLarge { .. } => "load it again: the file has grown".to_owned(),
            Self::NoMemory(_) => FREE_MEMORY.to_owned(),
            Self::Populate(error) => return free_memory(error).map(str::to_owned),
            Self::Broker(error) => return error.remedy(),
            Self::Heap(shortage) => shortage.remedy(),
            _ => return None,
        })
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Nothing
            | Self::NoFile { .. }
            | Self::SavedVm { .. }
            | Self::Range { .. }
            | Self::NoThreads
            | Self::NoTmpfs
            | Self::NotSealed => ErrorKind::Invalid,
            Self::NoDeltas => ErrorKind::Unsupported,
            #[cfg(feature = "delta")]
            Self::Delta { .. } => ErrorKind::Invalid,
            Self::Changed { .. } => ErrorKind::Conflict,
            Self::TooLarge { .. } | Self::NoMemory(_) | Self::Heap(_) => ErrorKind::NoMemory,
            Self::Populate(error) => error.kind(),
            Self::Broker(error) => error.kind(),
            Self::Cancelled => ErrorKind::Cancelled,
            Self::Read { source, .. } => source.kind().into(),
            Self::Kernel { source, .. } => source.kind().into(),
        }
    }

    /// Returns the source that it is about, if it is about one.
    #[doc(hidden)]
    #[must_use]
    pub fn source_number(&self) -> Option<usize> {
        match *self {
            Self::NoFile { nth }
            | Self::SavedVm { nth }
            | Self::Changed { nth, .. }
            | Self::Read { nth, .. } => Some(nth),
            #[cfg(feature = "delta")]
            Self::Delta { nth, .. } => Some(nth),
            _ => None,
        }
    }

    pub(crate) fn of(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::Kernel { call, source: errno.into() }
    }
}
