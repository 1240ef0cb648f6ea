//! Populating memory: its pages faulted in ahead of time, writable, on several threads.
//!
//! The kernel clears a page when it faults it in, on the thread that faults. Populating a mapping
//! in one call is therefore as slow as one thread clears, and a program that touches it page by
//! page pays the faults on top. `MADV_POPULATE_WRITE` (Linux 5.14) does both for a whole chunk
//! without leaving the kernel, and several threads can do it at once.
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

/// An error of a chunk that could not be populated. Chunks that were populated before stay
/// populated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PopulateError {
    /// The kernel is older than Linux 5.14, or is not Linux.
    #[error("the kernel cannot populate memory: MADV_POPULATE_WRITE needs Linux 5.14")]
    Unsupported,
    /// Part of the range is not mapped.
    #[error("part of the memory is not mapped")]
    NotMapped,
    /// Part of the range may not be written: it is read-only, has no access, or belongs to a
    /// device.
    #[error("part of the memory may not be written")]
    NotWritable,
    /// An access would end in SIGBUS: it lies beyond the end of a file, or no huge page is left.
    #[error("part of the memory has nothing behind it: a file's end, or no huge page left")]
    NothingBehind,
    /// The kernel has no memory left.
    #[error("out of memory")]
    OutOfMemory,
    /// The hardware of a page is broken.
    #[error("a page of the memory is broken hardware")]
    Poisoned,
    /// The kernel refused something else.
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
    /// Makes options without changes: the calling thread populates everything in one call.
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

    /// The page size of the memory, if the caller knows it. Otherwise Linux 6.11 tells it; older kernels do not, and
    /// threads may then wait for each other within one page of hugetlbfs.
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

    /// If true, threads other than the calling thread run only on CPUs that no other thread wants
    /// (`SCHED_IDLE`). By default false.
    pub fn low_priority(mut self, low: bool) -> Self {
        self.sharing.low_priority = low;
        self
    }

    /// Populates every page that contains a byte of `memory`. No byte changes.
    ///
    /// # Errors
    /// [`JobError::Chunk`] with a [`PopulateError`] if a page cannot be populated, and the other
    /// errors of a job. Pages populated before stay populated.
    ///
    /// # Panics
    /// If the progress callback panics.
    pub fn run(&self, memory: &mut [MaybeUninit<u8>]) -> Result<Report, JobError<PopulateError>> {
        self.run_addresses(memory.as_mut_ptr().cast::<u8>(), memory.len())
    }

    /// Populates every page of a range of addresses, as [`run`](Self::run) does. Memory that is not
    /// mapped, or not writable, is an error.
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

    /// A page that two threads fault in is cleared by one of them, and the other waits: no page is in two chunks.
    fn page_size_at(&self, start: *mut u8, len: usize, profile: &Profile) -> usize {
        let ask = || {
            let is_shared = len > profile.min_chunk && !self.sharing.is_alone(len, profile);
            is_shared.then(|| mapped_page::page_size_at(start).ok()).flatten()
        };
        self.page_size.or_else(ask).unwrap_or_else(page_size)
    }
}

impl PopulateOptions<'_> {
    /// Like [`run`](Self::run), on transparent huge pages as far as the kernel makes them: `start` and `len` are
    /// multiples of `folio`. Returns bytes that are on such.
    ///
    /// # Errors
    /// [`JobError`]: a chunk failed, or the job was cancelled.
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

/// Populates one folio of shared memory: the touch of one of its base pages allocates a huge page where the setting
/// allows, and a collapse makes one where it does not or where none was free. Whether it is huge; else it is there as
/// base pages.
///
/// # Errors
/// [`PopulateError`]: the kernel refused the touch.
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

/// Populates the pages that the bytes lie on: the chunks within a range end at pages, its own start
/// and end may not.
///
/// # Errors
/// [`PopulateError`]: the kernel refused.
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
    /// The kernel answers several causes alike. Asking it again about these pages tells them apart.
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
