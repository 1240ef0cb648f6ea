//! Memory that a broker has populated before a program asks for it, as programs see it that are not changed: how soon
//! they have it (`client.rs`, `qemu.rs`), and what its refill takes of the machine and of a program beside it
//! (`refill.rs`).
//!
//! Everything is on reserved pages of 2 MiB, and the kernel clears every page on either side. What differs is when, and
//! in which process: a lease's pages were cleared by the broker's filler. The broker is `hugekit broker`, as users start
//! it, and populates its next unit while the last one is used.

mod client;
mod qemu;
mod refill;

use crate::measure::LabError;
use crate::measure::machine::memory::remedy;
use crate::measure::part::Parts;
use crate::measure::workloads::anonymous::Pages;
use crate::record::Experiment;
use hugekit_machine::Root;
use hugekit_machine::size::{GIB, MIB, Size};

use super::bench::left_out;
use super::{Bench, Definition};

pub(super) const DEFINITION: Definition = Definition {
    name: "lease",
    repeats: "beyond: memory populated ahead of time: clients, QEMU, refills",
    why: "Measures how soon programs that are not changed have memory that a broker has populated, QEMU from its \
          start to its guest's first instruction, and what the refill costs. Virtual machines wait seconds for \
          memory that the kernel clears when they start.",
    headlines: &["kernel-cpu-vs-refill-cpu"],
    is_core: false,
    run,
};

/// The most that a client requests, if there is room for it twice.
const MOST_ASKED: usize = GIB;

/// Pages of a guest of QEMU, which is the largest unit, and of the one that is ready meanwhile.
const PAGES: usize = 2 * qemu::MOST / (2 * MIB);

/// The same with `--quick`.
const QUICK_PAGES: usize = 2 * MOST_ASKED / (2 * MIB);

/// Below that, reserved pages say nothing of memory that programs wait for.
const LEAST_UNIT: usize = 128 * MIB;
const LEAST_PAGES: usize = 2 * LEAST_UNIT / (2 * MIB);

/// The size of a request: at most `most`, and at most half of the pages, because the next unit is ready while one is in
/// use.
fn unit(pages: usize, most: usize) -> usize {
    let half = pages / 2 * Pages::Hugetlb2M.size();
    let halves = std::iter::successors(Some(most), |unit| Some(unit / 2));
    halves.take_while(|&unit| unit > LEAST_UNIT).find(|&unit| unit <= half).unwrap_or(LEAST_UNIT)
}

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let skipped = |reason: &str, remedy: &str| Ok(Experiment::skipped("lease", reason, remedy));
    let Some(hugekit) = bench.options().hugekit.clone() else {
        return skipped("the command `hugekit` is not found", "build or install it");
    };
    let memory = bench.leave_memory()?;
    if memory < 2 * LEAST_UNIT {
        let remedy = format!("`--memory {}`", Size(2 * LEAST_UNIT));
        return skipped(&left_out("everything", 2 * LEAST_UNIT, memory), &remedy);
    }
    let wanted = if bench.options().quick { QUICK_PAGES } else { PAGES };
    let pages = bench.reserve(Pages::Hugetlb2M, wanted)?;
    if pages < LEAST_PAGES {
        let remedy = remedy(&Root::default(), Pages::Hugetlb2M.size(), LEAST_PAGES - pages);
        let reason = format!("{pages} of {LEAST_PAGES} pages of 2MiB are free");
        return skipped(&reason, &format!("`--setup` (root){remedy}"));
    }
    let memory = format!("{pages} reserved pages of 2MiB, written once before");
    let mut experiment = Experiment::on("lease", memory);
    let (asked, guest) = (unit(pages, MOST_ASKED), unit(pages, qemu::MOST));
    let client = client::measure(&hugekit, asked, bench.long_rounds(0.4, 12));
    experiment.add("client", client)?;
    // The larger the unit, the less it counts that a broker is started.
    experiment.add("cpu", refill::cpu(&hugekit, guest, bench.long_rounds(0.3, 6)))?;
    let throughput = match asked < MOST_ASKED {
        true => Ok(refill::left_out("too few pages are free for a refill that lasts")),
        false => refill::throughput(&hugekit, asked, bench.llc(), bench.rounds(1.0, 24)),
    };
    experiment.add("throughput", throughput)?;
    experiment.add("qemu", qemu::measure(bench, &hugekit, guest))?;
    Ok(experiment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_take_half_of_the_pages_at_most() {
        let gib = GIB / (2 * MIB);
        let most = 4 * GIB;
        let units = [2 * gib - 1, 2 * gib, 8 * gib - 1, 8 * gib, 100 * gib].map(|n| unit(n, most));
        assert_eq!(units, [GIB / 2, GIB, 2 * GIB, most, most]);
        assert_eq!(unit(PAGES, qemu::MOST), qemu::MOST);
        assert_eq!(unit(QUICK_PAGES, MOST_ASKED), MOST_ASKED);
        assert_eq!(unit(LEAST_PAGES, most), LEAST_UNIT);
    }

    #[test]
    fn without_the_program_the_experiment_is_skipped_with_a_remedy() {
        let options = crate::Options::default();
        let mut bench = Bench::new(&options, &crate::Quiet).unwrap();
        let skipped = run(&mut bench).unwrap().skipped.unwrap();
        assert!(skipped.remedy.contains("install"));
    }
}
