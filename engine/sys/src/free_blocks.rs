//! Free blocks of 2 MiB, made by a request: a huge page of this process, freed again.
//!
//! If the page cache fills the memory, little is free, and only in small pieces. The kernel gathers a block when a
//! program asks for a huge page: it reclaims page cache and moves pages. It does less for the page cache itself, so a
//! program asks in its place.
//!
//! The request is a collapse, not a page fault. A collapse needs no setting of transparent huge pages, and fails if there
//! is no block. A page fault then takes 512 small pages and reports nothing.
#![allow(unsafe_code)]

use rustix::io::{self, Errno};
use rustix::param::page_size;

use super::HUGE_PAGE_BYTES;
use super::mapping::collapse;
use super::memory::populate_write;
use super::private_pages::PrivateBytes;

/// Addresses for blocks. They occupy no memory between two requests.
#[derive(Debug)]
pub struct BlockMaker {
    room: PrivateBytes,
    blocks: usize,
}

impl BlockMaker {
    /// Reserves addresses for requests of this many blocks.
    pub fn new(blocks: usize) -> io::Result<Self> {
        let len = blocks.checked_mul(HUGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
        Ok(Self { room: PrivateBytes::new(len, HUGE_PAGE_BYTES)?, blocks })
    }

    /// Has the kernel gather the blocks, and frees them. The next allocations on this CPU find them. Without an error all
    /// of them were made. `ENOMEM`: the kernel could not gather them all.
    pub fn make(&self) -> io::Result<()> {
        let made = self.gather();
        // SAFETY: only this value knows the addresses, and it keeps nothing in their memory.
        unsafe { self.room.give_back() }?;
        made
    }

    fn gather(&self) -> io::Result<()> {
        let (start, len) = (self.room.start(), self.blocks * HUGE_PAGE_BYTES);
        for block in 0..self.blocks {
            // A collapse needs a page that is there.
            populate_write(start.wrapping_add(block * HUGE_PAGE_BYTES), page_size())?;
        }
        // SAFETY: anonymous memory of this value: no userfaultfd is registered for it.
        match unsafe { collapse(start, len) } {
            // Before Linux 6.1: page faults ask, as far as the settings allow it.
            Err(Errno::INVAL) => {
                self.room.want_huge_pages()?;
                populate_write(start, len)
            }
            done => done,
        }
    }
}

/// Has the kernel gather this many blocks of 2 MiB and free them, so that the next allocations of such blocks find some.
pub fn make_free_blocks(blocks: usize) -> io::Result<()> {
    BlockMaker::new(blocks)?.make()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::probe_present;

    #[test]
    fn free_blocks_are_made_or_refused_and_no_memory_stays() {
        let maker = BlockMaker::new(2).unwrap();
        for _ in 0..2 {
            let made = maker.make();
            assert!(matches!(made, Ok(()) | Err(Errno::NOMEM | Errno::AGAIN)), "{made:?}");
            for block in 0..2 {
                let start = maker.room.start().wrapping_add(block * HUGE_PAGE_BYTES);
                assert_eq!(probe_present(start, page_size()), Ok(false), "{made:?}");
            }
        }
        assert!(make_free_blocks(usize::MAX).is_err());
    }
}
