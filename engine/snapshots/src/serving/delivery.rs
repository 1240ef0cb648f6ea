//! The destination of a copy of the whole snapshot: of `copy_to` while it runs, or of a staging from its beginning on. A
//! thread that preserves a granule may write the granule there at once.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::private_pages::PrivateBytes;
use rustix::io;

/// Memory for all bytes of a snapshot, on huge pages if it is large. It lies as the owner's memory does within 2 MiB.
#[derive(Debug)]
pub(crate) struct Destination {
    /// Always some, until the drop.
    bytes: Option<PrivateBytes>,
    len: usize,
    offset: usize,
    kept: KeptMemory,
}

/// Memory of earlier stagings, which later ones of the same length use again: the kernel need not find and clear it. Clones
/// are the same memory, which is freed with the last of them, and with the last staging.
#[derive(Clone, Debug, Default)]
pub struct KeptMemory(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    free: Vec<(usize, PrivateBytes)>,
    /// The lengths of the memory that stagings use now.
    used: Vec<usize>,
}

impl KeptMemory {
    /// Frees the memory that no staging uses now.
    pub fn clear(&self) {
        let free = std::mem::take(&mut self.lock().free);
        drop(free);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, len: usize) -> Option<PrivateBytes> {
        let mut kept = self.lock();
        kept.used.push(len);
        let found = kept.free.iter().position(|(other, _)| *other == len)?;
        Some(kept.free.swap_remove(found).1)
    }

    /// Keeps memory, unless a later staging has memory of this length, which comes back, too.
    fn give_back(&self, len: usize, bytes: Option<PrivateBytes>) {
        let mut kept = self.lock();
        if let Some(used) = kept.used.iter().position(|&used| used == len) {
            kept.used.swap_remove(used);
        }
        if !kept.used.contains(&len) {
            kept.free.extend(bytes.map(|bytes| (len, bytes)));
        }
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        self.kept.give_back(self.len, self.bytes.take());
    }
}

impl Destination {
    pub(crate) fn new(range: &Range<usize>, kept: &KeptMemory) -> io::Result<Self> {
        let offset = range.start % HUGE_PAGE_BYTES;
        let len = offset + range.len();
        let reused = kept.take(len).filter(|bytes| bytes.forbid_reads().is_ok());
        // From here on, the drop gives the length back.
        let mut this = Self { bytes: reused, len, offset, kept: kept.clone() };
        if this.bytes.is_none() {
            this.bytes = Some(Self::mapped(len)?);
        }
        Ok(this)
    }

    fn mapped(len: usize) -> io::Result<PrivateBytes> {
        let bytes = PrivateBytes::for_handlers(len, HUGE_PAGE_BYTES)?;
        if len >= HUGE_PAGE_BYTES {
            // A kernel without huge pages uses base pages, which takes longer.
            let _ = bytes.want_huge_pages();
        }
        Ok(bytes)
    }

    /// Lets snapshots protect the memory, to which no handler writes any more. Until then none can: a thread that serves
    /// writes would wait for itself.
    pub(crate) fn complete(&self) -> io::Result<()> {
        self.bytes.iter().try_for_each(PrivateBytes::make_readable)
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        let start = self.bytes.as_ref().map_or(std::ptr::null_mut(), PrivateBytes::start);
        start.wrapping_add(self.offset)
    }
}

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
