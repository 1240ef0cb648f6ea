//! Where callers with a job and sleeping workers meet. `README.md` draws the states.
//!
//! One lock guards everything: who offers a job, how many helpers it still wants and how many are
//! inside it. It is taken a few times a job, never for a chunk. Two rules make the rest sound:
//!
//! 1. A worker enters a job only while its posting is open, under the lock.
//! 2. A caller closes its posting and waits until no helper is inside before its job goes away.
//!
//! A caller never waits for a helper that has not entered, only for one in the middle of a chunk:
//! it does the work itself. A job started within a chunk can therefore not deadlock.
#![allow(unsafe_code)]

use std::hint::spin_loop;
use std::sync::PoisonError;

use hugekit_sys::sync::primitives::{Condvar, Mutex, MutexGuard};

/// How often a caller looks again whether the last helper has left before it goes to sleep, and
/// pauses of the CPU in between.
const LOOKS: usize = if cfg!(loom) { 0 } else { 40 };
const PAUSES: usize = 16;

/// A job as its helpers see it.
pub(super) trait Work: Sync {
    /// Does part of it. `slot` counts the helpers of this job, from 1; the caller is 0.
    fn help(&self, slot: usize);
}

/// Pointer to a job on its caller's stack.
#[derive(Clone, Copy)]
struct JobPointer(*const (dyn Work + 'static));

// SAFETY: what it points to is `Sync`, by the definition of `Work`.
unsafe impl Send for JobPointer {}

/// The process is a fork of the one whose crew this is: its helpers do not exist here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forked;

/// Workers and those who want their help.
pub(super) struct Crew {
    state: Mutex<State>,
    /// A posting was opened: sleeping workers wait for this.
    posted: Condvar,
    /// The last helper left a closed posting: callers wait for this.
    left: Condvar,
    /// Whether the calling process is still the one that these workers run in.
    is_ours: Box<dyn Fn() -> bool + Send + Sync>,
}

#[derive(Default)]
struct State {
    postings: Vec<Posting>,
    next_id: u64,
    /// Workers asleep, or woken and not yet running.
    idle: usize,
    /// Workers there are, those being started included.
    workers: usize,
    /// Most helpers that any one job has asked for, which is all the workers there will be.
    widest: usize,
}

struct Posting {
    id: u64,
    job: JobPointer,
    /// Helpers that may still enter; 0 once it is closed.
    open: usize,
    entered: usize,
    inside: usize,
}

impl Crew {
    /// A crew without workers. `is_ours` says whether this is still the process they run in.
    pub(super) fn new(is_ours: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let state = Mutex::new(State::default());
        let is_ours = Box::new(is_ours);
        Self { state, posted: Condvar::new(), left: Condvar::new(), is_ours }
    }

    /// Runs `own` while up to `helpers` workers help with the same job. `hire` starts a worker, or
    /// says that it could not.
    ///
    /// # Errors
    /// [`Forked`] if `own` returned in a forked child, where the chunks that helpers held are lost.
    pub(super) fn share<R>(
        &self,
        job: &dyn Work,
        helpers: usize,
        hire: impl Fn() -> bool,
        own: impl FnOnce() -> R,
    ) -> Result<R, Forked> {
        let (posted, to_hire) = self.post(job, helpers);
        for _ in 0..to_hire {
            if !hire() {
                self.lock().workers -= 1;
            }
        }
        let result = own();
        let is_ours = (self.is_ours)();
        drop(posted);
        if is_ours { Ok(result) } else { Err(Forked) }
    }

    /// Opens a posting and wakes workers. The number is of workers to start in addition.
    fn post(&self, job: &dyn Work, helpers: usize) -> (Posted<'_>, usize) {
        // SAFETY: only the lifetime is changed. The pointer is followed by workers that entered,
        // and `Posted`, which `share` drops while it still borrows the job, waits for them.
        let job = JobPointer(unsafe {
            std::mem::transmute::<*const (dyn Work + '_), *const (dyn Work + 'static)>(job)
        });
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.postings.push(Posting { id, job, open: helpers, entered: 0, inside: 0 });
        state.widest = state.widest.max(helpers);
        let to_hire = state.missing();
        state.workers += to_hire;
        let to_wake = helpers.min(state.idle);
        drop(state);
        (0..to_wake).for_each(|_| self.posted.notify_one());
        (Posted { crew: self, id }, to_hire)
    }

    /// A worker's whole life; it ends only in a forked child.
    pub(super) fn serve(&self) {
        while self.serve_one().is_ok() {}
    }

    /// Sleeps until a job wants help and helps with it.
    fn serve_one(&self) -> Result<(), Forked> {
        let (id, job, slot) = self.enter();
        // SAFETY: this worker is counted as inside, so the caller keeps the job where it is.
        unsafe { &*job.0 }.help(slot);
        if !(self.is_ours)() {
            return Err(Forked);
        }
        self.leave(id);
        Ok(())
    }

    fn enter(&self) -> (u64, JobPointer, usize) {
        let mut state = self.lock();
        loop {
            if let Some(posting) = state.postings.iter_mut().find(|posting| posting.open > 0) {
                posting.open -= 1;
                posting.entered += 1;
                posting.inside += 1;
                return (posting.id, posting.job, posting.entered);
            }
            state.idle += 1;
            state = self.posted.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn leave(&self, id: u64) {
        let mut state = self.lock();
        let posting = state.posting(id);
        posting.inside -= 1;
        if posting.inside == 0 && posting.open == 0 {
            self.left.notify_all();
        }
    }

    /// Closes a posting, waits until no helper is inside, and takes it down.
    fn withdraw(&self, id: u64) {
        let mut state = self.lock();
        state.posting(id).open = 0;
        let mut looks = 0;
        while state.posting(id).inside > 0 {
            if looks < LOOKS {
                drop(state);
                (0..PAUSES).for_each(|_| spin_loop());
                state = self.lock();
                looks += 1;
            } else {
                state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        state.postings.retain(|posting| posting.id != id);
    }

    /// No code that may panic runs under the lock, so poisoning says nothing.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn posting(&mut self, id: u64) -> &mut Posting {
        let posting = self.postings.iter_mut().find(|posting| posting.id == id);
        posting.expect("a posting stays until its caller takes it down")
    }

    /// Workers to start so that every open place finds one, as far as there may be more.
    fn missing(&self) -> usize {
        let open: usize = self.postings.iter().map(|posting| posting.open).sum();
        open.saturating_sub(self.idle).min(self.widest.saturating_sub(self.workers))
    }
}

/// A posting that stands. Dropping it, by a return or a panic, waits for those inside.
struct Posted<'a> {
    crew: &'a Crew,
    id: u64,
}

impl Drop for Posted<'_> {
    /// In a forked child no helper is inside, and the lock may be held by a thread that is not there.
    fn drop(&mut self) {
        if (self.crew.is_ours)() {
            self.crew.withdraw(self.id);
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

    /// Interleavings with up to two preemptions, where all of them would take hours.
    fn model_with_two_preemptions(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    /// Workers in a model end after a job that says so; those of a process never do.
    struct Workers {
        crew: Arc<Crew>,
        dismissed: Arc<AtomicBool>,
        threads: Vec<thread::JoinHandle<()>>,
    }

    impl Workers {
        fn start(count: usize) -> Self {
            let crew = Arc::new(Crew::new(|| true));
            crew.lock().workers = count;
            let dismissed = Arc::new(AtomicBool::new(false));
            let start = |_| {
                let (crew, dismissed) = (Arc::clone(&crew), Arc::clone(&dismissed));
                thread::spawn(move || {
                    while !dismissed.load(Ordering::SeqCst) {
                        crew.serve_one().unwrap();
                    }
                })
            };
            let threads = (0..count).map(start).collect();
            Self { crew, dismissed, threads }
        }

        /// Posts a last job and waits until every worker has been inside. If one had missed the
        /// call, or slept through it, loom would report a deadlock.
        fn dismiss(self) {
            let last = Last::new(self.threads.len(), Arc::clone(&self.dismissed));
            self.crew.share(&last, last.expected, || false, || last.wait()).unwrap();
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

    impl Work for Last {
        /// No worker may see that it is dismissed before all of them are inside.
        fn help(&self, _: usize) {
            *self.arrived.lock().unwrap() += 1;
            self.changed.notify_all();
            self.wait();
            self.dismissed.store(true, Ordering::SeqCst);
        }
    }

    /// A job whose memory loom watches: each slot writes its own cell, and the caller reads them
    /// after `share`, without any other synchronisation.
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

    impl Work for Cells {
        fn help(&self, slot: usize) {
            self.write(slot);
            self.helped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn run(crew: &Crew, helpers: usize) {
        let job = Cells::new(helpers + 1);
        crew.share(&job, helpers, || false, || job.write(0)).unwrap();
        let helped = job.helped.load(Ordering::Relaxed);
        assert!(helped <= helpers);
        assert_eq!(job.written(), helped + 1);
    }

    #[test]
    fn job_that_is_over_shows_what_helpers_wrote() {
        loom::model(|| {
            let workers = Workers::start(1);
            run(&workers.crew, 1);
            workers.dismiss();
        });
    }

    #[test]
    fn worker_at_a_second_job_does_not_sleep_through_it() {
        model_with_two_preemptions(|| {
            let workers = Workers::start(1);
            run(&workers.crew, 1);
            run(&workers.crew, 1);
            workers.dismiss();
        });
    }

    #[test]
    fn helpers_of_one_job_get_slots_of_their_own() {
        model_with_two_preemptions(|| {
            let workers = Workers::start(2);
            run(&workers.crew, 2);
            workers.dismiss();
        });
    }

    #[test]
    fn worker_of_two_callers_is_shared() {
        model_with_two_preemptions(|| {
            let workers = Workers::start(1);
            let crew = Arc::clone(&workers.crew);
            let other = thread::spawn(move || run(&crew, 1));
            run(&workers.crew, 1);
            other.join().unwrap();
            workers.dismiss();
        });
    }

    #[test]
    fn job_within_a_job_ends() {
        struct Outer<'a>(&'a Crew);
        impl Work for Outer<'_> {
            fn help(&self, _: usize) {
                run(self.0, 1);
            }
        }
        model_with_two_preemptions(|| {
            let workers = Workers::start(1);
            let outer = Outer(&workers.crew);
            workers.crew.share(&outer, 1, || false, || run(&workers.crew, 1)).unwrap();
            workers.dismiss();
        });
    }
}
