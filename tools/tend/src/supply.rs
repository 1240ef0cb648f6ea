//! A free huge page for the next collapse, which was written a moment ago.
//!
//! A collapse copies to a free huge page while it holds locks of the process's memory map. If this
//! machine is a guest, and its host has no memory for that page yet, the copy waits for the host: 5
//! ms instead of 0.5 ms, in which page faults of the process wait. So the tender first writes to a
//! huge page of its own and frees the page. The kernel's next allocation is the page that was freed
//! last on the same CPU.
//!
//! A collapse allocates this page, not a page fault. Each collapse first makes every CPU empty its
//! lists of new pages, which on busy CPUs lasts up to 0.5 s. The collapse of the tender's own
//! memory does this without the process's locks, so the next collapse finds little to empty.

use hugekit::HUGE_PAGE_BYTES;

use crate::own_memory::OwnMemory;

#[derive(Debug)]
pub(crate) struct BlockSupply(Option<OwnMemory>);

impl BlockSupply {
    /// Reserves addresses. Without addresses, collapses wait for the host.
    pub(crate) fn new() -> Self {
        Self(OwnMemory::reserve(HUGE_PAGE_BYTES).ok())
    }

    /// Writes to a huge page and frees the page. Returns true if there was a huge page; without
    /// one, the collapse tries again by itself.
    pub(crate) fn refresh(&self) -> bool {
        let Some(memory) = &self.0 else { return false };
        memory.touch(0);
        let is_huge = memory.collapse();
        memory.discard().is_ok() && is_huge
    }
}

#[cfg(test)]
mod tests {
    use hugekit_testing::trials::skipped;

    use super::*;

    #[test]
    fn refresh_keeps_no_memory() {
        let supply = BlockSupply::new();
        if !supply.refresh() {
            skipped("no huge page is available");
            return;
        }
        assert_eq!(supply.0.as_ref().unwrap().resident(), 0);
        supply.0.as_ref().unwrap().touch(0);
        assert_ne!(supply.0.as_ref().unwrap().resident(), 0, "as the page map has it");
    }
}
