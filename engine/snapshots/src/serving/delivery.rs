//! The destination of `copy_to`, while it copies a whole snapshot. A thread that preserves a
//! granule may write the granule directly to the destination.

use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// The destination, and the granule that the reader itself is copying there.
#[derive(Debug)]
pub(super) struct Delivery {
    /// The address in the destination of the snapshot's first byte, or 0 if there is none.
    destination: AtomicUsize,
    /// The granule that the reader copies now. No other thread may write this granule to the
    /// destination.
    reading: AtomicUsize,
}

impl Delivery {
    pub(super) fn none() -> Self {
        Self { destination: AtomicUsize::new(0), reading: AtomicUsize::new(usize::MAX) }
    }

    pub(super) fn start(&self, to: *mut u8) {
        self.destination.store(to.expose_provenance(), Ordering::SeqCst);
    }

    /// Ends the delivery: no other granule is sent to the destination. A granule may still be on its way.
    pub(super) fn end(&self) {
        self.destination.store(0, Ordering::SeqCst);
    }

    /// Records that the reader is at a granule. Returns true if there is a destination. A thread
    /// that claims the granule afterwards sees the record.
    pub(super) fn note_reading(&self, index: usize) -> bool {
        self.reading.store(index, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.destination.load(Ordering::SeqCst) != 0
    }

    /// Returns the destination of a granule that the caller has claimed, as an offset from the snapshot's start. `None`
    /// if the reader may be writing it already, because the reader's bytes may be newer.
    pub(super) fn place_for(&self, index: usize, offset: usize) -> Option<*mut u8> {
        let to = self.destination.load(Ordering::SeqCst);
        let is_free = to != 0 && self.reading.load(Ordering::SeqCst) != index;
        is_free.then(|| std::ptr::with_exposed_provenance_mut(to + offset))
    }
}
