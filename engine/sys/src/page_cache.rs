//! The page cache of a file: its pages, their sizes, and how the cache drops and rereads them.
//!
//! A load from a mapped file that another process truncates ends the program by SIGBUS. So no
//! function here loads a byte by its address. The kernel loads it instead, as if from another
//! process (`process_vm_readv(2)`). This call returns EFAULT if a load would end in SIGBUS.
#![allow(unsafe_code)]

use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::{self, Errno};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::param::page_size;

use super::HUGE_PAGE_BYTES;
use super::injection::{Call, pass};
use super::last_error;
use super::mapping::{self, SharedMapping};
use super::memory::populate_read;
use super::pagemap::PageMap;

/// A part of a file, mapped shared and read-only at a multiple of 2 MiB. A drop unmaps it.
///
/// No reference to its bytes exists, and the mapping cannot be written, so a lock of it copies
/// nothing.
#[derive(Debug)]
pub struct CacheMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range that only this value knows. None of its methods reads or writes a byte of it.
unsafe impl Send for CacheMapping {}
// SAFETY: as for `Send`: no method reads or writes a byte of the range.
unsafe impl Sync for CacheMapping {}

impl CacheMapping {
    /// Maps `len` bytes from `offset` on. Both are multiples of the page size, and `len` is not 0.
    /// The bytes may lie after the end of the file.
    pub fn new(file: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let held = SharedMapping::reserve(len, HUGE_PAGE_BYTES)?;
        let (start, how) = (held.start().as_ptr(), MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the mapping replaces the addresses that were just reserved, which no thread uses.
        match unsafe { mapping::map(start, len, ProtFlags::READ, how, file, offset) } {
            Ok(start) => Ok(Self { start, len }),
            Err(errno) => {
                // SAFETY: the addresses that were just reserved: nothing was mapped over them, and no thread uses them.
                unsafe { held.unmap() }?;
                Err(errno)
            }
        }
    }

    /// Requests that the kernel reads missing pages in folios of 2 MiB, if the file system supports
    /// this and such memory is free.
    pub fn want_huge_folios(&self) -> io::Result<()> {
        self.advise(0..self.len, Advice::LinuxHugepage)
    }

    /// Requests that the kernel reads no page of these bytes ahead of its first access.
    pub fn read_nothing_ahead(&self, bytes: Range<usize>) -> io::Result<()> {
        self.advise(bytes, Advice::Random)
    }

    /// Maps these bytes in the page tables. Pages that are not in the cache are read. Returns
    /// `FAULT` for bytes after the end of the file and for bytes that cannot be read.
    pub fn populate(&self, bytes: Range<usize>) -> io::Result<()> {
        match self.read_each_page(bytes.clone()) {
            // Of an emulator of system calls, or a filter. Before Linux 6.9, this call never ends at bytes that cannot be
            // read.
            Err(Errno::NOSYS | Errno::PERM) => populate_read(self.at(bytes.start), bytes.len()),
            other => other,
        }
    }

    /// Returns the number of pages of these bytes that are in the cache.
    pub fn cached_pages(&self, bytes: Range<usize>) -> io::Result<usize> {
        self.check(&bytes);
        let mut pages = vec![0_u8; bytes.len() / page_size()];
        pass(Call::Mincore)?;
        // SAFETY: the kernel writes one byte for each page of the range, which is part of this mapping.
        let refused = unsafe {
            libc::mincore(self.at(bytes.start).cast(), bytes.len(), pages.as_mut_ptr()) != 0
        };
        last_error(refused)?;
        Ok(pages.iter().filter(|&&page| page & 1 == 1).count())
    }

    /// Returns true if the aligned 2 MiB at `offset` are one huge page of the cache. No byte of
    /// them may have been touched in this mapping, and their first page must be in the cache. The
    /// call touches this page.
    pub fn touch_is_huge(&self, map: &PageMap, offset: usize) -> io::Result<bool> {
        self.populate(offset..offset + page_size())?;
        let start = self.at(offset).addr();
        let unit = start..start + HUGE_PAGE_BYTES;
        match map.scanned() {
            Some(scanned) => scanned.probe_huge(&unit),
            // The kernel maps what lies in the cache around a touched page, but only 64 KiB of it: the last page of the
            // unit is mapped only with all of a huge page.
            None => Ok(map.first_untouched(&(unit.end - page_size()..unit.end))?.is_none()),
        }
    }

    /// Makes the CPU read a byte of each page. The disk has written the pages, and a hypervisor may
    /// find memory for each 4 KiB only at the first access of the CPU. The first program that reads
    /// the file would wait for this. Returns `FAULT` if a load would end in SIGBUS.
    pub fn read_each_page(&self, bytes: Range<usize>) -> io::Result<()> {
        const TOGETHER: usize = 512;
        self.check(&bytes);
        let mut read = [0_u8; TOGETHER];
        let all: Vec<usize> = bytes.step_by(page_size()).collect();
        for pages in all.chunks(TOGETHER) {
            let byte_of =
                |&offset: &usize| libc::iovec { iov_base: self.at(offset).cast(), iov_len: 1 };
            let from: Vec<_> = pages.iter().map(byte_of).collect();
            let to = libc::iovec { iov_base: read.as_mut_ptr().cast(), iov_len: from.len() };
            let (own, count) =
                (rustix::process::getpid().as_raw_pid(), from.len() as libc::c_ulong);
            pass(Call::ProcessVmReadv)?;
            // SAFETY: the kernel writes at most one byte for each of `from` to `read`, which has room for all. It reads
            // this value's mapping as it reads memory of another process: a page that is not there ends the call.
            let done =
                unsafe { libc::process_vm_readv(own, &raw const to, 1, from.as_ptr(), count, 0) };
            last_error(done < 0)?;
            if done as usize != from.len() {
                return Err(Errno::FAULT);
            }
        }
        Ok(())
    }

    /// Makes one huge page of the cache from these 2 MiB (for files that are not in memory: only
    /// since Linux 7.2).
    pub fn collapse(&self, offset: usize) -> io::Result<()> {
        self.check(&(offset..offset + HUGE_PAGE_BYTES));
        // SAFETY: the addresses are of this value's mapping of a file, which no userfaultfd watches.
        unsafe { mapping::collapse(self.at(offset), HUGE_PAGE_BYTES) }
    }

    /// Reads all bytes, and keeps them in memory until they are unmapped. Returns `NOMEM` if the
    /// limit of locked memory is smaller, or if the file ends before.
    pub fn lock(&self) -> io::Result<()> {
        pass(Call::Mlock)?;
        // SAFETY: the addresses are this value's; a lock changes no byte of them.
        unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.len) }
    }

    /// Returns the first address.
    pub fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    fn advise(&self, bytes: Range<usize>, advice: Advice) -> io::Result<()> {
        self.check(&bytes);
        pass(Call::Madvise)?;
        // SAFETY: neither advice of this module changes a byte or an access, and the addresses are this value's.
        unsafe { rustix::mm::madvise(self.at(bytes.start).cast(), bytes.len(), advice) }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.start.as_ptr().wrapping_add(offset)
    }

    fn check(&self, bytes: &Range<usize>) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len, "{bytes:?} of {}", self.len);
    }
}

impl Drop for CacheMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and known to this value only.
        if let Err(errno) = unsafe { mapping::unmap(self.start.as_ptr(), self.len) } {
            crate::events::error!("part of a file cannot be unmapped: {errno}");
        }
    }
}

/// Returns true if the kernel reports to this process which pages of a file are in the cache. The
/// kernel reports it to the owner, to root, and to users that may write to the file. For other
/// users it reports that all pages are in the cache, even pages after the end of the file, which
/// reveals this.
pub fn tells_cached_pages(file: impl AsFd, len: u64) -> io::Result<bool> {
    let page = page_size();
    let behind = CacheMapping::new(file, len.next_multiple_of(page as u64), page)?;
    Ok(behind.cached_pages(0..page)? == 0)
}

/// Drops the pages of the range from the cache, except those that are dirty, mapped, locked or in use.
pub fn drop_clean(file: impl AsFd, range: &Range<u64>) -> io::Result<()> {
    // No length means up to the end of the file.
    let Some(len) = NonZeroU64::new(range.end - range.start) else { return Ok(()) };
    pass(Call::Fadvise)?;
    rustix::fs::fadvise(file, range.start, Some(len), rustix::fs::Advice::DontNeed)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn file(bytes: usize) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![7; bytes], 0).unwrap();
        file
    }

    #[test]
    fn cached_pages_of_a_file_are_counted_and_behind_its_end_there_are_none() {
        let page = page_size();
        let file = file(8 * page);
        let mapping = CacheMapping::new(&file, 0, 16 * page).unwrap();
        assert_eq!(mapping.address() % HUGE_PAGE_BYTES, 0);
        assert_eq!(mapping.cached_pages(0..16 * page), Ok(8));
        assert_eq!(mapping.populate(8 * page..9 * page), Err(Errno::FAULT));
        // An emulator of system calls may not know the call.
        let read = mapping.read_each_page(0..8 * page);
        assert!(matches!(read, Ok(()) | Err(Errno::NOSYS)), "{read:?}");
        assert!(mapping.read_each_page(0..16 * page).is_err());
        assert_eq!(tells_cached_pages(&file, 8 * page as u64), Ok(true));
    }

    #[test]
    fn pages_are_dropped_unless_they_are_mapped_and_are_read_again() {
        let page = page_size();
        let file = file(64 * page);
        let all = 0..64 * page as u64;
        file.sync_all().unwrap();
        let mapping = CacheMapping::new(&file, 0, 64 * page).unwrap();
        mapping.read_nothing_ahead(0..64 * page).unwrap();
        mapping.populate(0..64 * page).unwrap();
        drop_clean(&file, &all).unwrap();
        assert_eq!(mapping.cached_pages(0..64 * page), Ok(64));
        drop(mapping);
        let mapping = CacheMapping::new(&file, 0, 64 * page).unwrap();
        // A tmpfs keeps its pages: they are nowhere else.
        if crate::memfd::huge_page(&file).unwrap().is_none() {
            drop_clean(&file, &all).unwrap();
            assert_eq!(mapping.cached_pages(0..64 * page), Ok(0));
        }
        mapping.populate(0..page).unwrap();
        assert!(mapping.cached_pages(0..64 * page).unwrap() > 0);
    }

    /// A file that was written in small pieces has small pages, and both methods report this.
    #[test]
    fn small_pages_are_not_huge_by_either_way() {
        let file = tempfile::tempfile().unwrap();
        for at in (0..HUGE_PAGE_BYTES).step_by(4096) {
            file.write_all_at(&[7; 4096], at as u64).unwrap();
        }
        let open = || rustix::fs::open(c"/proc/self/pagemap", rustix::fs::OFlags::RDONLY, 0.into());
        for map in PageMap::open().into_iter().chain([PageMap::Read(open().unwrap())]) {
            let mapping = CacheMapping::new(&file, 0, HUGE_PAGE_BYTES).unwrap();
            assert_eq!(mapping.touch_is_huge(&map, 0), Ok(false));
        }
    }

    /// Both methods recognize huge pages of the cache, if this file system and this moment have
    /// any.
    #[test]
    fn both_ways_find_the_same_huge_pages() {
        let file = file(2 * HUGE_PAGE_BYTES);
        let open = || rustix::fs::open(c"/proc/self/pagemap", rustix::fs::OFlags::RDONLY, 0.into());
        let found: Vec<_> = PageMap::open()
            .into_iter()
            .chain([PageMap::Read(open().unwrap())])
            .map(|map| {
                let mapping = CacheMapping::new(&file, 0, 2 * HUGE_PAGE_BYTES).unwrap();
                [0, HUGE_PAGE_BYTES].map(|at| mapping.touch_is_huge(&map, at).unwrap())
            })
            .collect();
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}");
    }
}
