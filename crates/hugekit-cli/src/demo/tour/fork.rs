//! `fork(2)` of a program with much memory, before and after it is tended.

use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use hugekit_record::size::Size;
use hugekit_tend::{Extent, Hindrance, PassReport, TendError, Tender};

use super::part::{Found, Way};
use super::process::{Process, helper};
use super::redis::{self, Redis};
use super::stop::{Interrupted, Stop};
use super::{Tour, room};
use crate::demo::helper::{Helper, Said, Wrong};

pub(super) const TITLE: &str = "fork(2) of a program with much memory";

const FORKS: usize = 5;

/// Forks, the start, the pass and the comparison.
pub(super) const STEPS: u64 = 2 * FORKS as u64 + 3;

/// Its memory, and a server's overhead.
const COPIES: usize = 2;

/// A program that is measured.
pub(super) trait Program {
    fn pid(&self) -> i32;
    /// How long it stood still for a fork. It has written to all of its data since the last one.
    fn fork(&mut self, stop: &Stop) -> anyhow::Result<Duration>;
    /// Compares its data.
    fn check(&mut self, stop: &Stop) -> anyhow::Result<()>;
}

/// A real server, if one is installed and may be tended; otherwise the stand-in.
pub(super) fn run(tour: &Tour) -> anyhow::Result<Found> {
    let bytes = room::bytes(tour.size, COPIES)?;
    let Some(name) = redis::installed() else {
        return stand_in(
            tour,
            bytes,
            "No redis-server or valkey-server is installed: a program of the demo's own",
        );
    };
    match server(tour, bytes, name) {
        Err(error) if !error.is::<Interrupted>() && !error.is::<Wrong>() => {
            let instead = format!(
                "{name} is installed, but not used ({error:#}): a program of the demo's own"
            );
            stand_in(tour, bytes, &instead)
        }
        found => found,
    }
}

fn server(tour: &Tour, bytes: usize, name: &str) -> anyhow::Result<Found> {
    tour.does(&format!("{name} loads data"));
    // Before it is filled, which takes seconds.
    let mut server = Redis::start(name, &tour.stop)?;
    let tender = tender_of(server.pid())?;
    server.fill(bytes, &tour.stop)?;
    let (before, after, pass) = measured(tour, &mut server, |_, stop| pass(tender, stop))?;
    Ok(Found {
        title: format!("fork(2) of {name} with {} of data, as for a save", Size(bytes)),
        before: vec![before],
        after,
        notes: format!("latest_fork_usec of {name}, medians of {FORKS}. {pass}"),
        commands: vec![
            format!("sudo hugekit tend --once \"$(pgrep -o -x {name})\"   # one pass"),
            format!("sudo hugekit tend --name {name}   # until Ctrl-C; see docs/redis.md"),
        ],
    })
}

fn stand_in(tour: &Tour, bytes: usize, instead: &str) -> anyhow::Result<Found> {
    tour.does("a program fills its memory");
    let mut program = StandIn::start(bytes, &tour.stop)?;
    let (before, after, pass) =
        measured(tour, &mut program, |program, stop| match tender_of(program.pid()) {
            Err(error) => program.collapse(&error, stop),
            Ok(tender) => pass(tender, stop),
        })?;
    Ok(Found {
        title: format!("fork(2) of a program with {}, as for a save", Size(bytes)),
        before: vec![before],
        after,
        notes: format!("{instead} stands in for them. Medians of {FORKS} forks. {pass}"),
        commands: vec![
            "sudo hugekit tend --once PID   # one pass".to_owned(),
            "sudo hugekit tend --name NAME  # until Ctrl-C; see docs/redis.md".to_owned(),
        ],
    })
}

/// The ways before and after, and what lies between.
fn measured<P: Program>(
    tour: &Tour,
    program: &mut P,
    tend: impl FnOnce(&mut P, &Stop) -> anyhow::Result<String>,
) -> anyhow::Result<(Way, Way, String)> {
    tour.step();
    tour.does("forks before the program is tended");
    let mut before = Way::new("not tended");
    let mut after = Way::new("tended");
    forks(tour, program, &mut before)?;
    tour.does("the program is tended");
    let pass = tend(program, &tour.stop)?;
    tour.step();
    tour.does("forks after that");
    forks(tour, program, &mut after)?;
    program.check(&tour.stop)?;
    tour.step();
    Ok((before, after, pass))
}

fn forks(tour: &Tour, program: &mut impl Program, way: &mut Way) -> anyhow::Result<()> {
    for _ in 0..FORKS {
        way.times.push(program.fork(&tour.stop)?);
        tour.step();
    }
    Ok(())
}

fn tender_of(pid: i32) -> Result<Tender, TendError> {
    Tender::builder().process(pid).build()
}

/// One pass, by the options that `hugekit tend` has by default.
fn pass(mut tender: Tender, stop: &Stop) -> anyhow::Result<String> {
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
struct StandIn(Process);

impl StandIn {
    fn start(bytes: usize, stop: &Stop) -> anyhow::Result<Self> {
        let mut process = Process::start(helper(Helper::Forks, bytes, &[])?)?;
        process.ready(stop)?;
        Ok(Self(process))
    }

    /// Has it do what a tender would do from outside, which this process may not.
    fn collapse(&mut self, refused: &TendError, stop: &Stop) -> anyhow::Result<String> {
        let began = Instant::now();
        self.0.order("collapse");
        self.0.ready(stop)?;
        let took = began.elapsed();
        let extent = Extent::of(self.pid()).map_or(String::new(), |extent| {
            format!(": {} of {}", mib(extent.huge), mib(extent.all))
        });
        Ok(format!(
            "It put its memory on huge pages itself, in {took:.1?}{extent}. From outside {refused}."
        ))
    }
}

impl Program for StandIn {
    fn pid(&self) -> i32 {
        self.0.pid()
    }

    fn fork(&mut self, stop: &Stop) -> anyhow::Result<Duration> {
        self.0.order("fork");
        match self.0.heard(stop)? {
            Said::Took { time, .. } => Ok(time),
            other => bail!("its process said {other:?}"),
        }
    }

    fn check(&mut self, stop: &Stop) -> anyhow::Result<()> {
        self.0.order("check");
        self.0.right(stop)
    }
}
