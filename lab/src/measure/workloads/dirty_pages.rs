//! What the kernel notes of writes by itself, page by page: soft-dirty bits, and userfaultfd(2) with
//! `UFFD_FEATURE_WP_ASYNC`. Both begin with every page protected; the first write to one is a fault of the kernel's.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use hugekit_machine::userfaultfd::Features;
use hugekit_sys::pagemap::entries::{self, PageEntry};
use hugekit_sys::userfaultfd;
use rustix::io::{self, Errno};

const CLEAR_REFS: &str = "/proc/self/clear_refs";
/// The value whose write clears all soft-dirty bits of the process.
const SOFT_DIRTY: &str = "4";

const ASYNC: Features = Features::WRITE_PROTECT_ASYNC
    .with(Features::WRITE_PROTECT_UNPOPULATED)
    .with(Features::WRITE_PROTECT_SHARED);

/// The kernel's notes of one range of memory.
#[derive(Debug)]
pub struct DirtyPages {
    range: Range<usize>,
    pagemap: File,
    way: DirtyTracking,
}

/// The kernel's way of tracking written pages.
#[derive(Debug)]
enum DirtyTracking {
    SoftDirty,
    WpAsync(OwnedFd),
}

impl DirtyPages {
    /// By soft-dirty bits, of all memory of this process; `None` where the kernel has none.
    pub fn by_soft_dirty(range: Range<usize>) -> io::Result<Option<Self>> {
        let pages = Self { range, pagemap: pagemap()?, way: DirtyTracking::SoftDirty };
        let first = pages.range.start as *mut u8;
        pages.begin()?;
        let before = pages.count()?;
        // SAFETY: the caller's memory, of which this changes nothing; no reference to it is used meanwhile.
        unsafe { first.write_volatile(first.read_volatile()) };
        Ok((before == 0 && pages.count()? == 1).then_some(pages))
    }

    /// By a userfaultfd of their own; `None` where the kernel has none that notes writes (Linux 6.7).
    pub fn by_wp_async(range: Range<usize>) -> io::Result<Option<Self>> {
        let opened = userfaultfd::new_whole()?;
        match userfaultfd::enable(&opened, ASYNC.0) {
            Err(Errno::INVAL) => return Ok(None),
            enabled => enabled?,
        }
        userfaultfd::register_for_copies(opened.as_fd(), &range, false)?;
        Ok(Some(Self { range, pagemap: pagemap()?, way: DirtyTracking::WpAsync(opened) }))
    }

    /// Nothing is written, from now on.
    pub fn begin(&self) -> io::Result<()> {
        match &self.way {
            DirtyTracking::SoftDirty => {
                fs::write(CLEAR_REFS, SOFT_DIRTY).map_err(|error| errno(&error))
            }
            DirtyTracking::WpAsync(opened) => {
                userfaultfd::protect(opened.as_fd(), &self.range, true)
            }
        }
    }

    /// Base pages that were written since.
    pub fn count(&self) -> io::Result<usize> {
        let range = self.range.start as u64..self.range.end as u64;
        let is_written = |entry: &PageEntry| match self.way {
            DirtyTracking::SoftDirty => entry.is_soft_dirty(),
            DirtyTracking::WpAsync(_) => !entry.is_protected(),
        };
        Ok(entries::all(&self.pagemap, &range)?.iter().filter(|entry| is_written(entry)).count())
    }
}

fn pagemap() -> io::Result<File> {
    File::open("/proc/self/pagemap").map_err(|error| errno(&error))
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use rustix::param::page_size;

    use super::*;
    use crate::measure::workloads::anonymous::{Anonymous, Pages};
    use hugekit_machine::size::MIB;

    #[test]
    fn each_way_counts_the_pages_that_were_written() {
        for pages in [Pages::Base, Pages::Thp] {
            let mut memory = Anonymous::new(pages, 4 * MIB).unwrap();
            memory.bytes().fill(1);
            let ways = [
                DirtyPages::by_soft_dirty(memory.addresses()).unwrap(),
                DirtyPages::by_wp_async(memory.addresses()).unwrap_or(None),
            ];
            for notes in ways.into_iter().flatten() {
                notes.begin().unwrap();
                assert_eq!(notes.count().unwrap(), 0);
                memory.bytes()[page_size() * 3] = 2;
                memory.bytes()[2 * MIB + 1] = 2;
                let count = notes.count().unwrap();
                // Of a huge page, all.
                assert!(count == 2 || count * page_size() == 4 * MIB, "{notes:?}: {count}");
                notes.begin().unwrap();
                assert_eq!(notes.count().unwrap(), 0);
            }
        }
    }
}
