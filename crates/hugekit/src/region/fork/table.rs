//! What a region shows slot by slot, as faults in several threads read and change it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pte::{Entry, Soft};
use crate::sys::own::{OwnPiece, OwnSlice};

/// An entry: its frame is the slot's granule. *Writable*: the kernel lets writes through, because nobody
/// else has the frame. *Accessed*: the kernel may have mapped it for the region since it last was taken
/// from there.
pub(super) type Pte = Entry<Soft>;

/// One entry for each slot, changed by whoever has the slot to himself.
#[derive(Debug)]
pub(super) struct Table(OwnSlice<AtomicU64>);

impl Table {
    /// An empty one, cut from a piece.
    pub(super) fn empty(piece: &mut OwnPiece, slots: usize) -> Self {
        Self(piece.filled(slots, |_| AtomicU64::new(Pte::empty().bits())))
    }

    pub(super) fn slots(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, slot: usize) -> Pte {
        Pte::from_bits(self.0[slot].load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, slot: usize, entry: Pte) {
        self.0[slot].store(entry.bits(), Ordering::Relaxed);
    }

    /// All entries, for whoever has the table to himself.
    pub(super) fn entries(&mut self) -> &mut [Pte] {
        let entries = self.0.as_mut_ptr();
        // SAFETY: borrowed mutably, so that nobody else reaches them; an atomic has the layout of its integer
        // on every architecture with 64-bit atomics that align as integers do, which the assertion checks,
        // and an entry is that integer.
        unsafe { &mut *(entries as *mut [Pte]) }
    }

    /// The last slots go.
    pub(super) fn cut(&mut self, slots: usize) {
        self.0.truncate(slots);
    }
}

const _: () = assert!(
    size_of::<AtomicU64>() == size_of::<Pte>() && align_of::<AtomicU64>() >= align_of::<Pte>()
);

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
