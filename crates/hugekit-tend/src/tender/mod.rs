//! The tender: passes over processes, when they are due.

mod builder;
mod tending;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit::HUGE_PAGE_BYTES;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

pub use self::builder::Builder;
pub use self::tending::Tending;
use crate::collapse::collapse;
use crate::compaction::Compaction;
use crate::error::TendError;
use crate::fork_cost::ForkCost;
use crate::fork_time::ForkTime;
use crate::headroom::hindrance;
use crate::mappings::Survey;
use crate::pace::rest_after;
use crate::pages::Look;
use crate::plan::{History, Plan, plan};
use crate::redis_info;
use crate::relatives::{Relatives, is_child};
use crate::settings::Settings;
use crate::status::{Hindrance, PassReport, Status};
use crate::target::Target;

/// How often a tender looks for children, which takes a thousandth of a CPU.
const TICK: Duration = Duration::from_millis(100);

/// Of a process with thousands of threads, looking takes long: so many times as long it sleeps then.
const REST: u32 = 50;

/// Without a fork, a pass is made so long after the last one: what was new or sparse then may be dense now.
const AT_LATEST: Duration = Duration::from_secs(60);

/// Of its memory, a pass that had to collapse one part in so many has the next one come sooner: splits accumulate.
const MUCH: u64 = 16;

/// What could not be begun is tried again after so long.
const AGAIN: Duration = Duration::from_secs(5);

/// Collapses for each look at the machine's memory: 32 MiB, which [`Settings::keep_free`] leaves many times.
const LOOK_EVERY: usize = 16;

/// A collapse takes a lock of the process's memory map, and rests are taken in pieces as long, so that a stop is heard.
const PIECE: Duration = Duration::from_millis(50);

/// Tends processes until they are gone, or for one pass.
#[derive(Debug)]
pub struct Tender {
    settings: Settings,
    fork_cost: Option<ForkCost>,
    compaction: Compaction,
    tended: Vec<Tended>,
}

/// A process, and what is known of it.
#[derive(Debug)]
struct Tended {
    target: Target,
    relatives: Relatives,
    history: History,
    passes: u64,
    children: usize,
    due: Instant,
    /// Until the next pass without a fork.
    interval: Duration,
    last: Option<PassReport>,
    last_fork: Option<ForkTime>,
}

impl Tender {
    /// To be told which processes, and how carefully.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(settings: Settings, fork_cost: Option<ForkCost>) -> Self {
        Self { settings, fork_cost, compaction: Compaction::default(), tended: Vec::new() }
    }

    /// Another process, too. One that it has already stays as it is, and so does a forked child of one: what it shares
    /// with its parent is not to be copied.
    ///
    /// # Errors
    /// Why it cannot be tended.
    pub fn add(&mut self, pid: i32) -> Result<(), TendError> {
        if self.tended.iter().any(|tended| tended.target.pid() == pid || tended.has_forked(pid)) {
            return Ok(());
        }
        let target = Target::open(pid)?;
        self.tended.push(Tended {
            target,
            relatives: Relatives::default(),
            history: History::default(),
            passes: 0,
            children: 0,
            due: Instant::now(),
            interval: AT_LATEST,
            last: None,
            last_fork: None,
        });
        Ok(())
    }

    /// One pass over each process, whether one is due or not. `stop` ends it within a tenth of a second.
    ///
    /// # Errors
    /// The files of one of them cannot be read; the others after it have had no pass.
    pub fn pass(&mut self, stop: &AtomicBool) -> Result<Vec<PassReport>, TendError> {
        let settings = self.settings;
        self.tended.iter_mut().map(|tended| tended.pass(&settings, stop)).collect()
    }

    /// Tends until all processes are gone, or `stop` is set: that is heard within a tenth of a second, and leaves all
    /// memory as it is. The first pass is made at once. `tell` is called after each pass, and when a child comes or
    /// goes.
    pub fn run(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(&Status)) {
        self.tended.iter_mut().for_each(|tended| tended.due = Instant::now());
        while !self.is_empty() && !stop.load(Ordering::Relaxed) {
            self.tick(stop, tell);
        }
    }

    /// Does what is due, and sleeps for a tenth of a second, or longer where to look takes long: a turn of [`run`](Self::run), for a caller that has more to
    /// do between them, such as to look for processes to [`add`](Self::add).
    pub fn tick(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(&Status)) {
        let (settings, fork_cost) = (self.settings, self.fork_cost);
        let (began, passes) = (Instant::now(), self.passes());
        self.tended.retain_mut(|tended| tended.step(&settings, fork_cost.as_ref(), stop, tell));
        if self.tended.iter().any(Tended::lacks_huge_pages) {
            self.compaction.ask(settings.keep_free);
        }
        // A pass has rested already.
        let looking = if self.passes() == passes { began.elapsed() } else { Duration::ZERO };
        rest(TICK.max(looking * REST).min(AGAIN), stop);
    }

    fn passes(&self) -> u64 {
        self.tended.iter().map(|tended| tended.passes).sum()
    }

    /// As [`run`](Self::run), in a thread of its own, until the handle is dropped.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn spawn(self) -> std::io::Result<Tending> {
        Tending::new(self)
    }

    /// Whether all processes are gone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tended.is_empty()
    }
}

impl Tended {
    /// Does what is due; whether the process is still there.
    fn step(
        &mut self,
        settings: &Settings,
        fork_cost: Option<&ForkCost>,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&Status),
    ) -> bool {
        if !self.target.is_there() {
            return false;
        }
        let forks = self.relatives.forks();
        let children = self.relatives.look(&self.target);
        if self.relatives.forks() > forks {
            self.last_fork = self.fork_time(fork_cost);
        }
        if children != self.children {
            let has_ended = self.children > 0 && children == 0;
            self.children = children;
            if has_ended {
                self.due = Instant::now();
            }
            tell(&self.status());
        }
        if children > 0 || Instant::now() < self.due || stop.load(Ordering::Relaxed) {
            return true;
        }
        match self.pass(settings, stop) {
            Ok(_) => {
                tell(&self.status());
                true
            }
            Err(TendError::Gone { .. }) => false,
            // What cannot be read now may be later.
            Err(_) => {
                self.due = Instant::now() + AGAIN;
                true
            }
        }
    }

    fn pass(&mut self, settings: &Settings, stop: &AtomicBool) -> Result<PassReport, TendError> {
        let began = Instant::now();
        let cpu = thread_cpu();
        let survey = Survey::of(self.target.process())?;
        let looks = self.target.look(&survey.tended)?;
        self.history.keep(&looks);
        let Plan { ranges, sparse } = plan(looks, settings.density, &self.history);
        // Where a child shares all of the memory there is no range, and it is the child that is in the way.
        let mut work = Work { hindrance: self.hindrance(settings, stop, true), ..Work::default() };
        for (index, range) in ranges.into_iter().enumerate() {
            if work.hindrance.is_some() {
                break;
            }
            self.collapse(range, settings, stop, &mut work);
            work.hindrance = self.hindrance(settings, stop, (index + 1) % LOOK_EVERY == 0);
        }
        let before = survey.extent();
        // To look again takes as long as a look at every page of the process.
        let after =
            if work.collapsed == 0 { before } else { Survey::of(self.target.process())?.extent() };
        let report = PassReport {
            pid: self.target.pid(),
            before,
            after,
            collapsed: work.collapsed,
            filled: work.filled,
            refused: work.refused(),
            sparse,
            excluded: survey.excluded,
            cpu: thread_cpu().saturating_sub(cpu),
            longest: work.longest,
            elapsed: began.elapsed(),
            hindrance: work.hindrance,
        };
        self.passes += 1;
        self.interval = interval_after(self.interval, &report);
        self.due = Instant::now() + if report.hindrance.is_some() { AGAIN } else { self.interval };
        self.last = Some(report.clone());
        Ok(report)
    }

    fn hindrance(
        &mut self,
        settings: &Settings,
        stop: &AtomicBool,
        of_memory: bool,
    ) -> Option<Hindrance> {
        if stop.load(Ordering::Relaxed) {
            return Some(Hindrance::Stopped);
        }
        if !self.target.is_there() {
            return Some(Hindrance::Gone);
        }
        match self.relatives.look(&self.target) {
            0 if of_memory => hindrance(&self.target, settings),
            0 => None,
            count => Some(Hindrance::Child { count }),
        }
    }

    fn collapse(&mut self, range: Look, settings: &Settings, stop: &AtomicBool, work: &mut Work) {
        let began = Instant::now();
        let done = collapse(self.target.descriptor(), range.start);
        let took = began.elapsed();
        work.longest = work.longest.max(took);
        match done {
            Ok(()) => {
                work.collapsed += 1;
                work.filled += HUGE_PAGE_BYTES as u64 - range.present;
                self.history.note(range.start);
            }
            Err(errno) => *work.refused.entry(errno).or_insert(0) += 1,
        }
        rest(rest_after(settings, HUGE_PAGE_BYTES as u64, took), stop);
    }

    /// Of the fork whose child was just seen: as the process says, or by what its memory was after the last pass.
    fn fork_time(&self, fork_cost: Option<&ForkCost>) -> Option<ForkTime> {
        let told = redis_info::last_fork(&self.target).map(ForkTime::Told);
        let memory = || self.last.as_ref().map(|last| last.after);
        told.or_else(|| Some(ForkTime::Estimated(fork_cost?.of(memory()?))))
    }

    fn has_forked(&self, pid: i32) -> bool {
        self.relatives.has(pid) || is_child(&self.target, pid)
    }

    fn lacks_huge_pages(&self) -> bool {
        let hindrance = self.last.as_ref().and_then(|last| last.hindrance);
        matches!(hindrance, Some(Hindrance::NoFreeHugePages { .. }))
    }

    fn status(&self) -> Status {
        Status {
            pid: self.target.pid(),
            name: self.target.name().to_owned(),
            passes: self.passes,
            forks: self.relatives.forks(),
            children: self.children,
            last_fork: self.last_fork,
            last: self.last.clone(),
        }
    }
}

/// Half of the last one where much was split since, and twice as long where little was.
fn interval_after(last: Duration, report: &PassReport) -> Duration {
    let collapsed = report.collapsed.saturating_mul(HUGE_PAGE_BYTES as u64);
    if collapsed >= report.after.all / MUCH && collapsed > 0 {
        (last / 2).max(AGAIN)
    } else {
        (last * 2).min(AT_LATEST)
    }
}

/// What a pass has done so far.
#[derive(Debug, Default)]
struct Work {
    collapsed: u64,
    filled: u64,
    refused: HashMap<Errno, u64>,
    longest: Duration,
    hindrance: Option<Hindrance>,
}

impl Work {
    fn refused(&self) -> Vec<(String, u64)> {
        let text = |errno: Errno| std::io::Error::from(errno).to_string();
        self.refused.iter().map(|(&errno, &count)| (text(errno), count)).collect()
    }
}

/// Sleeps, unless it is told to stop.
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

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::Extent;

    #[test]
    fn passes_come_sooner_where_much_is_split_and_later_where_little_is() {
        let huge = HUGE_PAGE_BYTES as u64;
        let after = |last, collapsed| {
            let extent = Extent { huge: 160 * huge, all: 160 * huge };
            interval_after(last, &PassReport { after: extent, collapsed, ..PassReport::default() })
        };
        assert_eq!(after(AT_LATEST, 10), AT_LATEST / 2);
        assert_eq!(after(AT_LATEST / 2, 9), AT_LATEST);
        assert_eq!(after(AT_LATEST, 0), AT_LATEST);
        assert_eq!(after(AGAIN, 160), AGAIN);
    }
}
