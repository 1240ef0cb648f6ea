//! The parts of a group that forks need: a way to hold back writes, and reserves for the case that memory or mappings
//! fail. The group gets them with its first fork.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::OwnedFd;

use super::ForkError;
use super::descriptor::SharedReads;
use super::error::{kernel, unmapped};
use crate::fault::{self, FaultMode};
use crate::pool::Pool;
use hugekit_sys::mapping::{Spare, replace_by_nothing};
use hugekit_sys::memfd::{self, FilePages};
use hugekit_sys::pagemap::PageMap;
use hugekit_sys::private_pages::Private;

/// The way to hold back writes to frames that a region's addresses map permanently. It is the same for all regions of a
/// group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// Marks of userfaultfd(2) in the page tables. If threads serve faults, system calls and KVM wait for marks, too. In
    /// shared memory, each mark is on one base page. If a huge page gets marks, the kernel splits it. After that, each
    /// of its base pages has a fault of its own, even for reads.
    Marks,
    /// The rights of the mapping, which apply to a huge page as a whole. A write ends in SIGSEGV, and a system call that
    /// writes ends in EFAULT, like all writes that are served in place. A frame that a handler has entered has marks
    /// even in this case.
    Rights,
    /// Removal from the page tables. Reads then fault, too, and enter the frame with marks. A frame that may be written
    /// again is mapped anew, by huge pages. System calls and KVM wait, as they do for marks.
    Removal,
}

/// The facts about a group that decide how writes are held back.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupFacts<'a> {
    pub(super) pool: &'a Pool,
    pub(super) granule_bytes: usize,
    pub(super) fault_mode: FaultMode,
    pub(super) shared_reads: SharedReads,
    /// Slots of a region. If rights differ from slot to slot, each one needs a mapping.
    pub(super) slots: usize,
    pub(super) most_mappings: usize,
}

impl Protection {
    /// Chooses the way to hold back writes that suits a group.
    fn suited_to(facts: &GroupFacts<'_>) -> Self {
        let GroupFacts { pool, granule_bytes, fault_mode, shared_reads, slots, most_mappings } =
            *facts;
        let is_split_by_marks =
            pool.backing().is_transparent() && granule_bytes == pool.page_size();
        if !is_split_by_marks {
            return Self::Marks;
        }
        if fault_mode != FaultMode::InPlace {
            // If the kernel cannot enter a frame with marks, each reader would copy a removed frame.
            let can_enter = shared_reads == SharedReads::Enter;
            return if can_enter { Self::Removal } else { Self::Marks };
        }
        let takes_signals = slots <= most_mappings && fault::serve_forbidden_writes().is_ok();
        if takes_signals { Self::Rights } else { Self::Marks }
    }
}

/// The parts of a group that forks need.
#[derive(Debug)]
pub(super) struct ForkSupport {
    pub(super) protection: Protection,
    /// Mappings that are released if the process has no other mapping left.
    spare_mappings: Private<Spare>,
    /// Lost slots map this file, which has no bytes.
    empty_file: OwnedFd,
    /// Shows which pages are mapped. `None` if it cannot be opened.
    pub(super) pagemap: Option<PageMap>,
}

impl ForkSupport {
    pub(super) fn new(facts: &GroupFacts<'_>) -> Result<Self, ForkError> {
        let pool = facts.pool;
        let spare = Private::new(Spare::new(pool.memory().file(), pool.page_size()));
        let empty_file = memfd::create(c"hugekit:lost", FilePages::Shmem);
        Ok(Self {
            protection: Protection::suited_to(facts),
            spare_mappings: spare.map_err(unmapped)?,
            empty_file: empty_file.map_err(|errno| kernel("memfd_create", errno))?,
            pagemap: PageMap::open().ok(),
        })
    }

    /// Releases the spare mappings. Async-signal-safe.
    pub(super) fn release_spare_mappings(&self) {
        self.spare_mappings.release();
    }

    /// Maps the empty file at the addresses of lost slots, so accesses there end in SIGBUS. Returns
    /// true if the kernel has mapped it.
    pub(super) fn map_empty_file(&self, addresses: &Range<usize>) -> bool {
        // SAFETY: addresses of a region, and the table says that their bytes are lost.
        unsafe { replace_by_nothing(&self.empty_file, addresses) }.is_ok()
    }
}
