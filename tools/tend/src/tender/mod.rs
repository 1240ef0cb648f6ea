//! The tender: passes over processes at the right times.
//!
//! The kernel keeps a caller waiting when it asks about a process that holds its own memory map, or
//! is within `exec`, for as long as that process likes. Even `/proc/PID/stat` does. So each process
//! is attended to by a thread of its own, which its tender leaves alone when it is stuck, and no
//! process holds another one up. Collapses take turns, by which the threads together keep to the
//! share of a CPU and the rate that were asked for ([`Pace`](crate::pace::Pace)).

mod away;
mod builder;
mod tended;
mod tending;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use self::away::{Away, Shared};
pub use self::builder::Builder;
use self::tended::Tended;
pub use self::tending::Tending;
use crate::error::TendError;
use crate::fork_cost::ForkCost;
use crate::job::Job;
use crate::options::TendOptions;
use crate::relatives::is_child;
use crate::status::{Hindrance, PassReport, Status};
use crate::target::Target;
use hugekit_machine::Root;
use hugekit_machine::processes::Program;

/// The interval between checks of a process for children. The checks use a thousandth of a CPU.
const TICK: Duration = Duration::from_millis(100);

/// Reading a process with thousands of threads lasts long: the tender then sleeps this many times
/// as long.
const REST: u32 = 50;

/// The delay before a failed start is retried.
const AGAIN: Duration = Duration::from_secs(5);

/// The length of a piece of a rest. A collapse holds a lock of the process's memory map for about
/// as long. So a stop takes effect quickly.
const PIECE: Duration = Duration::from_millis(50);

/// The time that threads have to end after a stop. Then they are abandoned.
const GRACE: Duration = Duration::from_millis(400);

/// The highest number of refusals that are kept for later calls.
const REFUSED: usize = 64;

/// The time within which a process is opened, unless it makes the kernel wait. Usually this lasts
/// less than a millisecond.
const OPENED_WITHIN: Duration = Duration::from_millis(20);

/// `None` for a forked child of a tended process: it is left to that process, which has not seen
/// the child yet.
type Opened = Result<Option<Target>, TendError>;

/// A tender of processes. It works until the processes have ended, or makes one pass.
#[derive(Debug)]
pub struct Tender {
    shared: Arc<Shared>,
    idle: Vec<Tended>,
    away: Vec<Away>,
    opening: Vec<(i32, Job<Opened>)>,
    /// The reasons why processes cannot be tended, found after the caller had stopped waiting. The
    /// caller's next call returns them.
    refused: Vec<(i32, TendError)>,
    tell: Sender<Status>,
    told: Receiver<Status>,
}

impl Tender {
    /// Makes a builder, which sets the processes and the limits.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(options: TendOptions, fork_cost: Option<ForkCost>) -> Self {
        let shared = Arc::new(Shared::new(Root::default(), options, fork_cost));
        let (tell, told) = channel();
        let (idle, away, opening, refused) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { shared, idle, away, opening, refused, tell, told }
    }

    /// Adds a process. A process that the tender already has does not change. A forked child of a
    /// tended process is not added, because the memory that it shares with its parent must not be
    /// copied.
    ///
    /// # Errors
    /// [`TendError`] with the reason why the process cannot be tended. [`TendError::Stuck`] comes
    /// after at most three seconds; the process is then tended as soon as the kernel answers.
    pub fn add(&mut self, pid: i32) -> Result<(), TendError> {
        let mut answer = self.try_add(pid);
        while answer.is_none() {
            if self.opening.iter_mut().any(|(of, job)| *of == pid && job.check_stuck()) {
                return Err(TendError::Stuck { pid });
            }
            answer = self.try_add(pid);
        }
        answer.unwrap_or(Ok(()))
    }

    /// Like [`add`](Self::add), for a caller that does not wait for the kernel. `None` while the
    /// kernel does not answer; the caller should call again later.
    pub fn try_add(&mut self, pid: i32) -> Option<Result<(), TendError>> {
        if self.has(pid) {
            return Some(Ok(()));
        }
        if let Some(at) = self.refused.iter().position(|&(of, _)| of == pid) {
            return Some(Err(self.refused.swap_remove(at).1));
        }
        let (of, mut job) = match self.opening.iter().position(|&(of, _)| of == pid) {
            Some(at) => self.opening.swap_remove(at),
            None => match Job::start((pid, self.programs()), open) {
                Ok(job) => (pid, job),
                Err(error) => return Some(Err(TendError::NoThread { pid, source: error.1 })),
            },
        };
        let at_most = if job.check_stuck() { Duration::ZERO } else { OPENED_WITHIN };
        let Some(opened) = job.wait(at_most) else {
            self.opening.push((of, job));
            return None;
        };
        Some(opened.map(|target| target.into_iter().for_each(|target| self.adopt(target))))
    }

    /// Tends the process, unless it is a forked child of a process that is tended by now. Its own
    /// children are left to it.
    fn adopt(&mut self, target: Target) {
        if !target.is_child_of(&self.programs()) {
            let own = [(target.pid(), target.program())];
            self.idle.retain(|tended| !tended.target.is_child_of(&own));
            self.idle.push(Tended::new(target));
        }
    }

    /// Returns true if the process is tended, or was seen to be a forked child of a tended process.
    fn has(&self, pid: i32) -> bool {
        let of_idle =
            |tended: &Tended| tended.target.pid() == pid || tended.relatives.seen().has(pid);
        let of_away = |away: &Away| away.pid() == pid || away.has_forked(pid);
        self.idle.iter().any(of_idle) || self.away.iter().any(of_away)
    }

    /// Returns the tended processes and their programs.
    fn programs(&self) -> Vec<(i32, Program)> {
        let idle = self.idle.iter().map(|tended| (tended.target.pid(), tended.target.program()));
        idle.chain(self.away.iter().map(|away| (away.pid(), away.program()))).collect()
    }

    /// Makes a pass over each process now. `stop` ends the call within half a second. A process
    /// that makes the kernel wait delays the end by three seconds, and its report contains
    /// [`Hindrance::Stuck`].
    ///
    /// # Errors
    /// [`TendError`] if the files of a process cannot be read. All other processes have had their
    /// pass.
    pub fn pass(&mut self, stop: &AtomicBool) -> Result<Vec<PassReport>, TendError> {
        self.take_back();
        let stuck = |away: &Away| PassReport::of_none(away.pid(), Hindrance::Stuck);
        let mut reports: Vec<_> = self.away.iter().map(stuck).collect();
        let mut failed = None;
        for tended in std::mem::take(&mut self.idle) {
            match self.pass_over(tended, stop) {
                Ok(report) => reports.push(report),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(reports), Err)
    }

    fn pass_over(&mut self, tended: Tended, stop: &AtomicBool) -> Result<PassReport, TendError> {
        let mut away = match Away::pass(tended, &self.shared) {
            Ok(away) => away,
            Err(error) => {
                let (tended, source) = *error;
                let pid = tended.target.pid();
                self.idle.push(tended);
                return Err(TendError::NoThread { pid, source });
            }
        };
        match away.finish(stop) {
            Ok((tended, done)) => {
                let report = tended.last.clone();
                self.idle.push(tended);
                done.map(|()| report.expect("a pass leaves its report"))
            }
            Err(hindrance) => {
                let report = PassReport::of_none(away.pid(), hindrance);
                self.away.push(away);
                Ok(report)
            }
        }
    }

    /// Tends until all processes have ended, or until `stop` is set. A stop takes effect within
    /// half a second, and leaves all memory as it is. The first pass is made at once. `tell` is
    /// called after each pass, and when a child appears or ends.
    pub fn run(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(&Status)) {
        self.idle.iter_mut().for_each(|tended| tended.due = Instant::now());
        while !self.is_empty() && !stop.load(Ordering::Relaxed) {
            self.tick(stop, tell);
        }
        self.recall(tell);
    }

    /// Tends for a tenth of a second, as a step of [`run`](Self::run). This is for a caller that
    /// does other work between the steps, such as finding processes to [`add`](Self::add). Threads
    /// work on the processes between the steps, too.
    pub fn tick(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(&Status)) {
        let end = Instant::now() + TICK;
        for tended in std::mem::take(&mut self.idle) {
            self.attend(tended, tell);
        }
        while !stop.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left.min(PIECE)) {
                Ok(status) => tell(&status),
                Err(_) if left.is_zero() => break,
                Err(_) => {}
            }
        }
        self.take_back();
        // Of a process that has ended, nothing is told later.
        self.told.try_iter().for_each(|status| tell(&status));
    }

    fn attend(&mut self, tended: Tended, tell: &mut dyn FnMut(&Status)) {
        match Away::attend(tended, &self.shared, self.tell.clone()) {
            Ok(away) => self.away.push(away),
            Err(error) => {
                let (mut tended, _) = *error;
                if tended.is_due() {
                    tended.put_off(Hindrance::NoThread);
                    tell(&tended.status());
                }
                self.idle.push(tended);
            }
        }
    }

    /// Takes back processes whose work has ended, if they have not ended themselves.
    fn take_back(&mut self) {
        let idle = &mut self.idle;
        self.away.retain_mut(|away| {
            let Some((tended, done)) = away.wait(Duration::ZERO) else { return true };
            if !matches!(done, Err(TendError::Gone { .. })) {
                idle.push(tended);
            }
            false
        });
        for (pid, mut job) in std::mem::take(&mut self.opening) {
            match job.wait(Duration::ZERO) {
                Some(Ok(target)) => target.into_iter().for_each(|target| self.adopt(target)),
                Some(Err(error)) => self.refused.insert(0, (pid, error)),
                None => self.opening.push((pid, job)),
            }
        }
        // Of a process that nobody asks about again, it is forgotten some day.
        self.refused.truncate(REFUSED);
    }

    /// Waits for all threads to end, except stuck threads.
    fn recall(&mut self, tell: &mut dyn FnMut(&Status)) {
        self.away.iter().for_each(Away::stop);
        let end = Instant::now() + GRACE;
        while self.away.iter_mut().any(|away| !away.check_stuck()) && Instant::now() < end {
            sleep(GRACE / 100);
            self.take_back();
        }
        self.told.try_iter().for_each(|status| tell(&status));
    }

    /// Like [`run`](Self::run), in a thread of its own, until the handle is dropped.
    ///
    /// # Errors
    /// The error of the thread's start.
    pub fn spawn(self) -> std::io::Result<Tending> {
        Tending::new(self)
    }

    /// Returns the number and the name of each process that is tended now.
    #[must_use]
    pub fn processes(&self) -> Vec<(i32, String)> {
        let of_idle = |tended: &Tended| (tended.target.pid(), tended.target.name().into_owned());
        let of_away = |away: &Away| (away.pid(), away.name().to_owned());
        self.idle.iter().map(of_idle).chain(self.away.iter().map(of_away)).collect()
    }

    /// Returns true if all processes have ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.idle.is_empty() && self.away.is_empty() && self.opening.is_empty()
    }
}

fn open((pid, tended): (i32, Vec<(i32, Program)>)) -> Opened {
    if is_child(pid, &tended) { Ok(None) } else { Target::open(pid).map(Some) }
}

/// Sleeps for this time, or until the tender is stopped.
fn rest(duration: Duration, stop: &AtomicBool) {
    let end = Instant::now() + duration;
    while !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        sleep(left.min(PIECE));
    }
}
