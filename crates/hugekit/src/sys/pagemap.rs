//! What the page table says of this process's memory: `PAGEMAP_SCAN` (Linux 6.7).
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use super::injection::{Call, pass};

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
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Which pages to look for.
#[derive(Clone, Copy)]
struct Wanted {
    inverted: u64,
    all: u64,
    any: u64,
}

/// Pages whose write would come to a userfaultfd: mapped, swapped out or marked, and protected. A page that
/// was discarded is none of these.
const PROTECTED: Wanted =
    Wanted { inverted: IS_WRITTEN, all: IS_WRITTEN, any: IS_PRESENT | IS_SWAPPED };
const PRESENT: Wanted = Wanted { inverted: 0, all: IS_PRESENT, any: 0 };
const HUGE: Wanted = Wanted { inverted: 0, all: IS_HUGE, any: 0 };
const OF_FILES: Wanted = Wanted { inverted: 0, all: IS_FILE, any: 0 };

/// Opens this process's page map. A forked child that inherits it would be told of its parent.
pub(crate) fn open_own() -> io::Result<OwnedFd> {
    pass(Call::Open)?;
    open(c"/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Whether every page of the range is protected against writes by userfaultfd. Async-signal-safe.
pub(crate) fn is_protected(pagemap: BorrowedFd<'_>, range: &Range<usize>) -> io::Result<bool> {
    Ok(first(pagemap, range, PROTECTED)?.is_some_and(|found| found == *range))
}

/// The first run of pages of the range that are protected against writes. Async-signal-safe.
pub(crate) fn first_protected(
    pagemap: BorrowedFd<'_>,
    range: &Range<usize>,
) -> io::Result<Option<Range<usize>>> {
    first(pagemap, range, PROTECTED)
}

/// Whether some page of the range is part of a file. Async-signal-safe.
pub(crate) fn has_file(pagemap: BorrowedFd<'_>, range: &Range<usize>) -> io::Result<bool> {
    Ok(first(pagemap, range, OF_FILES)?.is_some())
}

/// Whether some page of the range is in the page tables.
pub(crate) fn has_present(pagemap: BorrowedFd<'_>, range: &Range<usize>) -> io::Result<bool> {
    Ok(first(pagemap, range, PRESENT)?.is_some())
}

/// Whether some of the range is mapped as huge pages.
pub(crate) fn has_huge(pagemap: BorrowedFd<'_>, range: &Range<usize>) -> io::Result<bool> {
    Ok(first(pagemap, range, HUGE)?.is_some())
}

/// The first run of pages that are wanted: a second one ends the walk.
fn first(
    pagemap: BorrowedFd<'_>,
    range: &Range<usize>,
    wanted: Wanted,
) -> io::Result<Option<Range<usize>>> {
    let mut region = Region { start: 0, end: 0, categories: 0 };
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
    let found = unsafe { rustix::ioctl::ioctl(pagemap, Scan(&mut argument)) }?;
    Ok((found > 0).then_some(region.start as usize..region.end as usize))
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
