//! One tended process, with its history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugekit::HUGE_PAGE_BYTES;
use hugekit_sys::thread::cpu_time;
use rustix::io::Errno;
use rustix::process::Pid;

use super::away::Shared;
use super::{AGAIN, PIECE, rest};
use crate::error::TendError;
use crate::fork_cost::ForkCost;
use crate::headroom::{hindrance, may_grow};
use crate::mappings::Survey;
use crate::options::TendOptions;
use crate::pace::{Pace, Turn, Worked};
use crate::pages::Look;
use crate::plan::{History, HoleFilling, Plan, plan};
use crate::relatives::Relatives;
use crate::status::{Hindrance, PassReport, Status, TendRefusal};
use crate::supply::BlockSupply;
use crate::target::Target;
use crate::waits::Waits;
use hugekit_sys::other_process::{UnreadableByte, collapse};

/// The longest time between two passes without a fork. Memory that was new or sparse at the last
/// pass may be dense now.
const AT_LATEST: Duration = Duration::from_secs(60);

/// If a pass collapses one part in this many of the memory, the next pass comes sooner, because
/// splits accumulate.
const MUCH: u64 = 16;

/// Growth between two passes that is too small to bring the next pass forward.
const LITTLE: u64 = 32 << 20;

/// The number of collapses between two checks of the machine's memory: 32 MiB.
/// [`TendOptions::keep_free`] leaves this many times.
const LOOK_EVERY: usize = 16;

#[derive(Debug)]
pub(crate) struct Tended {
    pub(super) target: Target,
    pub(super) relatives: Relatives,
    history: History,
    /// Bytes of holes that were filled until now.
    filled: u64,
    pub(super) passes: u64,
    children: usize,
    pub(super) due: Instant,
    /// The end of the last pass.
    passed: Instant,
    /// The highest number of bytes in memory at the end of a pass.
    most: u64,
    /// The time until the next pass, if there is no fork.
    interval: Duration,
    pub(super) last: Option<PassReport>,
    last_fork: Option<Duration>,
    /// The number of forks whose time was estimated.
    estimated: u64,
}

/// The next step for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The process has ended, or started another program.
    Leave,
    Rest,
    /// Report a child that appeared or ended.
    Tell,
    Pass,
}

impl Tended {
    pub(super) fn new(target: Target) -> Self {
        Self {
            target,
            relatives: Relatives::default(),
            history: History::default(),
            filled: 0,
            passes: 0,
            children: 0,
            due: Instant::now(),
            passed: Instant::now(),
            most: 0,
            interval: AT_LATEST,
            last: None,
            last_fork: None,
            estimated: 0,
        }
    }

    /// Checks the children of the process.
    pub(super) fn next(&mut self, cost: Option<&ForkCost>) -> Next {
        let Some(resident) = self.target.resident() else { return Next::Leave };
        let children = self.relatives.look(&self.target);
        // Also a fork that a pass has seen, and ended early for.
        let has_forked = self.relatives.forks() > self.estimated;
        self.estimated = self.relatives.forks();
        let is_new = children != self.children;
        if self.children > 0 && children == 0 {
            self.due = Instant::now();
        }
        self.children = children;
        if has_forked {
            self.last_fork = self.estimate(cost);
        }
        if has_forked || is_new {
            Next::Tell
        } else if children == 0 && (self.is_due() || self.has_grown(resident)) {
            Next::Pass
        } else {
            Next::Rest
        }
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Returns true if much memory was added since a pass, as when a server loads its data: its
    /// next fork comes soon, too. Memory that is added and released repeatedly counts once.
    fn has_grown(&self, resident: u64) -> bool {
        let much = LITTLE.max(self.most / MUCH);
        self.passes > 0 && resident > self.most + much && self.passed.elapsed() >= AGAIN
    }

    /// Estimates the time of the fork whose child was just seen, from the process's memory after
    /// the last pass.
    fn estimate(&self, cost: Option<&ForkCost>) -> Option<Duration> {
        let memory = self.last.as_ref()?.after;
        Some(cost?.estimate(memory))
    }

    /// Makes a pass. Its report is then [`last`](Self::last).
    pub(super) fn pass(&mut self, shared: &Shared, stop: &AtomicBool) -> Result<(), TendError> {
        let (began, cpu) = (Instant::now(), cpu_time());
        let mut survey = Survey::of(self.target.folder())?;
        let looks = self.target.look(&mut survey)?;
        let seen: u64 = looks.iter().map(|look| look.present).sum();
        self.history.keep(&looks);
        let is_limit_unknown = !may_grow(&self.target);
        let filling = match is_limit_unknown {
            true => HoleFilling::NOTHING,
            false => HoleFilling::of(&shared.options, survey.extent().all, self.filled),
        };
        let Plan { ranges, sparse, .. } = plan(looks, filling, &self.history);
        let work = self.work(ranges, shared, stop);
        let before = survey.extent();
        // To look again takes as long as a look at every page of the process.
        let after = match work.collapsed {
            0 => before,
            _ => Survey::of(self.target.folder())?.extent(),
        };
        self.filled += work.filled;
        self.note(PassReport {
            pid: self.target.pid(),
            before,
            after,
            collapsed: work.collapsed,
            filled: work.filled,
            refused: work.refused.into_iter().collect(),
            sparse,
            is_limit_unknown,
            swapped: survey.swapped,
            edges: survey.small.saturating_sub(seen),
            excluded: survey.excluded(),
            cpu: cpu_time().saturating_sub(cpu),
            longest: work.longest,
            elapsed: began.elapsed(),
            hindrance: work.hindrance,
        });
        Ok(())
    }

    fn work(&mut self, ranges: Vec<Look>, shared: &Shared, stop: &AtomicBool) -> Work {
        let options = &shared.options;
        // Where a child shares all of the memory there is no range, and it is the child that is in the way.
        let switched_off = self.target.has_switched_off().then_some(Hindrance::SwitchedOff);
        let hindrance = switched_off.or_else(|| self.hindrance(options, stop, true));
        let mut work = Work { hindrance, ..Work::default() };
        let (supply, mut waits) = (BlockSupply::new(), Waits::new(options, self.target.folder()));
        for (index, range) in ranges.into_iter().enumerate() {
            if work.hindrance.is_some() {
                break;
            }
            let Some(turn) = turn(&shared.pace, stop) else {
                work.hindrance = Some(Hindrance::Stopped);
                break;
            };
            let (began, cpu) = (Instant::now(), cpu_time());
            // Without a huge page of its own, the tender leaves it to the collapse to find one.
            supply.refresh();
            work.hindrance = self.hindrance(options, stop, index % LOOK_EVERY == 0);
            if work.hindrance.is_none() {
                let locked = self.collapse(range, &mut work);
                let (elapsed, cpu) = (began.elapsed(), cpu_time().saturating_sub(cpu));
                let worked = Worked { bytes: HUGE_PAGE_BYTES as u64, elapsed, cpu, locked };
                let share = waits.share(self.target.folder());
                turn.rest(worked.rest(share, options.bytes_per_second));
            }
        }
        work
    }

    fn note(&mut self, report: PassReport) {
        self.passes += 1;
        self.passed = Instant::now();
        self.most = self.most.max(self.target.resident().unwrap_or(0));
        self.interval = interval_after(self.interval, &report);
        self.due = Instant::now() + if report.hindrance.is_some() { AGAIN } else { self.interval };
        self.last = Some(report);
    }

    /// Delays a pass that could not be begun.
    pub(super) fn put_off(&mut self, hindrance: Hindrance) {
        self.due = Instant::now() + AGAIN;
        let extent = self.last.as_ref().map_or_else(Default::default, |last| last.after);
        self.last = Some(PassReport {
            before: extent,
            after: extent,
            ..PassReport::of_none(self.target.pid(), hindrance)
        });
    }

    fn hindrance(
        &mut self,
        options: &TendOptions,
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
            0 if of_memory => hindrance(&self.target, options),
            0 => None,
            count => Some(Hindrance::Child { count }),
        }
    }

    fn collapse(&mut self, range: Look, work: &mut Work) -> Duration {
        let began = Instant::now();
        let done = self.try_collapse(range.start, work);
        let took = began.elapsed();
        work.longest = work.longest.max(took);
        match done {
            Ok(()) => {
                work.collapsed += 1;
                work.filled += (HUGE_PAGE_BYTES as u64).saturating_sub(range.present);
                self.history.note(range.start);
            }
            // It is gone, which is the hindrance then.
            Err(Errno::SRCH) => {}
            Err(Errno::INVAL) if self.target.has_switched_off() => {
                work.hindrance = Some(Hindrance::SwitchedOff);
            }
            Err(errno) => *work.refused.entry(TendRefusal::from(errno)).or_insert(0) += 1,
        }
        took
    }

    /// Collapses 2 MiB. Some kernels (6.1, 6.8 and 6.12, but not 6.18) refuse 2 MiB in which every
    /// page needs a fault before a write, as after a fork. One writable page is sufficient for
    /// these kernels.
    fn try_collapse(&self, start: u64, work: &mut Work) -> Result<(), Errno> {
        let (descriptor, pid) = (self.target.descriptor(), Pid::from_raw(self.target.pid()));
        if let (Some(byte), Some(pid)) = (&work.unreadable, pid) {
            byte.make_writable(pid, start);
            return collapse(descriptor, start);
        }
        let done = collapse(descriptor, start);
        if let (Err(Errno::INVAL), Some(pid), Ok(byte)) = (done, pid, UnreadableByte::new()) {
            byte.make_writable(pid, start);
            collapse(descriptor, start)?;
            // The rest of the memory has been forked, too.
            work.unreadable = Some(byte);
            return Ok(());
        }
        done
    }

    pub(super) fn lacks_huge_pages(&self) -> bool {
        let hindrance = self.last.as_ref().and_then(|last| last.hindrance);
        matches!(hindrance, Some(Hindrance::NoFreeHugePages { .. }))
    }

    pub(super) fn status(&self) -> Status {
        Status {
            pid: self.target.pid(),
            name: self.target.name().into_owned(),
            passes: self.passes,
            forks: self.relatives.forks(),
            children: self.children,
            last_fork: self.last_fork,
            last: self.last.clone(),
        }
    }
}

/// Returns half of the last interval if much was split since, and twice the interval if little was
/// split. Returns the shortest interval if the process grew meanwhile.
fn interval_after(last: Duration, report: &PassReport) -> Duration {
    if report.has_grown() {
        return AGAIN;
    }
    let collapsed = report.collapsed.saturating_mul(HUGE_PAGE_BYTES as u64);
    if collapsed >= report.after.all / MUCH && collapsed > 0 {
        (last / 2).max(AGAIN)
    } else {
        (last * 2).min(AT_LATEST)
    }
}

/// The work of a pass until now.
#[derive(Debug, Default)]
struct Work {
    collapsed: u64,
    filled: u64,
    refused: BTreeMap<TendRefusal, u64>,
    longest: Duration,
    hindrance: Option<Hindrance>,
    /// The kernel collapses no range without a writable page, so a page is first made writable.
    unreadable: Option<UnreadableByte>,
}

/// Returns the turn; `None` after a stop.
fn turn<'a>(pace: &'a Pace, stop: &AtomicBool) -> Option<Turn<'a>> {
    while !stop.load(Ordering::Relaxed) {
        match pace.start_turn() {
            Ok(turn) => return Some(turn),
            Err(wait) => rest(wait.min(PIECE), stop),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::Extent;

    #[test]
    fn passes_come_sooner_where_much_is_split_and_later_where_little_is() {
        let huge = HUGE_PAGE_BYTES as u64;
        let after = |last, collapsed| {
            let extent = Extent { huge: 160 * huge, all: 160 * huge, ..Extent::default() };
            let report = PassReport { before: extent, after: extent, ..PassReport::default() };
            interval_after(last, &PassReport { collapsed, ..report })
        };
        assert_eq!(after(AT_LATEST, 10), AT_LATEST / 2);
        assert_eq!(after(AT_LATEST / 2, 9), AT_LATEST);
        assert_eq!(after(AT_LATEST, 0), AT_LATEST);
        assert_eq!(after(AGAIN, 160), AGAIN);
    }

    #[test]
    fn process_that_has_grown_since_a_pass_has_the_next_one_soon() {
        let own = std::process::id() as i32;
        let Ok(target) = Target::beside_a_tender(own) else { return };
        let mut tended = Tended::new(target);
        assert!(!tended.has_grown(u64::MAX), "the first pass is due by itself");
        tended.note(PassReport::default());
        let (most, little) = (tended.most, LITTLE.max(tended.most / MUCH));
        assert!(most > 0 && !tended.has_grown(u64::MAX), "not at once");
        tended.passed -= AGAIN;
        let grown = [most, most + little, most + little + 1].map(|now| tended.has_grown(now));
        assert_eq!(grown, [false, false, true]);
        tended.most = u64::MAX;
        tended.note(PassReport::default());
        assert_eq!(tended.most, u64::MAX, "memory that went may come again");
    }

    #[test]
    fn process_that_grows_while_a_pass_runs_has_the_next_one_soon() {
        let grown = |from, to| {
            let [before, after] = [from, to].map(|all| Extent { all, ..Extent::default() });
            interval_after(AT_LATEST, &PassReport { before, after, ..PassReport::default() })
        };
        assert_eq!(grown(100 << 20, 2 << 30), AGAIN);
        assert_eq!(grown(100 << 20, 101 << 20), AT_LATEST);
    }
}
