//! The words that faults read and change at each slot of a mapping: an entry, the two neighbours in a ring, and bits.
//!
//! Only a thread that has the [`SlotGuard`](super::guard::SlotGuard) of a slot changes the entry and the neighbours.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::slot::Slot;
use hugekit_sys::private_pages::{PrivatePiece, PrivateSlice};

/// The lowest bit of the frame in an entry's word. The bits below it are the slot's code.
const FRAME: u32 = 4;

/// The frame that a region shows at a slot, and the state of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotEntry {
    pub(super) frame: u64,
    pub(super) slot: Slot,
}

impl SlotEntry {
    pub(super) fn from_bits(bits: u64) -> Self {
        let code = bits & ((1 << FRAME) - 1);
        Self { frame: bits >> FRAME, slot: Slot::ALL[code as usize] }
    }

    pub(super) fn bits(self) -> u64 {
        debug_assert!(self.frame <= u64::MAX >> FRAME, "no entry holds frame {:#x}", self.frame);
        self.frame << FRAME | self.slot.code()
    }
}

/// The entry of each slot.
#[derive(Debug)]
pub(super) struct SlotTable(PrivateSlice<AtomicU64>);

impl SlotTable {
    /// Cuts a table from a piece. The table has no meaning until it is filled.
    pub(super) fn unfilled(piece: &mut PrivatePiece, slots: usize) -> Self {
        Self(piece.filled(slots, |_| AtomicU64::new(0)))
    }

    pub(super) fn slots(&self) -> usize {
        self.0.len()
    }

    /// The load acquires: a thread that reads a frame after it sees the bytes that were copied there before the entry was
    /// set.
    pub(super) fn get(&self, slot: usize) -> SlotEntry {
        SlotEntry::from_bits(self.0[slot].load(Ordering::Acquire))
    }

    pub(super) fn set(&self, slot: usize, entry: SlotEntry) {
        self.0[slot].store(entry.bits(), Ordering::Release);
    }

    /// Returns the length of the run at the start of `slots`: their frames follow each other, and either all or none of
    /// them are exclusive.
    pub(super) fn run_as_exclusive(&self, slots: Range<usize>) -> usize {
        let exclusive = self.get(slots.start).slot.is_exclusive();
        self.run_of(slots, |entry| entry.slot.is_exclusive() == exclusive)
    }

    /// Returns the length of the run at the start of `slots`: their frames follow each other, and `is_alike` is true of
    /// each.
    pub(super) fn run_of(
        &self,
        slots: Range<usize>,
        is_alike: impl Fn(SlotEntry) -> bool,
    ) -> usize {
        let frames = self.get(slots.start).frame..;
        let entries = slots.map(|slot| self.get(slot)).zip(frames);
        entries.take_while(|&(entry, frame)| entry.frame == frame && is_alike(entry)).count()
    }

    /// Keeps only the first `slots` slots.
    pub(super) fn truncate(&mut self, slots: usize) {
        self.0.truncate(slots);
    }
}

/// The number of a mapping in its fork group. The number is free again when the mapping leaves the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MappingId(pub(super) u32);

/// The mappings that show the same frame at a slot form a ring. The links are the neighbours of one mapping in the ring
/// of each slot, so a thread joins, leaves and walks a ring without a look at any other mapping.
///
/// The loads and stores are relaxed: the guard of a slot covers the links of all mappings at this slot.
#[derive(Debug)]
pub(super) struct Links(PrivateSlice<AtomicU64>);

/// The mappings before and after a mapping in a ring: the mapping itself if no other mapping shows the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbours {
    pub(super) before: MappingId,
    pub(super) after: MappingId,
}

impl Links {
    /// Cuts links from a piece. They have no meaning until each slot is set.
    pub(super) fn unfilled(piece: &mut PrivatePiece, slots: usize) -> Self {
        Self(piece.filled(slots, |_| AtomicU64::new(0)))
    }

    pub(super) fn get(&self, slot: usize) -> Neighbours {
        let bits = self.0[slot].load(Ordering::Relaxed);
        Neighbours { before: MappingId((bits >> 32) as u32), after: MappingId(bits as u32) }
    }

    pub(super) fn set(&self, slot: usize, neighbours: Neighbours) {
        let Neighbours { before, after } = neighbours;
        self.0[slot].store(u64::from(before.0) << 32 | u64::from(after.0), Ordering::Relaxed);
    }
}

/// A bit for each slot.
#[derive(Debug)]
pub(super) struct Bitmap(PrivateSlice<AtomicU64>);

impl Bitmap {
    /// Cuts bits from a piece: all of them set, or all clear.
    pub(super) fn new(piece: &mut PrivatePiece, slots: usize, set: bool) -> Self {
        let words = if set { u64::MAX } else { 0 };
        Self(piece.filled(slots.div_ceil(64), |_| AtomicU64::new(words)))
    }

    /// Returns the bytes of a piece that this many bits need.
    pub(super) const fn bytes_of(slots: usize) -> usize {
        PrivatePiece::bytes_of::<AtomicU64>(slots.div_ceil(64))
    }

    /// Returns a bit. Async-signal-safe, like the other functions.
    pub(super) fn get(&self, slot: usize) -> bool {
        self.0[slot / 64].load(Ordering::SeqCst) & 1 << (slot % 64) != 0
    }

    /// Sets a bit. Returns true if the bit was clear before.
    pub(super) fn set(&self, slot: usize) -> bool {
        self.0[slot / 64].fetch_or(1 << (slot % 64), Ordering::SeqCst) & 1 << (slot % 64) == 0
    }

    pub(super) fn clear(&self, slot: usize) {
        if self.get(slot) {
            self.0[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::SeqCst);
        }
    }

    /// Sets or clears all bits. Calls `was` with the index and the earlier value of each word.
    pub(super) fn replace_all(&self, set: bool, mut was: impl FnMut(usize, u64)) {
        let words = if set { u64::MAX } else { 0 };
        for (index, word) in self.0.iter().enumerate() {
            was(index, word.swap(words, Ordering::SeqCst));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::Presence;
    use super::*;

    const EXCLUSIVE: Slot = Slot::Exclusive(Presence::InPlace);
    const OWNER: Slot = Slot::Owner(Presence::InPlace);

    fn table(entries: &[(u64, Slot)]) -> SlotTable {
        let slots = entries.len();
        let mut piece = PrivatePiece::new(PrivatePiece::bytes_of::<AtomicU64>(slots)).unwrap();
        let table = SlotTable::unfilled(&mut piece, slots);
        for (at, &(frame, slot)) in entries.iter().enumerate() {
            table.set(at, SlotEntry { frame, slot });
        }
        table
    }

    #[test]
    fn entry_of_every_slot_and_frame_fits_a_word() {
        for slot in Slot::ALL {
            for frame in [0, 1, 0x12345, u64::MAX >> FRAME] {
                let entry = SlotEntry { frame, slot };
                assert_eq!(SlotEntry::from_bits(entry.bits()), entry);
            }
        }
    }

    #[test]
    fn bits_are_replaced_all_at_once_and_told() {
        let mut piece = PrivatePiece::new(Bitmap::bytes_of(70)).unwrap();
        let bits = Bitmap::new(&mut piece, 70, false);
        assert!(bits.set(3) && !bits.set(3) && bits.set(69));
        let mut told = Vec::new();
        bits.replace_all(true, |index, word| told.push((index, word)));
        assert_eq!(told, [(0, 1 << 3), (1, 1 << 5)]);
        bits.clear(69);
        assert!(bits.get(0) && !bits.get(69));
        bits.replace_all(false, |_, _| {});
        assert!((0..70).all(|slot| !bits.get(slot)));
    }

    #[test]
    fn run_of_slots_ends_where_frames_or_exclusiveness_change() {
        let entered = Slot::Exclusive(Presence::Entered);
        let table = table(&[
            (5, EXCLUSIVE),
            (6, entered),
            (7, OWNER),
            (9, OWNER),
            (10, EXCLUSIVE),
            (3, EXCLUSIVE),
        ]);
        let run = |slots| table.run_of(slots, |_| true);
        assert_eq!((run(0..5), table.run_as_exclusive(0..5)), (3, 2));
        assert_eq!((run(2..5), table.run_as_exclusive(2..5)), (1, 1));
        assert_eq!((run(3..5), table.run_as_exclusive(3..5)), (2, 1));
        assert_eq!((run(4..6), table.run_as_exclusive(4..6)), (1, 1));
        assert_eq!((run(0..1), table.run_as_exclusive(0..2)), (1, 2));
    }
}
