//! What both kinds of region do with their memory.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;

use crate::ClearError;
use crate::fault::{Service, Serving};
use crate::parallel::{Bytes, Job, JobError, Progress, Report, Threads};
use crate::pool::{Content, Mapped, Pool, Size};
use crate::populate::{self, PopulateError};
use crate::sys::memory;

/// Why a region could not do what was asked. Its contents are as they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The range does not lie within the region.
    #[error("bytes {}..{} lie outside a region of {len} bytes", range.start, range.end)]
    OutOfRange {
        /// Offsets asked for.
        range: Range<usize>,
        /// Bytes of the region.
        len: usize,
    },
    /// The address is not a multiple of what is accessed there.
    #[error("offset {offset} is not a multiple of {align}")]
    Unaligned {
        /// The offset.
        offset: usize,
        /// Bytes of what is accessed.
        align: usize,
    },
    /// Only whole folios can be released.
    #[error(
        "bytes {}..{} are not whole pages of {}: nothing smaller can be released here",
        range.start, range.end, Size(*page_size)
    )]
    NotWholeFolios {
        /// Offsets asked for.
        range: Range<usize>,
        /// Bytes of a folio.
        page_size: usize,
    },
    /// A region has at least one byte.
    #[error("a region cannot be cut to no bytes: drop it")]
    NoBytes,
    /// Prefaulting failed: no thread was asked for.
    #[error("cannot prefault: {0}")]
    Prefault(#[from] JobError<PopulateError>),
    /// Clearing failed: no thread was asked for when the pool was made.
    #[error("cannot clear what is released: {0}")]
    Clear(#[from] ClearError),
    /// The kernel would not take the memory back.
    #[error("the kernel does not take the memory back: {0}")]
    Kept(std::io::ErrorKind),
    /// This process was forked from the region's, which alone has its memory.
    #[error("the region belongs to the process that this one was forked from")]
    Forked,
}

/// An extent in use, given back to its pool when dropped.
#[derive(Debug)]
pub(super) struct Memory {
    /// `None` only while it is dropped.
    mapped: Option<Mapped>,
    /// Who serves its faults, if they are not plain ones.
    service: Option<Service>,
    pool: Pool,
    len: usize,
}

impl Memory {
    pub(super) fn new(pool: Pool, mapped: Mapped, len: usize, service: Option<Service>) -> Self {
        Self { mapped: Some(mapped), service, pool, len }
    }

    pub(super) fn serving(&self) -> Option<&Serving> {
        self.service.as_ref().map(Service::serving)
    }

    /// Sees to it that whoever has the file finds nobody else's bytes there.
    pub(super) fn show_through_file(&self) {
        if let Some(service) = self.service.as_ref().filter(|_| self.pool.memory().is_ours()) {
            service.served().show_through_file();
        }
    }

    pub(super) fn mapped(&self) -> &Mapped {
        self.mapped.as_ref().expect("there until dropped")
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.mapped().mapping().start()
    }

    /// Bytes asked for.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes mapped: whole folios.
    pub(super) fn mapped_len(&self) -> usize {
        self.mapped().mapping().len()
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn file_offset(&self) -> u64 {
        self.pool.memory().offset(self.mapped().extent())
    }

    /// The range, if all of it lies within the region.
    pub(super) fn within(&self, range: Range<usize>) -> Result<Range<usize>, RegionError> {
        if range.start <= range.end && range.end <= self.len {
            Ok(range)
        } else {
            Err(RegionError::OutOfRange { range, len: self.len })
        }
    }

    fn check_ours(&self) -> Result<(), RegionError> {
        if self.pool.memory().is_ours() { Ok(()) } else { Err(RegionError::Forked) }
    }

    /// Enters the folios on which the range lies into the page tables.
    pub(super) fn prefault(
        &self,
        range: Range<usize>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Report, RegionError> {
        self.check_ours()?;
        let range = self.within(range)?;
        if let Some(service) = &self.service {
            service.served().ready(range.clone(), threads, progress)?;
            if self.pool.backing().is_reserved() {
                return Ok(self.prefault_plain(range, Threads::One, None)?);
            }
        }
        Ok(self.prefault_plain(range, threads, progress)?)
    }

    fn prefault_plain(
        &self,
        range: Range<usize>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Report, JobError<PopulateError>> {
        let page_size = self.pool.page_size();
        let first = range.start - range.start % page_size;
        let len = range.end.next_multiple_of(page_size) - first;
        let start = Bytes(self.start().as_ptr());
        let job = Job::new(len).min_chunk(page_size.max(2 << 20)).threads(threads);
        let job = progress.into_iter().fold(job, Job::progress);
        job.run(|chunk| {
            let (start, len) = (start.at(first + chunk.start), chunk.len());
            memory::populate_read(start, len).map_err(|errno| populate::meaning(errno, start, len))
        })
    }

    /// Has system calls find the range as ordinary memory.
    pub(super) fn ready(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check_ours()?;
        let range = self.within(range)?;
        if let Some(service) = &self.service {
            service.served().ready(range, self.pool.threads(), None)?;
        }
        Ok(())
    }

    /// Clears whole folios through the pool's own mapping, or has them cleared when they are touched.
    pub(super) fn release(&self, range: Range<usize>) -> Result<(), RegionError> {
        self.check_ours()?;
        let range = self.whole_folios(range)?;
        match &self.service {
            Some(service) => service.served().release(range),
            None => self.pool.clear_in_use(self.mapped().extent(), range)?,
        }
        Ok(())
    }

    /// Gives back what lies behind the first `len` bytes.
    pub(super) fn truncate(&mut self, len: usize) -> Result<(), RegionError> {
        self.check_ours()?;
        self.within(0..len)?;
        if len == 0 {
            return Err(RegionError::NoBytes);
        }
        let page_size = self.pool.page_size();
        let (kept, cut) = (len.next_multiple_of(page_size), self.mapped_len());
        if kept < cut {
            let folios = (cut - kept) / page_size;
            let contents = match &self.service {
                Some(service) => service.cut(kept, page_size),
                None => vec![(folios, Content::Dirty)],
            };
            let mapped = self.mapped.as_mut().expect("there until dropped");
            // SAFETY: who borrowed bytes behind `len` is gone, because `self` is borrowed mutably.
            unsafe { self.pool.take_tail(mapped, len, &contents) }
                .map_err(|error| RegionError::Kept(error.kind()))?;
        }
        self.len = len;
        Ok(())
    }

    /// Gives the folios back to the kernel.
    pub(super) fn retire(mut self) -> Result<(), RegionError> {
        self.check_ours()?;
        let mut service = self.service.take();
        service.iter_mut().for_each(Service::end);
        let mapped = self.mapped.take().expect("there until dropped");
        // SAFETY: as for `drop`.
        unsafe { self.pool.retire(mapped) }.map_err(|error| RegionError::Kept(error.kind()))
    }

    /// The range, if it consists of whole folios; the last one may be cut by the end of the region.
    fn whole_folios(&self, range: Range<usize>) -> Result<Range<usize>, RegionError> {
        let (range, page_size) = (self.within(range)?, self.pool.page_size());
        let end = if range.end == self.len { self.mapped_len() } else { range.end };
        if range.start % page_size == 0 && end % page_size == 0 {
            Ok(range.start..end)
        } else {
            Err(RegionError::NotWholeFolios { range, page_size })
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(mapped) = self.mapped.take() else { return };
        // Its descriptor is closed only when nothing is mapped there any more: what it guards may be
        // somebody else's bytes.
        let mut service = self.service.take();
        let contents = service.as_mut().map(|service| service.stop(self.pool.page_size()));
        // SAFETY: whoever borrowed from this is gone; who kept a bare address has promised not to use it
        // any more. What the folios hold is what faults have made of them.
        unsafe {
            match contents {
                Some(contents) => self.pool.take_back_as(mapped, &contents),
                None => self.pool.take_back(mapped),
            }
        }
    }
}
