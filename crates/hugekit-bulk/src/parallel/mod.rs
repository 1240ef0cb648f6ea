//! Jobs on several threads: clear, populate and copy in chunks, each on the node that holds it.
//!
//! A job is a range, a function for a chunk of it, and who may help. The calling thread always
//! works too. Helpers are workers of the process that sleep between jobs, so a job costs microseconds.
//! `README.md` beside this file draws their states and names the races that were considered;
//! `docs/decisions/0005-parallel-crew.md` has the measurements.
//!
//! - Helpers run on the CPUs of the node whose part they work on, within the calling thread's
//!   affinity mask, and move to the next node that has work when theirs has none left.
//! - Threads are limited by the allowed CPUs and by the control group's CPU quota.
//! - All jobs of [`Threads::Auto`] together, those of other processes included, have at most so many threads on the
//!   memory of a node as one of them may have.
//! - A job may be started from several threads at once and from within a chunk.
//! - After a `fork()`, a child that starts a job gets workers of its own. A chunk function itself
//!   must not fork and return in the child: what its helpers held is lost there, and the job ends
//!   in [`JobError::Forked`].

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

/// Called as `progress(done, total)`, in bytes, after every chunk by the thread that did it. Calls
/// do not overlap and `done` ascends. The other threads wait meanwhile: be brief.
///
/// It may use the library, and may panic, which stops the job. It must not fork or snapshot the region that the call
/// works on: the fork waits until the call ends, which waits for the callback.
pub type Progress<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// How many threads do a job, the calling one included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Threads {
    /// The calling thread only.
    #[default]
    One,
    /// As many as pay off for the length, by the profile, beside other jobs on this machine: all of them together get no
    /// more threads on a node's memory than one may have.
    Auto,
    /// So many, but no more than there are CPUs to run on or minimum chunks to do; the report
    /// says if it was fewer. 0 is an error.
    Exactly(usize),
}

/// Asks a job to stop. It stops when the chunks that are being done are finished: 32 MiB a thread, or a
/// minimum chunk where that is longer.
///
/// Setting it is an atomic store, so that a signal handler may do it.
#[derive(Debug, Default)]
pub struct Cancel(AtomicBool);

impl Cancel {
    /// A flag that is not set.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Sets it, for good.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is set.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How a job was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Bytes done: all of them.
    pub bytes: usize,
    /// Threads that it was shared among, the calling one included.
    pub threads: usize,
    /// Of these, threads that did at least one chunk: the others came too late.
    pub took_part: usize,
    /// What made it fewer threads than [`Threads::Exactly`] asked for, or, with [`Threads::Auto`], than pay off.
    pub capped: Option<Limit>,
    /// Helpers that could not be pinned to their CPUs and worked where they were.
    pub unpinned: usize,
    /// Of a clear or a copy, the routine that did it.
    pub used: Option<Used>,
}

impl Report {
    /// Done by the calling thread in one go.
    pub(crate) const fn alone(bytes: usize) -> Self {
        Self { bytes, threads: 1, took_part: 1, capped: None, unpinned: 0, used: None }
    }
}

/// What limits the number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// There are only so many CPUs that the calling thread may run on.
    AllowedCpus(usize),
    /// The control group has the time of so many CPUs.
    CpuQuota(usize),
    /// There are only so many minimum chunks.
    Chunks(usize),
    /// Other jobs, of this process or of others, have all but so many of the threads that a node's memory can use.
    OtherJobs(usize),
    /// The heap has no room for what several threads need: the calling one works alone.
    Heap,
}

/// Why a job did not end well. Chunks that were begun are finished or failed; no thread works on it
/// any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError<E> {
    /// [`Threads::Exactly`] asked for none. Nothing was done.
    #[error("a job needs at least one thread")]
    NoThreads,
    /// The placement has no CPU that may be used. Nothing was done.
    #[error("there is no CPU to run a job on: no node has one that is allowed")]
    NoCpus,
    /// The job was cancelled before all of it was done.
    #[error("cancelled after {} of {} bytes", done.bytes(), done.asked().len())]
    Cancelled {
        /// What was done before.
        done: Done,
    },
    /// A chunk failed; of several, the first.
    #[error("bytes {}..{}, after {} others were done: {error}", range.start, range.end, done.bytes())]
    Chunk {
        /// The chunk's offsets.
        range: Range<usize>,
        /// What was done, without the chunks that failed.
        done: Done,
        /// What the chunk function said.
        error: E,
    },
    /// The chunk function forked, and this is the child: the chunks of the helpers are lost.
    #[error("the process was forked within a chunk, and its helpers are not in this child")]
    Forked,
}

impl<E> JobError<E> {
    /// Says what the error means for a program; `of_chunk` says it of a chunk's error.
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
    /// What was done before it ended, if anything was begun.
    pub const fn done(&self) -> Option<&Done> {
        match self {
            Self::Cancelled { done } | Self::Chunk { done, .. } => Some(done),
            Self::NoThreads | Self::NoCpus | Self::Forked => None,
        }
    }

    /// As the caller counts, who asked for these bytes: the job began at `offset`, and whole pages are more.
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

    /// The same, should these bytes be still to do although the job passed them.
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
