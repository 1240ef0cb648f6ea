//! What a region shows slot by slot, as faults in several threads read and change it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::Entry;
use hugekit_sys::private_pages::{PrivatePiece, PrivateSlice};

/// An entry for each slot, changed only by [`SlotGuard`](super::guard::SlotGuard).
#[derive(Debug)]
pub(super) struct Table(PrivateSlice<AtomicU64>);

impl Table {
    /// Cuts a table from a piece. It has no meaning until it is filled.
    pub(super) fn unfilled(piece: &mut PrivatePiece, slots: usize) -> Self {
        Self(piece.filled(slots, |_| AtomicU64::new(0)))
    }

    pub(super) fn slots(&self) -> usize {
        self.0.len()
    }

    /// Acquire: who reads a frame by an entry sees what was copied there before the entry was set.
    pub(super) fn get(&self, slot: usize) -> Entry {
        Entry::from_bits(self.0[slot].load(Ordering::Acquire))
    }

    pub(super) fn set(&self, slot: usize, entry: Entry) {
        self.0[slot].store(entry.bits(), Ordering::Release);
    }

    /// Returns how many of these slots, from the first on, show frames that follow each other, as far as all of them
    /// are exclusive or none is.
    pub(super) fn run_as_exclusive(&self, slots: Range<usize>) -> usize {
        let exclusive = self.get(slots.start).slot.is_exclusive();
        self.run_of(slots, |entry| entry.slot.is_exclusive() == exclusive)
    }

    /// The same, as far as `is_alike` says so of each.
    pub(super) fn run_of(&self, slots: Range<usize>, is_alike: impl Fn(Entry) -> bool) -> usize {
        let frames = self.get(slots.start).frame..;
        let entries = slots.map(|slot| self.get(slot)).zip(frames);
        entries.take_while(|&(entry, frame)| entry.frame == frame && is_alike(entry)).count()
    }

    /// The last slots go.
    pub(super) fn truncate(&mut self, slots: usize) {
        self.0.truncate(slots);
    }
}

/// A bit for each slot.
#[derive(Debug)]
pub(super) struct Marks(PrivateSlice<AtomicU64>);

impl Marks {
    /// All of them clear, or all set, cut from a piece.
    pub(super) fn new(piece: &mut PrivatePiece, slots: usize, set: bool) -> Self {
        let words = if set { u64::MAX } else { 0 };
        Self(piece.filled(slots.div_ceil(64), |_| AtomicU64::new(words)))
    }

    /// Returns the bytes of a piece that they take.
    pub(super) const fn bytes_of(slots: usize) -> usize {
        PrivatePiece::bytes_of::<AtomicU64>(slots.div_ceil(64))
    }

    /// Async-signal-safe, as the others.
    pub(super) fn get(&self, slot: usize) -> bool {
        self.0[slot / 64].load(Ordering::SeqCst) & 1 << (slot % 64) != 0
    }

    /// Returns whether it was clear before.
    pub(super) fn set(&self, slot: usize) -> bool {
        self.0[slot / 64].fetch_or(1 << (slot % 64), Ordering::SeqCst) & 1 << (slot % 64) == 0
    }

    pub(super) fn clear(&self, slot: usize) {
        if self.get(slot) {
            self.0[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::SeqCst);
        }
    }

    /// Sets all of them, or clears them, and tells of each word what it was.
    pub(super) fn replace_all(&self, set: bool, mut was: impl FnMut(usize, u64)) {
        let words = if set { u64::MAX } else { 0 };
        for (index, word) in self.0.iter().enumerate() {
            was(index, word.swap(words, Ordering::SeqCst));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::slot::{Pages, Slot};
    use super::*;

    const EXCLUSIVE: Slot = Slot::Exclusive(Pages::InPlace);
    const OWNER: Slot = Slot::Owner(Pages::InPlace);

    fn table(entries: &[(u64, Slot)]) -> Table {
        let slots = entries.len();
        let mut piece = PrivatePiece::new(PrivatePiece::bytes_of::<AtomicU64>(slots)).unwrap();
        let table = Table::unfilled(&mut piece, slots);
        for (at, &(frame, slot)) in entries.iter().enumerate() {
            table.set(at, Entry { frame, slot });
        }
        table
    }

    #[test]
    fn marks_are_replaced_all_at_once_and_told() {
        let mut piece = PrivatePiece::new(Marks::bytes_of(70)).unwrap();
        let marks = Marks::new(&mut piece, 70, false);
        assert!(marks.set(3) && !marks.set(3) && marks.set(69));
        let mut told = Vec::new();
        marks.replace_all(true, |index, word| told.push((index, word)));
        assert_eq!(told, [(0, 1 << 3), (1, 1 << 5)]);
        marks.clear(69);
        assert!(marks.get(0) && !marks.get(69));
        marks.replace_all(false, |_, _| {});
        assert!((0..70).all(|slot| !marks.get(slot)));
    }

    #[test]
    fn run_of_slots_ends_where_frames_or_exclusiveness_change() {
        let entered = Slot::Exclusive(Pages::Entered);
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
