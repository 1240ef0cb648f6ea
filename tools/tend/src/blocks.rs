//! A free huge page for the next collapse, which was written to a moment ago.
//!
//! A collapse copies to a free huge page while it holds locks of the process's memory map. If this machine is a guest
//! whose host has no memory behind that page yet, the copy waits for the host: 5 ms instead of 0.5 ms, in which page
//! faults of the process wait. So the tender first writes to a huge page of its own and frees it. The kernel
//! allocates the page next that was freed last on the same CPU.
//!
//! This is also how free blocks of 2 MiB come to be on a machine whose memory is page cache: the kernel gathers one for
//! the tender's request, and not while the process waits.
//!
//! The page is allocated by a collapse, not by a page fault. Each collapse first has every CPU empty its lists of new
//! pages, which on busy CPUs takes up to 0.5 s. The collapse of the tender's own memory does this outside of the process's
//! locks, and the next collapse finds little to empty.

use std::time::{Duration, Instant};

use hugekit::HUGE_PAGE_BYTES;
use hugekit_machine::Root;
use hugekit_machine::memory::{free_blocks, swapped_out};
use hugekit_sys::free_blocks::BlockMaker;

/// With less than this free in blocks of 2 MiB, the kernel may have to gather a block. Some free blocks are reserved for
/// other uses, so it is much more than a block.
const FEW: u64 = 256 << 20;

/// A request for a free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// True if the kernel had a block, or made one.
    pub(crate) is_granted: bool,
    /// True if few blocks were free before, so that the kernel may have reclaimed and moved pages.
    pub(crate) were_few: bool,
    pub(crate) took: Duration,
    /// Bytes that the machine swapped out meanwhile. Counted only if blocks were few.
    pub(crate) swapped: u64,
}

impl Request {
    /// The time in which the kernel may have gathered a block.
    pub(crate) fn stalled(&self) -> Duration {
        if self.were_few { self.took } else { Duration::ZERO }
    }
}

#[derive(Debug)]
pub(crate) struct BlockSupply<'a> {
    root: &'a Root,
    /// Without addresses for it, collapses wait for the host.
    maker: Option<BlockMaker>,
}

impl<'a> BlockSupply<'a> {
    pub(crate) fn new(root: &'a Root) -> Self {
        Self { root, maker: BlockMaker::new(1).ok() }
    }

    /// Writes to a huge page and frees it.
    pub(crate) fn request(&self) -> Request {
        let were_few = self.free().is_some_and(|free| free < FEW);
        let swapped = || if were_few { swapped_out(self.root).unwrap_or(0) } else { 0 };
        let (before, began) = (swapped(), Instant::now());
        let is_granted = self.maker.as_ref().is_some_and(|maker| maker.make().is_ok());
        let took = began.elapsed();
        Request { is_granted, were_few, took, swapped: swapped().saturating_sub(before) }
    }

    /// Bytes that are free in blocks of 2 MiB.
    pub(crate) fn free(&self) -> Option<u64> {
        free_blocks(self.root, HUGE_PAGE_BYTES as u64)
    }
}
