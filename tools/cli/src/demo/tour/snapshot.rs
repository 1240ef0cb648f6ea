//! Memory saved while its program goes on writing: `fork(2)` against a snapshot.

use hugekit_machine::size::Size;

use super::part::{Measured, PartResult};
use super::process::{TourProcess, helper};
use super::{Tour, room};
use crate::demo::helper::{Helper, HelperLine};

pub(super) const TITLE: &str = "Saving memory while its program writes";

/// A save each way, three times.
pub(super) const STEPS: u64 = 6;

/// The program's memory, that of a region with its copies, and what a fork copies.
const COPIES: usize = 5;

pub(super) fn run(tour: &Tour) -> anyhow::Result<PartResult> {
    tour.does("saves by fork(2) and by snapshots");
    let bytes = room::in_a_file(room::bytes(tour.size / 2, COPIES)?)?;
    let mut program = TourProcess::start(helper(Helper::Saves, bytes, &[])?)?;
    let mut ways =
        [Measured::new("fork(2), the child saves"), Measured::new("a snapshot, a thread saves")];
    while let HelperLine::Took { way, time } = program.heard(&tour.stop)? {
        ways[way].times.push(time);
        tour.step();
    }
    let [before, after] = ways;
    Ok(PartResult {
        title: format!("{TITLE}: {}", Size(bytes)),
        before: vec![before],
        after,
        notes: "The program's longest step during a save, medians of 3 in turn.".to_owned(),
        commands: vec![
            "pip install ./bindings/py          # or, in Rust:".to_owned(),
            "cargo add hugekit --path engine/hugekit  # see docs/snapshot.md".to_owned(),
        ],
    })
}
