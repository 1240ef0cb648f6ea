//! Workers that sleep between jobs, and the requests of callers for their help. `README.md` draws
//! the states.
//!
//! One lock protects all state: the requests, the number of helpers that each request still wants,
//! and the number of helpers inside its job. The lock is taken a few times per job, never per
//! chunk. Two rules make the pool sound:
//!
//! 1. A worker enters a job only while its request is open, under the lock.
//! 2. A caller closes its request and waits until no helper is inside before its job goes away.
//!
//! A caller never waits for a helper that has not entered. It waits only for a helper in the middle
//! of a chunk, because the caller processes all other chunks itself. So a job that is started
//! within a chunk cannot deadlock.
#![allow(unsafe_code)]

use std::hint::spin_loop;
use std::sync::PoisonError;

use hugekit_sys::sync::primitives::{Condvar, Mutex, MutexGuard};

/// The number of times that a caller checks, with pauses of the CPU, if the last helper has left.
/// After that the caller sleeps.
const LOOKS: usize = if cfg!(loom) { 0 } else { 40 };
const PAUSES: usize = 16;

/// A job, as its helpers see the job.
pub(super) trait SharedJob: Sync {
    /// Does part of the job. `slot` counts the helpers of this job, from 1; the caller is 0.
    fn help(&self, slot: usize);
}

/// A pointer to a job on its caller's stack.
#[derive(Clone, Copy)]
struct JobPointer(*const (dyn SharedJob + 'static));

// SAFETY: what it points to is `Sync`, by the definition of `SharedJob`.
unsafe impl Send for JobPointer {}

/// An error: the process is a fork of the process that has the pool, so the helpers do not exist
/// here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forked;

/// Workers, and the requests for their help. A worker inside a job is a helper of the job.
pub(super) struct WorkerPool {
    state: Mutex<WorkerPoolState>,
    /// A request was opened: sleeping workers wait for this.
    opened: Condvar,
    /// The last helper left a closed request: callers wait for this.
    left: Condvar,
    /// Returns true if the calling process is still the process in which these workers run.
    is_ours: Box<dyn Fn() -> bool + Send + Sync>,
}

#[derive(Default)]
struct WorkerPoolState {
    requests: Vec<HelpRequest>,
    next_id: u64,
    /// The number of workers that sleep, or that were woken and do not run yet.
    idle: usize,
    /// The number of workers, including those that are being started.
    workers: usize,
    /// The most helpers that any one job has requested. There are never more workers.
    widest: usize,
}

struct HelpRequest {
    id: u64,
    job: JobPointer,
    /// The number of helpers that may still enter; 0 after the request was closed.
    open: usize,
    entered: usize,
    inside: usize,
}

impl WorkerPool {
    /// Makes a pool without workers. `is_ours` returns true if the calling process is still the
    /// process of the workers.
    pub(super) fn new(is_ours: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let state = Mutex::new(WorkerPoolState::default());
        let is_ours = Box::new(is_ours);
        Self { state, opened: Condvar::new(), left: Condvar::new(), is_ours }
    }

    /// Runs `own` while up to `helpers` workers help with the same job. `start_worker` starts a
    /// worker, or returns false.
    ///
    /// # Errors
    /// [`Forked`] if `own` returned in a forked child. The chunks that helpers held are lost there.
    pub(super) fn share<R>(
        &self,
        job: &dyn SharedJob,
        helpers: usize,
        start_worker: impl Fn() -> bool,
        own: impl FnOnce() -> R,
    ) -> Result<R, Forked> {
        let (request, to_start) = self.open_request(job, helpers);
        for _ in 0..to_start {
            if !start_worker() {
                self.lock().workers -= 1;
            }
        }
        let result = own();
        let is_ours = (self.is_ours)();
        drop(request);
        if is_ours { Ok(result) } else { Err(Forked) }
    }

    /// Opens a request and wakes workers. Returns the request and the number of workers to start in
    /// addition.
    fn open_request(&self, job: &dyn SharedJob, helpers: usize) -> (OpenRequest<'_>, usize) {
        // SAFETY: only the lifetime is changed. The pointer is followed by workers that entered,
        // and `OpenRequest`, which `share` drops while it still borrows the job, waits for them.
        let job = JobPointer(unsafe {
            std::mem::transmute::<*const (dyn SharedJob + '_), *const (dyn SharedJob + 'static)>(
                job,
            )
        });
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.requests.push(HelpRequest { id, job, open: helpers, entered: 0, inside: 0 });
        state.widest = state.widest.max(helpers);
        let to_start = state.count_missing();
        state.workers += to_start;
        let to_wake = helpers.min(state.idle);
        drop(state);
        (0..to_wake).for_each(|_| self.opened.notify_one());
        (OpenRequest { pool: self, id }, to_start)
    }

    /// Runs a worker until the end of the process. The function returns only in a forked child.
    pub(super) fn serve(&self) {
        while self.serve_one().is_ok() {}
    }

    /// Sleeps until a job wants help, and helps with the job.
    fn serve_one(&self) -> Result<(), Forked> {
        let (id, job, slot) = self.enter_request();
        // SAFETY: this worker is counted as inside, so the caller keeps the job where it is.
        unsafe { &*job.0 }.help(slot);
        if !(self.is_ours)() {
            return Err(Forked);
        }
        self.leave_request(id);
        Ok(())
    }

    fn enter_request(&self) -> (u64, JobPointer, usize) {
        let mut state = self.lock();
        loop {
            if let Some(request) = state.requests.iter_mut().find(|request| request.open > 0) {
                request.open -= 1;
                request.entered += 1;
                request.inside += 1;
                return (request.id, request.job, request.entered);
            }
            state.idle += 1;
            state = self.opened.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn leave_request(&self, id: u64) {
        let mut state = self.lock();
        let request = state.request_mut(id);
        request.inside -= 1;
        if request.inside == 0 && request.open == 0 {
            self.left.notify_all();
        }
    }

    /// Closes a request, waits until no helper is inside, and removes it.
    fn close_request(&self, id: u64) {
        let mut state = self.lock();
        state.request_mut(id).open = 0;
        let mut looks = 0;
        while state.request_mut(id).inside > 0 {
            if looks < LOOKS {
                drop(state);
                (0..PAUSES).for_each(|_| spin_loop());
                state = self.lock();
                looks += 1;
            } else {
                state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        state.requests.retain(|request| request.id != id);
    }

    /// Locks the state. No code that may panic runs under the lock, so a poisoned lock means
    /// nothing.
    fn lock(&self) -> MutexGuard<'_, WorkerPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerPoolState {
    fn request_mut(&mut self, id: u64) -> &mut HelpRequest {
        let request = self.requests.iter_mut().find(|request| request.id == id);
        request.expect("a request stays until its caller removes it")
    }

    /// Returns the number of workers to start, so that every open place gets a worker, up to the
    /// limit.
    fn count_missing(&self) -> usize {
        let open: usize = self.requests.iter().map(|request| request.open).sum();
        open.saturating_sub(self.idle).min(self.widest.saturating_sub(self.workers))
    }
}

/// A request in the table. Its drop, by a return or a panic, waits for the helpers inside.
struct OpenRequest<'a> {
    pool: &'a WorkerPool,
    id: u64,
}

impl Drop for OpenRequest<'_> {
    /// In a forked child no helper is inside, and a thread that does not exist there may hold the
    /// lock.
    fn drop(&mut self) {
        if (self.pool.is_ours)() {
            self.pool.close_request(self.id);
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use loom::thread;

    use super::*;

    /// Checks interleavings with up to two preemptions. All interleavings would take hours.
    fn model_with_two_preemptions(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    /// Workers of a model, which end after a job that tells them to. The workers of a process never
    /// end.
    struct ModelWorkers {
        pool: Arc<WorkerPool>,
        dismissed: Arc<AtomicBool>,
        threads: Vec<thread::JoinHandle<()>>,
    }

    impl ModelWorkers {
        fn start(count: usize) -> Self {
            let pool = Arc::new(WorkerPool::new(|| true));
            pool.lock().workers = count;
            let dismissed = Arc::new(AtomicBool::new(false));
            let start = |_| {
                let (pool, dismissed) = (Arc::clone(&pool), Arc::clone(&dismissed));
                thread::spawn(move || {
                    while !dismissed.load(Ordering::SeqCst) {
                        pool.serve_one().unwrap();
                    }
                })
            };
            let threads = (0..count).map(start).collect();
            Self { pool, dismissed, threads }
        }

        /// Opens a request for a last job and waits until every worker has been inside. If a worker
        /// missed the call, or slept through it, loom would report a deadlock.
        fn dismiss(self) {
            let last = Last::new(self.threads.len(), Arc::clone(&self.dismissed));
            self.pool.share(&last, last.expected, || false, || last.wait()).unwrap();
            self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }

    struct Last {
        expected: usize,
        arrived: Mutex<usize>,
        changed: Condvar,
        dismissed: Arc<AtomicBool>,
    }

    impl Last {
        fn new(expected: usize, dismissed: Arc<AtomicBool>) -> Self {
            Self { expected, arrived: Mutex::new(0), changed: Condvar::new(), dismissed }
        }

        fn wait(&self) {
            let mut arrived = self.arrived.lock().unwrap();
            while *arrived < self.expected {
                arrived = self.changed.wait(arrived).unwrap();
            }
        }
    }

    impl SharedJob for Last {
        /// No worker may see that it is dismissed before all workers are inside.
        fn help(&self, _: usize) {
            *self.arrived.lock().unwrap() += 1;
            self.changed.notify_all();
            self.wait();
            self.dismissed.store(true, Ordering::SeqCst);
        }
    }

    /// A job whose memory loom watches. Each slot writes its own cell, and the caller reads the
    /// cells after `share`, without other synchronisation.
    struct Cells {
        cells: Vec<UnsafeCell<usize>>,
        helped: AtomicUsize,
    }

    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Sync for Cells {}

    impl Cells {
        fn new(count: usize) -> Self {
            let cells = (0..count).map(|_| UnsafeCell::new(0)).collect();
            Self { cells, helped: AtomicUsize::new(0) }
        }

        fn write(&self, slot: usize) {
            // SAFETY: slots differ between the threads of one job; loom checks just that.
            self.cells[slot].with_mut(|cell| unsafe { *cell += 1 });
        }

        fn written(&self) -> usize {
            // SAFETY: every helper has left; loom checks just that.
            self.cells.iter().map(|cell| cell.with(|cell| unsafe { *cell })).sum()
        }
    }

    impl SharedJob for Cells {
        fn help(&self, slot: usize) {
            self.write(slot);
            self.helped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn run(pool: &WorkerPool, helpers: usize) {
        let job = Cells::new(helpers + 1);
        pool.share(&job, helpers, || false, || job.write(0)).unwrap();
        let helped = job.helped.load(Ordering::Relaxed);
        assert!(helped <= helpers);
        assert_eq!(job.written(), helped + 1);
    }

    #[test]
    fn job_that_is_over_shows_what_helpers_wrote() {
        loom::model(|| {
            let workers = ModelWorkers::start(1);
            run(&workers.pool, 1);
            workers.dismiss();
        });
    }

    #[test]
    fn worker_at_a_second_job_does_not_sleep_through_it() {
        model_with_two_preemptions(|| {
            let workers = ModelWorkers::start(1);
            run(&workers.pool, 1);
            run(&workers.pool, 1);
            workers.dismiss();
        });
    }

    #[test]
    fn helpers_of_one_job_get_slots_of_their_own() {
        model_with_two_preemptions(|| {
            let workers = ModelWorkers::start(2);
            run(&workers.pool, 2);
            workers.dismiss();
        });
    }

    #[test]
    fn worker_of_two_callers_is_shared() {
        model_with_two_preemptions(|| {
            let workers = ModelWorkers::start(1);
            let pool = Arc::clone(&workers.pool);
            let other = thread::spawn(move || run(&pool, 1));
            run(&workers.pool, 1);
            other.join().unwrap();
            workers.dismiss();
        });
    }

    #[test]
    fn job_within_a_job_ends() {
        struct Outer<'a>(&'a WorkerPool);
        impl SharedJob for Outer<'_> {
            fn help(&self, _: usize) {
                run(self.0, 1);
            }
        }
        model_with_two_preemptions(|| {
            let workers = ModelWorkers::start(1);
            let outer = Outer(&workers.pool);
            workers.pool.share(&outer, 1, || false, || run(&workers.pool, 1)).unwrap();
            workers.dismiss();
        });
    }
}
