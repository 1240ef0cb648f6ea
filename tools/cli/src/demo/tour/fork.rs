//! `fork(2)` of a program with much memory, before and after it is tended.

use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use hugekit::error_chain;
use hugekit_machine::size::Size;
use hugekit_tend::{Extent, Hindrance, PassReport, TendError, Tender};

use super::part::{Measured, PartResult};
use super::process::{TourProcess, helper};
use super::redis::{self, Redis};
use super::stop::{Interrupted, TourStop};
use super::{Tour, room};
use crate::demo::helper::{Helper, HelperLine, Wrong};
use hugekit_terminal::outcome::Remedied;

pub(super) const TITLE: &str = "fork(2) of a program with much memory";

/// Forks, the start, the pass and the comparison.
pub(super) const STEPS: u64 = 2 * StandIn::FORKS as u64 + 3;

/// Its memory, and a server's overhead.
const COPIES: usize = 2;

/// A program that is measured.
pub(super) trait Program {
    /// Before, and after.
    const FORKS: usize;

    fn pid(&self) -> i32;
    /// Has it fork, and returns how long it stood still. It has written to all of its data since the last fork.
    fn fork(&mut self, stop: &TourStop) -> anyhow::Result<Duration>;
    /// Compares its data.
    fn check(&mut self, stop: &TourStop) -> anyhow::Result<()>;
}

/// Tends a real server, if one is installed and may be tended; otherwise a program of the demo's own.
pub(super) fn run(tour: &Tour) -> anyhow::Result<PartResult> {
    let bytes = room::bytes(tour.size, COPIES)?;
    let Some(name) = redis::installed() else {
        return stand_in(tour, bytes, "redis-server and valkey-server are not installed");
    };
    match server(tour, bytes, name) {
        Err(error) if !error.is::<Interrupted>() && !error.is::<Wrong>() => {
            stand_in(tour, bytes, &format!("{name} is not used ({error:#})"))
        }
        found => found,
    }
}

fn server(tour: &Tour, bytes: usize, name: &str) -> anyhow::Result<PartResult> {
    tour.does(&format!("{name} loads data"));
    let mut server = Redis::start(name, &tour.stop)?;
    // Before it is filled, which takes seconds.
    let tender = tender_of(server.pid()).map_err(reason)?;
    server.fill(bytes, &tour.stop)?;
    let found = measured(tour, &mut server, |_, stop| pass(tender, stop))?;
    Ok(PartResult {
        title: format!("fork(2) of {name} with {} of data, as for a save", Size(bytes)),
        notes: format!("latest_fork_usec of {name}. {}", found.notes),
        commands: vec![
            format!("sudo hugekit tend --once \"$(pgrep -o -x {name})\"  # one pass"),
            format!("sudo hugekit tend --name {name}  # docs/redis.md"),
        ],
        ..found
    })
}

fn stand_in(tour: &Tour, bytes: usize, why: &str) -> anyhow::Result<PartResult> {
    tour.does("a program fills its memory");
    let mut program = StandIn::start(bytes, &tour.stop)?;
    let tend = |program: &mut StandIn, stop: &TourStop| match tender_of(program.pid()) {
        Ok(tender) => pass(tender, stop),
        Err(error @ (TendError::NotPermitted { .. } | TendError::Unreadable { .. })) => {
            program.collapse(error, stop)
        }
        Err(error) => Err(reason(error)),
    };
    let found = measured(tour, &mut program, tend)?;
    Ok(PartResult {
        title: format!("fork(2) of a program with {}, as for a save", Size(bytes)),
        notes: format!("The program stands in for Redis: {why}. {}", found.notes),
        commands: vec![
            "sudo hugekit tend --once PID   # one pass".to_owned(),
            "sudo hugekit tend --name NAME  # docs/redis.md".to_owned(),
        ],
        ..found
    })
}

/// Returns the reason why it cannot be tended, with the remedy apart.
fn reason(error: TendError) -> anyhow::Error {
    let remedy = error.remedy().map(str::to_owned);
    Remedied::error(error, remedy)
}

/// Forks before and after it is tended.
fn measured<P: Program>(
    tour: &Tour,
    program: &mut P,
    tend: impl FnOnce(&mut P, &TourStop) -> anyhow::Result<String>,
) -> anyhow::Result<PartResult> {
    tour.step();
    tour.does("forks before the program is tended");
    let before = Measured { name: "not tended".to_owned(), times: forks(tour, program)? };
    tour.does("the program is tended");
    let pass = tend(program, &tour.stop)?;
    tour.step();
    tour.does("forks after that");
    let after = Measured { name: "tended".to_owned(), times: forks(tour, program)? };
    program.check(&tour.stop)?;
    tour.step();
    let notes = format!("Medians of {} forks. {pass}", P::FORKS);
    Ok(PartResult {
        title: String::new(),
        before: vec![before],
        after,
        notes,
        commands: Vec::new(),
    })
}

fn forks<P: Program>(tour: &Tour, program: &mut P) -> anyhow::Result<Vec<Duration>> {
    let fork = |_| {
        tour.step();
        program.fork(&tour.stop)
    };
    (0..P::FORKS).map(fork).collect()
}

fn tender_of(pid: i32) -> Result<Tender, TendError> {
    Tender::builder().process(pid).build()
}

/// Makes one pass, by the options that `hugekit tend` has by default.
fn pass(mut tender: Tender, stop: &TourStop) -> anyhow::Result<String> {
    let reports = tender.pass(stop.flag())?;
    stop.check()?;
    let report = reports.first().ok_or_else(|| anyhow!("no pass was made"))?;
    ensure_gain(report)?;
    Ok(format!(
        "One pass of {:.1?} put {} of its {} on huge pages{}.",
        report.elapsed,
        mib(report.after.huge),
        mib(report.after.all),
        report.hindrance.map(|hindrance| format!("; {hindrance}")).unwrap_or_default()
    ))
}

fn mib(bytes: u64) -> Size {
    Size((bytes >> 20 << 20) as usize)
}

fn ensure_gain(report: &PassReport) -> anyhow::Result<()> {
    if report.after.huge > report.before.huge {
        return Ok(());
    }
    match (report.hindrance, report.refused.first()) {
        (Some(Hindrance::Stopped), _) => Err(Interrupted.into()),
        (Some(hindrance), _) => bail!("nothing was put on huge pages: {hindrance}"),
        (None, Some((refusal, _))) => bail!("nothing was put on huge pages: {refusal}"),
        (None, None) => bail!("nothing was to be put on huge pages"),
    }
}

/// A program of the demo's own, without a thread or a socket.
struct StandIn(TourProcess);

impl StandIn {
    fn start(bytes: usize, stop: &TourStop) -> anyhow::Result<Self> {
        let mut process = TourProcess::start(helper(Helper::Forks, bytes, &[])?)?;
        process.ready(stop)?;
        Ok(Self(process))
    }

    /// Has it do what a tender would do from outside, which this process may not.
    fn collapse(&mut self, refused: TendError, stop: &TourStop) -> anyhow::Result<String> {
        let began = Instant::now();
        self.0.order("collapse");
        self.0.ready(stop)?;
        let took = began.elapsed();
        let extent = Extent::of(self.pid()).map_or_else(
            |_| "its memory".to_owned(),
            |extent| format!("{} of its {}", mib(extent.huge), mib(extent.all)),
        );
        Ok(format!(
            "It put {extent} on huge pages itself, in {took:.1?}, because this user may not tend \
             another process ({}); root may.",
            error_chain(&refused)
        ))
    }
}

impl Program for StandIn {
    const FORKS: usize = 5;

    fn pid(&self) -> i32 {
        self.0.pid()
    }

    fn fork(&mut self, stop: &TourStop) -> anyhow::Result<Duration> {
        self.0.order("fork");
        match self.0.heard(stop)? {
            HelperLine::Took { time, .. } => Ok(time),
            other => bail!("its process said {other:?}"),
        }
    }

    fn check(&mut self, stop: &TourStop) -> anyhow::Result<()> {
        self.0.order("check");
        self.0.right(stop)
    }
}
