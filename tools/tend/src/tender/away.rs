//! A process for which a thread of its own works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::tended::{Next, Tended};
use super::{AGAIN, GRACE, PIECE, REST, TICK, rest};
use crate::compaction::Compaction;
use crate::error::TendError;
use crate::fork_cost::ForkCost;
use crate::job::Job;
use crate::options::TendOptions;
use crate::pace::Pace;
use crate::relatives::Seen;
use crate::stalls::Stalls;
use crate::status::{Hindrance, Status};
use hugekit_machine::Root;
use hugekit_machine::processes::Program;

/// The state that the threads of a tender share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The machine.
    pub(super) root: Root,
    pub(super) options: TendOptions,
    pub(super) fork_cost: Option<ForkCost>,
    pub(super) pace: Pace,
    pub(super) stalls: Mutex<Stalls>,
    pub(super) compaction: Mutex<Compaction>,
}

impl Shared {
    pub(super) fn new(root: Root, options: TendOptions, fork_cost: Option<ForkCost>) -> Self {
        let (pace, stalls) = (Pace::default(), Mutex::default());
        Self { root, options, fork_cost, pace, stalls, compaction: Mutex::default() }
    }
}

/// When the work on a process has ended: the process, and what kept the work from its end.
pub(super) type Done = (Tended, Result<(), TendError>);

/// The process, if no thread could be started.
type Unstarted = Box<(Tended, std::io::Error)>;

#[derive(Debug)]
pub(super) struct Away {
    pid: i32,
    name: String,
    program: Program,
    seen: Seen,
    stop: Arc<AtomicBool>,
    job: Job<Done>,
}

impl Away {
    /// Makes one pass.
    ///
    /// # Errors
    /// The process is returned if no thread can be started.
    pub(super) fn pass(tended: Tended, shared: &Arc<Shared>) -> Result<Self, Unstarted> {
        let shared = Arc::clone(shared);
        Self::start(tended, move |tended, stop| tended.pass(&shared, stop))
    }

    /// Works until the tender is stopped or the process has ended, and sends reports.
    ///
    /// # Errors
    /// The process is returned if no thread can be started.
    pub(super) fn attend(
        tended: Tended,
        shared: &Arc<Shared>,
        tell: Sender<Status>,
    ) -> Result<Self, Unstarted> {
        let shared = Arc::clone(shared);
        Self::start(tended, move |tended, stop| attend(tended, &shared, &tell, stop))
    }

    fn start(
        tended: Tended,
        work: impl FnOnce(&mut Tended, &AtomicBool) -> Result<(), TendError> + Send + 'static,
    ) -> Result<Self, Unstarted> {
        let (pid, program) = (tended.target.pid(), tended.target.program());
        let name = tended.target.name().into_owned();
        let seen = tended.relatives.seen();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let job = Job::start(tended, move |mut tended| {
            let done = work(&mut tended, &stopped);
            (tended, done)
        })?;
        Ok(Self { pid, name, program, seen, stop, job })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn program(&self) -> Program {
        self.program
    }

    pub(super) fn has_forked(&self, pid: i32) -> bool {
        self.seen.has(pid)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn check_stuck(&mut self) -> bool {
        self.job.check_stuck()
    }

    /// Returns the end of the work, if it comes within this time.
    pub(super) fn wait(&mut self, at_most: Duration) -> Option<Done> {
        self.job.wait(at_most)
    }

    /// Waits for the end of the work, unless the thread is stuck, or does not stop on request.
    pub(super) fn finish(&mut self, stop: &AtomicBool) -> Result<Done, Hindrance> {
        let mut stopped = None;
        loop {
            if let Some(done) = self.wait(PIECE) {
                return Ok(done);
            }
            if stop.load(Ordering::Relaxed) {
                self.stop();
                if stopped.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                    return Err(Hindrance::Stopped);
                }
            } else if self.job.check_stuck() {
                return Err(Hindrance::Stuck);
            }
        }
    }
}

/// The thread ends as soon as the kernel returns.
impl Drop for Away {
    fn drop(&mut self) {
        self.stop();
    }
}

fn attend(
    tended: &mut Tended,
    shared: &Shared,
    tell: &Sender<Status>,
    stop: &AtomicBool,
) -> Result<(), TendError> {
    // Who listens no more has told this thread to stop.
    let say = |tended: &Tended| drop(tell.send(tended.status()));
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let next = tended.next(shared.fork_cost.as_ref());
        let looking = began.elapsed();
        match next {
            Next::Leave => return Err(TendError::Gone { pid: tended.target.pid() }),
            Next::Tell => say(tended),
            Next::Pass => {
                match tended.pass(shared, stop) {
                    Err(TendError::Gone { pid }) => return Err(TendError::Gone { pid }),
                    Err(_) => tended.put_off(Hindrance::Unreadable),
                    Ok(()) => {}
                }
                say(tended);
                compact(tended, shared);
            }
            Next::PutOff(hindrance) => {
                let is_told = tended.is_loading();
                tended.put_off(hindrance);
                if !is_told {
                    say(tended);
                }
            }
            Next::Rest => {}
        }
        rest(TICK.max(looking * REST).min(AGAIN), stop);
    }
    Ok(())
}

fn compact(tended: &Tended, shared: &Shared) {
    // While one thread compacts, the others need not.
    if tended.lacks_huge_pages()
        && let Ok(mut compaction) = shared.compaction.try_lock()
    {
        compaction.ask(&shared.root, shared.options.keep_free);
    }
}
