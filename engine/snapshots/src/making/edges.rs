//! The bytes at both ends of a range that share a page with others' bytes. Less than a page each, they are copied
//! when the snapshot is made, and must be what they were at its moment, with everything between protected.
//!
//! The page is not ours to protect as the rest is: in place, a system call that writes a neighbour's bytes there
//! would fail, and a thread whose stack lies there would die. So the page is only *watched* while the inner pages
//! stand still: a descriptor of its own has the kernel note the first write and let it pass. Copied and not written
//! since, the bytes are those of one moment; written, they are copied again.
//!
//! If others write the page all the time, that never happens, and before Linux 6.7 the kernel notes no write. Then the
//! page is *stopped* for the microseconds of the copy, by a descriptor whose faults wait in the kernel, those of system
//! calls and signal frames too. No thread's stack is needed for that. With a descriptor that serves faults of user code
//! alone, the kernel would fail instead, so a process that has no other gets an error.
//!
//! Where another snapshot that is handled in the same way protects the page as a whole, it is *held*: nothing lifts
//! its protection during the copy.
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

/// Copies of a page that is watched until it counts as one that is written all the time.
const COPIES: usize = 8;

/// Times that another snapshot which is being made may be found at the same page.
const TURNS: usize = 200;

/// Copies of the edges of one snapshot.
#[derive(Debug)]
pub(crate) struct Edges {
    /// The requested range, and its whole pages.
    range: Range<usize>,
    inner: Range<usize>,
    kept: PrivateBytes,
}

/// The guard that keeps the bytes of an edge from changing unnoticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    Watched,
    Stopped,
}

/// The reason why the edges could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EdgeError {
    /// The page was written whenever it was copied.
    Unquiet(usize),
    /// There is no such page any more.
    Changed(usize),
    /// The kernel refused to guard the page.
    Kernel(&'static str, Errno, usize),
}

impl Edges {
    pub(crate) fn new(range: &Range<usize>, inner: &Range<usize>) -> rustix::io::Result<Self> {
        let kept = PrivateBytes::new(range.len() - inner.len(), 1)?;
        // Touched here: a page fault while writers wait takes longer than the copy.
        (0..range.len() - inner.len()).step_by(page_size()).for_each(|at| {
            // SAFETY: within the bytes, which no other value has.
            unsafe { kept.start().add(at).write(0) };
        });
        Ok(Self { range: range.clone(), inner: inner.clone(), kept })
    }

    /// Returns the place of the copy from an address of an edge on.
    pub(crate) fn at(&self, address: usize) -> *mut u8 {
        let skipped = if address < self.inner.start { 0 } else { self.inner.len() };
        self.kept.start().wrapping_add(address - self.range.start - skipped)
    }

    /// The pages that edges lie on.
    pub(super) fn pages(&self) -> [Option<Range<usize>>; 2] {
        pages_of(&self.range)
    }

    /// Copies the edges as they are at one moment, while the inner pages stand still. Between the two calls for a
    /// page that is stopped, nothing here may write to memory that could lie there: only to what is kept, and to the
    /// stack, which the caller has looked at.
    pub(super) fn copy_all(
        &self,
        protector: &WriteProtector,
        guard: &Guarding<'_>,
    ) -> Result<(), EdgeError> {
        let pages = self.pages();
        let mut guarded = [None, None];
        let mut taken = Ok(());
        for (page, guarded) in pages.iter().flatten().zip(&mut guarded) {
            // Held, it stays as it is if another snapshot needs it. What other code has protected says nothing.
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
            // SAFETY: as many bytes as are kept of this edge; they are read when the snapshot is there.
            unsafe { no_fault::copy(self.at(part.start), part.start, whole) }
                .map_err(|_| EdgeError::Changed(part.start))?;
        }
        Ok(())
    }
}

/// A descriptor that guards pages for as long as they are copied.
pub(super) struct Guarding<'a> {
    pub(super) how: Guard,
    pub(super) descriptor: BorrowedFd<'a>,
    /// True if some snapshot has an address, whose range is registered with the protector then.
    pub(super) others: &'a dyn Fn(usize) -> bool,
}

/// The pages that the edges of a range lie on.
pub(super) fn pages_of(range: &Range<usize>) -> [Option<Range<usize>>; 2] {
    let page = |address: usize| address - address % page_size();
    let of = |at: usize| Some(page(at)).filter(|&start| start != at);
    let first = of(range.start);
    let last = of(range.end).filter(|&last| Some(last) != first);
    [first, last].map(|start| start.map(|start| start..start + page_size()))
}

impl Guarding<'_> {
    /// Has writes to the page come to this descriptor. What snapshots have of it is not protected any more, and
    /// need not be registered.
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
            // Most likely another thread makes a snapshot whose edge is there too.
            rustix::thread::sched_yield();
            registered = register();
        }
        registered.map_err(|errno| EdgeError::Kernel("UFFDIO_REGISTER", errno, page.start))?;
        protector.fill(self.descriptor, page).map_err(|errno| {
            self.stop_guarding(page);
            EdgeError::Kernel("UFFDIO_ZEROPAGE", errno, page.start)
        })
    }

    /// Lets all writes pass, and those that wait.
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
