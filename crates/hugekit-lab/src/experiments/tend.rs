//! Beyond what was published: programs that fork, whose memory is put on huge pages from outside, and such that are
//! left alone.
//!
//! Here a program of our own: it forks, writes a page in 256 while the child lives, which splits huge pages, and says
//! how long `fork(2)` took. Before each of its forks the tender makes a pass over it; a third one is on huge pages from
//! the beginning, and khugepaged, as fast as it can be set, has the time that the tender took.

use std::thread::sleep;
use std::time::Duration;

use hugekit_machine::Root;
use hugekit_tend::{PassReport, TendError, Tender};

use super::part::{Part, found};
use super::tend_redis;
use crate::bench::Bench;
use crate::forking_program::{ForkingProgram, Heap};
use crate::record::{Case, Experiment, Ratio, Skipped, Unit};
use crate::sampler::{Plan, try_alternate};
use crate::size::{GIB, MIB, Size};
use crate::tending::{pass, tender_of};
use crate::{LabError, Observer};

const MOST: usize = 2 * GIB;

/// Of what is available, a program has one part in so many: there are three, and what is written while a child lives.
const PROGRAMS: usize = 5;

/// Programs of which memory is compared, not time.
const WITH_HOLES: usize = 256 * MIB;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let (memory, observer) = bench.leave_memory()?;
    let part = if bench.options().quick { 16 } else { 2 };
    let len = MOST.min(memory / part).min(bench.available_memory()? / PROGRAMS) / MIB * MIB;
    let mut experiment = Experiment {
        name: "tend".to_owned(),
        memory: Some(format!("programs with {} each", Size(len))),
        ..Experiment::default()
    };
    if let Some(skipped) = why_not(len)? {
        return Ok(Experiment { skipped: Some(skipped), ..experiment });
    }
    observer.begin(&format!("tend {}", Size(len)));
    let plan = bench.plan(0.5, 8);
    let own = bench.with_settings_for_a_while(|settings| {
        let tuned = settings.khugepaged_without_rest(&Root::default())?;
        let mut part = forks(len, plan, tuned, observer)?;
        part.notices.extend((!tuned).then(|| {
            "khugepaged as the machine has it set; `--setup` (root) lets it run without rest"
                .to_owned()
        }));
        Ok(part)
    });
    experiment.add("own", own)?;
    observer.begin("tend memory");
    let holes = WITH_HOLES.min(len);
    experiment.add("rss", resident(holes, bench.plan_of_long_rounds(0.1, 2), observer))?;
    tend_redis::add_to(&mut experiment, bench, memory)?;
    Ok(experiment)
}

/// Why no process can be tended here, if so.
fn why_not(len: usize) -> Result<Option<Skipped>, LabError> {
    let program = ForkingProgram::start(Heap::Base, MIB.min(len))?;
    let (reason, remedy) = match tender_of(program.pid()) {
        Err(LabError::Tend(error @ TendError::NotPermitted { .. })) => (error, "run as root"),
        Err(LabError::Tend(error @ TendError::Unsupported)) => (error, "run Linux 6.1 or newer"),
        Err(LabError::Tend(error @ TendError::OtherHugePages { .. })) => {
            (error, "run a kernel with transparent huge pages of 2 MiB")
        }
        _ => return Ok(None),
    };
    Ok(Some(Skipped { reason: reason.to_string(), remedy: remedy.to_owned() }))
}

/// What happens to a program's memory before it forks.
#[derive(Debug)]
enum Care {
    None,
    Tended(Tender),
    /// khugepaged alone, for as long as the tender took.
    Khugepaged,
}

#[derive(Debug)]
struct Subject {
    name: &'static str,
    program: ForkingProgram,
    care: Care,
}

impl Subject {
    fn all(len: usize) -> Result<[Self; 3], LabError> {
        let plain = ForkingProgram::start(Heap::Base, len)?;
        let tended = ForkingProgram::start(Heap::Small, len)?;
        let huge = ForkingProgram::start(Heap::Huge, len)?;
        let tender = tender_of(tended.pid())?;
        Ok([
            Self { name: "plain", program: plain, care: Care::None },
            Self { name: "tended", program: tended, care: Care::Tended(tender) },
            Self { name: "khugepaged", program: huge, care: Care::Khugepaged },
        ])
    }
}

/// What the tender did in each round, and the first, which put all of the memory on huge pages.
#[derive(Debug, Default)]
struct Passes(Vec<PassReport>);

impl Passes {
    fn latest(&self) -> Duration {
        self.0.last().map_or(Duration::ZERO, |report| report.elapsed)
    }

    /// Cases of all but the first.
    fn cases(&self, label: &str) -> Vec<Case> {
        let later = self.0.get(1..).unwrap_or_default();
        let of = |what: &str, figure: fn(&PassReport) -> Duration| {
            let micros = |report| figure(report).as_secs_f64() * 1e6;
            let samples: Vec<f64> = later.iter().map(micros).collect();
            (!samples.is_empty()).then(|| case(&format!("tender/{what}-{label}"), samples))
        };
        let cpu = of("cpu-of-a-pass", |report| report.cpu);
        let all = [cpu, of("longest-collapse", |report| report.longest)];
        all.into_iter().flatten().collect()
    }

    fn first(&self) -> Option<String> {
        let report = self.0.first()?;
        Some(format!(
            "the first pass collapsed {} of {} within {:.1} s, with {:.2} s of a CPU's time; its longest collapse took \
             {:.1} ms",
            Size(report.after.huge as usize),
            Size(report.after.all as usize),
            report.elapsed.as_secs_f64(),
            report.cpu.as_secs_f64(),
            report.longest.as_secs_f64() * 1e3,
        ))
    }
}

fn forks(
    len: usize,
    plan: Plan,
    is_tuned: bool,
    observer: &dyn Observer,
) -> Result<Part, LabError> {
    let (mut subjects, mut passes) = (Subject::all(len)?, Passes::default());
    let rounds = try_alternate(plan, subjects.len(), observer, |index| {
        let Subject { program, care, .. } = &mut subjects[index];
        match care {
            Care::None => {}
            Care::Tended(tender) => passes.0.push(pass(tender, observer)?),
            Care::Khugepaged => sleep(passes.latest()),
        }
        Ok(program.fork()?.as_secs_f64() * 1e6)
    })?;
    let label = Size(len).to_string();
    let mut part = Part::default();
    let cases = part.cases_of(rounds, |index, samples| {
        case(&format!("{}/fork-{label}", subjects[index].name), samples)
    });
    let ratio = |(baseline, other): (usize, &str)| {
        let id = format!("tend/{other}-vs-tended/fork-{label}");
        Some(Ratio::between(id, cases[baseline].as_ref()?, cases[1].as_ref()?))
    };
    part.ratios = [(0, "plain"), (2, "khugepaged")].into_iter().filter_map(ratio).collect();
    part.notices.extend(passes.first());
    part.notices.extend(is_tuned.then(|| {
        "khugepaged without rest: scan_sleep_millisecs 0, every page of a program in one scan"
            .to_owned()
    }));
    part.cases = found(cases);
    part.cases.extend(passes.cases(&label));
    Ok(part)
}

/// Memory of a program with holes, before it is tended and afterwards.
fn resident(len: usize, plan: Plan, observer: &dyn Observer) -> Result<Part, LabError> {
    let rounds = try_alternate(plan, 2, observer, |index| {
        let program = ForkingProgram::start(Heap::WithHoles, len)?;
        if index == 1 {
            pass(&mut tender_of(program.pid())?, observer)?;
        }
        Ok(program.resident()? as f64 / MIB as f64)
    })?;
    let mut part = Part::default();
    let cases = part.cases_of(rounds, |index, samples| Case {
        id: format!("tend/{}/rss", ["untended", "tended"][index]),
        unit: Unit::Mebibytes,
        samples,
        published: Vec::new(),
    });
    if let [Some(untended), Some(tended)] = &cases[..] {
        let id = "tend/untended-vs-tended/rss".to_owned();
        part.ratios.push(Ratio::between(id, untended, tended));
    }
    part.cases = found(cases);
    Ok(part)
}

fn case(id: &str, samples: Vec<f64>) -> Case {
    Case { id: format!("tend/{id}"), unit: Unit::Microseconds, samples, published: Vec::new() }
}
