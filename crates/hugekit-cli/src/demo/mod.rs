//! `hugekit demo`: what hugekit is for, in ten seconds each, beside what a program would do without.

mod fork;
mod memory;
mod restore;
mod snapshot;
mod ways;

use clap::{Args, ValueEnum};
use hugekit_lab::size::{MIB, Size};
use hugekit_machine::{Memory, Root};

use crate::text::write_out;

/// Bytes of a demonstration, where the machine can spare eight times as many.
const USUAL: usize = 512 * MIB;

/// Of a VM, whose page faults take long if each one brings in 4 KiB.
const USUAL_OF_VM: usize = 64 * MIB;

/// See in ten seconds what hugekit is for: ways to do one thing, in turn, each checked.
///
/// Needs neither root nor reserved huge pages. `hugekit lab` measures the same more carefully.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    which: Which,
    /// Bytes to work on; by default 512MiB, or an eighth of what is available
    #[arg(long)]
    size: Option<Size>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    /// Zeroed memory: from the kernel, or from a pool that has cleared it before
    Memory,
    /// The same bytes twice: copied, or forked
    Fork,
    /// A state saved while its owner goes on writing: stopped, copied first, or by a snapshot
    Snapshot,
    /// A VM restored, with 4 KiB or 2 MiB for each page fault, or with all memory read ahead
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
