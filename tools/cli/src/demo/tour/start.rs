//! A program starts that needs much zeroed memory: it populates its own, or gets memory that a broker has populated.

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use hugekit_machine::size::Size;

use super::broker::TourBroker;
use super::part::{Measured, PartResult};
use super::process::{TourProcess, helper, hugekit};
use super::{Tour, room};
use crate::demo::helper::Helper;

pub(super) const TITLE: &str = "Start of a program that needs memory";

const ROUNDS: usize = 3;

/// Starts, and the first wait for the broker.
pub(super) const STEPS: u64 = 2 * ROUNDS as u64 + 1;

/// The memory of the program, and a unit that becomes ready at the same time.
const COPIES: usize = 2;

pub(super) fn run(tour: &Tour) -> anyhow::Result<PartResult> {
    let bytes = room::bytes(tour.size / 2, COPIES)?;
    tour.does("a broker populates memory");
    let began = Instant::now();
    let mut broker = TourBroker::start(Some(bytes), &tour.stop)?;
    broker.unit(&tour.stop)?;
    let populated = began.elapsed();
    tour.step();
    tour.does("starts of a program that needs memory");
    let mut before = Measured::new("it populates its own memory");
    let mut after = Measured::new("hugekit lease: the memory is ready");
    for _ in 0..ROUNDS {
        // The broker rests while a start is measured.
        broker.unit(&tour.stop)?;
        before.times.push(time(tour, helper(Helper::Starts, bytes, &[])?)?);
        after.times.push(time(tour, leased(&broker, bytes)?)?);
    }
    Ok(PartResult {
        title: format!("{TITLE}: {}", Size(bytes)),
        before: vec![before],
        after,
        notes: format!(
            "From its start until it has written to every page, medians of {ROUNDS} in turn. The \
             broker populated the memory before, in {populated:.1?}."
        ),
        commands: vec![
            "hugekit broker --unit 4GiB --backing thp &".to_owned(),
            "hugekit lease --size 4GiB -- qemu-system-x86_64 -m 4G -object \\".to_owned(),
            "  memory-backend-file,id=m,size=4G,mem-path={},share=on,align=2M \\".to_owned(),
            "  -machine memory-backend=m".to_owned(),
        ],
    })
}

/// Returns the program as it is started by `hugekit lease`.
fn leased(broker: &TourBroker, bytes: usize) -> anyhow::Result<Command> {
    let mut command = hugekit()?;
    command.args(["lease", "--size", &bytes.to_string(), "--socket"]).arg(broker.socket());
    let program = helper(Helper::Starts, bytes, &[OsStr::new("{}")])?;
    command.arg("--").arg(program.get_program()).args(program.get_args());
    Ok(command)
}

/// From a program's start until it is ready. Its bytes are compared after that.
pub(super) fn time(tour: &Tour, program: Command) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut program = TourProcess::start(program)?;
    program.ready(&tour.stop)?;
    let took = began.elapsed();
    program.right(&tour.stop)?;
    tour.step();
    Ok(took)
}
