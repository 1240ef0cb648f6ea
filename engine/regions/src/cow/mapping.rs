//! One region of a fork group, as the group maps it.

use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};

use rustix::io;

use super::frames::ReservedFrames;
use super::slot::{Pages, Slot};
use super::slot_table::{Bitmap, Entry, Links, MappingId, SlotTable};
use hugekit_sys::mapping::Mapping;
use hugekit_sys::private_pages::{PrivatePiece, PrivateSlice};

/// The number of slots that are joined to one mapping, if neighbours do not become one by themselves.
pub(super) const BLOCK: usize = 8;

/// Slots of a block, of a block of blocks, and so on.
fn block_lens(slots: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(BLOCK), |len| len.checked_mul(BLOCK))
        .take_while(move |len| *len <= slots)
}

#[derive(Debug)]
pub(super) struct CowMapping {
    id: MappingId,
    pub(super) mapping: Mapping,
    /// The frames that came with it. Of a slot that it borrows, no user has seen that frame.
    pub(super) reserve: ReservedFrames,
    /// The mapping that follows this one in [`Mappings::observed`](super::mappings::Mappings::observed).
    pub(super) next_observed: Option<MappingId>,
    granule_bytes: usize,
    words: MappingWords,
}

/// The words of a mapping that faults change, in one piece of memory that no snapshot can protect.
#[derive(Debug)]
pub(super) struct MappingWords {
    pub(super) table: SlotTable,
    pub(super) links: Links,
    /// Blocks of [`BLOCK`] slots, of as many of these, and so on, that are one mapping of the kernel's.
    pub(super) blocks: Vec<Bitmap>,
    /// Slots whose bytes are as they were at the region's epoch; none if it has none.
    pub(super) unwritten: Bitmap,
    counts: PrivateSlice<MappingCounts>,
}

/// The counters of one region.
#[derive(Debug)]
pub(super) struct MappingCounts {
    /// True if every address is registered, so that writes can be held back.
    pub(super) registered: AtomicBool,
    /// The kernel's mappings that it costs beyond the one of every region.
    pub(super) vmas: AtomicIsize,
    /// The number of its epoch, or 0.
    pub(super) epoch: AtomicU64,
    /// Slots that were copied for it because others wrote them.
    pub(super) received: AtomicU64,
    /// Slots that were copied for it when it was made.
    pub(super) copied_at_once: AtomicU64,
    /// The longest write to what the group shares, since it is observed.
    pub(super) longest_nanos: AtomicU64,
}

impl MappingWords {
    /// Makes the words for so many slots; `whole` if every block is one mapping of the kernel's.
    pub(super) fn new(slots: usize, whole: bool) -> io::Result<Self> {
        let of_blocks: usize = block_lens(slots).map(|len| Bitmap::bytes_of(slots / len)).sum();
        let of_slots = 2 * PrivatePiece::bytes_of::<AtomicU64>(slots) + Bitmap::bytes_of(slots);
        let mut piece =
            PrivatePiece::new(of_slots + of_blocks + PrivatePiece::bytes_of::<MappingCounts>(1))?;
        let blocks =
            block_lens(slots).map(|len| Bitmap::new(&mut piece, slots / len, whole)).collect();
        let (table, links) =
            (SlotTable::unfilled(&mut piece, slots), Links::unfilled(&mut piece, slots));
        let unwritten = Bitmap::new(&mut piece, slots, false);
        Ok(Self {
            table,
            links,
            blocks,
            unwritten,
            counts: piece.filled(1, |_| MappingCounts::new()),
        })
    }
}

impl MappingCounts {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            registered: AtomicBool::new(true),
            vmas: AtomicIsize::new(0),
            epoch: zero(),
            received: zero(),
            copied_at_once: zero(),
            longest_nanos: zero(),
        }
    }
}

impl Deref for CowMapping {
    type Target = MappingWords;

    fn deref(&self) -> &MappingWords {
        &self.words
    }
}

impl DerefMut for CowMapping {
    fn deref_mut(&mut self) -> &mut MappingWords {
        &mut self.words
    }
}

impl CowMapping {
    /// Makes a mapping whose slots are not filled in yet.
    pub(super) fn new(
        id: MappingId,
        mapping: Mapping,
        words: MappingWords,
        reserve: ReservedFrames,
        granule_bytes: usize,
    ) -> Self {
        Self { id, mapping, reserve, next_observed: None, granule_bytes, words }
    }

    /// Returns the mapping itself, for another owner.
    pub(super) fn into_mapping(self) -> Mapping {
        self.mapping
    }

    pub(super) fn id(&self) -> MappingId {
        self.id
    }

    pub(super) fn entry(&self, slot: usize) -> Entry {
        self.table.get(slot)
    }

    pub(super) fn counts(&self) -> &MappingCounts {
        &self.counts[0]
    }

    pub(super) fn slots(&self) -> usize {
        self.table.slots()
    }

    pub(super) fn addresses(&self) -> Range<usize> {
        self.mapping.addresses()
    }

    pub(super) fn addresses_of(&self, slots: Range<usize>) -> Range<usize> {
        let Range { start, end } = self.addresses();
        let at = |slot: usize| start + slot * self.granule_bytes;
        at(slots.start)..at(slots.end).min(end)
    }

    pub(super) fn slot_at(&self, address: usize) -> usize {
        (address - self.addresses().start) / self.granule_bytes
    }

    /// Returns whether another mapping shows the same frame at this moment.
    pub(super) fn is_shared(&self, slot: usize) -> bool {
        self.links.get(slot).after != self.id
    }

    /// The frame that was reserved for the slot with the mapping.
    pub(super) fn reserved_frame(&self, slot: usize) -> u64 {
        self.reserve.frame(slot)
    }

    pub(super) fn is_in_place(&self, slot: usize) -> bool {
        self.entry(slot).slot.is_in_place()
    }

    /// Returns the number of the kernel's mappings that it costs to map a slot apart from its surroundings, where those
    /// that touch `merge` or do not.
    pub(super) fn cost_of(&self, slot: usize, merge: bool) -> isize {
        let beside = self.beside(slot..slot + 1, Slot::is_in_place);
        if merge { 2 - 2 * beside } else { 2 - beside }
    }

    /// Returns the number of the kernel's mappings that it costs to let writes to slots through by rights.
    pub(super) fn cost_to_open(&self, slots: Range<usize>) -> isize {
        2 - 2 * self.beside(slots, |slot| slot == Slot::Exclusive(Pages::InPlace))
    }

    /// Returns how many of the two slots around a range are such.
    fn beside(&self, slots: Range<usize>, is_such: impl Fn(Slot) -> bool) -> isize {
        let is_there = |slot| slot < self.slots() && is_such(self.entry(slot).slot);
        let before = slots.start > 0 && is_there(slots.start - 1);
        isize::from(before) + isize::from(is_there(slots.end))
    }

    /// Slots, from the first on, of which all or none are exclusive, all or none in place, and that show frames that
    /// follow each other: one mapping of the kernel's where rights hold writes back.
    pub(super) fn run_alike(&self, slots: Range<usize>) -> usize {
        let kind = |slot: Slot| (slot.is_exclusive(), slot.is_in_place());
        let first = kind(self.entry(slots.start).slot);
        self.table.run_of(slots, |entry| kind(entry.slot) == first)
    }

    /// The blocks that a slot belongs to and the marks of those that are one mapping, the smallest first;
    /// none that the region's end cuts.
    pub(super) fn blocks_of(&self, slot: usize) -> impl Iterator<Item = (Range<usize>, &Bitmap)> {
        let block = move |len: usize| slot / len * len..slot / len * len + len;
        let blocks = block_lens(self.slots()).map(block).zip(&self.blocks);
        blocks.take_while(|(block, _)| block.end <= self.slots())
    }

    /// Returns whether slots map frames that follow each other and are the region's alone, for good.
    pub(super) fn is_run_of_its_own(&self, slots: Range<usize>) -> bool {
        let len = slots.len();
        self.table.run_of(slots, |entry| entry.slot == Slot::Exclusive(Pages::InPlace)) == len
    }

    /// Stops to note what is written.
    pub(super) fn end_epoch(&self) {
        self.unwritten.replace_all(false, |_, _| {});
        self.counts().epoch.store(0, Ordering::SeqCst);
    }

    pub(super) fn is_registered(&self) -> bool {
        self.counts().registered.load(Ordering::Relaxed)
    }
}
