//! The worker threads of this process. They are started when they are first needed, pinned to the
//! CPUs of their job, and do not exist after a fork.
//!
//! There are two pools of workers. Helpers of low priority are separate threads, because an
//! unprivileged thread cannot leave `SCHED_IDLE` or a nice value of 19.

use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::placement::Placement;
use super::worker_pool::{Forked, SharedJob, WorkerPool};
use hugekit_machine::CpuSet;
use hugekit_sys::fork_mark::ForkMark;
use hugekit_sys::sync::{OfProcess, PerProcess};
use hugekit_sys::thread as sys;

/// The workers of one process. The value is never freed, because the threads live as long as the
/// process. In a forked child, threads that do not exist there may hold its locks.
pub(super) struct Workers {
    mark: Arc<ForkMark>,
    /// All CPUs by node, and the quota, at the time of the process's first job.
    machine: Placement,
    ordinary: WorkerPool,
    yielding: WorkerPool,
}

static CURRENT: PerProcess<Workers> = PerProcess::new();

impl OfProcess for Workers {
    fn mark(&self) -> &ForkMark {
        &self.mark
    }
}

impl Workers {
    /// Returns the workers of this process. After a fork, the first call makes new ones.
    pub(super) fn current() -> &'static Self {
        let made: Result<_, Infallible> = CURRENT.get_or_make(|_parents| Ok(Self::new()));
        made.unwrap_or_else(|never| match never {})
    }

    fn new() -> Self {
        let mark = Arc::new(ForkMark::new());
        let pool = || {
            let mark = Arc::clone(&mark);
            WorkerPool::new(move || mark.is_ours())
        };
        let (ordinary, yielding) = (pool(), pool());
        Self { machine: Placement::of_this_machine(), ordinary, yielding, mark }
    }

    /// Returns the placement of the calling thread on this machine.
    pub(super) fn placement(&self) -> Placement {
        // A system-call filter may refuse; the calling thread alone is then certain to be allowed.
        let here = || CpuSet::from_iter([sys::current_cpu()]);
        self.machine.within(&sys::affinity().unwrap_or_else(|_| here()))
    }

    /// Returns the places at which a thread may have a slot, and the number of CPUs of each place,
    /// allowed for the calling thread or not. The place is the node whose memory the thread is for.
    /// For memory of no node, every node is a place, and `here` comes first.
    pub(super) fn places_for_slots(&self, node: Option<u32>, here: u32) -> Vec<(u32, usize)> {
        let nodes = self.machine.nodes();
        if nodes.is_empty() {
            return vec![(0, self.placement().cpus())]; // They could not be read.
        }
        let is_it = |id| node.is_none_or(|node| node == id);
        let mut places: Vec<_> = nodes
            .iter()
            .filter(|node| is_it(node.id))
            .map(|node| (node.id, node.cpus.len()))
            .collect();
        places.sort_by_key(|&(id, _)| id != here);
        places
    }

    /// Returns true if memory can be on more than one node.
    pub(super) fn has_nodes(&self) -> bool {
        self.machine.nodes().len() > 1
    }

    /// Runs `own`, with the help of up to `helpers` threads.
    pub(super) fn share(
        &'static self,
        job: &dyn SharedJob,
        helpers: usize,
        low_priority: bool,
        own: impl FnOnce(),
    ) -> Result<(), Forked> {
        let pool = if low_priority { &self.yielding } else { &self.ordinary };
        pool.share(job, helpers, || start_worker(pool, low_priority), own)
    }
}

/// Starts a worker. If this fails, the job has fewer helpers.
fn start_worker(pool: &'static WorkerPool, low_priority: bool) -> bool {
    let life = move |_: &sys::SignalsBlocked| {
        if low_priority {
            // Any thread may; should a system-call filter object, the helper is an ordinary one.
            let _ = sys::yield_to_all_threads();
        }
        pool.serve();
    };
    sys::spawn("hugekit-helper", life).is_ok()
}

thread_local! {
    /// The CPUs to which the calling worker was pinned last. Most jobs need the same CPUs again.
    static PINNED: RefCell<CpuSet> = RefCell::default();
}

/// Pins the calling worker. Returns true if this succeeded. Only workers call this function.
pub(super) fn pin(cpus: &CpuSet) -> bool {
    PINNED.with_borrow_mut(|pinned| {
        if pinned != cpus {
            if let Err(error) = sys::set_affinity(cpus) {
                report_once(cpus, error);
                return false;
            }
            pinned.clone_from(cpus);
        }
        true
    })
}

/// Logs the failure once per process. The report of every job counts its unpinned helpers.
fn report_once(cpus: &CpuSet, error: rustix::io::Errno) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        hugekit_sys::events::warn!(
            "a helper thread cannot be pinned to {cpus} and runs where it is: {error}"
        );
    }
}
