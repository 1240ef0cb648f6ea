//! One process that is tended, with its history.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use hugekit::HUGE_PAGE_BYTES;
use hugekit_sys::thread::cpu_time;

use super::AGAIN;
use super::away::Shared;
use crate::error::TendError;
use crate::fork_cost::ForkCost;
use crate::headroom::Headroom;
use crate::mappings::Survey;
use crate::plan::{History, HoleFilling, Plan, plan};
use crate::relatives::Relatives;
use crate::status::{Hindrance, PassReport, Status};
use crate::target::Target;

/// Without a fork, a pass is made so long after the last one: what was new or sparse then may be
/// dense now.
const AT_LATEST: Duration = Duration::from_secs(60);

/// If a pass collapses one part in this many of the memory, the next one comes sooner: splits
/// accumulate.
const MUCH: u64 = 16;

/// Less growth than this between two passes does not hurry the next one.
const LITTLE: u64 = 32 << 20;

#[derive(Debug)]
pub(crate) struct Tended {
    pub(super) target: Target,
    pub(super) relatives: Relatives,
    pub(super) history: History,
    /// Bytes of holes that were filled so far.
    filled: u64,
    pub(super) passes: u64,
    children: usize,
    pub(super) due: Instant,
    /// When the last pass ended.
    passed: Instant,
    /// The most bytes that it had in memory at the end of a pass.
    most: u64,
    /// Until the next pass without a fork.
    interval: Duration,
    pub(super) last: Option<PassReport>,
    last_fork: Option<Duration>,
    /// Forks whose time was estimated.
    estimated: u64,
}

/// The next step for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It has ended, or started another program.
    Leave,
    Rest,
    /// Tell of a child that came or went.
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

    /// Looks at its children.
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

    /// Returns whether much memory has come since a pass, as where a server is filled: its next fork comes soon, too.
    /// Memory that comes and goes counts once.
    fn has_grown(&self, resident: u64) -> bool {
        let much = LITTLE.max(self.most / MUCH);
        self.passes > 0 && resident > self.most + much && self.passed.elapsed() >= AGAIN
    }

    /// Estimates the time of the fork whose child was just seen, by the process's memory after the last
    /// pass.
    fn estimate(&self, cost: Option<&ForkCost>) -> Option<Duration> {
        let memory = self.last.as_ref()?.after;
        Some(cost?.estimate(memory))
    }

    /// The report is [`last`](Self::last) then.
    pub(super) fn pass(&mut self, shared: &Shared, stop: &AtomicBool) -> Result<(), TendError> {
        let (began, cpu) = (Instant::now(), cpu_time());
        let mut survey = Survey::of(self.target.folder())?;
        let looks = self.target.look(&mut survey)?;
        let seen: u64 = looks.iter().map(|look| look.present).sum();
        self.history.keep(&looks);
        let is_limit_unknown = !Headroom::read(&shared.root, &self.target).may_grow();
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
            gathered: work.supply.gathered,
            gathering: work.supply.gathering,
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

    fn note(&mut self, report: PassReport) {
        self.passes += 1;
        self.passed = Instant::now();
        self.most = self.most.max(self.target.resident().unwrap_or(0));
        self.interval = interval_after(self.interval, &report);
        self.due = Instant::now() + if report.hindrance.is_some() { AGAIN } else { self.interval };
        self.last = Some(report);
    }

    /// A pass that could not be begun is tried again later.
    pub(super) fn put_off(&mut self, hindrance: Hindrance) {
        self.due = Instant::now() + AGAIN;
        let extent = self.last.as_ref().map_or_else(Default::default, |last| last.after);
        self.last = Some(PassReport {
            before: extent,
            after: extent,
            ..PassReport::of_none(self.target.pid(), hindrance)
        });
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

/// Half of the last one where much was split since, and twice as long where little was. As short as can be where the
/// process grew meanwhile.
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
