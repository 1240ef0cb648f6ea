//! One job: the plan for its chunks and threads, its execution, and its result.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use super::plan::{self, Demand};
use super::queue::{ChunkGrid, Queue};
use super::slots::Slots;
use super::worker_pool::SharedJob;
use super::workers::{Workers, pin};
use super::{Cancel, Done, JobError, Limit, NodeMap, Placement, Progress, Report, Threads};
use hugekit_machine::CpuSet;
use hugekit_sys::headroom;
use hugekit_sys::sync::primitives::{Mutex, MutexGuard};

/// A job on several threads: a function that is called for all parts of a range of bytes.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use hugekit_bulk::parallel::{Job, Threads};
///
/// let sum = AtomicUsize::new(0);
/// let report = Job::new(1_000_000).min_chunk(1000).threads(Threads::Exactly(2)).run(|chunk| {
///     sum.fetch_add(chunk.sum(), Ordering::Relaxed);
///     Ok::<(), std::convert::Infallible>(())
/// })?;
/// assert_eq!(report.bytes, 1_000_000);
/// assert_eq!(sum.into_inner(), 499_999_500_000);
/// # Ok::<(), hugekit_bulk::parallel::JobError<std::convert::Infallible>>(())
/// ```
#[derive(Clone)]
#[must_use = "a job does nothing until run"]
pub struct Job<'a> {
    len: usize,
    min_chunk: usize,
    address: usize,
    threads: Threads,
    cap: usize,
    nodes: Option<&'a NodeMap>,
    placement: Option<&'a Placement>,
    progress: Option<&'a Progress<'a>>,
    cancel: Option<&'a Cancel>,
    low_priority: bool,
}

impl fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("len", &self.len)
            .field("min_chunk", &self.min_chunk)
            .field("threads", &self.threads)
            .field("cap", &self.cap)
            .finish_non_exhaustive()
    }
}

impl<'a> Job<'a> {
    /// Makes a job of `len` bytes, by default for [`Threads::Auto`], in chunks of any length,
    /// without a cap.
    pub fn new(len: usize) -> Self {
        Self {
            len,
            min_chunk: 1,
            address: 0,
            threads: Threads::Auto,
            cap: usize::MAX,
            nodes: None,
            placement: None,
            progress: None,
            cancel: None,
            low_priority: false,
        }
    }

    /// Sets the length of the smallest chunk in bytes. All chunks except the first and the last of
    /// a part are multiples of this length. By default 1; 0 counts as 1.
    pub fn min_chunk(mut self, bytes: usize) -> Self {
        self.min_chunk = bytes.max(1);
        self
    }

    /// Sets the address of the range. Chunks then end at addresses that are multiples of the
    /// minimum chunk. By default chunks end at offsets that are multiples of it.
    pub fn address(mut self, address: usize) -> Self {
        self.address = address;
        self
    }

    /// Sets the number of threads, the calling thread included. By default [`Threads::Auto`].
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = threads;
        self
    }

    /// Sets the highest number of threads for [`Threads::Auto`]. By default no limit; 0 counts as
    /// 1.
    pub fn cap(mut self, threads: usize) -> Self {
        self.cap = threads.max(1);
        self
    }

    /// Sets a map of the NUMA nodes that hold the parts of the range. By default the nodes are
    /// unknown.
    pub fn nodes(mut self, map: &'a NodeMap) -> Self {
        self.nodes = Some(map);
        self
    }

    /// Sets the CPUs for the helpers. By default the CPUs that the calling thread may use. Tests
    /// pass the CPUs of another machine.
    pub fn placement(mut self, placement: &'a Placement) -> Self {
        self.placement = Some(placement);
        self
    }

    /// Sets a callback that is called after each chunk. By default none. A job with a callback is
    /// divided into chunks even if it has one thread.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Sets the flag that stops the job. By default none. Each thread finishes its current chunk
    /// first, which has at most 32 MiB, or the length of a minimum chunk if that is longer. A job
    /// with a flag is divided into chunks even if it has one thread.
    pub fn cancel(mut self, cancel: &'a Cancel) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Sets the priority of the helpers. If `low` is true, helpers run only on CPUs that no other
    /// thread needs (`SCHED_IDLE`). Chunks are then as small as possible, because another thread
    /// may take a helper's CPU, and the calling thread must wait until the helper finishes its
    /// chunk. By default false.
    pub fn low_priority(mut self, low: bool) -> Self {
        self.low_priority = low;
        self
    }

    /// Calls `chunk` on several threads, for pieces that together are the whole range. Each piece
    /// is passed once.
    ///
    /// A call of `chunk` must not wait for another call, because a helper may never start.
    ///
    /// When `run` returns, the calling thread sees the stores of `chunk`. If `chunk` uses
    /// non-temporal stores, it must fence them before it returns.
    ///
    /// # Errors
    /// - [`JobError::NoThreads`] or [`JobError::NoCpus`] if no thread can work. Nothing is done
    ///   then.
    /// - [`JobError::Chunk`] if a chunk failed, and [`JobError::Cancelled`] if the job was
    ///   cancelled. Both contain the bytes that are done.
    /// - [`JobError::Forked`] if `chunk` forked the process and this process is the child.
    ///
    /// # Panics
    /// If `chunk` or the progress callback panics. The panic has the same payload, and begins after
    /// every helper has stopped.
    pub fn run<E: Send>(
        &self,
        chunk: impl Fn(Range<usize>) -> Result<(), E> + Sync,
    ) -> Result<Report, JobError<E>> {
        let wanted = self.count_wanted()?;
        let watched = self.is_watched();
        if wanted == 1 && !watched {
            return self.run_alone(chunk);
        }
        if headroom::check().is_err() {
            return self.run_in_turn(chunk);
        }
        let placement = self.placement_here();
        let (threads, capped) = self.limit_threads(&placement, wanted);
        if threads == 1 && !watched {
            return self.run_alone(chunk).map(|report| Report { capped, ..report });
        }
        self.run_shared(&chunk, &placement, threads)
            .map(|report| Report { capped: capped.or(report.capped), ..report })
    }

    /// Returns true if the caller observes the progress of the job, or may stop the job.
    fn is_watched(&self) -> bool {
        self.progress.is_some() || self.cancel.is_some()
    }

    fn count_wanted<E>(&self) -> Result<usize, JobError<E>> {
        match self.threads {
            _ if self.placement.is_some_and(|placement| placement.cpus() == 0) => {
                Err(JobError::NoCpus)
            }
            Threads::One => Ok(1),
            Threads::Auto => Ok(plan::threads(self.len, self.min_chunk, self.cap)),
            Threads::Exactly(0) => Err(JobError::NoThreads),
            Threads::Exactly(threads) => Ok(threads),
        }
    }

    fn run_alone<E>(
        &self,
        chunk: impl Fn(Range<usize>) -> Result<(), E>,
    ) -> Result<Report, JobError<E>> {
        let range = 0..self.len;
        match chunk(range.clone()) {
            Ok(()) => Ok(Report::alone(self.len)),
            Err(error) => Err(JobError::Chunk { range, done: Done::nothing(self.len), error }),
        }
    }

    /// Processes chunk by chunk on the calling thread. Allocates nothing unless a chunk fails.
    fn run_in_turn<E>(
        &self,
        chunk: impl Fn(Range<usize>) -> Result<(), E>,
    ) -> Result<Report, JobError<E>> {
        let ChunkGrid { chunk: bytes, skew } = self.chunk_grid(1);
        let until = |end| Done::until(end, self.len);
        let mut start = 0;
        while start < self.len {
            if self.cancel.is_some_and(Cancel::is_cancelled) {
                return Err(JobError::Cancelled { done: until(start) });
            }
            let end = (start + bytes - (start + skew) % bytes).min(self.len);
            let failed = |error| JobError::Chunk { range: start..end, done: until(start), error };
            chunk(start..end).map_err(failed)?;
            start = end;
            self.progress.into_iter().for_each(|tell| tell(start, self.len));
        }
        Ok(Report { capped: Some(Limit::Heap), ..Report::alone(self.len) })
    }

    fn placement_here(&self) -> Cow<'a, Placement> {
        match self.placement {
            Some(placement) => Cow::Borrowed(placement),
            None => Cow::Owned(Placement::here()),
        }
    }

    /// Returns the number of threads for this many wanted threads, and the reason if the number is
    /// smaller than the caller requires.
    fn limit_threads(&self, placement: &Placement, wanted: usize) -> (usize, Option<Limit>) {
        let chunks = plan::threads(self.len, self.min_chunk, usize::MAX);
        let (cpus, by_cpus) = placement.limit();
        let (limit, by) =
            if chunks < cpus { (chunks, Limit::Chunks(chunks)) } else { (cpus, by_cpus) };
        let insisted = matches!(self.threads, Threads::Exactly(_));
        (wanted.min(limit), (insisted && wanted > limit).then_some(by))
    }

    fn run_shared<E: Send, F: Fn(Range<usize>) -> Result<(), E> + Sync>(
        &self,
        chunk: &F,
        placement: &Placement,
        threads: usize,
    ) -> Result<Report, JobError<E>> {
        let cpu = hugekit_sys::thread::current_cpu();
        let (lanes, mut homes) = self.plan_lanes(placement, threads, cpu);
        let queue = Queue::new(
            lanes.iter().map(|lane| lane.parts.clone()).collect(),
            self.chunk_grid(threads),
        );
        let here = placement.node_of_cpu(cpu).unwrap_or(0);
        let _slots = self.drop_helpers_without_slots(&mut homes, &lanes, here);
        let capped = (homes.len() < threads).then_some(Limit::OtherJobs(homes.len()));
        let threads = homes.len();
        let running = RunningJob {
            job: self,
            chunk,
            queue,
            homes,
            cpus: lanes.into_iter().map(|lane| lane.cpus).collect(),
            stop: AtomicBool::new(false),
            tally: Mutex::new(Tally::new()),
        };
        let own = || running.work(0, |_| true);
        if threads == 1 {
            own();
        } else {
            Workers::current()
                .share(&running, threads - 1, self.low_priority, own)
                .map_err(|_forked| JobError::Forked)?;
        }
        running.into_report(threads).map(|report| Report { capped, ..report })
    }

    /// Returns the lanes, and for each thread the lane at which it begins, for a caller on this
    /// CPU.
    fn plan_lanes(
        &self,
        placement: &Placement,
        threads: usize,
        cpu: u32,
    ) -> (Vec<NodeLane>, Vec<usize>) {
        let lanes = lanes_of_nodes(self.nodes, self.len, placement, cpu);
        let here = placement.node_of_cpu(cpu);
        let callers = lanes.iter().position(|lane| lane.node.is_some() && lane.node == here);
        let demands: Vec<Demand> = lanes.iter().map(|lane| lane.demand(cpu)).collect();
        let homes = plan::homes(&demands, threads, callers.unwrap_or(0));
        (lanes, homes)
    }

    /// Returns for each thread the node whose bytes it processes first. The caller's node comes
    /// first.
    #[cfg(all(test, not(loom)))]
    pub(super) fn home_nodes(
        &self,
        placement: &Placement,
        threads: usize,
        cpu: u32,
    ) -> Vec<Option<u32>> {
        let (lanes, homes) = self.plan_lanes(placement, threads, cpu);
        homes.into_iter().map(|home| lanes[home].node).collect()
    }

    /// Removes helpers for which other jobs leave no slot on the node of their memory. The caller
    /// works in any case. Threads of [`Threads::Exactly`] neither need nor occupy slots.
    fn drop_helpers_without_slots(
        &self,
        homes: &mut Vec<usize>,
        lanes: &[NodeLane],
        here: u32,
    ) -> Option<Slots> {
        if self.threads != Threads::Auto || self.placement.is_some() || homes.len() == 1 {
            return None;
        }
        let workers = Workers::current();
        let (mut slots, mut is_caller) = (Slots::none(), true);
        homes.retain(|&home| {
            let mut places = workers.places_for_slots(lanes[home].node, here).into_iter();
            let has_slot = places.any(|(node, cpus)| slots.take_slot(node, self.cap.min(cpus)));
            std::mem::take(&mut is_caller) || has_slot
        });
        Some(slots)
    }

    fn chunk_grid(&self, threads: usize) -> ChunkGrid {
        let chunk = match threads {
            2.. if self.low_priority => self.min_chunk,
            _ if self.is_watched() => plan::watched_chunk(self.len, threads, self.min_chunk),
            _ => plan::chunk(self.len, threads, self.min_chunk),
        };
        ChunkGrid { chunk, skew: self.address % self.min_chunk }
    }
}

/// The parts of the range on one node, and the CPUs for them.
#[derive(Debug)]
struct NodeLane {
    node: Option<u32>,
    parts: Vec<Range<usize>>,
    cpus: CpuSet,
}

impl NodeLane {
    fn demand(&self, callers_cpu: u32) -> Demand {
        let cpus = self.cpus.len() - usize::from(self.cpus.contains(callers_cpu));
        Demand { bytes: self.parts.iter().map(Range::len).sum(), cpus }
    }
}

/// Returns a lane for each node that holds a part, and a lane for the bytes that no node holds.
/// Returns at least one lane.
fn lanes_of_nodes(
    map: Option<&NodeMap>,
    len: usize,
    placement: &Placement,
    callers_cpu: u32,
) -> Vec<NodeLane> {
    let whole = 0..len;
    let cover = map.map_or_else(|| vec![(whole, None)], |map| map.cover(len));
    let mut lanes: Vec<NodeLane> = Vec::new();
    for (part, node) in cover.into_iter().filter(|(part, _)| !part.is_empty()) {
        match lanes.iter_mut().find(|lane| lane.node == node) {
            Some(lane) => lane.parts.push(part),
            None => {
                let cpus =
                    node.map_or_else(|| placement.all_cpus(), |node| placement.cpus_of(node));
                lanes.push(NodeLane {
                    node,
                    parts: vec![part],
                    cpus: without_callers_cpu(cpus, callers_cpu),
                });
            }
        }
    }
    if lanes.is_empty() {
        lanes.push(NodeLane { node: None, parts: Vec::new(), cpus: placement.all_cpus() });
    }
    lanes
}

/// Removes the calling thread's CPU if there is another. A helper that wakes on that CPU would wait
/// there until the caller leaves it, and the caller does not.
fn without_callers_cpu(cpus: CpuSet, callers_cpu: u32) -> CpuSet {
    if cpus.len() > 1 && cpus.contains(callers_cpu) {
        cpus.iter().filter(|&cpu| cpu != callers_cpu).collect()
    } else {
        cpus
    }
}

/// A job that is running, as all of its threads see it.
struct RunningJob<'a, F, E> {
    job: &'a Job<'a>,
    chunk: &'a F,
    queue: Queue,
    /// For each thread, the lane at which it begins.
    homes: Vec<usize>,
    /// For each lane, the CPUs of its helpers. Empty if only helpers of other lanes can help.
    cpus: Vec<CpuSet>,
    stop: AtomicBool,
    tally: Mutex<Tally<E>>,
}

/// The progress of a job. It is locked once for each chunk of some megabytes.
struct Tally<E> {
    done: usize,
    took_part: usize,
    unpinned: usize,
    /// The first failure, and the ranges at which threads failed.
    failure: Option<JobFailure<E>>,
    failed: Vec<Range<usize>>,
}

impl<E> Tally<E> {
    const fn new() -> Self {
        Self { done: 0, took_part: 0, unpinned: 0, failure: None, failed: Vec::new() }
    }
}

enum JobFailure<E> {
    Chunk { range: Range<usize>, error: E },
    Panic(Box<dyn Any + Send>),
}

impl<E: Send, F: Fn(Range<usize>) -> Result<(), E> + Sync> SharedJob for RunningJob<'_, F, E> {
    fn help(&self, slot: usize) {
        self.work(slot, pin);
    }
}

impl<E, F: Fn(Range<usize>) -> Result<(), E>> RunningJob<'_, F, E> {
    /// Processes chunks until none is left, beginning with this thread's own lane.
    fn work(&self, slot: usize, pin: impl Fn(&CpuSet) -> bool) {
        let mut lane = self.homes[slot];
        let mut pinned = self.pin_to(lane, &pin);
        let mut is_first = true;
        let take = |lane| if self.is_stopped() { None } else { self.queue.take_chunk(lane) };
        while let Some((next, bytes)) = take(lane) {
            if next != lane {
                pinned &= self.pin_to(next, &pin);
                lane = next;
            }
            if let Err(failure) = self.do_chunk(bytes, is_first) {
                self.record_failure(failure);
            }
            is_first = false;
        }
        if !pinned {
            self.tally().unpinned += 1;
        }
    }

    /// Pins the thread to the CPUs of a lane. A thread of a lane without CPUs stays on its CPU.
    fn pin_to(&self, lane: usize, pin: impl Fn(&CpuSet) -> bool) -> bool {
        let cpus = &self.cpus[lane];
        cpus.is_empty() || pin(cpus)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.job.cancel.is_some_and(Cancel::is_cancelled)
    }

    fn do_chunk(&self, range: Range<usize>, is_first: bool) -> Result<(), JobFailure<E>> {
        // A panic stops the job, and what it left half done is for the caller alone to see,
        // who gets the panic.
        let done = catch_unwind(AssertUnwindSafe(|| {
            (self.chunk)(range.clone())?;
            self.record_done(range.len(), is_first);
            Ok(())
        }));
        match done {
            Ok(result) => result.map_err(|error| JobFailure::Chunk { range, error }),
            Err(payload) => Err(JobFailure::Panic(payload)),
        }
    }

    /// Calls the callback under the lock, so the calls are in order.
    fn record_done(&self, bytes: usize, is_first: bool) {
        let mut tally = self.tally();
        tally.done += bytes;
        tally.took_part += usize::from(is_first);
        if let Some(progress) = self.job.progress {
            progress(tally.done, self.job.len);
        }
    }

    fn record_failure(&self, failure: JobFailure<E>) {
        self.stop.store(true, Ordering::Relaxed);
        let mut tally = self.tally();
        if let JobFailure::Chunk { range, .. } = &failure {
            tally.failed.push(range.clone());
        }
        tally.failure.get_or_insert(failure);
    }

    /// Locks the tally. A progress callback that panicked poisons the lock, but the counts are
    /// still right.
    fn tally(&self) -> MutexGuard<'_, Tally<E>> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn into_report(self, threads: usize) -> Result<Report, JobError<E>> {
        let len = self.job.len;
        let Tally { done: bytes, took_part, unpinned, failure, failed } =
            self.tally.into_inner().unwrap_or_else(PoisonError::into_inner);
        // A chunk that was taken was done, or failed: no thread works on it any more.
        let done = || {
            let taken = Done::new(self.queue.taken(), len);
            failed.iter().fold(taken, Done::without)
        };
        match failure {
            Some(JobFailure::Panic(payload)) => resume_unwind(payload),
            Some(JobFailure::Chunk { range, error }) => {
                Err(JobError::Chunk { range, done: done(), error })
            }
            None if bytes < len => Err(JobError::Cancelled { done: done() }),
            None => Ok(Report { bytes, threads, took_part, capped: None, unpinned, used: None }),
        }
    }
}
