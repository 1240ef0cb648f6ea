//! Common parts of the operations on memory (clear, populate, copy) that several threads share.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;

use super::workers::Workers;
use super::{Cancel, Job, JobError, NodeMap, Placement, Progress, Report, Threads, plan};
use crate::profile::Profile;
use hugekit_sys::headroom;
use hugekit_sys::mempolicy::PageSource;

/// The threads of an operation, its progress callback, and its cancel flag.
#[derive(Clone, Copy, Default)]
pub struct WorkSharing<'a> {
    /// The number of threads.
    pub threads: Threads,
    /// The callback that is called after every chunk.
    pub progress: Option<&'a Progress<'a>>,
    /// The flag that stops the job.
    pub cancel: Option<&'a Cancel>,
    /// True if helpers run at low priority.
    pub low_priority: bool,
}

impl fmt::Debug for WorkSharing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkSharing")
            .field("threads", &self.threads)
            .field("low_priority", &self.low_priority)
            .finish_non_exhaustive()
    }
}

impl<'a> WorkSharing<'a> {
    /// Returns true if the calling thread processes this many bytes alone, in one piece. Every
    /// clear calls this function, so it must be cheap.
    #[inline]
    pub fn is_alone(&self, len: usize, profile: &Profile) -> bool {
        let one = match self.threads {
            Threads::One => true,
            Threads::Auto => len < profile.parallel_from,
            Threads::Exactly(_) => false,
        };
        one && self.progress.is_none() && self.cancel.is_none()
    }

    /// Runs `chunk` for pieces of the `len` bytes at `start`. `min_chunk` is the minimum chunk of
    /// the profile, rounded to the unit of the operation.
    ///
    /// # Errors
    /// [`JobError::Chunk`] if a chunk failed, [`JobError::Cancelled`] if the job was cancelled, and
    /// the other errors of [`Job::run`].
    pub fn run<E: Send>(
        &self,
        start: *const u8,
        len: usize,
        profile: &Profile,
        min_chunk: usize,
        chunk: impl Fn(Range<usize>) -> Result<(), E> + Sync,
    ) -> Result<Report, JobError<E>> {
        let threads = match self.threads {
            Threads::Auto if len < profile.parallel_from => Threads::One,
            threads => threads,
        };
        let map = nodes_of(start, len, threads, profile.thread_cap, min_chunk);
        let job = Job::new(len)
            .min_chunk(min_chunk)
            .address(start.addr())
            .threads(threads)
            .cap(profile.thread_cap)
            .low_priority(self.low_priority);
        let job = map.iter().fold(job, Job::nodes);
        let job = self.progress.iter().fold(job, |job, progress| job.progress(*progress));
        self.cancel.iter().fold(job, |job, cancel| job.cancel(cancel)).run(chunk)
    }
}

/// Returns the nodes that hold these bytes, if more than one node is possible.
fn nodes_of(
    start: *const u8,
    len: usize,
    threads: Threads,
    cap: usize,
    min_chunk: usize,
) -> Option<NodeMap> {
    let is_alone = matches!(threads, Threads::One | Threads::Exactly(0 | 1));
    if is_alone || headroom::check().is_err() || !Workers::current().has_nodes() {
        return None;
    }
    let most = if let Threads::Exactly(threads) = threads { threads } else { cap };
    let step = plan::chunk(len, most, min_chunk);
    let first = start.addr();
    NodeMap::of_pages(first..first.saturating_add(len), step, || node_to_be(start))
}

/// Returns the node on which missing pages will be allocated: the node of the policy for this
/// address. If the policy permits several nodes, returns the calling thread's node, because the
/// thread alone would allocate there.
fn node_to_be(address: *const u8) -> Option<u32> {
    let here = Placement::here().node_of_cpu(hugekit_sys::thread::current_cpu());
    match hugekit_sys::mempolicy::policy_of(address) {
        Ok(PageSource::Nodes(nodes)) => match (nodes.len(), here) {
            (1, _) => nodes.iter().next(),
            (_, Some(here)) if nodes.contains(here) => Some(here),
            _ => None,
        },
        Ok(PageSource::InTurn) => None,
        Ok(PageSource::Local) | Err(_) => here,
    }
}

/// The address of memory, for chunk functions: each thread makes its own pieces of the memory.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub *mut u8);

// SAFETY: an address. Only the `unsafe` code that reads or writes through it can race.
unsafe impl Send for Bytes {}
// SAFETY: as for `Send`: no safe method reads or writes through the address.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Returns the address of an offset. The offset may lie anywhere.
    pub fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}
