//! A running guest in stock Firecracker that is saved: by stock snapshots, which pause it until all
//! is written, and by checkpoints, which copy its memory while it runs (`one.rs`).
//!
//! The guest has written half of its memory. While it is saved, it writes to a share of that again
//! and again, and measures the longest time between two writes by its TSC (`guest.rs`).

mod forks;
mod guest;
mod one;
mod save;
mod series;
mod share;
mod ways;

use crate::measure::LabError;
use crate::measure::machine::memory::remedy;
use crate::measure::part::Parts;
use crate::measure::workloads::anonymous::Pages;
use crate::record::Experiment;
use hugekit_machine::Root;
use hugekit_machine::size::{GIB, MIB, Size};

use super::files::Folders;
use super::restore::saved_guest::{version, why_no_handler};
use super::restore::{LEAST, paging};
use super::{Bench, Definition, halved_to_fit};
use guest::GuestSnapshots;

pub(super) const DEFINITION: Definition = Definition {
    name: "checkpoint",
    repeats: "beyond: a running stock Firecracker saved by stock snapshots and by checkpoints",
    why: "Measures how long a running microVM is paused when it is saved, its longest stall and its \
          writes meanwhile, and time and bytes until the output is complete. Stock snapshots pause \
          it until all memory is written. Checkpoints write-protect the memory, and copy it while \
          the guest runs. Also measures how soon children of the running guest answer.",
    headlines: &["stock-full-tmpfs-vs-checkpoint", "stock-restores-tmpfs-vs-fork"],
    is_core: false,
    run,
};

/// Memory of the guest, if there is room.
const MOST: usize = GIB;
const QUICK: usize = 128 * MIB;

/// The same if the user asks for this much memory.
const LARGE: usize = 2 * GIB;

/// The available memory must have room for this many guests: three that have half of their memory,
/// one on hugetlb, and files of two.
const GUESTS: usize = 6;

/// Huge pages besides those of the guest's memory.
const MORE_PAGES: usize = 2;

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    if let Some(reason) = hugekit_guests::lacking() {
        let remedy = "set HUGEKIT_FIRECRACKER to a Firecracker for x86-64; use a user that may open \
                      /dev/kvm";
        return Ok(Experiment::skipped("checkpoint", reason, remedy));
    }
    if let Some(reason) = why_no_handler() {
        let remedy = "run as root, or allow the user to open /dev/userfaultfd";
        return Ok(Experiment::skipped("checkpoint", reason, remedy));
    }
    let memory = bench.leave_memory()?.min(bench.available_memory()? / GUESTS);
    let Some(bytes) = halved_to_fit(most(bench), LEAST, memory) else {
        let reason = format!("a guest of {} does not fit", Size(LEAST));
        let remedy = format!("free {} of memory", Size(GUESTS * LEAST));
        return Ok(Experiment::skipped("checkpoint", reason, remedy));
    };
    measure(bench, bytes)
}

fn most(bench: &Bench<'_>) -> usize {
    let asked = bench.options().memory.map_or(0, |size| size.0);
    match bench.options().quick {
        true => QUICK,
        false if asked >= LARGE => LARGE,
        false => MOST,
    }
}

fn measure(bench: &mut Bench<'_>, bytes: usize) -> Result<Experiment, LabError> {
    bench.observer().begin("checkpoint: guests");
    let wanted = bytes / Pages::Hugetlb2M.size() + MORE_PAGES;
    let pages = bench.reserve(Pages::Hugetlb2M, wanted)?;
    let snapshots =
        GuestSnapshots::make(Folders::find()?, bytes, pages >= wanted, bench.observer())?;
    let about = format!("a guest of {} that has written {}", Size(bytes), Size(snapshots.len()));
    let mut experiment = Experiment::on("checkpoint", about);
    experiment.notices.extend(version());
    experiment.notices.extend(paging::notice(&Root::default()));
    if pages < wanted {
        let remedy = remedy(&Root::default(), Pages::Hugetlb2M.size(), wanted - pages);
        let lack = format!("…-hugetlb left out: {pages} of {wanted} pages of 2MiB are free");
        experiment.notices.push(format!("{lack}; `--setup` (root) reserves them{remedy}"));
    }
    experiment.add("one", one::measure(&snapshots, rounds(bench, 30.0)))?;
    let counts: &[usize] = if bench.options().quick { &[2] } else { &[1, 4, 16] };
    let counts = forks::ChildCounts { counts, available: bench.available_memory()? };
    experiment.add("children", forks::measure(&snapshots, counts, rounds(bench, 15.0)))?;
    Ok(experiment)
}

/// All of the experiment is to end within six minutes on two CPUs.
fn rounds<'a>(bench: &Bench<'a>, share: f64) -> crate::measure::part::Rounds<'a> {
    match bench.options().quick {
        true => bench.long_rounds(0.5, 4),
        false => bench.rounds_of(share, 20, Some(4)),
    }
}
