//! A region with several users, who may race.
//!
//! All accesses are atomic ones of the same eight bytes, because atomics of different sizes that race
//! are undefined; parts of a word are written by compare and exchange.
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

/// Memory of a [`Pool`] that several users read and write at a time: threads, guests, devices. Clones
/// are the same memory, which goes back to the pool with the last of them.
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
/// A process forked from this one has no such memory, and an access there ends in SIGSEGV.
#[derive(Clone, Debug)]
pub struct SharedRegion(Arc<RegionMemory>);

impl SharedRegion {
    pub(super) fn new(memory: RegionMemory) -> Self {
        Self(Arc::new(memory))
    }

    pub(super) fn memory(&self) -> &RegionMemory {
        &self.0
    }

    /// Has every fork copy the granules of a range at once, so that their pages stay where they are and keep
    /// being written, until what this returns is dropped: for memory that a device, a ring of `io_uring` or a
    /// system call on its way holds by its pages, of which no protection is seen. What they write while a
    /// fork is made is in the fork or not, word by word. What is still to be cleared in the range is cleared now.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::Forked`]; [`RegionError::Populate`] if what is
    /// shared with earlier forks cannot be copied now.
    pub fn pin(&self, range: Range<usize>) -> Result<PinnedRange, RegionError> {
        self.0.pin(range.clone())?;
        Ok(PinnedRange { region: self.clone(), range })
    }

    /// As [`Region::shared_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn shared_bytes(&self) -> Result<usize, RegionError> {
        self.0.shared_bytes()
    }

    /// Bytes asked for.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes mapped: the length rounded up to whole folios.
    #[must_use]
    pub fn mapped_len(&self) -> usize {
        self.0.mapped_len()
    }

    /// Its address, a multiple of the folio size. Valid for [`mapped_len`](Self::mapped_len) bytes as
    /// long as a handle exists. A writer through it races with every other one: volatile or atomic
    /// accesses, never references.
    ///
    /// Do not give it to KVM or to a system call if the region is [served](Self::serving) in place
    /// and not [prepared](Self::prepare_write): the kernel's accesses are refused there, so that a
    /// system call returns EFAULT and a guest is left as for a device.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start().as_ptr()
    }

    /// As [`Region::serving`]. Guest memory must not be served in place.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.0.serving()
    }

    /// As [`Region::fallback`].
    #[must_use]
    pub fn fallback(&self) -> Option<&FaultError> {
        self.0.fallback()
    }

    /// As [`Region::prepare_write`].
    ///
    /// # Errors
    /// As [`Region::prepare_write`].
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.0.prepare_write(range)
    }

    /// The pool it came from.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.0.pool()
    }

    /// The file behind it and where in it the region begins, for who maps it by itself: a device
    /// process by vhost-user, a VMM's memory backend. All of the region is contiguous there, and stays.
    /// (KVM's memory slots need the address only.) What is still to be cleared is cleared by this call, and the
    /// region cannot be [forked](Self::fork) any more.
    ///
    /// # Errors
    /// [`RegionError::Forks`] of a region that was forked, or is a fork; [`RegionError::Forked`].
    ///
    /// # Safety
    /// The descriptor reaches the whole pool. Code that has it, in this process or another, accesses
    /// only `offset..offset + mapped_len` of the file, and only while a handle of this region exists.
    pub unsafe fn file(&self) -> Result<(BorrowedFd<'_>, u64), RegionError> {
        let offset = self.0.file_offset()?;
        Ok((self.0.pool().memory().file(), offset))
    }

    /// Its bytes, eight at a time; all that are mapped.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped, aligned to pages, initialised and writable for as long as `self` lives; no
        // slice of the memory exists, because `share` consumed the only owner.
        unsafe {
            std::slice::from_raw_parts(self.as_ptr().cast::<AtomicU64>(), self.mapped_len() / WORD)
        }
    }

    /// The word at an offset that is a multiple of 8.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::Unaligned`].
    pub fn word_at(&self, offset: usize) -> Result<&AtomicU64, RegionError> {
        self.0.within(offset..offset.saturating_add(WORD))?;
        match offset % WORD {
            0 => Ok(&self.words()[offset / WORD]),
            _ => Err(RegionError::Unaligned { offset, align: WORD }),
        }
    }

    /// Copies bytes out. What others write meanwhile is seen or not, word by word.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]; nothing is copied then.
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

    /// Copies bytes in. Others see them come word by word.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`]; nothing is copied then.
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

    /// As [`Region::populate`].
    ///
    /// # Errors
    /// As [`Region::populate`].
    pub fn populate(&self, range: Range<usize>) -> Result<Report, RegionError> {
        self.0.populate(range, &PopulateOptions::new())
    }

    /// As [`Region::populate_with`].
    ///
    /// # Errors
    /// As [`Region::populate_with`].
    ///
    /// # Panics
    /// If the progress callback does.
    pub fn populate_with(
        &self,
        range: Range<usize>,
        options: &PopulateOptions<'_>,
    ) -> Result<Report, RegionError> {
        self.0.populate(range, options)
    }

    /// As [`Region::release`]. What others write meanwhile is cleared or not.
    ///
    /// # Errors
    /// As [`Region::release`].
    pub fn release(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.0.release(range)
    }

    /// Has the folios go back to the kernel when the last handle goes, as [`Region::retire`] does, instead of being
    /// cleared for the next owner: for memory whose pages a device, `io_uring` or a system call may still hold
    /// then. What they hold stays what it was, and is no other region's.
    pub fn retire_when_dropped(&self) {
        self.0.retire_when_dropped();
    }

    /// The region as its only owner has it, if this is the last handle; else the handle again.
    ///
    /// # Errors
    /// The handle, if there are others.
    ///
    /// # Safety
    /// No thread uses its address or its file any more.
    pub unsafe fn into_exclusive(self) -> Result<Region, Self> {
        Arc::try_unwrap(self.0).map(Region::new).map_err(Self)
    }
}

/// A range of a region that forks copy at once, as long as this exists: [`SharedRegion::pin`].
#[derive(Debug)]
#[must_use = "dropped, the range is shared by the next fork"]
pub struct PinnedRange {
    region: SharedRegion,
    range: Range<usize>,
}

impl PinnedRange {
    /// The region.
    #[must_use]
    pub fn region(&self) -> &SharedRegion {
        &self.region
    }

    /// Offsets of the range.
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

/// The words that bytes lie on, and which bytes of each.
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
