//! Jobs on several threads: clear, populate and copy in chunks, each on the node that holds it.
//!
//! A job is a range, a function for a chunk of it, and who may help. The calling thread always
//! works too; helpers come from a small crew that sleeps between jobs, so that a job costs
//! microseconds. `README.md` beside this file draws the crew's states and names the races that
//! were considered; `docs/decisions/0005-parallel-crew.md` says what was measured.
//!
//! - Helpers run on the CPUs of the node whose part they work on, within the calling thread's
//!   affinity mask, and move to the next node that has work when theirs has none left.
//! - Threads are limited by the allowed CPUs and by the control group's CPU quota.
//! - A job may be started from several threads at once and from within a chunk.
//! - After a `fork()`, a child that starts a job gets a crew of its own. A chunk function itself
//!   must not fork and return in the child: what its helpers held is lost there, and the job ends
//!   in [`JobError::Forked`].

mod crew;
mod job;
mod node_map;
mod placement;
mod plan;
mod queue;
mod sharing;
#[cfg(all(test, not(loom)))]
mod tests;
mod workers;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

pub use job::Job;
pub use node_map::{NodeMap, NodeMapError};
pub use placement::Placement;
pub(crate) use sharing::{Bytes, Sharing};

/// Called as `progress(done, total)`, in bytes, after every chunk by the thread that did it. Calls
/// do not overlap and `done` ascends. The other threads wait meanwhile: be brief.
pub type Progress<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// How many threads do a job, the calling one included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Threads {
    /// The calling thread only.
    #[default]
    One,
    /// As many as pay off for the length, by the profile.
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
    /// What made it fewer threads than [`Threads::Exactly`] asked for.
    pub capped: Option<Limit>,
    /// Helpers that could not be pinned to their CPUs and worked where they were.
    pub unpinned: usize,
}

impl Report {
    /// Done by the calling thread in one go.
    pub(crate) const fn alone(bytes: usize) -> Self {
        Self { bytes, threads: 1, took_part: 1, capped: None, unpinned: 0 }
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
}

/// Why a job did not end well. Chunks that were begun are finished or failed; no thread works on it
/// any more.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError<E> {
    /// [`Threads::Exactly`] asked for none. Nothing was done.
    #[error("a job needs at least one thread")]
    NoThreads,
    /// The placement has no CPU that may be used. Nothing was done.
    #[error("there is no CPU to run a job on: no node has one that is allowed")]
    NoCpus,
    /// The job was cancelled before all of it was done.
    #[error("cancelled after {bytes} of {len} bytes")]
    Cancelled {
        /// Bytes that were done, not necessarily the first ones.
        bytes: usize,
        /// Bytes of the job.
        len: usize,
    },
    /// A chunk failed; of several, the first.
    #[error("bytes {}..{}, after {bytes} others were done: {error}", range.start, range.end)]
    Chunk {
        /// The chunk's offsets.
        range: Range<usize>,
        /// Bytes that were done, not necessarily the first ones and without this chunk's.
        bytes: usize,
        /// What the chunk function said.
        error: E,
    },
    /// The chunk function forked, and this is the child: the chunks of the helpers are lost.
    #[error("the process was forked within a chunk, and its helpers are not in this child")]
    Forked,
}
