//! `hugekit demo`: a tour of the gains on this machine, and demonstrations of ten seconds each, all compared with a
//! program without hugekit.

mod fork;
mod helper;
mod memory;
mod snapshot;
mod tour;
mod ways;

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use hugekit_machine::size::{MIB, Size};
use hugekit_machine::{Memory, Root};

pub(crate) use self::helper::{HELPER, run_helper};
use hugekit_terminal::text::write_out;

/// Bytes of a demonstration, if eight times as many are available.
const USUAL: usize = 512 * MIB;

/// Measure what programs gain on this machine, in half a minute.
///
/// Without a TASK it is a tour, with real memory and processes: the fork of a program that is tended, a snapshot, a start
/// with memory that is ready, and a restore from a file. With a TASK, ways to do it are compared in ten seconds. The ways
/// take turns, and every result is checked. Needs neither root nor reserved huge pages, changes no setting, and leaves
/// nothing behind. `hugekit lab` measures the same more carefully.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit demo")]
pub(crate) struct DemoCommand {
    /// The task
    #[arg(value_name = "TASK")]
    which: Option<Which>,
    /// Bytes to work on, such as 256MiB [default: of the tour 1GiB, of a task 512MiB; less if little memory is available]
    #[arg(long)]
    size: Option<Size>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    /// Get zeroed memory: from the kernel, or from a pool that has cleared it before
    Memory,
    /// Get the same bytes twice: by a copy, or by a fork
    Fork,
    /// Save memory while its owner continues to write: stop it, copy first, or take a snapshot
    Snapshot,
}

impl DemoCommand {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        match self.which {
            Some(which) => which.run(self.size).map(|()| ExitCode::SUCCESS),
            None => tour::run(self.size),
        }
    }
}

impl Which {
    fn run(self, size: Option<Size>) -> anyhow::Result<()> {
        let bytes = size.map_or_else(usual, |size| Ok(size.0))?;
        // Whole huge pages, so that none of the ways has a remainder of its own.
        let bytes = bytes.next_multiple_of(hugekit::HUGE_PAGE_BYTES);
        let ways = match self {
            Self::Memory => memory::run(bytes),
            Self::Fork => fork::run(bytes),
            Self::Snapshot => snapshot::run(bytes),
        }?;
        Ok(write_out(&ways.to_string())?)
    }
}

fn usual() -> anyhow::Result<usize> {
    let available = Memory::read(&Root::default())?.available;
    Ok(USUAL.min(usize::try_from(available / 8).unwrap_or(USUAL)))
}
