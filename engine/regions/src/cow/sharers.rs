//! Which mappings show the frame that a mapping shows at a slot: a ring of them, linked both ways, so that they are
//! found, joined and left without a look at any other mapping.

use std::sync::atomic::{AtomicU64, Ordering};

use hugekit_sys::private_pages::{PrivatePiece, PrivateSlice};

/// A mapping's number in its fork group, for as long as it is one of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(pub(super) u32);

/// The neighbours of one mapping in the ring of each slot. Changed only by
/// [`SlotGuard`](super::guard::SlotGuard), whose thread has the slot of all mappings: so nothing is ordered here.
#[derive(Debug)]
pub(super) struct Links(PrivateSlice<AtomicU64>);

/// Both neighbours: itself where no other mapping shows the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbours {
    pub(super) before: Id,
    pub(super) after: Id,
}

impl Links {
    /// Without meaning until each slot is set, cut from a piece.
    pub(super) fn unfilled(piece: &mut PrivatePiece, slots: usize) -> Self {
        Self(piece.filled(slots, |_| AtomicU64::new(0)))
    }

    pub(super) fn get(&self, slot: usize) -> Neighbours {
        let bits = self.0[slot].load(Ordering::Relaxed);
        Neighbours { before: Id((bits >> 32) as u32), after: Id(bits as u32) }
    }

    pub(super) fn set(&self, slot: usize, neighbours: Neighbours) {
        let Neighbours { before, after } = neighbours;
        self.0[slot].store(u64::from(before.0) << 32 | u64::from(after.0), Ordering::Relaxed);
    }
}
