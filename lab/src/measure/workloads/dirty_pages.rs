//! What the kernel notes of writes by itself, page by page: soft-dirty bits, and userfaultfd(2) with
//! `UFFD_FEATURE_WP_ASYNC`. Both begin with every page protected; the first write to one is a fault of the kernel's.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::OwnedFd;

use hugekit_sys::pagemap::entries::{self, PageEntry};
use rustix::io::{self, Errno};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

const CLEAR_REFS: &str = "/proc/self/clear_refs";
/// The value whose write clears all soft-dirty bits of the process.
const SOFT_DIRTY: &str = "4";

const API: Opcode = opcode::read_write::<Api>(0xAA, 0x3F);
const REGISTER: Opcode = opcode::read_write::<Register>(0xAA, 0x00);
const WRITEPROTECT: Opcode = opcode::read_write::<WriteProtect>(0xAA, 0x06);
const VERSION: u64 = 0xAA;
const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const WP_UNPOPULATED: u64 = 1 << 13;
const WP_ASYNC: u64 = 1 << 15;
/// Writes to protected pages, for `UFFDIO_REGISTER`; and that they are to be protected, for `UFFDIO_WRITEPROTECT`.
const REGISTER_WP: u64 = 1 << 1;
const PROTECT: u64 = 1 << 0;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}

/// The kernel's notes of one range of memory.
#[derive(Debug)]
pub struct DirtyPages {
    range: Range<usize>,
    pagemap: File,
    way: Way,
}

#[derive(Debug)]
enum Way {
    SoftDirty,
    WpAsync(OwnedFd),
}

impl DirtyPages {
    /// By soft-dirty bits, of all memory of this process; `None` where the kernel has none.
    pub fn by_soft_dirty(range: Range<usize>) -> io::Result<Option<Self>> {
        let pages = Self { range, pagemap: pagemap()?, way: Way::SoftDirty };
        let first = pages.range.start as *mut u8;
        pages.begin()?;
        let before = pages.count()?;
        // SAFETY: the caller's memory, of which this changes nothing; no reference to it is used meanwhile.
        unsafe { first.write_volatile(first.read_volatile()) };
        Ok((before == 0 && pages.count()? == 1).then_some(pages))
    }

    /// By a userfaultfd of their own; `None` where the kernel has none that notes writes (Linux 6.7).
    pub fn by_wp_async(range: Range<usize>) -> io::Result<Option<Self>> {
        // SAFETY: the descriptor is ours.
        let opened = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) }?;
        let features = WP_ASYNC | WP_UNPOPULATED | WP_HUGETLBFS_SHMEM;
        let mut asked = Api { api: VERSION, features, ioctls: 0 };
        // SAFETY: the structure that this call takes.
        match unsafe { ioctl(&opened, Updater::<API, _>::new(&mut asked)) } {
            Err(Errno::INVAL) => return Ok(None),
            asked => asked?,
        }
        let (start, len) = (range.start as u64, range.len() as u64);
        let mut register = Register { start, len, mode: REGISTER_WP, ioctls: 0 };
        // SAFETY: the opcode is that of `struct uffdio_register`, which lives until the call returns. Registered
        // memory is read and written as before.
        unsafe { ioctl(&opened, Updater::<REGISTER, _>::new(&mut register)) }?;
        Ok(Some(Self { range, pagemap: pagemap()?, way: Way::WpAsync(opened) }))
    }

    /// Nothing is written, from now on.
    pub fn begin(&self) -> io::Result<()> {
        match &self.way {
            Way::SoftDirty => fs::write(CLEAR_REFS, SOFT_DIRTY).map_err(|error| errno(&error)),
            Way::WpAsync(opened) => {
                let (start, len) = (self.range.start as u64, self.range.len() as u64);
                let mut protect = WriteProtect { start, len, mode: PROTECT };
                // SAFETY: the structure that this call takes; writes pass as before.
                unsafe { ioctl(opened, Updater::<WRITEPROTECT, _>::new(&mut protect)) }
            }
        }
    }

    /// Base pages that were written since.
    pub fn count(&self) -> io::Result<usize> {
        let range = self.range.start as u64..self.range.end as u64;
        let is_written = |entry: &PageEntry| match self.way {
            Way::SoftDirty => entry.is_soft_dirty(),
            Way::WpAsync(_) => !entry.is_protected(),
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
