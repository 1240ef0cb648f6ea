//! A region with one owner.
#![allow(unsafe_code)]

use hugekit_bulk::PopulateOptions;
use std::ops::{Deref, DerefMut, Range};

use super::mapped::RegionMemory;
use super::{RegionError, SharedRegion};
use crate::fault::Serving;
use crate::pool::{FaultError, Pool, PoolError};
use hugekit_bulk::parallel::Report;

/// Zeroed memory of a [`Pool`], committed and mapped: a slice of bytes that goes back to the pool
/// when it is dropped.
///
/// Its folios are contiguous in the pool's file and stay where they are. Touching it for the first
/// time is a plain page fault on memory that is there (0.8 µs for 2 MiB);
/// [`populate`](Self::populate) takes all of them at once. It can never be short of memory: that
/// would have been an error of [`Pool::region`].
///
/// A process forked from this one has no such memory, and an access there ends in SIGSEGV. Dropping it
/// there does nothing.
#[derive(Debug)]
pub struct Region(Box<RegionMemory>);

impl Pool {
    /// So many bytes of zeroed memory, in whole folios.
    ///
    /// Clean folios are mapped as they are, in microseconds. Dirty ones are cleared first, and holes
    /// populated, by as many threads as pay off or were asked for when the pool was made.
    ///
    /// # Errors
    /// [`PoolError::NoBytes`] for a length of 0, [`PoolError::NoRoom`] if so much is not free in one
    /// piece, [`PoolError::Forked`] in a forked child; and whatever prevents holes from being
    /// populated. Nothing is taken from the pool then.
    pub fn region(&self, len: usize) -> Result<Region, PoolError> {
        self.region_builder(len).build()
    }
}

impl Region {
    pub(super) fn new(memory: RegionMemory) -> Self {
        Self(Box::new(memory))
    }

    pub(super) fn memory(&self) -> &RegionMemory {
        &self.0
    }

    /// Bytes that it shares with forks at this moment, in whole granules: what writes of it or of them may
    /// still have to copy.
    ///
    /// # Errors
    /// [`RegionError::Forked`].
    pub fn shared_bytes(&self) -> Result<usize, RegionError> {
        self.0.shared_bytes()
    }

    /// Its address, a multiple of the folio size.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.0.start().as_ptr()
    }

    /// As [`as_ptr`](Self::as_ptr), to write to.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.start().as_ptr()
    }

    /// Bytes that are mapped from there on: the length rounded up to whole folios.
    #[must_use]
    pub fn mapped_len(&self) -> usize {
        self.0.mapped_len()
    }

    /// The pool it came from.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.0.pool()
    }

    /// How its faults are served, if it is cleared when it is touched; `None` if accesses are plain
    /// ones, because it was cleared at allocation or nothing was dirty.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.0.serving()
    }

    /// Why it was cleared at allocation although it was to be cleared at the fault; `None` if it was not.
    #[must_use]
    pub fn fallback(&self) -> Option<&FaultError> {
        self.0.fallback()
    }

    /// Makes the range writable without a fault from now on, as a system call or a device needs it:
    /// what is still dirty is cleared and what is shared with forks is copied, by as many threads
    /// as were asked for when the pool was made. It holds until the range is
    /// [released](Self::release), or the region forked or snapshotted. Only a region whose faults
    /// are served in place needs this; `Snapshot::prepare_write` does the same for memory of
    /// which there is a snapshot.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::Forked`]; [`RegionError::Populate`] if the
    /// memory is broken, or none is left for a hole.
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.0.prepare_write(range)
    }

    /// Enters the folios that a byte of the range lies on into the page tables: reading them faults
    /// no more, nor does writing, except to what is shared with forks
    /// ([`prepare_write`](Self::prepare_write) copies that). It is to a region what
    /// [`PopulateOptions`] is to any memory.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::Forked`].
    pub fn populate(&self, range: Range<usize>) -> Result<Report, RegionError> {
        self.0.populate(range, &PopulateOptions::new())
    }

    /// As [`populate`](Self::populate), with options: several threads, which pay off for base pages, progress,
    /// cancellation.
    ///
    /// # Errors
    /// As [`populate`](Self::populate), and [`RegionError::Populate`] for 0 threads or a cancelled job.
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

    /// Gives up what the range holds: it reads as zeroes again, and stays committed and mapped. The
    /// range consists of whole folios, but may end where the region does.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`], [`RegionError::NotWholeFolios`], [`RegionError::Forked`].
    pub fn release(&mut self, range: Range<usize>) -> Result<(), RegionError> {
        self.0.release(range)
    }

    /// Cuts the region to its first `len` bytes, for good: the whole folios behind them go back to the
    /// pool as dirty, for others.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] for more bytes than it has, [`RegionError::NoBytes`],
    /// [`RegionError::Forked`]; [`RegionError::Kept`] if the kernel will not unmap them, and then
    /// nothing changes.
    pub fn truncate(&mut self, len: usize) -> Result<(), RegionError> {
        self.0.truncate(len)
    }

    /// Gives up being the only owner: a handle that can be cloned and used by several threads, device
    /// and VMM at a time.
    #[must_use]
    pub fn share(self) -> SharedRegion {
        SharedRegion::new(*self.0)
    }

    /// Gives the memory back although a system call may still read or write it (`vmsplice`, an
    /// `O_DIRECT` transfer, a buffer registered with `io_uring`): its folios go back to the kernel
    /// instead of being cleared for another owner, and the pool asks for new ones when it needs them.
    ///
    /// # Errors
    /// [`RegionError::Forked`]; [`RegionError::Kept`] if the kernel refuses, and then no caller ever gets
    /// these folios.
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
