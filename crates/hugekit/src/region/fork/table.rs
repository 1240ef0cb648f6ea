//! What a region shows slot by slot, as faults in several threads read and change it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::Entry;
use crate::sys::own::{OwnPiece, OwnSlice};

/// One entry for each slot, changed by the thread that has the slot, or the gate alone.
#[derive(Debug)]
pub(super) struct Table(OwnSlice<AtomicU64>);

impl Table {
    /// One without meaning until it is filled, cut from a piece.
    pub(super) fn unfilled(piece: &mut OwnPiece, slots: usize) -> Self {
        Self(piece.filled(slots, |_| AtomicU64::new(0)))
    }

    pub(super) fn slots(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, slot: usize) -> Entry {
        Entry::from_bits(self.0[slot].load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, slot: usize, entry: Entry) {
        self.0[slot].store(entry.bits(), Ordering::Relaxed);
    }

    /// Fills it with the run that begins with `first`: its flags, frame by frame.
    pub(super) fn fill(&self, first: Entry) {
        for (slot, frame) in (0..self.slots()).zip(first.frame()..) {
            self.set(slot, first.with_frame(frame));
        }
    }

    /// Notes that the kernel holds writes back there.
    pub(super) fn write_protect(&self, slots: Range<usize>) {
        slots.for_each(|slot| self.set(slot, self.get(slot).write_protected()));
    }

    /// How many of these slots, from the first on, show frames that follow each other.
    pub(super) fn run(&self, slots: Range<usize>) -> usize {
        self.run_of(slots, |_| true)
    }

    /// The same, as far as all of them are writable or none is.
    pub(super) fn run_as_writable(&self, slots: Range<usize>) -> usize {
        let writable = self.get(slots.start).is_writable();
        self.run_of(slots, |entry| entry.is_writable() == writable)
    }

    fn run_of(&self, slots: Range<usize>, is_alike: impl Fn(Entry) -> bool) -> usize {
        let frames = self.get(slots.start).frame()..;
        let entries = slots.map(|slot| self.get(slot)).zip(frames);
        entries.take_while(|&(entry, frame)| entry.frame() == frame && is_alike(entry)).count()
    }

    /// The last slots go.
    pub(super) fn cut(&mut self, slots: usize) {
        self.0.truncate(slots);
    }
}

/// One bit for each slot.
#[derive(Debug)]
pub(super) struct Marks(OwnSlice<AtomicU64>);

impl Marks {
    /// All of them clear, or all set, cut from a piece.
    pub(super) fn new(piece: &mut OwnPiece, slots: usize, set: bool) -> Self {
        let words = if set { u64::MAX } else { 0 };
        Self(piece.filled(slots.div_ceil(64), |_| AtomicU64::new(words)))
    }

    /// What they take of a piece.
    pub(super) const fn bytes_of(slots: usize) -> usize {
        OwnPiece::bytes_of::<AtomicU64>(slots.div_ceil(64))
    }

    /// Async-signal-safe, as the others.
    pub(super) fn get(&self, slot: usize) -> bool {
        self.0[slot / 64].load(Ordering::SeqCst) & 1 << (slot % 64) != 0
    }

    /// Whether it was clear before.
    pub(super) fn set(&self, slot: usize) -> bool {
        self.0[slot / 64].fetch_or(1 << (slot % 64), Ordering::SeqCst) & 1 << (slot % 64) == 0
    }

    pub(super) fn clear(&self, slot: usize) {
        self.0[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[Entry]) -> Table {
        let slots = entries.len();
        let mut piece = OwnPiece::new(OwnPiece::bytes_of::<AtomicU64>(slots)).unwrap();
        let table = Table::unfilled(&mut piece, slots);
        (0..slots).zip(entries).for_each(|(slot, &entry)| table.set(slot, entry));
        table
    }

    #[test]
    fn a_run_ends_where_frames_no_longer_follow_or_writability_changes() {
        let entry = Entry::new;
        let table = table(&[
            entry(5).writable(),
            entry(6).writable().accessed(),
            entry(7),
            entry(9),
            entry(10).writable(),
            entry(3).writable(),
        ]);
        assert_eq!((table.run(0..5), table.run_as_writable(0..5)), (3, 2));
        assert_eq!((table.run(2..5), table.run_as_writable(2..5)), (1, 1));
        assert_eq!((table.run(3..5), table.run_as_writable(3..5)), (2, 1));
        assert_eq!((table.run(4..6), table.run_as_writable(4..6)), (1, 1));
        assert_eq!((table.run(0..1), table.run_as_writable(0..2)), (1, 2));
    }

    #[test]
    fn a_filled_table_is_one_run_with_the_flags_of_the_first() {
        let table = table(&[Entry::new(0); 70]);
        table.fill(Entry::new(3).writable());
        assert_eq!(table.run_as_writable(0..70), 70);
        assert_eq!(table.get(69), Entry::new(72).writable());
    }
}
