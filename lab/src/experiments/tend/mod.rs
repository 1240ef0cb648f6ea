//! Beyond what was published: programs that fork, whose memory is put on huge pages from outside, and such that are
//! left alone: one of our own (`own.rs`), and a real Redis that saves (`redis.rs`).

mod own;
mod redis;

use crate::measure::LabError;
use crate::measure::part::Parts;
use crate::measure::workloads::forking_program::{ForkingProgram, Heap};
use crate::measure::workloads::tending::tender_of;
use crate::record::{Experiment, Skipped};
use hugekit::error_chain;
use hugekit_machine::Root;
use hugekit_machine::size::{GIB, MIB, Size};
use hugekit_tend::TendError;

use super::{Bench, Definition};

pub(super) const DEFINITION: Definition = Definition {
    name: "tend",
    repeats: "beyond: programs that fork, and real Redis, on huge pages from outside",
    why: "Measures programs that fork, one of our own and a real Redis that saves, while a tender keeps their memory \
          on huge pages from outside, and left alone. Programs that cannot be changed fork all the same, and stand \
          still for their page tables.",
    headlines: &["plain-vs-tended"],
    is_core: false,
    run,
};

const MOST: usize = 2 * GIB;

/// A program has at most the available memory divided by this number. There are three programs, and the pages that are
/// written while a child lives.
const PROGRAMS: usize = 5;

/// Programs of which memory is compared, not time.
const WITH_HOLES: usize = 256 * MIB;

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let memory = bench.leave_memory()?;
    let part = if bench.options().quick { 16 } else { 2 };
    let len = MOST.min(memory / part).min(bench.available_memory()? / PROGRAMS) / MIB * MIB;
    let mut experiment = Experiment::on("tend", format!("programs with {} each", Size(len)));
    if let Some(skipped) = why_not(len)? {
        return Ok(Experiment { skipped: Some(skipped), ..experiment });
    }
    let rounds = bench.rounds(0.5, 8);
    let own = bench.with_settings_for_a_while(|settings| {
        let is_tuned = settings.khugepaged_without_rest(&Root::default())?;
        own::forks(len, is_tuned, rounds)
    });
    experiment.add("own", own)?;
    experiment.add("rss", own::resident(WITH_HOLES.min(len), bench.long_rounds(0.1, 2)))?;
    redis::add_to(&mut experiment, bench, memory)?;
    Ok(experiment)
}

/// The reason why no process can be tended here, if so.
fn why_not(len: usize) -> Result<Option<Skipped>, LabError> {
    let program = ForkingProgram::start(Heap::Base, MIB.min(len))?;
    let Err(LabError::Tend(error)) = tender_of(program.pid()) else { return Ok(None) };
    let remedy = match error {
        TendError::NotPermitted { .. } => "run as root",
        TendError::Unsupported | TendError::OtherHugePages { .. } => {
            error.remedy().unwrap_or_default()
        }
        _ => return Ok(None),
    };
    let reason = error_chain(&error).to_string();
    Ok(Some(Skipped { reason, remedy: remedy.to_owned() }))
}
