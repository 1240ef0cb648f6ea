//! The page map as a file with one entry for each page, read with `pread`(2), on kernels that
//! cannot scan it.
//!
//! Page tables may change between two reads. So each question here is about single pages.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::param::page_size;

use super::super::injection::{Call, pass};

/// Entries read together: what a signal handler can bear on its stack. A power of two, so that no read crosses the
/// end of a page table. (A table that changes at this moment may be left out, seen in the sources of Linux 6.1, and
/// what a longer read says of the next table would be where that of the first should be.)
const TOGETHER: usize = 64;
const ENTRY: usize = size_of::<u64>();

/// The number of attempts to read a page table that changes at the same moment.
const TRIES: u32 = 1000;

/// An entry of `/proc/PID/pagemap`: the facts of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageEntry(u64);

impl PageEntry {
    /// Decodes one entry from its bytes.
    fn of(bytes: &[u8]) -> Self {
        Self(u64::from_ne_bytes(bytes.try_into().expect("as many bytes as an entry has")))
    }

    const FRAME: u64 = (1 << 55) - 1;
    const SOFT_DIRTY: u64 = 1 << 55;
    const EXCLUSIVE: u64 = 1 << 56;
    const PROTECTED: u64 = 1 << 57;
    const OF_A_FILE: u64 = 1 << 61;
    const SWAPPED: u64 = 1 << 62;
    const PRESENT: u64 = 1 << 63;

    /// Returns the number of the page's frame, if the page is in memory. The kernel reports it only
    /// with `CAP_SYS_ADMIN`, and returns 0 otherwise.
    pub fn frame(self) -> Option<u64> {
        let frame = self.0 & Self::FRAME;
        (self.0 & Self::PRESENT != 0 && frame != 0).then_some(frame)
    }

    /// Returns true if the page is protected against writes by userfaultfd (Linux 5.14): mapped,
    /// swapped out or marked.
    pub fn is_protected(self) -> bool {
        self.0 & Self::PROTECTED != 0
    }

    /// Returns true if the page is in memory and mapped only by this process. False for the
    /// kernel's page of zeroes, and for a page that is shared since a fork.
    pub fn is_own(self) -> bool {
        self.0 & (Self::PRESENT | Self::EXCLUSIVE) == Self::PRESENT | Self::EXCLUSIVE
    }

    /// Returns true if the page has bytes, in memory or swapped out. A poisoned page counts as
    /// swapped out.
    pub fn is_populated(self) -> bool {
        self.0 & (Self::PRESENT | Self::SWAPPED) != 0
    }

    /// Returns true if the page was written since the kernel was asked to record writes.
    pub fn is_soft_dirty(self) -> bool {
        self.0 & Self::SOFT_DIRTY != 0
    }

    pub(super) fn is_of_a_file(self) -> bool {
        self.0 & Self::OF_A_FILE != 0
    }

    /// Returns true if the page tables have no entry for the page.
    pub(super) fn is_nothing(self) -> bool {
        self.0 & (Self::PRESENT | Self::SWAPPED | Self::PROTECTED) == 0
    }
}

/// Returns the entries of all pages of a range, from a process's page map. Page tables are read one
/// by one, because the kernel leaves out a table that changes at that moment.
///
/// # Errors
/// `SRCH` if the process has ended.
pub fn all(map: impl AsFd, range: &Range<u64>) -> io::Result<Vec<PageEntry>> {
    let page = page_size() as u64;
    let (mut next, end) = (range.start / page, range.end.div_ceil(page));
    let of_table = page / ENTRY as u64;
    let mut entries = Vec::with_capacity((end - next) as usize);
    let mut bytes = vec![0; page_size()];
    while next < end {
        let count = (end - next).min(of_table - next % of_table);
        let wanted = &mut bytes[..count as usize * ENTRY];
        read_table(map.as_fd(), wanted, next * ENTRY as u64)?;
        entries.extend(wanted.chunks_exact(ENTRY).map(PageEntry::of));
        next += count;
    }
    Ok(entries)
}

fn read_table(map: BorrowedFd<'_>, wanted: &mut [u8], at: u64) -> io::Result<()> {
    let mut most = 0;
    for _ in 0..TRIES {
        pass(Call::Pread)?;
        match io::pread(map, &mut *wanted, at) {
            Ok(count) if count == wanted.len() => return Ok(()),
            Ok(count) => most = most.max(count),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        rustix::thread::sched_yield();
    }
    Err(if most == 0 { Errno::SRCH } else { Errno::AGAIN })
}

/// Returns the first run of wanted pages. Async-signal-safe. The entries lie in no other function's
/// stack frame, because a handler has 2 KiB of stack for all of its calls.
#[inline(never)]
pub(super) fn first(
    file: &OwnedFd,
    range: &Range<usize>,
    wanted: impl Fn(PageEntry) -> bool,
) -> io::Result<Option<Range<usize>>> {
    let (mut next, mut begins) = (range.start, None);
    let mut entries = [0; TOGETHER * ENTRY];
    while next < range.end {
        for entry in read(file, next..range.end, &mut entries)? {
            match (wanted(entry), begins) {
                (true, None) => begins = Some(next),
                (false, Some(begin)) => return Ok(Some(begin..next)),
                _ => {}
            }
            next += page_size();
        }
    }
    Ok(begins.map(|begin| begin..next))
}

/// Reads the entries of the first pages of a range: at least one, and at most as many as one read returns.
fn read<'a>(
    file: &OwnedFd,
    range: Range<usize>,
    entries: &'a mut [u8; TOGETHER * ENTRY],
) -> io::Result<impl Iterator<Item = PageEntry> + use<'a>> {
    let number = range.start / page_size();
    let count = (range.len().div_ceil(page_size())).min(TOGETHER - number % TOGETHER);
    let wanted = &mut entries[..count * ENTRY];
    for _ in 0..TRIES {
        pass(Call::Pread)?;
        match io::pread(file.as_fd(), &mut *wanted, (number * ENTRY) as u64) {
            Ok(0) | Err(Errno::INTR) => {}
            read => return Ok(wanted[..read?].chunks_exact(ENTRY).map(PageEntry::of)),
        }
        rustix::thread::sched_yield();
    }
    Err(Errno::AGAIN)
}
