//! Errors of images, with figures.

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

/// An error of loading, opening or mapping an image. Sources are numbered from 0 in the order in
/// which they were added. After an error, the loaded memory is freed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// There is no source, or only empty sources.
    #[error("there is nothing to load: no source, or an empty one{}", Remedy(self.remedy()))]
    Nothing,
    /// A source is not a regular file, but for example a pipe, a device or a folder. Such a source
    /// has no length, or cannot be read at any offset.
    #[error("source {nth} is no regular file{}", Remedy(self.remedy()))]
    NoFile {
        /// The number of the source.
        nth: usize,
    },
    /// A source is a VM that QEMU has saved together with its memory (`migrate` to a file, also
    /// with `mapped-ram`, or `virsh save`). In such a file, memory is at other offsets than in the
    /// guest.
    #[error("source {nth} is a saved VM of QEMU, and no raw memory file{}", Remedy(self.remedy()))]
    SavedVm {
        /// The number of the source.
        nth: usize,
    },
    /// A range of the raw memory file is invalid.
    #[error(
        "a range of {} bytes from byte {} of the file to byte {} of the image: {why}",
        range.len,
        range.from,
        range.to
    )]
    Range {
        /// The range.
        range: ImageRange,
        /// The reason why the range is invalid.
        why: Misfit,
    },
    /// A source was changed or shortened while it was read.
    #[error(
        "source {nth} was changed while it was read: it had {had} bytes, and has {has}{}",
        Remedy(self.remedy())
    )]
    Changed {
        /// The number of the source.
        nth: usize,
        /// Bytes of the source when the load began.
        had: u64,
        /// Bytes of the source now.
        has: u64,
    },
    /// A source could not be read.
    #[error("source {nth} cannot be read at byte {at}")]
    Read {
        /// The number of the source.
        nth: usize,
        /// The offset in the source, in bytes.
        at: u64,
        /// The kernel's error.
        source: io::Error,
    },
    /// A delta was refused.
    #[cfg(feature = "delta")]
    #[error("source {nth} is refused")]
    Delta {
        /// The number of the source.
        nth: usize,
        /// The reason why the delta was refused.
        source: DeltaError,
    },
    /// The load would populate more memory than its limit permits.
    #[error(
        "the image needs more than the {} that may be populated for it{}",
        size(most),
        Remedy(self.remedy())
    )]
    TooLarge {
        /// The limit in bytes.
        most: u64,
    },
    /// Memory is short. The remaining memory is left to other processes.
    #[error("the image needs more memory, and the load leaves the last {left} MiB to others: {0}{remedy}", left = MemoryBudget::RESERVE >> 20, remedy = Remedy(self.remedy()))]
    NoMemory(Available),
    /// The image could not be populated.
    #[error("the image could not be populated{}", Remedy(self.remedy()))]
    Populate(#[from] PopulateError),
    /// The load was cancelled.
    #[error("the load was cancelled")]
    Cancelled,
    /// The requested number of threads was 0.
    #[error("`threads` must be at least 1")]
    NoThreads,
    /// The file is not an image: it is not a file of memory, or a process could change its bytes.
    #[error("the file is no image: it is not sealed against writes and other lengths{}", Remedy(self.remedy()))]
    NotSealed,
    /// The folder is not in a file system of shared memory.
    #[error("the folder is in no tmpfs{}", Remedy(self.remedy()))]
    NoTmpfs,
    /// There are several sources, and the crate was built without the feature `delta`.
    #[error("this program cannot read deltas: it was built without the feature `delta`")]
    NoDeltas,
    /// The broker has no such image, or the request to the broker failed.
    #[error(transparent)]
    Broker(#[from] LeaseError),
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
    Size::from(*bytes).exact()
}

const FREE_MEMORY: &str = "free memory, or raise the limit of the control group or of the tmpfs";

fn free_memory(error: &PopulateError) -> Option<&'static str> {
    matches!(error, PopulateError::OutOfMemory | PopulateError::NothingBehind)
        .then_some(FREE_MEMORY)
}

impl ImageError {
    /// Returns a step by which a user or the program can prevent this error; `None` if no step is
    /// known.
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

    /// Returns the number of the source that caused the error, if a source did.
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
