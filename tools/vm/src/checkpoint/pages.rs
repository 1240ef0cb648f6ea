//! Pages of another process: their presence, from `/proc/PID/pagemap`, and their bytes.
//!
//! Missing memory must not be read while a userfaultfd handles it: the reader would wait for the
//! handler, which is the reader itself.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use hugekit_machine::processes::ProcessFolder;
use hugekit_sys::pagemap::entries;
use hugekit_sys::pagemap::scan::{IS_HUGE, PageRun, ScanRequest, scan};
use rustix::param::page_size;

/// The page map and the memory of a process.
#[derive(Debug)]
pub(crate) struct Pages {
    pid: i32,
    map: File,
}

impl Pages {
    pub(crate) fn of_process(folder: &ProcessFolder) -> io::Result<Self> {
        Ok(Self { pid: folder.pid(), map: folder.file("pagemap")? })
    }

    /// Returns runs of present pages, ascending. The addresses lie in one aligned huge page, whose
    /// entries are those of one page table.
    pub(crate) fn populated(&self, addresses: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let page = page_size() as u64;
        let mut runs: Vec<Range<u64>> = Vec::new();
        let starts = (addresses.start..addresses.end).step_by(page_size());
        for (entry, start) in entries::all(&self.map, addresses)?.into_iter().zip(starts) {
            if !entry.is_populated() {
                continue;
            }
            match runs.last_mut() {
                Some(last) if last.end == start => last.end += page,
                _ => runs.push(start..start + page),
            }
        }
        Ok(runs)
    }

    /// Returns true if all pages of an aligned huge page are present, and on base pages. Before
    /// Linux 6.7, the kernel cannot report huge pages, and the result is true if all pages are
    /// present.
    pub(crate) fn is_full_and_not_huge(&self, addresses: &Range<u64>) -> io::Result<bool> {
        Ok(self.populated(addresses)? == [addresses.clone()] && !self.is_huge(addresses))
    }

    fn is_huge(&self, addresses: &Range<u64>) -> bool {
        let range = addresses.clone();
        let request =
            ScanRequest { range, max_pages: 0, inverted: 0, all: IS_HUGE, any: 0, returned: 0 };
        let found = scan(self.map.as_fd(), &request, &mut [PageRun::default()]);
        found.is_ok_and(|found| found.runs > 0)
    }

    /// Reads all of these bytes, which must be present.
    pub(crate) fn read(&self, address: u64, to: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < to.len() {
            match self.read_some(address + done as u64, &mut to[done..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    fn read_some(&self, address: u64, to: &mut [u8]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let base = std::ptr::without_provenance_mut(address as usize);
        let remote = libc::iovec { iov_base: base, iov_len: to.len() };
        // SAFETY: the kernel writes at most `iov_len` bytes to `to`, which has as many and is
        // borrowed until the call returns. The other process's memory is only read.
        let read = unsafe {
            libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
        };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapMut;

    use super::*;

    /// Reads this process, in which every second page was written.
    #[test]
    fn populated_pages_are_told_and_read() {
        let (page, count) = (page_size(), 8);
        let mut memory = MmapMut::map_anon(count * page).unwrap();
        for index in (0..count).step_by(2) {
            memory[index * page] = index as u8 + 1;
        }
        let pages = Pages::of_process(&ProcessFolder::own().unwrap()).unwrap();
        let start = memory.as_ptr().addr() as u64;
        let found = pages.populated(&(start..start + (count * page) as u64)).unwrap();
        let at = |index: usize| start + (index * page) as u64;
        // A huge page would make one run of them.
        let single: Vec<_> = (0..count).step_by(2).map(|index| at(index)..at(index + 1)).collect();
        let whole = at(0)..at(count);
        assert!(found == single || found == [whole], "{found:x?}");
        let mut read = vec![0; page];
        pages.read(at(2), &mut read).unwrap();
        assert_eq!(read[0], 3);
    }
}
