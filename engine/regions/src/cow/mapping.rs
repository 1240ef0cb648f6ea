//! The mapping of one region of a fork group.

use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};

use rustix::io;

use super::frames::ReservedFrames;
use super::slot::{Presence, Slot};
use super::slot_table::{Bitmap, Links, MappingId, SlotEntry, SlotTable};
use hugekit_sys::mapping::SharedMapping;
use hugekit_sys::private_pages::{PrivatePiece, PrivateSlice};

/// The number of slots in the smallest block. If the kernel does not join neighbouring mappings, hugekit maps a whole
/// block as one mapping.
pub(super) const BLOCK: usize = 8;

/// Returns the slots of a block, of a block of blocks, and so on.
fn block_lens(slots: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(BLOCK), |len| len.checked_mul(BLOCK))
        .take_while(move |len| *len <= slots)
}

#[derive(Debug)]
pub(super) struct CowMapping {
    id: MappingId,
    pub(super) mapping: SharedMapping,
    /// The frames that are reserved for the region. If a slot is borrowed, no user has seen its reserved frame.
    pub(super) reserve: ReservedFrames,
    /// The mapping that follows this one in [`Mappings::observed`](super::mappings::Mappings::observed).
    pub(super) next_observed: Option<MappingId>,
    granule_bytes: usize,
    words: MappingWords,
}

/// The words that faults change. They lie in one piece of memory that no snapshot can protect.
#[derive(Debug)]
pub(super) struct MappingWords {
    pub(super) table: SlotTable,
    pub(super) links: Links,
    /// For each block of [`BLOCK`] slots, each block of blocks, and so on: true if it is one mapping of the kernel.
    pub(super) blocks: Vec<Bitmap>,
    /// Slots whose bytes have not changed since the start of the region's epoch. None without an epoch.
    pub(super) unwritten: Bitmap,
    counts: PrivateSlice<MappingCounts>,
}

/// The counters of one region.
#[derive(Debug)]
pub(super) struct MappingCounts {
    /// True if every address is registered, so that writes can be held back.
    pub(super) registered: AtomicBool,
    /// The kernel's mappings that the region costs, beyond the first one.
    pub(super) vmas: AtomicIsize,
    /// The number of the region's epoch, or 0.
    pub(super) epoch: AtomicU64,
    /// Slots that writers in other regions copied for this one.
    pub(super) received: AtomicU64,
    /// Slots that were copied when the region was forked.
    pub(super) copied_at_once: AtomicU64,
    /// The longest write to memory that the group shares, since an owner began to observe the region.
    pub(super) longest_nanos: AtomicU64,
}

impl MappingWords {
    /// Makes the words for this many slots. `whole` is true if every block is one mapping of the kernel.
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
        mapping: SharedMapping,
        words: MappingWords,
        reserve: ReservedFrames,
        granule_bytes: usize,
    ) -> Self {
        Self { id, mapping, reserve, next_observed: None, granule_bytes, words }
    }

    /// Returns the kernel's mapping, for another owner.
    pub(super) fn into_mapping(self) -> SharedMapping {
        self.mapping
    }

    pub(super) fn id(&self) -> MappingId {
        self.id
    }

    pub(super) fn entry(&self, slot: usize) -> SlotEntry {
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

    /// Returns true if another mapping shows the same frame at this moment.
    pub(super) fn is_shared(&self, slot: usize) -> bool {
        self.links.get(slot).after != self.id
    }

    /// Returns the frame that is reserved for the slot.
    pub(super) fn reserved_frame(&self, slot: usize) -> u64 {
        self.reserve.frame(slot)
    }

    pub(super) fn is_in_place(&self, slot: usize) -> bool {
        self.entry(slot).slot.is_in_place()
    }

    /// Returns how many of the kernel's mappings it costs to map a slot apart from its neighbours. `merge` is true if
    /// the kernel joins neighbouring mappings.
    pub(super) fn cost_of(&self, slot: usize, merge: bool) -> isize {
        let beside = self.beside(slot..slot + 1, Slot::is_in_place);
        if merge { 2 - 2 * beside } else { 2 - beside }
    }

    /// Returns how many of the kernel's mappings it costs to let writes to slots through by rights.
    pub(super) fn cost_to_open(&self, slots: Range<usize>) -> isize {
        2 - 2 * self.beside(slots, |slot| slot == Slot::Exclusive(Presence::InPlace))
    }

    /// Returns for how many of the two slots around a range `is_such` is true.
    fn beside(&self, slots: Range<usize>, is_such: impl Fn(Slot) -> bool) -> isize {
        let is_there = |slot| slot < self.slots() && is_such(self.entry(slot).slot);
        let before = slots.start > 0 && is_there(slots.start - 1);
        isize::from(before) + isize::from(is_there(slots.end))
    }

    /// Returns the length of the run at the start of `slots`. Its frames follow each other, either all or none of its
    /// slots are exclusive, and either all or none are in place. If rights hold writes back, such a run is one
    /// mapping of the kernel.
    pub(super) fn run_alike(&self, slots: Range<usize>) -> usize {
        let kind = |slot: Slot| (slot.is_exclusive(), slot.is_in_place());
        let first = kind(self.entry(slots.start).slot);
        self.table.run_of(slots, |entry| kind(entry.slot) == first)
    }

    /// Returns the blocks that contain a slot, the smallest first, with the bits that say which blocks are one
    /// mapping. Leaves out blocks that the end of the region cuts.
    pub(super) fn blocks_of(&self, slot: usize) -> impl Iterator<Item = (Range<usize>, &Bitmap)> {
        let block = move |len: usize| slot / len * len..slot / len * len + len;
        let blocks = block_lens(self.slots()).map(block).zip(&self.blocks);
        blocks.take_while(|(block, _)| block.end <= self.slots())
    }

    /// Returns true if slots permanently map successive frames that only this region shows.
    pub(super) fn is_run_of_its_own(&self, slots: Range<usize>) -> bool {
        let len = slots.len();
        self.table.run_of(slots, |entry| entry.slot == Slot::Exclusive(Presence::InPlace)) == len
    }

    /// Ends the region's epoch.
    pub(super) fn end_epoch(&self) {
        self.unwritten.replace_all(false, |_, _| {});
        self.counts().epoch.store(0, Ordering::SeqCst);
    }

    pub(super) fn is_registered(&self) -> bool {
        self.counts().registered.load(Ordering::Relaxed)
    }
}
