//! A program of our own: it forks, writes a page in 256 while the child lives, which splits huge pages, and says
//! how long `fork(2)` took. Before each of its forks the tender makes a pass over it; a third one is on huge pages from
//! the beginning, and khugepaged, as fast as it can be set, has the time that the tender took.

use std::thread::sleep;
use std::time::Duration;

use crate::measure::LabError;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::forking_program::{ForkingProgram, Heap};
use crate::measure::workloads::tending::{pass, tender_of};
use crate::record::Unit;
use hugekit_machine::size::{MIB, Size};
use hugekit_tend::{PassReport, Tender};

/// The treatment of a program's memory before it forks.
#[derive(Debug)]
enum Care {
    None,
    Tended(Tender),
    /// khugepaged alone, for as long as the tender took.
    Khugepaged,
}

/// A program that forks, and the care that its memory gets.
#[derive(Debug)]
struct TendSubject {
    name: &'static str,
    program: ForkingProgram,
    care: Care,
}

impl TendSubject {
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

/// The reports of the tender for each round, and before them that of the pass that put all of the memory on huge pages.
#[derive(Debug, Default)]
struct Passes(Vec<PassReport>);

impl Passes {
    fn latest(&self) -> Duration {
        self.0.last().map_or(Duration::ZERO, |report| report.elapsed)
    }

    /// Adds cases of all but the first.
    fn add_cases(&self, part: &mut Part, label: &str) {
        let later = self.0.get(1..).unwrap_or_default();
        let mut add = |what: &str, figure: fn(&PassReport) -> Duration| {
            let samples = later.iter().map(|report| figure(report).as_secs_f64() * 1e6).collect();
            part.add_case(&format!("tender/{what}-{label}"), Unit::Microseconds, samples);
        };
        add("cpu-of-a-pass", |report| report.cpu);
        add("longest-collapse", |report| report.longest);
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

/// Each program's forks.
pub(super) fn forks(len: usize, is_tuned: bool, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let label = Size(len).to_string();
    rounds.observer.begin(&format!("tend {label}"));
    let (mut subjects, mut passes) = (TendSubject::all(len)?, Passes::default());
    let names = subjects.each_ref().map(|subject| format!("{}/fork-{label}", subject.name));
    let mut part = rounds.measure("tend", Unit::Microseconds, &names, |index| {
        let TendSubject { program, care, .. } = &mut subjects[index];
        match care {
            Care::None => {}
            Care::Tended(tender) => passes.0.push(pass(tender, rounds.observer)?),
            Care::Khugepaged => sleep(passes.latest()),
        }
        Ok(program.fork()?.as_secs_f64() * 1e6)
    })?;
    for other in ["plain", "khugepaged"] {
        part.compare((other, "tended"), &format!("fork-{label}"), None);
    }
    part.notices.extend(passes.first());
    let tuned = match is_tuned {
        true => {
            "khugepaged without rest: scan_sleep_millisecs 0, every page of a program in one scan"
        }
        false => "khugepaged as the machine has it set; `--setup` (root) lets it run without rest",
    };
    part.notices.push(tuned.to_owned());
    passes.add_cases(&mut part, &label);
    Ok(part)
}

/// Memory of a program with holes, before it is tended and afterwards.
pub(super) fn resident(len: usize, rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin("tend memory");
    let names = ["untended", "tended"].map(|method| format!("{method}/rss"));
    let mut part = rounds.measure("tend", Unit::Mebibytes, &names, |index| {
        let program = ForkingProgram::start(Heap::WithHoles, len)?;
        if index == 1 {
            pass(&mut tender_of(program.pid())?, rounds.observer)?;
        }
        Ok(program.resident()? as f64 / MIB as f64)
    })?;
    part.compare(("untended", "tended"), "rss", None);
    Ok(part)
}
