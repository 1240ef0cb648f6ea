//! `hugekit demo`: demonstrations of ten seconds each, compared with a program without hugekit.

mod fork;
mod memory;
mod restore;
mod snapshot;
mod ways;

use clap::{Args, ValueEnum};
use hugekit_machine::{Memory, Root};
use hugekit_record::size::{MIB, Size};

use crate::text::write_out;

/// Bytes of a demonstration, if eight times as many are available.
const USUAL: usize = 512 * MIB;

/// Bytes of a VM, whose page faults take long if each one brings in 4 KiB.
const USUAL_OF_VM: usize = 64 * MIB;

/// Compare, in ten seconds, a task with and without hugekit.
///
/// The ways take turns, and every result is checked. Needs neither root nor reserved huge pages.
/// `hugekit lab` measures the same more carefully.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = "Example: hugekit demo snapshot")]
pub(crate) struct Demo {
    /// The task
    which: Which,
    /// Bytes to work on, such as 1GiB [default: 512MiB, 64MiB of a VM, or an eighth of the available memory]
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
    /// Restore a VM: with 4 KiB or 2 MiB for each page fault, or with all memory read ahead
    Restore,
}

impl Demo {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let bytes = self.size.map_or_else(|| self.which.usual(), |size| Ok(size.0))?;
        // Whole huge pages, so that none of the ways has a remainder of its own.
        let bytes = bytes.next_multiple_of(hugekit::HUGE_PAGE_BYTES);
        let ways = match self.which {
            Which::Memory => memory::run(bytes),
            Which::Fork => fork::run(bytes),
            Which::Snapshot => snapshot::run(bytes),
            Which::Restore => restore::run(bytes),
        }?;
        Ok(write_out(&ways.to_string())?)
    }
}

impl Which {
    fn usual(self) -> anyhow::Result<usize> {
        let available = Memory::read(&Root::default())?.available;
        let most = if matches!(self, Self::Restore) { USUAL_OF_VM } else { USUAL };
        Ok(most.min(usize::try_from(available / 8).unwrap_or(most)))
    }
}
