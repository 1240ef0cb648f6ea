//! Jobs on several threads: clear, populate and copy in chunks, each chunk on the NUMA node of its
//! memory.
//!
//! A job consists of a range, a function for a chunk of the range, and a limit for its threads. The
//! calling thread always works, too. Helpers are worker threads of the process that sleep between
//! jobs, so the start of a job costs microseconds. `README.md` beside this file draws the states of
//! helpers and lists the races that were considered. `docs/decisions/0005-parallel-crew.md`
//! contains the measurements.
//!
//! - Helpers run on the CPUs of the node of their part, within the calling thread's affinity mask.
//!   If that node has no work left, its helpers move to the next node with work.
//! - The allowed CPUs and the control group's CPU quota limit the threads.
//! - All jobs of [`Threads::Auto`] together, in all processes, use no more threads on the memory of
//!   a node than one job may use.
//! - A program may start a job from several threads at once, and from within a chunk.
//! - After a `fork()`, a child that starts a job gets its own workers. A chunk function must not
//!   fork and return in the child: the child has no helpers, so their chunks are lost, and the job
//!   ends in [`JobError::Forked`].

mod done;
mod job;
mod node_map;
mod placement;
mod plan;
mod queue;
mod sharing;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;
mod worker_pool;
mod workers;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use hugekit_sys::ErrorKind;

use crate::learning::Used;

pub use done::Done;
pub use job::Job;
pub use node_map::{NodeMap, NodeMapError};
pub use placement::Placement;
pub use sharing::{Bytes, WorkSharing};

/// A progress callback, called as `progress(done, total)` in bytes.
///
/// The thread that finished a chunk calls the function. Calls do not overlap, and `done` ascends.
/// Other threads wait for the call, so the function should be short.
///
/// The function may use the library. If the function panics, the job stops and the panic reaches
/// the caller. The function must not fork or snapshot the region that the call works on: this would
/// deadlock.
pub type Progress<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// The number of threads of a job, the calling thread included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Threads {
    /// Only the calling thread.
    #[default]
    One,
    /// The number that the profile recommends for the length. All jobs on this machine together use
    /// no more threads per NUMA node than one job may use.
    Auto,
    /// This number of threads, but no more than there are allowed CPUs or minimum chunks.
    /// [`Report::capped`] reports a smaller number. 0 is an error.
    Exactly(usize),
}

/// A flag that asks a job to stop.
///
/// Each thread finishes its current chunk first, which has 32 MiB or the length of a minimum chunk
/// if that is longer. Setting the flag is one atomic store, so a signal handler may do it.
#[derive(Debug, Default)]
pub struct Cancel(AtomicBool);

impl Cancel {
    /// Makes a flag that is not set.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Sets the flag. It cannot be unset.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if the flag is set.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Bytes that are done: all bytes of the request.
    pub bytes: usize,
    /// Threads that shared the job, the calling thread included.
    pub threads: usize,
    /// Threads that processed at least one chunk. The other threads started too late.
    pub took_part: usize,
    /// The reason why the job had fewer threads than [`Threads::Exactly`] requested, or than the
    /// profile recommends for [`Threads::Auto`]. `None` if it did not.
    pub capped: Option<Limit>,
    /// Helpers that could not be pinned to the CPUs of their node, and ran on other CPUs.
    pub unpinned: usize,
    /// The routine of a clear or a copy; `None` for other jobs.
    pub used: Option<Used>,
}

impl Report {
    /// Returns the report of an operation that the calling thread did alone.
    pub(crate) const fn alone(bytes: usize) -> Self {
        Self { bytes, threads: 1, took_part: 1, capped: None, unpinned: 0, used: None }
    }
}

/// The reason for a smaller number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// The calling thread may run on only this many CPUs.
    AllowedCpus(usize),
    /// The CPU quota of the control group is only this many CPUs.
    CpuQuota(usize),
    /// There are only this many minimum chunks.
    Chunks(usize),
    /// Other jobs, in this or other processes, leave only this many of the threads that the memory
    /// of a NUMA node can use.
    OtherJobs(usize),
    /// The heap has no room for several threads; the calling thread works alone.
    Heap,
}

/// An error of a job. When the job returns it, every chunk that was begun is finished or failed,
/// and no thread works on the job any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError<E> {
    /// [`Threads::Exactly`] was 0. Nothing was done.
    #[error("a job needs at least one thread")]
    NoThreads,
    /// The process may use no CPU. Nothing was done.
    #[error("there is no CPU to run a job on: no node has one that is allowed")]
    NoCpus,
    /// The job was cancelled before all of it was done.
    #[error("cancelled after {} of {} bytes", done.bytes(), done.asked().len())]
    Cancelled {
        /// The bytes that are done.
        done: Done,
    },
    /// A chunk failed. If several chunks failed, this is the first error.
    #[error("bytes {}..{}, after {} others were done: {error}", range.start, range.end, done.bytes())]
    Chunk {
        /// The chunk's offsets.
        range: Range<usize>,
        /// The bytes that are done, without the chunks that failed.
        done: Done,
        /// The error of the chunk function.
        error: E,
    },
    /// The chunk function called `fork(2)`, and this process is the child. The chunks of the
    /// helpers are lost.
    #[error("the process was forked within a chunk, and its helpers are not in this child")]
    Forked,
}

impl<E> JobError<E> {
    /// Returns the kind of the error. `of_chunk` returns the kind of a chunk's error.
    #[doc(hidden)]
    pub fn kind_with(&self, of_chunk: impl Fn(&E) -> ErrorKind) -> ErrorKind {
        match self {
            Self::NoThreads => ErrorKind::Invalid,
            Self::NoCpus => ErrorKind::Unsupported,
            Self::Cancelled { .. } => ErrorKind::Cancelled,
            Self::Chunk { error, .. } => of_chunk(error),
            Self::Forked => ErrorKind::Forked,
        }
    }
}

impl<E> JobError<E> {
    /// Returns the bytes that were done; `None` if no chunk was begun.
    pub const fn done(&self) -> Option<&Done> {
        match self {
            Self::Cancelled { done } | Self::Chunk { done, .. } => Some(done),
            Self::NoThreads | Self::NoCpus | Self::Forked => None,
        }
    }

    /// Converts offsets of the job to offsets of the bytes that the caller requested. The job began
    /// at `offset` and covers whole pages.
    #[doc(hidden)]
    pub fn shifted_into(self, offset: usize, asked: Range<usize>) -> Self {
        match self {
            Self::Cancelled { done } => Self::Cancelled { done: done.shifted_into(offset, asked) },
            Self::Chunk { range, done, error } => {
                let range = done::shifted_into(range, offset, &asked);
                Self::Chunk { range, done: done.shifted_into(offset, asked), error }
            }
            other => other,
        }
    }

    /// Returns the same error, with the bytes of `hole` counted as not done.
    pub(crate) fn without(self, hole: &Range<usize>) -> Self {
        match self {
            Self::Cancelled { done } => Self::Cancelled { done: done.without(hole) },
            Self::Chunk { range, done, error } => {
                Self::Chunk { range, done: done.without(hole), error }
            }
            other => other,
        }
    }
}
