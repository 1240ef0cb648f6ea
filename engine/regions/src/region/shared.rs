//! A region with several users, which may race.
//!
//! All accesses are atomic accesses to words of eight bytes, because racing atomics of different
//! sizes are undefined behaviour. A part of a word is written by compare-and-exchange.
#![allow(unsafe_code)]

use hugekit_bulk::PopulateOptions;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::mapped::RegionMemory;
use super::{Region, RegionError};
use crate::fault::Serving;
use crate::pool::{FaultError, Pool};
use hugekit_bulk::parallel::Report;

const WORD: usize = size_of::<u64>();

/// Memory of a [`Pool`] that several threads, guests or devices read and write at the same time.
///
/// Clones are handles of the same memory. The memory returns to the pool when the last handle is
/// dropped.
///
/// ```
/// use hugekit::pool::{Backing, Pool};
///
/// let pool = Pool::builder(1 << 20).backing(Backing::Base).build()?;
/// let guest = pool.region(1 << 20)?.share();
/// let device = guest.clone();
/// device.write_at(4000, b"from the device")?;
/// let mut bytes = [0; 15];
/// guest.read_at(4000, &mut bytes)?;
/// assert_eq!(&bytes, b"from the device");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Children of `fork(2)` do not inherit the memory. In a child, an access ends in SIGSEGV.
#[derive(Clone, Debug)]
pub struct SharedRegion(Arc<RegionMemory>);

impl SharedRegion {
    pub(super) fn new(memory: RegionMemory) -> Self {
        Self(Arc::new(memory))
    }

    pub(super) fn memory(&self) -> &RegionMemory {
        &self.0
    }

    /// Pins a range: every fork copies the range at once, and the region keeps its pages, until the
    /// returned value is dropped.
    ///
    /// Pin memory that a device, an `io_uring` ring or a running system call accesses by its pages,
    /// because write protection does not stop these accesses. A fork that is made during such a
    /// write contains the written words or not. The call also clears memory of the range that is
    /// not cleared yet.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], or [`RegionError::Forked`] in a forked child.
    /// [`RegionError::Populate`] if bytes that are shared with earlier forks cannot be copied now.
    pub fn pin(&self, range: Range<usize>) -> Result<PinnedRange, RegionError> {
        self.0.pin(range.clone())?;
        Ok(PinnedRange { region: self.clone(), range })
    }

    /// Returns the number of bytes that the region shares with forks, as [`Region::shared_bytes`].
    ///
    /// # Errors
    /// [`RegionError::Forked`] in a forked child.
    pub fn shared_bytes(&self) -> Result<usize, RegionError> {
        self.0.shared_bytes()
    }

    /// Returns the number of bytes that were requested.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of mapped bytes: the length rounded up to a multiple of the folio.
    #[must_use]
    pub fn mapped_len(&self) -> usize {
        self.0.mapped_len()
    }

    /// Returns the address of the region, a multiple of the folio.
    ///
    /// The address is valid for [`mapped_len`](Self::mapped_len) bytes as long as a handle exists.
    /// Several threads may write at the same time, so use volatile or atomic accesses, never
    /// references.
    ///
    /// If faults are [handled](Self::serving) in place, do not pass the address of a range that is
    /// not [prepared](Self::prepare_write) to KVM or to a system call. The system call would return
    /// EFAULT, and a KVM guest would exit as for a device access.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start().as_ptr()
    }

    /// Returns the mode of fault handling, like [`Region::serving`]. Do not use memory as guest
    /// memory if its faults are handled in place.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.0.serving()
    }

    /// Returns the reason why the region was cleared at allocation, as [`Region::fallback`].
    #[must_use]
    pub fn fallback(&self) -> Option<&FaultError> {
        self.0.fallback()
    }

    /// Makes a range writable without a fault, as [`Region::prepare_write`] does.
    ///
    /// # Errors
    /// The errors of [`Region::prepare_write`].
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.0.prepare_write(range)
    }

    /// Returns the pool of the region.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.0.pool()
    }

    /// Returns the file of the pool and the offset of the region in the file. This is for code that
    /// maps the memory itself: a device process (vhost-user), or a VMM's memory backend. KVM's
    /// memory slots need only the address.
    ///
    /// The region is contiguous in the file and does not move. The call clears memory that is not
    /// cleared yet. After the call, the region cannot be [forked](Self::fork).
    ///
    /// # Errors
    /// [`RegionError::Forks`] if the region was forked or is a fork, or [`RegionError::Forked`] in
    /// a forked child.
    ///
    /// # Safety
    /// The descriptor gives access to the whole pool. Code that has it, in any process, must access
    /// only `offset..offset + mapped_len` of the file, and only while a handle of this region
    /// exists.
    pub unsafe fn file(&self) -> Result<(BorrowedFd<'_>, u64), RegionError> {
        let offset = self.0.file_offset()?;
        Ok((self.0.pool().memory().file(), offset))
    }

    /// Returns all mapped bytes as words of eight bytes.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped, aligned to pages, initialised and writable for as long as `self` lives; no
        // slice of the memory exists, because `share` consumed the only owner.
        unsafe {
            std::slice::from_raw_parts(self.as_ptr().cast::<AtomicU64>(), self.mapped_len() / WORD)
        }
    }

    /// Returns the word at an offset. The offset must be a multiple of 8.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], or [`RegionError::Unaligned`] if the offset is not a multiple
    /// of 8.
    pub fn word_at(&self, offset: usize) -> Result<&AtomicU64, RegionError> {
        self.0.within(offset..offset.saturating_add(WORD))?;
        match offset % WORD {
            0 => Ok(&self.words()[offset / WORD]),
            _ => Err(RegionError::Unaligned { offset, align: WORD }),
        }
    }

    /// Copies bytes from `offset` on into `bytes`. If another thread writes a word during the call,
    /// the copy contains the word from before or from after that write.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]. `bytes` is unchanged then.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), RegionError> {
        let range = self.0.within(offset..offset.saturating_add(bytes.len()))?;
        let mut rest = bytes;
        for (word, part) in words_of(range) {
            let (now, later) = rest.split_at_mut(part.len());
            now.copy_from_slice(&self.words()[word].load(Ordering::Relaxed).to_ne_bytes()[part]);
            rest = later;
        }
        Ok(())
    }

    /// Copies `bytes` into the memory from `offset` on. Other threads see the words change one
    /// after the other.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]. The memory is unchanged then.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        let range = self.0.within(offset..offset.saturating_add(bytes.len()))?;
        let mut rest = bytes;
        for (word, part) in words_of(range) {
            let (now, later) = rest.split_at(part.len());
            write_part(&self.words()[word], part, now);
            rest = later;
        }
        Ok(())
    }

    /// Maps all folios of a range now, as [`Region::populate`] does.
    ///
    /// # Errors
    /// The errors of [`Region::populate`].
    pub fn populate(&self, range: Range<usize>) -> Result<Report, RegionError> {
        self.0.populate(range, &PopulateOptions::new())
    }

    /// Maps all folios of a range with options, as [`Region::populate_with`] does.
    ///
    /// # Errors
    /// The errors of [`Region::populate_with`].
    ///
    /// # Panics
    /// If the progress callback panics.
    pub fn populate_with(
        &self,
        range: Range<usize>,
        options: &PopulateOptions<'_>,
    ) -> Result<Report, RegionError> {
        self.0.populate(range, options)
    }

    /// Discards the bytes of a range, as [`Region::release`] does. Bytes that other threads write
    /// during the call may be discarded or not.
    ///
    /// # Errors
    /// The errors of [`Region::release`].
    pub fn release(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.0.release(range)
    }

    /// Sets the region to return its folios to the kernel when the last handle is dropped, as
    /// [`Region::retire`] does. By default the pool clears the folios for another owner.
    ///
    /// Call this if a device, `io_uring` or a system call may still hold pages at that time. Such
    /// pages keep their bytes and belong to no other region.
    pub fn retire_when_dropped(&self) {
        self.0.retire_when_dropped();
    }

    /// Converts the last handle back into a [`Region`].
    ///
    /// # Errors
    /// Returns the handle as the error if other handles exist.
    ///
    /// # Safety
    /// No thread, process or device uses the address or the file of the region after the call,
    /// except through the returned region.
    pub unsafe fn into_exclusive(self) -> Result<Region, Self> {
        Arc::try_unwrap(self.0).map(Region::new).map_err(Self)
    }
}

/// A range that every fork copies at once, as long as this value exists. [`SharedRegion::pin`]
/// makes it.
#[derive(Debug)]
#[must_use = "dropped, the range is shared by the next fork"]
pub struct PinnedRange {
    region: SharedRegion,
    range: Range<usize>,
}

impl PinnedRange {
    /// Returns the region.
    #[must_use]
    pub fn region(&self) -> &SharedRegion {
        &self.region
    }

    /// Returns the offsets of the range in the region.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Drop for PinnedRange {
    fn drop(&mut self) {
        self.region.0.unpin(&self.range);
    }
}

/// Returns the words that bytes lie on, and which bytes of each.
fn words_of(bytes: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let words = bytes.start / WORD..bytes.end.div_ceil(WORD);
    words.map(move |word| {
        let first = word * WORD;
        let part = bytes.start.max(first) - first..bytes.end.min(first + WORD) - first;
        (word, part)
    })
}

fn write_part(word: &AtomicU64, part: Range<usize>, bytes: &[u8]) {
    if let Ok(whole) = bytes.try_into() {
        word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        return;
    }
    let patched = |before: u64| {
        let mut now = before.to_ne_bytes();
        now[part.clone()].copy_from_slice(bytes);
        Some(u64::from_ne_bytes(now))
    };
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, patched);
}
