//! Page tables of this process, and entries of the page map of any process.
//!
//! Newer kernels return only the requested pages ([`Scanned`]). On older kernels all entries are
//! read, page by page (`entries.rs`). The method is chosen when the page map is opened.

pub mod entries;
pub mod frames;
pub mod scan;
mod scanned;

use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{self, Errno};

pub use self::scanned::Scanned;
use super::injection::{Call, pass};

/// The page map of this process. A forked child that inherits it would read its parent's page map.
#[derive(Debug)]
pub enum PageMap {
    /// The kernel returns pages of requested categories.
    Scanned(Scanned),
    /// All entries are read. They report protection since Linux 5.14.
    Read(OwnedFd),
}

impl PageMap {
    /// Opens the page map of this process. No privilege is needed.
    pub fn open() -> io::Result<Self> {
        pass(Call::Open)?;
        let file = open(c"/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        match Scanned::new(file) {
            Ok(scanned) => Ok(Self::Scanned(scanned)),
            // No such request, of this size or at all.
            Err((file, Errno::NOTTY | Errno::INVAL)) => Ok(Self::Read(file)),
            Err((_, errno)) => Err(errno),
        }
    }

    /// Returns the page map if the kernel scans it, for questions that last too long if all entries
    /// are read.
    pub fn scanned(&self) -> Option<&Scanned> {
        match self {
            Self::Scanned(scanned) => Some(scanned),
            Self::Read(_) => None,
        }
    }

    /// Returns true if every page of the range is protected against writes by userfaultfd.
    /// Async-signal-safe.
    pub fn probe_protected(&self, range: &Range<usize>) -> io::Result<bool> {
        Ok(self.first_protected(range)?.is_some_and(|found| found == *range))
    }

    /// Returns the first run of pages of the range that are protected against writes.
    /// Async-signal-safe.
    pub fn first_protected(&self, range: &Range<usize>) -> io::Result<Option<Range<usize>>> {
        match self {
            Self::Scanned(scanned) => scanned.first_protected(range),
            Self::Read(file) => entries::first(file, range, entries::PageEntry::is_protected),
        }
    }

    /// Returns true if a page of the range is part of a file. Async-signal-safe.
    pub fn probe_file(&self, range: &Range<usize>) -> io::Result<bool> {
        match self {
            Self::Scanned(scanned) => scanned.probe_file(range),
            Self::Read(file) => {
                Ok(entries::first(file, range, entries::PageEntry::is_of_a_file)?.is_some())
            }
        }
    }

    /// Returns the first run of pages of the range that were never touched, or that were discarded.
    pub fn first_untouched(&self, range: &Range<usize>) -> io::Result<Option<Range<usize>>> {
        let file = match self {
            Self::Scanned(scanned) => scanned.file(),
            Self::Read(file) => file,
        };
        entries::first(file, range, entries::PageEntry::is_nothing)
    }
}

#[cfg(test)]
mod tests {
    use rustix::param::page_size;

    use super::super::private_pages::PrivateBytes;
    use super::*;

    fn read() -> PageMap {
        let file = open(c"/proc/self/pagemap", OFlags::RDONLY, Mode::empty()).unwrap();
        PageMap::Read(file)
    }

    #[test]
    #[allow(unsafe_code)]
    fn pages_untouched_are_found_between_others() {
        let (page, pages) = (page_size(), 700);
        let memory = PrivateBytes::new(pages * page, 2 << 20).unwrap();
        let start = memory.start().addr();
        let map = read();
        let untouched = |from: usize| {
            let found = map.first_untouched(&(start + from * page..start + pages * page)).unwrap();
            found.map(|found| (found.start - start) / page..(found.end - start) / page)
        };
        assert_eq!(untouched(0), Some(0..pages));
        assert_eq!(untouched(pages), None);
        for touched in [0, 63, 64, 600] {
            // SAFETY: within the bytes, which no other thread uses.
            unsafe { memory.start().add(touched * page).write_volatile(1) };
        }
        // A huge page may have been given instead.
        if untouched(0) == Some(1..63) {
            assert_eq!(untouched(63), Some(65..600));
            assert_eq!(untouched(601), Some(601..pages));
        }
        assert_eq!(map.probe_file(&(start..start + pages * page)), Ok(false));
        assert_eq!(map.first_protected(&(start..start + page)), Ok(None));
    }

    #[test]
    fn pages_of_files_are_told_alike_by_both_ways() {
        let page = page_size();
        let here = pages_of_files_are_told_alike_by_both_ways as fn() as usize / page * page;
        let stack = std::ptr::from_ref(&page).addr() / page * page;
        let opened = match PageMap::open() {
            Err(io::Errno::NOSYS) => None, // An emulator.
            opened => Some(opened.unwrap()),
        };
        for map in opened.into_iter().chain([read()]) {
            assert_eq!(map.probe_file(&(here..here + page)), Ok(true));
            assert_eq!(map.probe_file(&(stack..stack + page)), Ok(false));
        }
    }
}
