//! The ioctl that walks page tables and returns the runs of pages in the requested categories:
//! `PAGEMAP_SCAN` (Linux 6.7).
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::io;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use super::super::injection::{Call, pass};

const PAGEMAP_SCAN: Opcode = opcode::read_write::<ScanArgument>(b'f', 16);

/// The page was written since it was protected, or is not protected.
pub const IS_WRITTEN: u64 = 1 << 1;
/// The page is part of a file or of shared memory.
pub const IS_FILE: u64 = 1 << 2;
/// The page is in the page tables.
pub const IS_PRESENT: u64 = 1 << 3;
/// The page is swapped out.
pub const IS_SWAPPED: u64 = 1 << 4;
/// The page is the kernel's page of zeroes.
pub const IS_ZEROES: u64 = 1 << 5;
/// The page is mapped as part of a huge page.
pub const IS_HUGE: u64 = 1 << 6;

/// A request for pages of a range. A page is found if it has all categories of `all` and, unless
/// `any` is 0, one category of `any`. Categories of `inverted` are negated first.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    /// Addresses of the process of the page map, in whole pages.
    pub range: Range<u64>,
    /// The highest number of pages to find; 0 for no limit.
    pub max_pages: u64,
    /// Categories that are negated.
    pub inverted: u64,
    /// Categories that a page must have.
    pub all: u64,
    /// Categories of which a page must have one.
    pub any: u64,
    /// Categories that the answer reports.
    pub returned: u64,
}

/// A found run of pages: `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PageRun {
    /// The first address.
    pub start: u64,
    /// The address after the last byte.
    pub end: u64,
    /// The requested categories that the run has.
    pub categories: u64,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Runs that were written.
    pub runs: usize,
    /// The address at which the walk ended.
    pub walk_end: u64,
}

/// Scans a page map. The memory does not change.
pub fn scan(map: BorrowedFd<'_>, request: &ScanRequest, runs: &mut [PageRun]) -> io::Result<Found> {
    let mut argument = ScanArgument {
        size: size_of::<ScanArgument>() as u64,
        flags: 0,
        start: request.range.start,
        end: request.range.end,
        walk_end: 0,
        runs: runs.as_mut_ptr().expose_provenance() as u64,
        runs_len: runs.len() as u64,
        max_pages: request.max_pages,
        category_inverted: request.inverted,
        category_mask: request.all,
        category_anyof_mask: request.any,
        return_mask: request.returned,
    };
    pass(Call::PagemapScan)?;
    // SAFETY: the call reads and writes one `struct pm_scan_arg`, and writes at most `runs_len` `struct page_region`.
    // Both are borrowed until it returns. Without flags it changes nothing of the memory.
    let found = unsafe { rustix::ioctl::ioctl(map, Scan(&mut argument)) }?;
    Ok(Found { runs: found as usize, walk_end: argument.walk_end })
}

/// The C structure `struct pm_scan_arg`.
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    runs: u64,
    runs_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// Returns the number of written runs.
struct Scan<'a>(&'a mut ScanArgument);

// SAFETY: the opcode is that of the structure, which the kernel reads and writes; the output is the plain return value.
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
