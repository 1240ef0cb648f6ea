//! What a region shows slot by slot, as faults in several threads read and change it.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pte::{Entry, Soft};

/// An entry: its frame is the slot's granule. *Writable*: the kernel lets writes through, because nobody
/// else has the frame. *Accessed*: the kernel may have mapped it for the region since it last was taken
/// from there.
pub(super) type Pte = Entry<Soft>;

/// One entry for each slot, changed by whoever has the slot to himself.
#[derive(Debug)]
pub(super) struct Table(Box<[AtomicU64]>);

impl Table {
    pub(super) fn empty(slots: usize) -> Self {
        Self((0..slots).map(|_| AtomicU64::new(Pte::empty().bits())).collect())
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
        let entries: *mut [AtomicU64] = &raw mut *self.0;
        // SAFETY: borrowed mutably, so that nobody else reaches them; an atomic has the layout of its integer
        // on every architecture with 64-bit atomics that align as integers do, which the assertion checks,
        // and an entry is that integer.
        unsafe { &mut *(entries as *mut [Pte]) }
    }

    /// The last slots go.
    pub(super) fn cut(&mut self, slots: usize) {
        let mut all = std::mem::take(&mut self.0).into_vec();
        all.truncate(slots);
        self.0 = all.into();
    }
}

const _: () = assert!(
    size_of::<AtomicU64>() == size_of::<Pte>() && align_of::<AtomicU64>() >= align_of::<Pte>()
);

/// One bit for each slot.
#[derive(Debug)]
pub(super) struct Marks(Box<[AtomicU64]>);

impl Marks {
    /// All of them clear, or all set.
    pub(super) fn new(slots: usize, set: bool) -> Self {
        let word = || AtomicU64::new(if set { u64::MAX } else { 0 });
        Self((0..slots.div_ceil(64)).map(|_| word()).collect())
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
