//! A free huge page for the next collapse, which was written to a moment ago.
//!
//! A collapse copies to a free huge page while it holds locks of the process's memory map. If this machine is a guest
//! whose host has no memory behind that page yet, the copy waits for the host: 5 ms instead of 0.5 ms, in which page
//! faults of the process wait. So the tender first writes to a huge page of its own and frees it. The kernel
//! allocates the page next that was freed last on the same CPU.
//!
//! It is allocated by a collapse, not by a page fault. Each collapse first has every CPU empty its lists of new pages,
//! which on busy CPUs takes up to 0.5 s. The collapse of the tender's own memory does this outside of the process's
//! locks, and the next collapse finds little to empty.

use hugekit::HUGE_PAGE_BYTES;

use crate::own_memory::OwnMemory;

#[derive(Debug)]
pub(crate) struct BlockSupply(Option<OwnMemory>);

impl BlockSupply {
    /// Without addresses for it, collapses wait for the host.
    pub(crate) fn new() -> Self {
        Self(OwnMemory::reserve(HUGE_PAGE_BYTES).ok())
    }

    /// Writes to a huge page and frees it. Whether there was one: the collapse tries again by itself.
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
