//! Why there is no snapshot, or no more.

use std::io;
use std::ops::Range;

use super::limit;
use hugekit_machine::mappings::MappedRange;
use hugekit_regions::pool::{FaultError, PoolError};
use hugekit_regions::region::ForkError;
use hugekit_sys::ErrorKind;
use hugekit_sys::headroom::HeapShortage;

/// Why memory cannot be snapshotted, or a snapshot not be read. The memory and its writers are as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// No bytes, or more than there are addresses.
    #[error("there is nothing to snapshot at {start:#x}: {len} bytes")]
    Empty {
        /// Where it would begin.
        start: usize,
        /// How many bytes were asked for.
        len: usize,
    },
    /// Nothing is mapped in part of the range.
    #[error("nothing is mapped at {:#x}..{:#x}", hole.start, hole.end)]
    Unmapped {
        /// The first such part.
        hole: Range<usize>,
    },
    /// A mapping that cannot be snapshotted.
    #[error("{mapping} cannot be snapshotted: {reason}")]
    Unsuitable {
        /// The first such mapping.
        mapping: MappedRange,
        /// What is wrong with it.
        reason: Unsuitable,
    },
    /// A thread has SIGBUS blocked: a fault in place would end the process.
    #[error("thread {thread} blocks SIGBUS: a write handled in place would end the process")]
    Blocked {
        /// Its id.
        thread: u32,
    },
    /// An end of the range shares its page with other data, and the page is written all the time, so that no moment
    /// was found to copy the end in; and this process may not make its writers wait.
    #[error(
        "the page at {page:#x} holds an end of the memory beside other data, and is written all the time: have the \
         memory begin and end with a page, or permit hugekit to serve the faults of system calls"
    )]
    Unquiet {
        /// Its address.
        page: usize,
    },
    /// An end of the range shares its page with other data, and this kernel does not note writes (before Linux 6.7):
    /// only while the page's writers wait is it known that the end is of the same moment as the rest. This process may
    /// not make them wait, or the page holds the calling thread's stack or a thread's own variables.
    #[error(
        "the page at {page:#x} holds an end of the memory beside other data, and this kernel does not note writes \
         (Linux 6.7): have the memory begin and end with a page, or permit hugekit to serve the faults of system calls"
    )]
    Unwatched {
        /// Its address.
        page: usize,
    },
    /// Writes to the memory cannot be served.
    #[error("writes to the memory cannot be served")]
    Fault(#[from] FaultError),
    /// There is no memory for a reserve.
    #[error("no memory for a reserve")]
    Memory(#[from] PoolError),
    /// The region cannot be forked.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// What this process has mapped is not known.
    #[error(transparent)]
    Machine(#[from] hugekit_machine::Error),
    /// The thread that was to copy in the background could not be started.
    #[error("the thread that copies in the background cannot be started")]
    NotStarted(#[source] io::Error),
    /// The heap has no room for the call.
    #[error(transparent)]
    Heap(#[from] HeapShortage),
    /// The kernel refused something else.
    #[error("{call} failed")]
    Kernel {
        /// What was asked.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
    /// Writers changed more than could be preserved before it was read. The snapshot is lost, and the
    /// writers run.
    #[error(
        "the memory was written faster than its snapshot was read: writers needed more than the {cap} bytes of copies \
         that it may hold, of {len} bytes of memory"
    )]
    CowLimitExceeded {
        /// Bytes of copies that it may hold ([`max_cow_bytes`](super::Builder::max_cow_bytes)).
        cap: usize,
        /// Bytes of the memory: with as many, no writer needs more.
        len: usize,
        /// Bytes that were available for copies, on the machine and in the control group, those of this snapshot included.
        available: usize,
    },
    /// There are no addresses for copies. Nothing was taken.
    #[error("no addresses for copies of {bytes} bytes of memory")]
    NoRoom {
        /// Bytes of copies that the snapshot was to hold.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The owner unmapped, remapped or discarded memory, forbade reading it, or had it merged: what it held is
    /// not known any more.
    #[error(
        "the memory at {address:#x} was unmapped, remapped, discarded, merged or made unreadable"
    )]
    Changed {
        /// The page, or the first of several.
        address: usize,
    },
    /// A thread that served writes died, and the writers run.
    #[error("the thread that served writes to the memory died")]
    Unserved,
    /// The kernel refuses what it permitted when the snapshot was made: a system-call filter was installed since, or
    /// another library closed a descriptor that was not its own. The snapshot is lost, as are all others whose
    /// writes are handled in the same way, and the writers run. There are none before these have been dropped.
    #[error(
        "the kernel refuses now to protect memory and to tell of writes (a system-call filter installed since, or a \
         descriptor closed): the snapshot is lost"
    )]
    Refused,
    /// Bytes outside the snapshot were asked for.
    #[error("bytes {}..{} were asked for, and the snapshot has {len}", range.start, range.end)]
    OutOfRange {
        /// What was asked for.
        range: Range<usize>,
        /// Bytes of the snapshot.
        len: usize,
    },
    /// The destination is not as long as the snapshot.
    #[error("the snapshot has {len} bytes, and the destination {destination}")]
    LengthsDiffer {
        /// Bytes of the snapshot.
        len: usize,
        /// Bytes of the destination.
        destination: usize,
    },
    /// It was cancelled.
    #[error("cancelled after {bytes} of {len} bytes")]
    Cancelled {
        /// Bytes that had been read, the first ones.
        bytes: usize,
        /// Bytes of the snapshot.
        len: usize,
    },
    /// The writer that it was written to failed.
    #[error("writing failed after {written} bytes")]
    Write {
        /// Bytes that the writer had taken before, in whole pieces.
        written: usize,
        /// What it said.
        source: io::Error,
    },
    /// The snapshot belongs to the process that this one was forked from.
    #[error("the snapshot belongs to the process that this one was forked from")]
    Forked,
}

/// What is wrong with a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unsuitable {
    /// Others can write to it.
    #[error("it is shared, and others could write to it")]
    Shared,
    /// It shows a file.
    #[error("it shows a file")]
    File,
    /// The kernel's own, such as `[vdso]`.
    #[error("it is the kernel's")]
    Kernels,
    /// It may not be read.
    #[error("it may not be read")]
    Unreadable,
    /// `MADV_MERGEABLE` or `PR_SET_MEMORY_MERGE`.
    #[error("the kernel may merge its pages with equal ones (KSM): advise MADV_UNMERGEABLE first")]
    Mergeable,
    /// A stack, or thread-local variables, which a thread writes to while it serves its own fault.
    #[error("it holds the stack or the thread-local variables of thread {thread}")]
    Stack {
        /// Its id.
        thread: u32,
    },
    /// Other code serves its faults.
    #[error("another userfaultfd serves it")]
    OtherUserfaultfd,
    /// A snapshot of it exists whose writes are handled in another way.
    #[error(
        "another snapshot of it is handled in another way: in place or threaded, all must be the same"
    )]
    OtherFaultMode,
    /// The kernel cannot protect it.
    #[error("the kernel cannot protect it against writes")]
    Unprotectable,
}

impl SnapshotError {
    /// What an administrator or the caller can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        Some(match self {
            Self::Fault(error) => return error.remedy(),
            Self::Memory(error) => return error.remedy(),
            Self::Fork(error) => return error.remedy(),
            Self::Heap(shortage) => shortage.remedy(),
            Self::Blocked { .. } => {
                "unblock SIGBUS in that thread, or permit faults to be served by a thread"
                    .to_owned()
            }
            Self::CowLimitExceeded { len, available, .. } => limit::remedy(*len, *available),
            Self::NoRoom { bytes, .. } => format!(
                "set max_cow_bytes to less than {bytes}, or raise the limit of this process: RLIMIT_AS (ulimit -v), \
                 vm.max_map_count, or vm.overcommit_ratio where vm.overcommit_memory is 2"
            ),
            Self::Unsuitable { reason: Unsuitable::Shared, .. } => {
                "copy it at once, or keep what is to be snapshotted in memory of this process alone"
                    .to_owned()
            }
            _ => return None,
        })
    }

    pub(super) fn kernel(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::Kernel { call, source: errno.into() }
    }
}

impl SnapshotError {
    /// What it means for a program.
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
