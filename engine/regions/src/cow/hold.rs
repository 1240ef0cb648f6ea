//! How the kernel holds back writes to what a region's addresses map for good.

use super::reads::Reads;
use crate::fault::{self, FaultMode};
use crate::pool::{Backing, Pool};

/// The same for all regions of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// By marks of userfaultfd(2) in the page tables, which system calls and KVM wait for, too, where threads serve
    /// faults. A mark of shared memory is one of a base page: the kernel takes a huge page apart for it, and has a
    /// fault for each of its base pages afterwards, for reads too.
    Marks,
    /// By the rights of the mapping, which change a huge page as a whole: a write ends in SIGSEGV, a system call's
    /// in EFAULT, as all writes that are served in place do. What a handler has entered has marks all the same.
    Rights,
    /// By taking it out of the page tables: reads come to us, too, and get marks; what may be written again is mapped
    /// anew, by huge pages. System calls and KVM wait, as for marks.
    Removal,
}

/// The facts that decide how writes are held back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs<'a> {
    pub(super) pool: &'a Pool,
    pub(super) granule_bytes: usize,
    pub(super) fault_mode: FaultMode,
    pub(super) reads: Reads,
    /// Slots of a region, each of which is a mapping at most where rights differ.
    pub(super) slots: usize,
    pub(super) most_mappings: usize,
}

impl Hold {
    /// Returns the way that suits a group of regions.
    pub(super) fn suited_to(needs: &Needs<'_>) -> Self {
        let Needs { pool, granule_bytes, fault_mode, reads, slots, most_mappings } = *needs;
        let is_taken_apart = pool.backing() == Backing::Thp && granule_bytes == pool.page_size();
        if !is_taken_apart {
            return Self::Marks;
        }
        if fault_mode != FaultMode::InPlace {
            // A kernel that enters nothing with marks would have each reader copy what was taken out.
            return if reads == Reads::Share { Self::Removal } else { Self::Marks };
        }
        let takes_signals = slots <= most_mappings && fault::serve_forbidden_writes().is_ok();
        if takes_signals { Self::Rights } else { Self::Marks }
    }
}
