//! One region of a family.

use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};

use rustix::io;

use super::entry::Entry;
use super::frames::Own;
use super::table::{Marks, Table};
use crate::sys::mapping::Mapping;
use crate::sys::own::{OwnPiece, OwnSlice};

/// Where neighbours do not become one mapping by themselves, so many are made one.
pub(super) const BLOCK: usize = 8;

/// Slots of a block, of a block of blocks, and so on.
fn block_lens(slots: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(BLOCK), |len| len.checked_mul(BLOCK))
        .take_while(move |len| *len <= slots)
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) mapping: Mapping,
    /// The frames that came with it. Of a slot that it does not keep, no user has seen that frame.
    pub(super) own: Own,
    granule_bytes: usize,
    words: Words,
}

/// What faults change of a region, in one piece of memory that no snapshot can protect.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) table: Table,
    /// Slots whose frame stays its own, whichever others show it. Of all regions that show a frame exactly one
    /// keeps it; the others have their own place to copy it to.
    pub(super) keeps: Marks,
    /// Slots whose addresses map another frame than the table says. Nothing of that is in the page tables,
    /// and every access comes to us.
    pub(super) stale: Marks,
    /// Slots whose addresses map, for good, the frame that the region keeps. Of the others, every access to
    /// what is not in the page tables comes to us.
    pub(super) placed: Marks,
    /// Slots that could not be copied for the region, because memory had failed: accesses are answered with SIGBUS.
    /// They are stale for good.
    pub(super) lost: Marks,
    /// Blocks of [`BLOCK`] slots, of as many of these, and so on, that are one mapping.
    pub(super) blocks: Vec<Marks>,
    counts: OwnSlice<Counts>,
}

/// What is counted of one region.
#[derive(Debug)]
pub(super) struct Counts {
    /// Whether every address is registered, so that writes can be held back.
    pub(super) registered: AtomicBool,
    /// Mappings that it costs beyond the one of every region.
    pub(super) mappings: AtomicIsize,
    /// Slots that were copied for it because others wrote them.
    pub(super) received: AtomicU64,
    /// The longest write to what the family shares, since it is a member.
    pub(super) longest_nanos: AtomicU64,
}

impl Words {
    /// Those of the region that a family begins with, of which every slot is its own.
    pub(super) fn of_first(slots: usize) -> io::Result<Self> {
        Self::new(slots, true)
    }

    /// Those of a fork, of which nothing is its own yet.
    pub(super) fn of_child(slots: usize) -> io::Result<Self> {
        Self::new(slots, false)
    }

    fn new(slots: usize, is_first: bool) -> io::Result<Self> {
        let of_blocks: usize = block_lens(slots).map(|len| Marks::bytes_of(slots / len)).sum();
        let of_slots = OwnPiece::bytes_of::<AtomicU64>(slots) + 4 * Marks::bytes_of(slots);
        let mut piece = OwnPiece::new(of_slots + of_blocks + OwnPiece::bytes_of::<Counts>(1))?;
        let mut marks = |slots, set| Marks::new(&mut piece, slots, set);
        let (keeps, placed) = (marks(slots, is_first), marks(slots, is_first));
        let (stale, lost) = (marks(slots, false), marks(slots, false));
        let blocks = block_lens(slots).map(|len| marks(slots / len, is_first)).collect();
        let (table, counts) =
            (Table::unfilled(&mut piece, slots), piece.filled(1, |_| Counts::new()));
        Ok(Self { table, keeps, stale, placed, lost, blocks, counts })
    }
}

impl Counts {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            registered: AtomicBool::new(true),
            mappings: AtomicIsize::new(0),
            received: zero(),
            longest_nanos: zero(),
        }
    }
}

impl Deref for Member {
    type Target = Words;

    fn deref(&self) -> &Words {
        &self.words
    }
}

impl DerefMut for Member {
    fn deref_mut(&mut self) -> &mut Words {
        &mut self.words
    }
}

impl Member {
    /// The region that a family begins with: every slot is its own.
    pub(super) fn first(mapping: Mapping, words: Words, own: Own, granule_bytes: usize) -> Self {
        words.table.fill(Entry::new(own.frame(0)).writable());
        Self { mapping, own, granule_bytes, words }
    }

    /// A fork, of which nothing is its own but what was copied for it already.
    pub(super) fn child(mapping: Mapping, words: Words, own: Own, granule_bytes: usize) -> Self {
        Self { mapping, own, granule_bytes, words }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts[0]
    }

    pub(super) fn slots(&self) -> usize {
        self.table.slots()
    }

    pub(super) fn addresses(&self) -> Range<usize> {
        let start = self.mapping.start().as_ptr().addr();
        start..start + self.mapping.len()
    }

    pub(super) fn addresses_of(&self, slots: Range<usize>) -> Range<usize> {
        let Range { start, end } = self.addresses();
        let at = |slot: usize| start + slot * self.granule_bytes;
        at(slots.start)..at(slots.end).min(end)
    }

    pub(super) fn slot_at(&self, address: usize) -> usize {
        (address - self.addresses().start) / self.granule_bytes
    }

    /// Whether it has the slot and shows this frame there.
    pub(super) fn shows(&self, slot: usize, frame: u64) -> bool {
        slot < self.slots() && self.table.get(slot).frame() == frame
    }

    pub(super) fn own_frame(&self, slot: usize) -> u64 {
        self.own.frame(slot)
    }

    /// How many mappings it costs to map a slot apart from what lies around it, where those that touch
    /// `merge` or do not.
    pub(super) fn cost_of(&self, slot: usize, merge: bool) -> isize {
        let before = slot > 0 && self.placed.get(slot - 1);
        let after = slot + 1 < self.slots() && self.placed.get(slot + 1);
        let beside = isize::from(before) + isize::from(after);
        if merge { 2 - 2 * beside } else { 2 - beside }
    }

    /// The blocks that a slot belongs to and the marks of those that are one mapping, the smallest first;
    /// none that the region's end cuts.
    pub(super) fn blocks_of(&self, slot: usize) -> impl Iterator<Item = (Range<usize>, &Marks)> {
        let block = move |len: usize| slot / len * len..slot / len * len + len;
        let blocks = block_lens(self.slots()).map(block).zip(&self.blocks);
        blocks.take_while(|(block, _)| block.end <= self.slots())
    }

    /// Whether slots map frames that follow each other and are the region's alone, for good.
    pub(super) fn is_run_of_its_own(&self, slots: Range<usize>) -> bool {
        let first = self.table.get(slots.start).frame();
        slots.clone().all(|slot| {
            let entry = self.table.get(slot);
            let follows = entry.frame() == first + (slot - slots.start) as u64;
            self.placed.get(slot) && !self.stale.get(slot) && entry.is_writable() && follows
        })
    }

    pub(super) fn is_registered(&self) -> bool {
        self.counts().registered.load(Ordering::Relaxed)
    }
}
