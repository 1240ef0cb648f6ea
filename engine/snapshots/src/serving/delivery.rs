//! Where all of a snapshot is copied to, while it is: a thread that preserves a granule may put it there at once.

use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// The destination, and what the reader of the snapshot is copying there itself.
#[derive(Debug)]
pub(super) struct Delivery {
    /// The destination of the snapshot's first byte, or 0.
    destination: AtomicUsize,
    /// The granule that the reader copies there: no other thread may write it there.
    reading: AtomicUsize,
}

impl Delivery {
    pub(super) fn none() -> Self {
        Self { destination: AtomicUsize::new(0), reading: AtomicUsize::new(usize::MAX) }
    }

    pub(super) fn start(&self, to: *mut u8) {
        self.destination.store(to.expose_provenance(), Ordering::SeqCst);
    }

    /// No granule is sent there from now on; one may still be on its way.
    pub(super) fn end(&self) {
        self.destination.store(0, Ordering::SeqCst);
    }

    /// Notes that the reader is at a granule; returns whether there is a destination. A thread that claims the granule
    /// afterwards sees the note.
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
