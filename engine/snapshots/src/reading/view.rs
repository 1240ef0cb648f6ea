//! A snapshot, mapped as memory.
//!
//! A view is filled piece by piece when the program requests bytes, and not by faults, because a
//! fault could not report that the snapshot is lost.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::param::page_size;

use crate::{Snapshot, SnapshotError};
use hugekit_sys::headroom;
use hugekit_sys::private_pages::{OwnWords, PrivateBytes};

/// Bytes that are filled together.
const PIECE_BYTES: usize = 64 << 10;

/// The bytes of a snapshot, mapped at addresses of their own. The first request for bytes copies
/// them there.
///
/// The view borrows the snapshot, or shares ownership: `View<Arc<Snapshot>>`.
#[derive(Debug)]
pub struct View<S> {
    snapshot: S,
    bytes: PrivateBytes,
    /// The offset of the first byte in the mapping. It equals the offset of the owner's first byte
    /// in its page.
    first: usize,
    /// 1 for each filled piece. A filled piece never changes.
    filled: OwnWords<AtomicU32>,
    /// Locked by the thread that fills a piece.
    filling: Mutex<()>,
}

/// A handle of a snapshot that a [`View`] can hold: `&Snapshot` or `Arc<Snapshot>`.
///
/// No other type can implement it. The view writes memory by the length of the snapshot, so the
/// handle must return the same snapshot each time.
///
/// ```compile_fail,E0277
/// # use std::borrow::Borrow;
/// # use hugekit::Snapshot;
/// # use hugekit::snapshot::View;
/// fn view_of<S: Borrow<Snapshot>>(snapshot: S) {
///     let _ = View::of(snapshot);
/// }
/// ```
pub trait Holder: sealed::SealedHolder {}

impl Holder for &Snapshot {}
impl Holder for Arc<Snapshot> {}

mod sealed {
    use super::{Arc, Snapshot};

    pub trait SealedHolder {
        /// Returns the snapshot, always the same one.
        fn snapshot(&self) -> &Snapshot;
    }

    impl SealedHolder for &Snapshot {
        fn snapshot(&self) -> &Snapshot {
            self
        }
    }

    impl SealedHolder for Arc<Snapshot> {
        fn snapshot(&self) -> &Snapshot {
            self
        }
    }
}

impl<S: Holder> View<S> {
    /// Maps a snapshot as memory. `snapshot` is a reference or an `Arc`. The call copies no byte.
    ///
    /// # Errors
    /// [`SnapshotError::Kernel`] if the process has no addresses for the view.
    pub fn of(snapshot: S) -> Result<Self, SnapshotError> {
        headroom::check()?;
        let (start, len) = (snapshot.snapshot().source.range().start, snapshot.snapshot().len());
        let (first, kernel) = (start % page_size(), SnapshotError::kernel("mmap"));
        Ok(Self {
            snapshot,
            bytes: PrivateBytes::new(first + len, page_size()).map_err(&kernel)?,
            first,
            filled: OwnWords::new(len.div_ceil(PIECE_BYTES)).map_err(&kernel)?,
            filling: Mutex::default(),
        })
    }

    fn snapshot(&self) -> &Snapshot {
        self.snapshot.snapshot()
    }

    /// Returns the length of the snapshot in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.snapshot().len()
    }

    /// Returns the bytes of a range. The bytes do not move or change as long as the view exists.
    ///
    /// # Errors
    /// The errors of [`Snapshot::read_at`].
    pub fn bytes(&self, range: Range<usize>) -> Result<&[u8], SnapshotError> {
        let len = range.end.saturating_sub(range.start);
        self.snapshot().addresses(range.start, len)?;
        for piece in range.start / PIECE_BYTES..(range.start + len).div_ceil(PIECE_BYTES) {
            self.fill(piece)?;
        }
        // SAFETY: the bytes lie within the mapping. They are filled, and no thread writes to them any more.
        Ok(unsafe { std::slice::from_raw_parts(self.at(range.start), len) })
    }

    /// Converts a pointer into the owner's memory to a pointer into the view. A program can thus
    /// follow the pointers in a snapshot.
    ///
    /// The whole value is in the view, with the same alignment as in the owner's memory, up to the
    /// alignment of a page. The caller must know if the content of the value is valid: it may
    /// contain a part of a store that raced with the taking of the snapshot.
    ///
    /// # Errors
    /// The errors of [`Snapshot::read_at`]. [`SnapshotError::OutOfRange`] if a part of the value
    /// lies outside the snapshot.
    pub fn rebase<T>(&self, pointer: *const T) -> Result<*const T, SnapshotError> {
        Ok(self.rebase_bytes(pointer.addr(), size_of::<T>())?.as_ptr().cast())
    }

    /// Returns `len` bytes at an address of the owner's memory.
    ///
    /// # Errors
    /// The errors of [`Snapshot::read_at`].
    pub fn rebase_bytes(&self, address: usize, len: usize) -> Result<&[u8], SnapshotError> {
        let offset = address.wrapping_sub(self.snapshot().source.range().start);
        self.bytes(offset..offset.saturating_add(len))
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.bytes.start().wrapping_add(self.first + offset)
    }

    fn fill(&self, piece: usize) -> Result<(), SnapshotError> {
        let is_filled = || self.filled[piece].load(Ordering::Acquire) == 1;
        if is_filled() {
            return Ok(());
        }
        let _filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_filled() {
            let start = piece * PIECE_BYTES;
            let len = PIECE_BYTES.min(self.len() - start);
            // SAFETY: the bytes lie within the mapping. No other thread reads or writes a piece that is not filled,
            // because this thread has the lock.
            let bytes = unsafe { std::slice::from_raw_parts_mut(self.at(start), len) };
            self.snapshot().read_at(start, bytes)?;
            self.filled[piece].store(1, Ordering::Release);
        }
        Ok(())
    }
}
