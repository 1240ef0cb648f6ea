//! Beyond what was published: a state of memory that is saved again and again, as all of it and as what has changed.
//!
//! `saves.rs` measures the saves, `bytes.rs` how much is written, and `throughput.rs` what a writer pays for it that
//! its writes are noted. All of them stand on `memory.rs`, and the first two on `saver.rs`.

mod bytes;
mod memory;
mod saver;
mod saves;
mod throughput;

use crate::measure::LabError;
use crate::measure::part::Parts;
use crate::measure::workloads::anonymous::Pages;
use crate::measure::workloads::paced_writer::Pattern;
use crate::record::Experiment;
use hugekit_machine::size::{GIB, MIB, Size};

use self::saver::Saver;
use super::snapshot::too_small;
use super::{Bench, Definition};

pub(super) const DEFINITION: Definition = Definition {
    name: "epochs",
    repeats: "beyond: a state saved many times: all of it, or only the changes",
    why: "Measures how long it takes to save a gigabyte again of which little has changed, how much is written, and \
          what a writer pays for it that its writes are noted. Sandboxes pause, databases dump and training saves \
          all of their memory, nearly all of which is as it was.",
    headlines: &["full-vs-delta"],
    is_core: false,
    run,
};

/// The state that is saved.
const MOST_STATE: usize = GIB;

const HUGE: usize = 2 * MIB;

/// The state has at most the available memory divided by this number. The rest is for its destination, its deltas, and
/// the copies of its writers.
const STATES: usize = 6;

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let memory = bench.leave_memory()?;
    bench.allow_thp()?;
    let part = if bench.options().quick { 8 } else { 2 };
    let available = bench.available_memory()?;
    let state = MOST_STATE.min(memory / part).min(available / STATES) / HUGE * HUGE;
    if state == 0 {
        return Ok(too_small("epochs", available, STATES * HUGE));
    }
    let reserved = bench.reserve_unwritten(Pages::Hugetlb2M, state / HUGE)?;
    let memory = format!("a state of {} on huge pages, written before", Size(state));
    let mut experiment = Experiment::on("epochs", memory);
    let mut saver = Saver::new(Pages::Thp, state)?;
    experiment.notices.extend(saver.notice());
    for pattern in [Pattern::clustered(state), Pattern::zipf(state)] {
        let saves = saves::measure(&mut saver, &pattern, bench.long_rounds(0.3, 20));
        experiment.add(pattern.name, saves)?;
    }
    let has_reserved = reserved * HUGE >= state;
    let bytes = bytes::measure(&mut saver, has_reserved, bench.long_rounds(0.1, 6));
    experiment.add("bytes", bytes)?;
    drop(saver);
    let throughput = throughput::measure(state, bench.long_rounds(0.3, 12));
    experiment.add("throughput", throughput)?;
    Ok(experiment)
}
