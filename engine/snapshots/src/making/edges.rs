//! The bytes at both ends of a range that share a page with other data: less than a page each. They are copied when
//! the snapshot is made, and must be from the same moment as the protected pages between them.
//!
//! hugekit must not protect such a page like the rest. If writes are served in place, a system call that writes a
//! neighbour's bytes there would fail, and a thread whose stack lies there would die. So the page is only *watched*
//! while writers of the inner pages wait: the kernel records the first write through a separate descriptor, and lets
//! it through. If no thread has written to the page since it was protected, the copy is from that moment. Otherwise
//! the bytes are copied again.
//!
//! If other threads write to the page all the time, this never succeeds. Before Linux 6.7, the kernel records no
//! write. In both cases, the page is *stopped* for the microseconds of the copy: writes to it wait in the kernel,
//! even those of system calls and signal frames. No thread needs its stack for that. A descriptor that serves only
//! faults of user code would let system calls fail, so a process that has no other descriptor gets an error.
//!
//! If another snapshot with the same handling protects the page as a whole, the page is *held*: nothing lifts its
//! protection during the copy.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::param::page_size;

use crate::serving::write_protector::WriteProtector;
use hugekit_bulk::sweep::Reach;
use hugekit_regions::fault::no_fault;
use hugekit_sys::private_pages::PrivateBytes;
use hugekit_sys::userfaultfd;

/// The most copies of a watched page. After these, the page counts as written all the time.
const COPIES: usize = 8;

/// The most attempts to register a page while another snapshot is being made there.
const TURNS: usize = 200;

/// Copies of the edges of one snapshot.
#[derive(Debug)]
pub(crate) struct Edges {
    /// The requested range, and its whole pages.
    range: Range<usize>,
    inner: Range<usize>,
    kept: PrivateBytes,
}

/// The way to notice or prevent writes to an edge during its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    Watched,
    Stopped,
}

/// The reason why the edges could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EdgeError {
    /// The page was written during each copy.
    Unquiet(usize),
    /// The page does not exist any more.
    Changed(usize),
    /// The kernel refused to guard the page.
    Kernel(&'static str, Errno, usize),
}

impl Edges {
    pub(crate) fn new(range: &Range<usize>, inner: &Range<usize>) -> rustix::io::Result<Self> {
        let kept = PrivateBytes::new(range.len() - inner.len(), 1)?;
        // Populates the memory here: a page fault while writers wait would take longer than the copy.
        (0..range.len() - inner.len()).step_by(page_size()).for_each(|at| {
            // SAFETY: the address lies within the bytes, which no other value has.
            unsafe { kept.start().add(at).write(0) };
        });
        Ok(Self { range: range.clone(), inner: inner.clone(), kept })
    }

    /// Returns the copy of an edge, from this address on.
    pub(crate) fn at(&self, address: usize) -> *mut u8 {
        let skipped = if address < self.inner.start { 0 } else { self.inner.len() };
        self.kept.start().wrapping_add(address - self.range.start - skipped)
    }

    /// Returns the pages that contain edges.
    pub(super) fn pages(&self) -> [Option<Range<usize>>; 2] {
        pages_of(&self.range)
    }

    /// Copies the edges as they are at one moment, while writers of the inner pages wait. While a page is stopped,
    /// this code must not write to memory that could lie there. It writes only to the copy and to its stack, which
    /// the caller has checked.
    pub(super) fn copy_all(
        &self,
        protector: &WriteProtector,
        guard: &Guarding<'_>,
    ) -> Result<(), EdgeError> {
        let pages = self.pages();
        let mut guarded = [None, None];
        let mut taken = Ok(());
        for (page, guarded) in pages.iter().flatten().zip(&mut guarded) {
            // If another snapshot needs the page, it is held and does not change. Protection by other code proves
            // nothing.
            if !(guard.others)(page.start) || !protector.is_protected(page) {
                taken = taken.and_then(|()| guard.start_guarding(protector, page));
                *guarded = taken.is_ok().then(|| page.clone());
            }
        }
        taken = taken.and_then(|()| self.copy_unwritten(protector, guard, &guarded));
        guarded.iter().flatten().for_each(|page| guard.stop_guarding(page));
        taken
    }

    fn copy_unwritten(
        &self,
        protector: &WriteProtector,
        guard: &Guarding<'_>,
        guarded: &[Option<Range<usize>>; 2],
    ) -> Result<(), EdgeError> {
        let mut written = None;
        for _ in 0..COPIES {
            for page in guarded.iter().flatten() {
                let kernel = |errno| EdgeError::Kernel("UFFDIO_WRITEPROTECT", errno, page.start);
                userfaultfd::protect(guard.descriptor, page, true).map_err(kernel)?;
            }
            self.copy()?;
            let is_written = |page: &&Range<usize>| !protector.is_protected(page);
            written = self.pages().iter().flatten().find(is_written).map(|page| page.start);
            if written.is_none() {
                return Ok(());
            }
        }
        match (written, guard.how) {
            (Some(page), Guard::Stopped) => Err(EdgeError::Changed(page)),
            (page, _) => Err(EdgeError::Unquiet(page.unwrap_or(self.range.start))),
        }
    }

    fn copy(&self) -> Result<(), EdgeError> {
        let parts = [self.range.start..self.inner.start, self.inner.end..self.range.end];
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let whole = std::iter::once((0..part.len(), Reach::Near));
            // SAFETY: the copy has as many bytes for this edge. It is read only after the snapshot is made.
            unsafe { no_fault::copy(self.at(part.start), part.start, whole) }
                .map_err(|_| EdgeError::Changed(part.start))?;
        }
        Ok(())
    }
}

/// A descriptor that guards pages while they are copied.
pub(super) struct Guarding<'a> {
    pub(super) how: Guard,
    pub(super) descriptor: BorrowedFd<'a>,
    /// Returns true if a snapshot contains an address, so its page is registered with the
    /// protector.
    pub(super) others: &'a dyn Fn(usize) -> bool,
}

/// Returns the pages that contain the edges of a range.
pub(super) fn pages_of(range: &Range<usize>) -> [Option<Range<usize>>; 2] {
    let page = |address: usize| address - address % page_size();
    let of = |at: usize| Some(page(at)).filter(|&start| start != at);
    let first = of(range.start);
    let last = of(range.end).filter(|&last| Some(last) != first);
    [first, last].map(|start| start.map(|start| start..start + page_size()))
}

impl Guarding<'_> {
    /// Registers a page with this descriptor. It is unregistered from the protector first, because the snapshots no
    /// longer need it.
    fn start_guarding(
        &self,
        protector: &WriteProtector,
        page: &Range<usize>,
    ) -> Result<(), EdgeError> {
        if (self.others)(page.start) {
            let _ = protector.unregister(page);
        }
        let register = || userfaultfd::register_for_copies(self.descriptor, page, false);
        let mut registered = register();
        for _ in 0..TURNS {
            if registered != Err(Errno::BUSY) {
                break;
            }
            // Most likely another thread is making a snapshot with an edge on the same page.
            rustix::thread::sched_yield();
            registered = register();
        }
        registered.map_err(|errno| EdgeError::Kernel("UFFDIO_REGISTER", errno, page.start))?;
        protector.fill(self.descriptor, page).map_err(|errno| {
            self.stop_guarding(page);
            EdgeError::Kernel("UFFDIO_ZEROPAGE", errno, page.start)
        })
    }

    /// Lets all writes through, and wakes those that wait.
    fn stop_guarding(&self, page: &Range<usize>) {
        let lifted = userfaultfd::protect(self.descriptor, page, false);
        if userfaultfd::unregister(self.descriptor, page).is_err() && lifted.is_err() {
            let _ = userfaultfd::abandon(self.descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::interval::inner_of;

    #[test]
    fn edges_of_any_range_are_the_pages_that_others_share() {
        let page = page_size();
        let pages = |range: Range<usize>| {
            let edges = Edges::new(&range, &inner_of(&range, page)).unwrap();
            edges.pages().map(|found| found.map(|found| found.start / page))
        };
        assert_eq!(pages(page..3 * page), [None, None]);
        assert_eq!(pages(page + 1..3 * page), [Some(1), None]);
        assert_eq!(pages(page..3 * page + 5), [None, Some(3)]);
        assert_eq!(pages(page + 1..3 * page - 1), [Some(1), Some(2)]);
        assert_eq!(pages(page + 1..page + 2), [Some(1), None]);
        assert_eq!(pages(page..page + 2), [None, Some(1)]);
        assert_eq!(pages(2 * page - 1..2 * page + 1), [Some(1), Some(2)]);
    }
}
