//! One ioctl that walks the page tables and says where the first pages are that are wanted: `PAGEMAP_SCAN`
//! (Linux 6.7).
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use rustix::param::page_size;

use super::super::injection::{Call, Novelty, has, pass};

const PAGEMAP_SCAN: Opcode = opcode::read_write::<ScanArgument>(b'f', 16);

const IS_WRITTEN: u64 = 1 << 1;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_HUGE: u64 = 1 << 6;

/// `struct pm_scan_arg`.
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
struct ScannedRange {
    start: u64,
    end: u64,
    categories: u64,
}

/// Which pages to look for.
#[derive(Clone, Copy)]
struct ScanFilter {
    inverted: u64,
    all: u64,
    any: u64,
}

/// Pages whose write would come to a userfaultfd: mapped, swapped out or marked, and protected. A page that
/// was discarded is none of these.
const PROTECTED: ScanFilter =
    ScanFilter { inverted: IS_WRITTEN, all: IS_WRITTEN, any: IS_PRESENT | IS_SWAPPED };
const PRESENT: ScanFilter = ScanFilter { inverted: 0, all: IS_PRESENT, any: 0 };
const HUGE: ScanFilter = ScanFilter { inverted: 0, all: IS_HUGE, any: 0 };
const OF_FILES: ScanFilter = ScanFilter { inverted: 0, all: IS_FILE, any: 0 };

/// A page map that the kernel scans.
#[derive(Debug)]
pub struct Scanned(OwnedFd);

impl Scanned {
    /// Asked once of a page that is not protected, so that a kernel without it says so here, and one that calls only
    /// those pages written whose writes are watched (proposed for later kernels), as if all others were protected.
    ///
    /// # Errors
    /// The file, and the kernel's answer; `INVAL` for a wrong one.
    pub(super) fn new(file: OwnedFd) -> Result<Self, (OwnedFd, Errno)> {
        let scanned = Self(file);
        let here = std::ptr::from_ref(&scanned).addr();
        let page = here - here % page_size();
        let asked = if has(Novelty::PagemapScan) {
            scanned.first_protected(&(page..page + page_size()))
        } else {
            Err(Errno::NOTTY)
        };
        match asked {
            Ok(None) => Ok(scanned),
            Ok(Some(_)) => Err((scanned.0, Errno::INVAL)),
            Err(errno) => Err((scanned.0, errno)),
        }
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.0
    }

    pub(super) fn first_protected(&self, range: &Range<usize>) -> io::Result<Option<Range<usize>>> {
        self.first(range, PROTECTED)
    }

    pub(super) fn has_file(&self, range: &Range<usize>) -> io::Result<bool> {
        Ok(self.first(range, OF_FILES)?.is_some())
    }

    /// Whether some page of the range is in the page tables.
    pub fn has_present(&self, range: &Range<usize>) -> io::Result<bool> {
        Ok(self.first(range, PRESENT)?.is_some())
    }

    /// Whether some of the range is mapped as huge pages.
    pub fn has_huge(&self, range: &Range<usize>) -> io::Result<bool> {
        Ok(self.first(range, HUGE)?.is_some())
    }

    /// The first run of pages that are wanted: a second one ends the walk.
    fn first(&self, range: &Range<usize>, wanted: ScanFilter) -> io::Result<Option<Range<usize>>> {
        let mut region = ScannedRange { start: 0, end: 0, categories: 0 };
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            flags: 0,
            start: range.start as u64,
            end: range.end as u64,
            walk_end: 0,
            regions: (&raw mut region).expose_provenance() as u64,
            regions_len: 1,
            max_pages: 0,
            category_inverted: wanted.inverted,
            category_mask: wanted.all,
            category_anyof_mask: wanted.any,
            return_mask: 0,
        };
        pass(Call::PagemapScan)?;
        // SAFETY: reads and writes one `struct pm_scan_arg`, and writes at most one `struct page_region`; both
        // live on. Without flags nothing of the memory changes.
        let found = unsafe { rustix::ioctl::ioctl(self.0.as_fd(), Scan(&mut argument)) }?;
        Ok((found > 0).then_some(region.start as usize..region.end as usize))
    }
}

/// Answers with the number of regions written.
struct Scan<'a>(&'a mut ScanArgument);

// SAFETY: the opcode is that of the structure, which the kernel reads and writes; the output is the plain
// return value.
unsafe impl Ioctl for Scan<'_> {
    type Output = std::ffi::c_int;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> io::Result<Self::Output> {
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcode_of_the_scan_is_the_kernels() {
        assert_eq!(PAGEMAP_SCAN, 0xC060_6610);
    }
}
