//! Errors of taking and reading a snapshot.

use std::io;
use std::ops::Range;

use crate::making::limit;
use hugekit_machine::Root;
use hugekit_machine::mappings::MappedRange;
use hugekit_regions::pool::{FaultError, PoolError};
use hugekit_regions::region::ForkError;
use hugekit_sys::headroom::HeapShortage;
use hugekit_sys::{ErrorKind, Remedy};

/// An error of taking or reading a snapshot. The memory and its writers are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The range has no bytes, or extends beyond the last address.
    #[error("cannot snapshot {len} bytes at {start:#x}")]
    Empty {
        /// The start address of the range.
        start: usize,
        /// The length of the range in bytes.
        len: usize,
    },
    /// A part of the range is not mapped.
    #[error("nothing is mapped at {:#x}..{:#x}", hole.start, hole.end)]
    Unmapped {
        /// The first part that is not mapped.
        hole: Range<usize>,
    },
    /// A mapping in the range cannot be snapshotted.
    #[error("{mapping} cannot be snapshotted: {reason}{}", Remedy(reason.remedy()))]
    Unsuitable {
        /// The first mapping that cannot be snapshotted.
        mapping: MappedRange,
        /// The reason.
        reason: Unsuitable,
    },
    /// A thread blocks SIGBUS. At the first fault handled in place, the kernel would end the
    /// process.
    #[error(
        "thread {thread} blocks SIGBUS: a write handled in place would end the process{}",
        Remedy(Some(UNBLOCK))
    )]
    Blocked {
        /// The thread's id.
        thread: u32,
    },
    /// The memory starts or ends inside a page, and other threads write to that page all the time.
    /// So its bytes could not be copied at one moment, and this process may not make the writers
    /// wait.
    #[error(
        "the page at {page:#x} has bytes of the memory and other data, which is written \
         all the time: align the memory to pages, or permit hugekit to handle the faults of \
         system calls"
    )]
    Unquiet {
        /// The page's address.
        page: usize,
    },
    /// The memory starts or ends inside a page, and this kernel does not report writes to the page
    /// (before Linux 6.7). So hugekit would have to make the page's writers wait. This process may
    /// not do that, or the page contains a stack or thread-local variables.
    #[error(
        "the page at {page:#x} has bytes of the memory and other data, and this kernel does \
         not note writes (Linux 6.7): align the memory to pages, or permit hugekit to handle the \
         faults of system calls"
    )]
    Unwatched {
        /// The page's address.
        page: usize,
    },
    /// Faults of writers cannot be handled.
    #[error("faults of writers cannot be handled")]
    Fault(#[from] FaultError),
    /// There is not enough memory for a reserve.
    #[error("no memory for a reserve")]
    Memory(#[from] PoolError),
    /// The region cannot be forked.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// The mappings of this process could not be read.
    #[error(transparent)]
    Machine(#[from] hugekit_machine::Error),
    /// The thread that copies in the background could not be started.
    #[error("the thread that copies in the background cannot be started")]
    NotStarted(#[source] io::Error),
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
    /// Writers changed more than the snapshot may hold before the snapshot was read. The snapshot
    /// is lost; the writers continue.
    #[error(
        "the memory was written faster than its snapshot was read: writers needed more than the {cap} bytes of copies \
         that it may hold, of {len} bytes of memory{}",
        Remedy(Some(limit::remedy(*len, *available)))
    )]
    CowLimitExceeded {
        /// The highest number of bytes of copies
        /// ([`max_cow_bytes`](super::Builder::max_cow_bytes)).
        cap: usize,
        /// Bytes of the memory. With this limit, writers never exceed the limit.
        len: usize,
        /// Bytes that were available for copies, on the machine and in the control group. Bytes
        /// that this snapshot uses are included.
        available: usize,
    },
    /// The process has no addresses for copies. Nothing was allocated.
    #[error("no addresses for copies of {bytes} bytes of memory{}", Remedy(Some(hold_less(*bytes))))]
    NoRoom {
        /// Bytes of copies that the snapshot would have held.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Memory was unmapped, remapped, discarded, merged or made unreadable. Its bytes at the moment
    /// of the snapshot are unknown.
    #[error(
        "the memory at {address:#x} was unmapped, remapped, discarded, merged or made unreadable"
    )]
    Changed {
        /// The address of the first such page.
        address: usize,
    },
    /// A thread that handled faults of writers has ended. The snapshot is lost; the writers
    /// continue.
    #[error("the thread that handled faults of writers died")]
    Unserved,
    /// The kernel refuses an operation that it permitted when the snapshot was taken. A system-call
    /// filter was installed since, or other code closed hugekit's descriptor.
    ///
    /// This snapshot and all others with the same fault mode are lost; the writers continue. After
    /// these snapshots are dropped, new snapshots can be taken.
    #[error(
        "the snapshot is lost: the kernel now refuses to protect memory (a system-call \
         filter was installed, or a descriptor was closed)"
    )]
    Refused,
    /// Bytes outside the snapshot were requested.
    #[error("bytes {}..{} requested, the snapshot has {len}", range.start, range.end)]
    OutOfRange {
        /// The requested range.
        range: Range<usize>,
        /// Bytes of the snapshot.
        len: usize,
    },
    /// The destination and the snapshot differ in length.
    #[error("the snapshot has {len} bytes, the destination {destination}")]
    LengthsDiffer {
        /// Bytes of the snapshot.
        len: usize,
        /// Bytes of the destination.
        destination: usize,
    },
    /// The read was cancelled.
    #[error("cancelled after {bytes} of {len} bytes")]
    Cancelled {
        /// Bytes that were read, from the start of the snapshot on.
        bytes: usize,
        /// Bytes of the snapshot.
        len: usize,
    },
    /// The destination of [`write_to`](super::Snapshot::write_to) failed.
    #[error("writing failed after {written} bytes")]
    Write {
        /// Bytes that were written before the error, in whole pieces.
        written: usize,
        /// The destination's error.
        source: io::Error,
    },
    /// This process is a forked child; the snapshot belongs to the parent process.
    #[error("not available in a forked child: the snapshot belongs to the parent process")]
    Forked,
}

/// The reason why a mapping cannot be snapshotted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unsuitable {
    /// The mapping is shared, so other processes could write to it.
    #[error("it is shared, and others could write to it")]
    Shared,
    /// The mapping maps a file.
    #[error("it maps a file")]
    File,
    /// The mapping belongs to the kernel, for example `[vdso]`.
    #[error("it belongs to the kernel")]
    Kernels,
    /// The mapping cannot be read.
    #[error("it cannot be read")]
    Unreadable,
    /// The kernel may merge pages of the mapping (`MADV_MERGEABLE` or `PR_SET_MEMORY_MERGE`).
    #[error("the kernel may merge its pages with equal ones (KSM)")]
    Mergeable,
    /// The mapping contains a stack or thread-local variables. A thread writes to them while it
    /// handles its own fault.
    #[error("it holds the stack or the thread-local variables of thread {thread}")]
    Stack {
        /// The thread's id.
        thread: u32,
    },
    /// Another userfaultfd handles faults of the mapping.
    #[error("another userfaultfd handles its faults")]
    OtherUserfaultfd,
    /// The mapping has a snapshot with another fault mode.
    #[error("another snapshot of it has another fault mode: use the same, in place or threaded")]
    OtherFaultMode,
    /// The kernel cannot write-protect the mapping.
    #[error("the kernel cannot protect it against writes")]
    Unprotectable,
}

const UNBLOCK: &str = "unblock SIGBUS in that thread, or permit faults to be served by a thread";

fn hold_less(bytes: usize) -> String {
    let limit = limit::of_addresses(&Root::default());
    format!("set max_cow_bytes to less than {bytes}, or raise the limit: {limit}")
}

impl Unsuitable {
    fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Shared => {
                "copy it at once, or keep the data to snapshot in memory that only this process uses"
            }
            Self::File => "copy it at once, or read the file into memory instead of mapping it",
            Self::Mergeable => {
                "advise MADV_UNMERGEABLE, or set prctl(PR_SET_MEMORY_MERGE, 0), or copy it at once"
            }
            _ => return None,
        })
    }
}

impl SnapshotError {
    /// Returns a step by which an administrator or the program can prevent this error; `None` if no
    /// step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Fault(error) => return error.remedy(),
            Self::Memory(error) => return error.remedy(),
            Self::Fork(error) => return error.remedy(),
            Self::Heap(shortage) => shortage.remedy(),
            Self::Blocked { .. } => UNBLOCK.to_owned(),
            Self::CowLimitExceeded { len, available, .. } => limit::remedy(*len, *available),
            Self::NoRoom { bytes, .. } => hold_less(*bytes),
            Self::Unsuitable { reason, .. } => return reason.remedy().map(str::to_owned),
            _ => return None,
        })
    }

    pub(super) fn kernel(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::Kernel { call, source: errno.into() }
    }
}

impl SnapshotError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Empty { .. }
            | Self::Unmapped { .. }
            | Self::OutOfRange { .. }
            | Self::LengthsDiffer { .. } => ErrorKind::Invalid,
            Self::Unsuitable { reason, .. } => match reason {
                Unsuitable::OtherUserfaultfd | Unsuitable::OtherFaultMode => ErrorKind::Conflict,
                _ => ErrorKind::Unsupported,
            },
            Self::Blocked { .. } | Self::Unquiet { .. } => ErrorKind::Conflict,
            Self::Unwatched { .. } => ErrorKind::Unsupported,
            Self::Fault(error) => error.kind(),
            Self::Memory(error) => error.kind(),
            Self::Fork(error) => error.kind(),
            Self::Machine(error) => error.kind(),
            Self::Write { .. } => ErrorKind::Kernel,
            Self::NotStarted(source)
            | Self::NoRoom { source, .. }
            | Self::Kernel { source, .. } => source.kind().into(),
            Self::CowLimitExceeded { .. }
            | Self::Changed { .. }
            | Self::Unserved
            | Self::Refused => ErrorKind::Lost,
            Self::Cancelled { .. } => ErrorKind::Cancelled,
            Self::Heap(_) => ErrorKind::NoMemory,
            Self::Forked => ErrorKind::Forked,
        }
    }
}
