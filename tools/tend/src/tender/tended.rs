//! One tended process, with its history.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use hugekit::HUGE_PAGE_BYTES;
use hugekit_sys::thread::cpu_time;

use super::AGAIN;
use super::away::Shared;
use crate::error::TendError;
use crate::fork_cost::ForkCost;
use crate::headroom::Headroom;
use crate::history::History;
use crate::load::{Load, Memory};
use crate::mappings::Survey;
use crate::plan::{HoleFilling, Plan, plan};
use crate::relatives::Relatives;
use crate::rhythm::Rhythm;
use crate::status::{Hindrance, PassReport, Status};
use crate::target::Target;

/// The longest time between two passes without a fork. Memory that was new or sparse at the last
/// pass may be dense now.
const AT_LATEST: Duration = Duration::from_secs(60);

/// If a process grows by one part in this many of its memory, the next pass comes sooner.
const MUCH: u64 = 16;

/// If a pass collapses one part in this many of the memory, the next one comes sooner: splits accumulate, and the next fork
/// finds them.
const SPLIT: u64 = 32;

/// If a pass collapses less than one part in this many, the next one comes later.
const FEW_SPLIT: u64 = 64;

/// The shortest interval of passes over a process that forks.
const SOONEST: Duration = Duration::from_secs(2);

/// A process that loads data is looked at again after this time.
const LOADING: Duration = Duration::from_secs(1);

/// Less growth than this between two passes does not hurry the next one.
const LITTLE: u64 = 32 << 20;

#[derive(Debug)]
pub(crate) struct Tended {
    pub(super) target: Target,
    pub(super) relatives: Relatives,
    pub(super) history: History,
    pub(super) rhythm: Rhythm,
    load: Load,
    /// Bytes of holes that were filled so far.
    pub(super) filled: u64,
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    /// The process has ended, or started another program.
    Leave,
    Rest,
    /// Report a child that appeared or ended.
    Tell,
    /// Put a pass off, because it loads data.
    PutOff(Hindrance),
    Pass,
}

impl Tended {
    pub(super) fn new(target: Target) -> Self {
        Self {
            target,
            relatives: Relatives::default(),
            history: History::default(),
            rhythm: Rhythm::default(),
            load: Load::default(),
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
        let now = Instant::now();
        if has_forked {
            self.last_fork = self.estimate(cost);
            self.rhythm.forked(now);
        }
        // Also a child that came and went between two looks.
        if (self.children > 0 || has_forked) && children == 0 {
            self.due = now;
            self.rhythm.ended(now);
        }
        self.children = children;
        let load = self.note_load(resident);
        if has_forked || is_new {
            return Next::Tell;
        }
        let is_wanted = children == 0 && (self.is_due() || self.has_grown(resident));
        match load {
            _ if !is_wanted => Next::Rest,
            Some(rate) => Next::PutOff(Hindrance::Loading { bytes_per_second: rate }),
            None => Next::Pass,
        }
    }

    /// Returns by how many bytes per second it grows, if it loads data.
    pub(super) fn note_load(&mut self, resident: u64) -> Option<u64> {
        self.load.note(Memory { resident, filled: self.filled }, Instant::now());
        self.load.rate()
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
        // What a child shares is not looked at.
        if self.relatives.look(&self.target) == 0 {
            self.history.look(&looks, &survey.huge, Instant::now());
        }
        let is_limit_unknown = !Headroom::read(&shared.root, &self.target).may_grow();
        let filling = match is_limit_unknown {
            true => HoleFilling::NOTHING,
            false => HoleFilling::of(&shared.options, survey.extent().all, self.history.filled()),
        };
        let plan = plan(looks, filling, &self.history, Instant::now());
        let Plan { ranges, sparse, waiting, .. } = plan;
        let work = self.work(ranges, shared, stop);
        let before = survey.extent();
        // To look again takes as long as a look at every page of the process.
        let after = match work.collapsed {
            0 => before,
            _ => Survey::of(self.target.folder())?.extent(),
        };
        self.rhythm.passed(work.collapsed, work.locked);
        self.note(PassReport {
            pid: self.target.pid(),
            before,
            after,
            collapsed: work.collapsed,
            filled: work.filled,
            gathered: work.supply.gathered,
            gathering: work.supply.gathering,
            refused: work.refused.into_iter().collect(),
            sparse,
            waiting,
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

    fn note(&mut self, report: PassReport) {
        self.passes += 1;
        self.passed = Instant::now();
        self.most = self.most.max(self.target.resident().unwrap_or(0));
        self.interval = interval_after(self.interval, &report, self.relatives.forks() > 0);
        self.due = Instant::now() + if report.hindrance.is_some() { AGAIN } else { self.interval };
        self.last = Some(report);
    }

    /// Delays a pass that could not be begun.
    pub(super) fn put_off(&mut self, hindrance: Hindrance) {
        let again = match hindrance {
            Hindrance::Loading { .. } => LOADING,
            _ => AGAIN,
        };
        self.due = Instant::now() + again;
        let extent = self.last.as_ref().map_or_else(Default::default, |last| last.after);
        self.last = Some(PassReport {
            before: extent,
            after: extent,
            ..PassReport::of_none(self.target.pid(), hindrance)
        });
    }

    fn hindrance_of_last(&self) -> Option<Hindrance> {
        self.last.as_ref()?.hindrance
    }

    pub(super) fn lacks_huge_pages(&self) -> bool {
        matches!(self.hindrance_of_last(), Some(Hindrance::NoFreeHugePages { .. }))
    }

    /// Returns whether the last pass was put off because the process loads data.
    pub(super) fn is_loading(&self) -> bool {
        matches!(self.hindrance_of_last(), Some(Hindrance::Loading { .. }))
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

/// Half of the last one where much was split since, and twice as long where little was. As short as can be where the
/// process grew meanwhile.
fn interval_after(last: Duration, report: &PassReport, forks: bool) -> Duration {
    if report.has_grown() {
        return AGAIN;
    }
    let collapsed = report.collapsed.saturating_mul(HUGE_PAGE_BYTES as u64);
    let is_part = |part| collapsed > 0 && collapsed >= report.after.all / part;
    if is_part(SPLIT) {
        (last / 2).max(if forks { SOONEST } else { AGAIN })
    } else if is_part(FEW_SPLIT) {
        last
    } else {
        (last * 2).min(AT_LATEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mappings::Extent;

    #[test]
    fn passes_come_sooner_where_much_is_split_and_later_where_little_is() {
        let huge = HUGE_PAGE_BYTES as u64;
        let after = |last, collapsed, forks| {
            let extent = Extent { huge: 640 * huge, all: 640 * huge, ..Extent::default() };
            let report = PassReport { before: extent, after: extent, ..PassReport::default() };
            interval_after(last, &PassReport { collapsed, ..report }, forks)
        };
        let rows = [
            (AT_LATEST, 20, true, AT_LATEST / 2),
            (AT_LATEST / 2, 19, true, AT_LATEST / 2),
            (AT_LATEST / 2, 9, true, AT_LATEST),
            (AT_LATEST, 0, true, AT_LATEST),
            (AGAIN, 640, false, AGAIN),
            (AGAIN, 640, true, AGAIN / 2),
            (SOONEST, 640, true, SOONEST),
        ];
        for (last, collapsed, forks, expected) in rows {
            assert_eq!(after(last, collapsed, forks), expected, "{last:?} {collapsed} {forks}");
        }
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
            let report = PassReport { before, after, ..PassReport::default() };
            interval_after(AT_LATEST, &report, true)
        };
        assert_eq!(grown(100 << 20, 2 << 30), AGAIN);
        assert_eq!(grown(100 << 20, 101 << 20), AT_LATEST);
    }
}
