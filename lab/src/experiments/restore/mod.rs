//! Guests in stock Firecracker that are restored from a snapshot: by mapping a memory file, and by
//! handlers of page faults (`reply.rs`, `one.rs`); and many clones of one snapshot (`clones.rs`).
//!
//! Every way restores the same guest, which has written half of its memory. The guest then reads
//! one word of each page that it had written, twice, and in the end all of their bytes are checked.

mod clones;
mod one;
pub(super) mod paging;
mod reply;
pub(super) mod saved_guest;
mod ways;

use crate::measure::LabError;
use crate::measure::machine::memory::remedy;
use crate::measure::part::Parts;
use crate::measure::workloads::anonymous::Pages;
use crate::record::Experiment;
use hugekit_machine::Root;
use hugekit_machine::size::{GIB, MIB, Size};

use super::files::Folders;
use super::{Bench, Definition, halved_to_fit};
use saved_guest::SavedGuest;

pub(super) const DEFINITION: Definition = Definition {
    name: "restore",
    repeats: "beyond: stock Firecracker restored from files, from images and by the pager",
    why: "Measures how soon a restored microVM answers and has read its memory: mapped from a disk, a \
          tmpfs and an image on huge pages, and supplied by handlers of page faults, hugekit's pager \
          among them. Also measures what many clones of one snapshot hold. Restores on demand pay \
          for each page that they touch.",
    headlines: &["on-demand-4k-vs-pager", "on-demand-4k-vs-hugetlb-on-demand"],
    is_core: false,
    run,
};

/// Memory of the guest, if there is room.
const MOST: usize = GIB;
const QUICK: usize = 128 * MIB;

/// Smaller guests have too few huge pages to say anything.
pub(super) const LEAST: usize = 64 * MIB;

/// The available memory must have room for this many guests: two memory files, three copies of one and three on XFS, the
/// image, and a guest.
const GUESTS: usize = 11;

/// Huge pages besides those of the guest's memory.
const MORE_PAGES: usize = 2;

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    if let Some(reason) = hugekit_guests::lacking() {
        let remedy = "set HUGEKIT_FIRECRACKER to a Firecracker for x86-64; use a user that may open \
                      /dev/kvm";
        return Ok(Experiment::skipped("restore", reason, remedy));
    }
    let memory = bench.leave_memory()?.min(bench.available_memory()? / GUESTS);
    let most = if bench.options().quick { QUICK } else { MOST };
    let Some(bytes) = halved_to_fit(most, LEAST, memory) else {
        let reason = format!("a guest of {} does not fit", Size(LEAST));
        let remedy = format!("free {} of memory", Size(GUESTS * LEAST));
        return Ok(Experiment::skipped("restore", reason, remedy));
    };
    bench.observer().begin("restore: snapshots");
    let wanted = bytes / Pages::Hugetlb2M.size() + MORE_PAGES;
    let pages = bench.reserve(Pages::Hugetlb2M, wanted)?;
    let saved = SavedGuest::make(Folders::find()?, bytes, pages >= wanted, bench.observer())?;
    let about = format!("a guest of {} that has written {}", Size(bytes), Size(saved.len()));
    let mut experiment = Experiment::on("restore", about);
    experiment.notices.extend(saved.notices());
    experiment.notices.extend(paging::notice(&Root::default()));
    if pages < wanted {
        let remedy = remedy(&Root::default(), Pages::Hugetlb2M.size(), wanted - pages);
        let lack = format!("hugetlb-… left out: {pages} of {wanted} pages of 2MiB are free");
        experiment.notices.push(format!("{lack}; `--setup` (root) reserves them{remedy}"));
    }
    experiment.add("reply", reply::measure(&saved, bench.rounds_of(3.0, 40, Some(MIN_REPLIES))))?;
    experiment.add("one", one::measure(&saved, rounds(bench)))?;
    experiment.add("clones", clones::measure(&saved, bench))?;
    Ok(experiment)
}

/// Rounds of first replies, which differ more than anything else.
const MIN_REPLIES: usize = 10;

/// A round of one guest takes up to half a minute, because one of the ways costs a fault for each
/// page. All of the experiment is to end within six minutes on two CPUs.
fn rounds<'a>(bench: &Bench<'a>) -> crate::measure::part::Rounds<'a> {
    match bench.options().quick {
        true => bench.long_rounds(0.5, 4),
        false => bench.rounds_of(6.0, 8, Some(4)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_clones_are_those_of_guests() {
        assert!(LEAST as u64 / 2 >= 100 * hugekit_guests::CLUSTER);
    }
}
