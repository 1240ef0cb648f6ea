//! Populating memory: pages are faulted in ahead of time, writable, on several threads.
//!
//! The kernel clears a page when a thread faults the page in, on that thread. So populating a
//! mapping in one call is as slow as one thread clears, and a program that touches page by page
//! also pays for each fault. `MADV_POPULATE_WRITE` (Linux 5.14) faults in and clears a whole chunk
//! in one system call, and several threads can call it at once.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::param::page_size;

use crate::parallel::{Bytes, Cancel, Job, JobError, Progress, Report, Threads, WorkSharing};
use crate::profile::Profile;
use hugekit_sys::ErrorKind;
use hugekit_sys::mapping::collapse;
use hugekit_sys::{mapped_page, memory};

/// An error of a chunk that could not be populated. Chunks that were populated before the error
/// stay populated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PopulateError {
    /// The kernel is older than Linux 5.14, or is not Linux.
    #[error("the kernel cannot populate memory: MADV_POPULATE_WRITE needs Linux 5.14")]
    Unsupported,
    /// Part of the range is not mapped.
    #[error("part of the memory is not mapped")]
    NotMapped,
    /// Part of the range may not be written: it is read-only, permits no access, or belongs to a
    /// device.
    #[error("part of the memory may not be written")]
    NotWritable,
    /// An access would end in SIGBUS, because the memory lies beyond the end of a file, or because
    /// no huge page is left.
    #[error("part of the memory has nothing behind it: a file's end, or no huge page left")]
    NothingBehind,
    /// The kernel has no memory left.
    #[error("out of memory")]
    OutOfMemory,
    /// The hardware of a page is defective.
    #[error("a page of the memory is broken hardware")]
    Poisoned,
    /// The kernel refused the call for another reason.
    #[error("cannot populate memory: {0}")]
    Kernel(std::io::ErrorKind),
}

/// Options for populating memory: threads, progress, cancellation.
///
/// ```
/// use hugekit::{PopulateOptions, Threads};
///
/// let mut memory = Box::<[u8]>::new_uninit_slice(4 << 20);
/// let report = PopulateOptions::new().threads(Threads::Auto).run(&mut memory)?;
/// assert_eq!(report.bytes, 4 << 20);
/// # Ok::<(), hugekit_bulk::parallel::JobError<hugekit::PopulateError>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder populates nothing until run"]
pub struct PopulateOptions<'a> {
    profile: Option<&'a Profile>,
    sharing: WorkSharing<'a>,
    page_size: Option<usize>,
}

impl<'a> PopulateOptions<'a> {
    /// Returns the default options: the calling thread populates everything in one call.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the profile that chooses the number of threads. By default [`Profile::current`].
    pub fn profile(mut self, profile: &'a Profile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Sets the number of threads, the calling thread included. By default [`Threads::One`].
    pub fn threads(mut self, threads: Threads) -> Self {
        self.sharing.threads = threads;
        self
    }

    /// Sets a callback that is called after each chunk, with the number of bytes populated. By
    /// default none.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.sharing.progress = Some(progress);
        self
    }

    /// Sets the flag that stops the operation. It stops between chunks, never within one. By
    /// default none.
    pub fn cancel(mut self, cancel: &'a Cancel) -> Self {
        self.sharing.cancel = Some(cancel);
        self
    }

    /// Sets the page size of the memory, if the caller knows the size. By default the library asks
    /// the kernel, which answers since Linux 6.11. On older kernels, threads may wait for each
    /// other within one page of hugetlbfs.
    #[doc(hidden)]
    pub fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Returns a job of `len` bytes with these options.
    #[doc(hidden)]
    pub fn job(&self, len: usize) -> Job<'a> {
        let WorkSharing { threads, progress, cancel, low_priority } = self.sharing;
        let job = Job::new(len).threads(threads).low_priority(low_priority);
        let job = progress.into_iter().fold(job, Job::progress);
        cancel.into_iter().fold(job, Job::cancel)
    }

    /// Sets the priority of the threads other than the calling thread. If `low` is true, they run
    /// only on CPUs that no other thread needs (`SCHED_IDLE`). By default false.
    pub fn low_priority(mut self, low: bool) -> Self {
        self.sharing.low_priority = low;
        self
    }

    /// Populates every page that contains a byte of `memory`. The content of the memory does not
    /// change.
    ///
    /// # Errors
    /// [`JobError::Chunk`] with a [`PopulateError`] if a page cannot be populated, and the other
    /// errors of a job. Pages that were populated before the error stay populated.
    ///
    /// # Panics
    /// If the progress callback panics.
    pub fn run(&self, memory: &mut [MaybeUninit<u8>]) -> Result<Report, JobError<PopulateError>> {
        self.run_addresses(memory.as_mut_ptr().cast::<u8>(), memory.len())
    }

    /// Populates every page of a range of addresses, as [`run`](Self::run) does. Memory that is not
    /// mapped or not writable is an error.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    ///
    /// # Panics
    /// If the progress callback panics.
    pub fn run_range(&self, addresses: Range<usize>) -> Result<Report, JobError<PopulateError>> {
        let start = std::ptr::with_exposed_provenance_mut(addresses.start);
        self.run_addresses(start, addresses.len())
    }

    fn run_addresses(&self, start: *mut u8, len: usize) -> Result<Report, JobError<PopulateError>> {
        let profile = self.profile.unwrap_or_else(|| Profile::current());
        let min_chunk =
            profile.min_chunk.max(1).next_multiple_of(self.page_size_at(start, len, profile));
        let bytes = Bytes(start);
        self.sharing.run(start, len, profile, min_chunk, |chunk| {
            populate_pages(addresses_of(bytes.at(chunk.start), chunk.len()))
        })
    }

    /// If two threads fault in the same page, one thread clears the page and the other waits. So
    /// chunks consist of whole pages.
    fn page_size_at(&self, start: *mut u8, len: usize, profile: &Profile) -> usize {
        let ask = || {
            let is_shared = len > profile.min_chunk && !self.sharing.is_alone(len, profile);
            is_shared.then(|| mapped_page::page_size_at(start).ok()).flatten()
        };
        self.page_size.or_else(ask).unwrap_or_else(page_size)
    }
}

impl PopulateOptions<'_> {
    /// Like [`run`](Self::run), on transparent huge pages as far as the kernel makes such pages.
    /// `start` and `len` must be multiples of `folio`. Returns the number of bytes that are on
    /// transparent huge pages.
    ///
    /// # Errors
    /// [`JobError`] if a chunk failed, or if the job was cancelled.
    ///
    /// # Safety
    /// The conditions of [`populate_folio`], for each folio.
    #[doc(hidden)]
    pub unsafe fn run_huge(
        &self,
        start: *mut u8,
        len: usize,
        folio: usize,
    ) -> Result<u64, JobError<PopulateError>> {
        let profile = self.profile.unwrap_or_else(|| Profile::current());
        let min_chunk = profile.min_chunk.max(1).next_multiple_of(folio);
        let (bytes, huge) = (Bytes(start), AtomicU64::new(0));
        self.sharing.run(start, len, profile, min_chunk, |chunk| {
            for offset in chunk.step_by(folio) {
                // SAFETY: a folio of the caller's, who promised it.
                if unsafe { populate_folio(bytes.at(offset), folio, 0) }? {
                    huge.fetch_add(folio as u64, Ordering::Relaxed);
                }
            }
            Ok(())
        })?;
        Ok(huge.into_inner())
    }
}

/// Populates one folio of shared memory. The touch of one base page allocates a huge page if the
/// kernel's setting permits huge pages. If it does not, or if none was free, a collapse makes a
/// huge page. Returns true if the folio is on a huge page; otherwise the folio is populated by base
/// pages.
///
/// # Errors
/// [`PopulateError`] if the kernel refused the touch.
///
/// # Safety
/// The conditions of [`collapse`]: no first access to the folio waits for a thread.
pub unsafe fn populate_folio(
    start: *mut u8,
    folio: usize,
    first: usize,
) -> Result<bool, PopulateError> {
    populate_pages(addresses_of(start.wrapping_add(first), page_size()))?;
    // SAFETY: the caller's promise.
    let is_huge = unsafe { collapse(start, folio) }.is_ok();
    if !is_huge {
        populate_pages(addresses_of(start, folio))?;
    }
    Ok(is_huge)
}

/// Populates the pages that contain the addresses. `addresses` need not begin or end at a page.
///
/// # Errors
/// [`PopulateError`] if the kernel refused the call.
pub fn populate_pages(addresses: Range<usize>) -> Result<(), PopulateError> {
    if addresses.is_empty() {
        return Ok(()); // No byte lies on any page, and the address may be one that was never mapped.
    }
    let page = page_size();
    let first = addresses.start - addresses.start % page;
    let end = addresses.end.checked_next_multiple_of(page).ok_or(PopulateError::NotMapped)?;
    let start = ptr::with_exposed_provenance_mut(first);
    memory::populate_write(start, end - first)
        .map_err(|errno| PopulateError::from_errno(errno, &(first..end)))
}

fn addresses_of(start: *mut u8, len: usize) -> Range<usize> {
    let start = start.expose_provenance();
    start..start.saturating_add(len)
}

impl JobError<PopulateError> {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind_with(PopulateError::kind)
    }
}

impl PopulateError {
    /// Converts an error of the kernel. The kernel returns the same number for several causes, so
    /// the function asks the kernel about these pages to distinguish the causes.
    #[doc(hidden)]
    #[must_use]
    pub fn from_errno(errno: Errno, pages: &Range<usize>) -> Self {
        let is_mapped = || memory::is_mapped(ptr::without_provenance(pages.start), pages.len());
        match errno {
            Errno::INVAL if !memory::can_populate() => Self::Unsupported,
            Errno::INVAL => Self::NotWritable,
            Errno::NOMEM if !is_mapped() => Self::NotMapped,
            Errno::NOMEM => Self::OutOfMemory,
            Errno::FAULT => Self::NothingBehind,
            Errno::HWPOISON => Self::Poisoned,
            other => Self::Kernel(std::io::Error::from(other).kind()),
        }
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unsupported => ErrorKind::Unsupported,
            Self::NotMapped | Self::NotWritable => ErrorKind::Invalid,
            Self::NothingBehind | Self::OutOfMemory => ErrorKind::NoMemory,
            Self::Poisoned => ErrorKind::Kernel,
            Self::Kernel(kind) => ErrorKind::from(*kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn populate_on_a_kernel_without_it_is_told_from_unwritable_memory() {
        let expected = if memory::can_populate() {
            PopulateError::NotWritable
        } else {
            PopulateError::Unsupported
        };
        assert_eq!(PopulateError::from_errno(Errno::INVAL, &(0..0)), expected);
    }

    #[test]
    fn populate_that_fails_otherwise_says_what_the_kernel_says() {
        let said = |errno| PopulateError::from_errno(errno, &(0..0));
        assert_eq!(said(Errno::FAULT), PopulateError::NothingBehind);
        assert_eq!(said(Errno::HWPOISON), PopulateError::Poisoned);
        assert_eq!(said(Errno::AGAIN), PopulateError::Kernel(std::io::ErrorKind::WouldBlock));
    }
}
