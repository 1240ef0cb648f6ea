//! Free blocks of the memory: a buddy allocator.
//!
//! A block has 2ⁿ bytes and lies at a multiple of its size. When a block and its buddy are free, they
//! become one block. Which blocks are free is not saved: a start finds it out from the entries.
//!
//! **A new block avoids the memory that a save has still to read.** A write there would first copy
//! 2 MiB. Blocks before the place that the save reads, and behind the last byte that it will read,
//! cost nothing.

use std::collections::BTreeSet;
use std::ops::Range;

/// The smallest block has 2⁶ bytes.
const SMALLEST: u32 = 6;

/// The order of the largest block of any memory.
const LARGEST: u32 = 47;

/// The order `n` of a block of 2ⁿ bytes that holds `len` bytes.
pub fn order_of(len: usize) -> u32 {
    len.next_power_of_two().trailing_zeros().max(SMALLEST)
}

/// Free blocks, as their orders and offsets.
#[derive(Debug, Default)]
pub struct Heap {
    free: BTreeSet<(u32, usize)>,
    /// Bytes of blocks that are taken.
    pub used: usize,
}

impl Heap {
    /// Makes these bytes free, as the largest blocks that fit.
    pub fn fill(&mut self, mut from: usize, to: usize) {
        from = from.next_multiple_of(1 << SMALLEST);
        while from + (1 << SMALLEST) <= to {
            let order = from.trailing_zeros().min((to - from).ilog2());
            self.free.insert((order, from));
            from += 1 << order;
        }
    }

    /// Takes a block: outside of `avoid` if there is one, else any.
    pub fn take(&mut self, order: u32, avoid: &Range<usize>) -> Option<usize> {
        let find = |avoid| (order..=LARGEST).find_map(|from| self.outside(order, from, avoid));
        let (from, at) = find(avoid).or_else(|| find(&(0..0)))?;
        self.free.remove(&(from, at));
        for half in order..from {
            self.free.insert((half, at + (1 << half)));
        }
        self.used += 1 << order;
        Some(at)
    }

    /// The lowest free block of order `from` whose beginning has room for `order` outside of `avoid`.
    fn outside(&self, order: u32, from: u32, avoid: &Range<usize>) -> Option<(u32, usize)> {
        let last = avoid.start.checked_sub(1 << order);
        let before = last.and_then(|last| self.free.range((from, 0)..=(from, last)).next());
        before.or_else(|| self.free.range((from, avoid.end)..(from + 1, 0)).next()).copied()
    }

    pub fn give_back(&mut self, mut at: usize, mut order: u32) {
        self.used -= 1 << order;
        while self.free.remove(&(order, at ^ (1 << order))) {
            at &= !(1 << order);
            order += 1;
        }
        self.free.insert((order, at));
    }

    /// Divides the free block that `at` lies in, so that a block begins there.
    pub fn divide(&mut self, at: usize) {
        let block = |order: u32| (order, at >> order << order);
        let found = (SMALLEST..=LARGEST).map(block).find(|block| self.free.contains(block));
        if let Some((order, start)) = found {
            self.free.remove(&(order, start));
            self.fill(start, at);
            self.fill(at, start + (1 << order));
        }
    }
}
