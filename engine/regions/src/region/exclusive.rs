//! A region with one owner.
#![allow(unsafe_code)]

use hugekit_bulk::PopulateOptions;
use std::ops::{Deref, DerefMut, Range};

use super::mapped::RegionMemory;
use super::{RegionError, SharedRegion};
use crate::fault::Serving;
use crate::pool::{FaultError, Pool};
use hugekit_bulk::parallel::Report;

/// Zeroed memory of a [`Pool`], as a slice of bytes. A drop returns the memory to the pool.
///
/// The address of a region does not change. The first access to a folio costs a page fault that
/// only maps the folio; [`populate`](Self::populate) maps all folios at once. An access never fails
/// for lack of memory, because the memory was reserved when [`Pool::region`] succeeded.
///
/// Children of `fork(2)` do not inherit the memory. In a child, an access ends in SIGSEGV, and a
/// drop does nothing.
#[derive(Debug)]
pub struct Region(Box<RegionMemory>);

impl Region {
    pub(super) fn new(memory: RegionMemory) -> Self {
        Self(Box::new(memory))
    }

    pub(super) fn memory(&self) -> &RegionMemory {
        &self.0
    }

    /// Returns the number of bytes that the region shares with forks at this moment, in whole
    /// granules. Later writes may have to copy up to this many bytes.
    ///
    /// # Errors
    /// [`RegionError::Forked`] in a forked child.
    pub fn shared_bytes(&self) -> Result<usize, RegionError> {
        self.0.shared_bytes()
    }

    /// Returns the address of the region, a multiple of the folio.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.0.start().as_ptr()
    }

    /// Returns the address of the region, for writing.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.start().as_ptr()
    }

    /// Returns the number of mapped bytes: the length rounded up to a multiple of the folio.
    #[must_use]
    pub fn mapped_len(&self) -> usize {
        self.0.mapped_len()
    }

    /// Returns the pool of the region.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.0.pool()
    }

    /// Returns the mode of fault handling. `None` if hugekit handles no faults of this region,
    /// because the region was cleared at allocation and was not forked.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.0.serving()
    }

    /// Returns the reason why the region was cleared at allocation although [`Clearing::OnFault`]
    /// was requested. `None` if this did not happen.
    ///
    /// [`Clearing::OnFault`]: crate::pool::Clearing::OnFault
    #[must_use]
    pub fn fallback(&self) -> Option<&FaultError> {
        self.0.fallback()
    }

    /// Makes a range writable without a fault. Call this before a system call or a device writes to
    /// the range.
    ///
    /// Dirty bytes of the range are cleared, and bytes that are shared with forks are copied, with
    /// the number of threads of the pool. The range stays prepared until it is
    /// [released](Self::release), or until the region is forked or snapshotted. Only regions whose
    /// faults are handled in place need this call. If the memory has a snapshot,
    /// `Snapshot::prepare_write` does the same.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], or [`RegionError::Forked`] in a forked child.
    /// [`RegionError::Populate`] if the hardware of a page is defective, or if no memory is left
    /// for a hole.
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.0.prepare_write(range)
    }

    /// Maps all folios of a range now, so that later reads cause no faults.
    ///
    /// Later writes cause no faults either, except to folios that are shared with forks:
    /// [`prepare_write`](Self::prepare_write) copies these. For memory outside of regions use
    /// [`PopulateOptions`].
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], or [`RegionError::Forked`] in a forked child.
    pub fn populate(&self, range: Range<usize>) -> Result<Report, RegionError> {
        self.0.populate(range, &PopulateOptions::new())
    }

    /// Maps all folios of a range as [`populate`](Self::populate) does, with options: several
    /// threads (faster on base pages), progress, cancellation.
    ///
    /// # Errors
    /// The errors of [`populate`](Self::populate), and [`RegionError::Populate`] for 0 threads or a
    /// cancelled job.
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

    /// Discards the bytes of a range. Afterwards the range reads as zeroes, and stays allocated and
    /// mapped.
    ///
    /// The range must consist of whole folios. It may end at the region's end instead of a folio's
    /// end.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::NotWholeFolios`], or [`RegionError::Forked`] in
    /// a forked child.
    pub fn release(&mut self, range: Range<usize>) -> Result<(), RegionError> {
        self.0.release(range)
    }

    /// Shortens the region to its first `len` bytes. Whole folios after these bytes return to the
    /// pool as dirty. The region cannot grow again.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if `len` is larger than the region, [`RegionError::NoBytes`] if
    /// `len` is 0, [`RegionError::Forked`] in a forked child, [`RegionError::Kept`] if the kernel
    /// refuses to unmap. The region is unchanged then.
    pub fn truncate(&mut self, len: usize) -> Result<(), RegionError> {
        self.0.truncate(len)
    }

    /// Converts the region into a handle that can be cloned. Several threads, devices or guests may
    /// then use the memory at the same time.
    #[must_use]
    pub fn share(self) -> SharedRegion {
        SharedRegion::new(*self.0)
    }

    /// Drops a region whose pages the kernel may still read or write, for example for `vmsplice`,
    /// for an `O_DIRECT` transfer, or for a buffer registered with `io_uring`.
    ///
    /// The folios return to the kernel; the pool does not clear them for another owner. The pool
    /// populates new folios when it needs them.
    ///
    /// # Errors
    /// [`RegionError::Forked`] in a forked child. [`RegionError::Kept`] if the kernel refuses to
    /// free the folios; no other owner ever gets them then.
    pub fn retire(self) -> Result<(), RegionError> {
        (*self.0).retire()
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped, readable and initialised for as long as `self` lives; only its owner, who is
        // borrowed, can write it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.0.len()) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped, readable, writable and initialised for as long as `self` lives; its owner is borrowed
        // mutably.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.0.len()) }
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Region {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}
