//! What is asked of the kernel about protected memory.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::param::page_size;

use super::error::SnapshotError;
use crate::sys::{pagemap, userfaultfd};

/// The two descriptors of one process that protecting and looking take. Its functions are async-signal-safe,
/// all but `new`.
#[derive(Debug)]
pub(super) struct Line {
    descriptor: OwnedFd,
    pagemap: OwnedFd,
}

impl Line {
    pub(super) fn new(descriptor: OwnedFd) -> Result<Self, SnapshotError> {
        let pagemap =
            pagemap::open_own().map_err(SnapshotError::kernel("open(/proc/self/pagemap)"))?;
        // Asked once of nothing, so that a kernel without it says so before anything is protected.
        pagemap::is_protected(pagemap.as_fd(), &(0..page_size()))
            .map_err(SnapshotError::kernel("PAGEMAP_SCAN (Linux 6.7)"))?;
        Ok(Self { descriptor, pagemap })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Whether every page that holds some of the range is protected.
    pub(super) fn is_protected(&self, range: &Range<usize>) -> bool {
        pagemap::is_protected(self.pagemap.as_fd(), &whole_pages(range)) == Ok(true)
    }

    /// The pages from the first on up to one that is not protected.
    pub(super) fn protected_until(&self, range: &Range<usize>) -> usize {
        match pagemap::first_protected(self.pagemap.as_fd(), range) {
            Ok(Some(found)) if found.start == range.start => found.end,
            _ => range.start,
        }
    }

    pub(super) fn register(&self, range: &Range<usize>) -> io::Result<()> {
        userfaultfd::register_for_copies(self.descriptor(), range, false)
    }

    /// Has every write come to us. Where a page cannot be protected, nothing behind it is.
    pub(super) fn protect(&self, range: &Range<usize>) -> io::Result<()> {
        userfaultfd::protect(self.descriptor(), range, true)
    }

    /// Lets writes pass, wherever in the range there still is memory that we protected.
    pub(super) fn lift(&self, range: &Range<usize>) {
        self.each_part(range, |descriptor, part| userfaultfd::protect(descriptor, part, false));
    }

    /// Leaves the range to the kernel again, as far as it is ours.
    pub(super) fn unregister(&self, range: &Range<usize>) {
        self.each_part(range, userfaultfd::unregister);
    }

    /// Has whoever waits at this address try again.
    pub(super) fn wake(&self, address: usize) {
        let page = address - address % page_size();
        let _ = userfaultfd::wake(self.descriptor(), &(page..page + page_size()));
    }

    /// Does it to all of the range, or, where some of that is not ours any more, to each part that is still
    /// protected.
    fn each_part(
        &self,
        range: &Range<usize>,
        act: fn(BorrowedFd<'_>, &Range<usize>) -> io::Result<()>,
    ) {
        let act = |range: &Range<usize>| loop {
            match act(self.descriptor(), range) {
                // Somebody changes the process's mappings at this moment.
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => break done,
            }
        };
        if act(range).is_ok() {
            return;
        }
        let mut rest = range.clone();
        while let Ok(Some(part)) = pagemap::first_protected(self.pagemap.as_fd(), &rest) {
            if act(&part).is_err() {
                part.clone().step_by(page_size()).for_each(|page| {
                    let _ = act(&(page..page + page_size()));
                });
            }
            rest.start = part.end;
        }
        let _ = userfaultfd::wake(self.descriptor(), range);
    }
}

/// The pages that hold some of the range.
fn whole_pages(range: &Range<usize>) -> Range<usize> {
    range.start - range.start % page_size()..range.end.next_multiple_of(page_size())
}
