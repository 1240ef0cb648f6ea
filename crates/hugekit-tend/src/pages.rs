//! What the page tables of a process have in each 2 MiB of a mapping: how many pages, and whether it is a huge one.
//!
//! Kernels from 6.7 on are asked for runs of pages (`PAGEMAP_SCAN`); others are read entry by entry, and say nothing of
//! huge pages there. Either way at most 64 MiB of pages at a time, because the kernel holds the process's memory map for
//! reading meanwhile.
//!
//! A page that was only read is the kernel's page of zeroes, and counts as a hole: a collapse would allocate it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::BorrowedFd;

use hugekit::HUGE_PAGE_BYTES;
use rustix::io::{self, Errno};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use rustix::param::page_size;

const HUGE: u64 = HUGE_PAGE_BYTES as u64;
const TOGETHER: u64 = 32 * HUGE;

/// Runs that one scan tells of at most; a scan that has more goes on where it ended.
const RUNS: usize = 1024;

const PAGEMAP_SCAN: Opcode = opcode::read_write::<Question>(b'f', 16);
const IS_PRESENT: u64 = 1 << 3;
const IS_ZEROES: u64 = 1 << 5;
const IS_HUGE: u64 = 1 << 6;

/// 2 MiB of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) start: u64,
    /// Bytes that are there.
    pub(crate) present: u64,
    /// Whether they are one huge page; of an older kernel, that is not known.
    pub(crate) is_huge: Option<bool>,
}

/// All 2 MiB of a range in which something is there, ascending. The range's ends are aligned.
pub(crate) fn look(pages: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<Vec<Look>> {
    let mut found = Vec::new();
    match scan(pages, range, &mut found) {
        Err(Errno::NOTTY | Errno::INVAL) => {
            found.clear();
            read(pages, range, &mut found)?;
        }
        scanned => scanned?,
    }
    Ok(found)
}

/// Whether the memory whose page map this is still is some process's: it ends when its process ends, or starts another
/// program.
pub(crate) fn is_memory_there(pages: BorrowedFd<'_>) -> bool {
    let mut entry = [0; size_of::<u64>()];
    io::retry_on_intr(|| io::pread(pages, entry.as_mut_slice(), 0)).is_ok_and(|count| count > 0)
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct Question {
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

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

fn scan(pages: BorrowedFd<'_>, range: &Range<u64>, found: &mut Vec<Look>) -> io::Result<()> {
    let mut next = range.start;
    while next < range.end {
        let mut runs = [Run::default(); RUNS];
        let mut question = Question {
            size: size_of::<Question>() as u64,
            flags: 0,
            start: next,
            end: range.end,
            walk_end: 0,
            runs: (&raw mut runs).expose_provenance() as u64,
            runs_len: RUNS as u64,
            max_pages: TOGETHER / page_size() as u64,
            category_inverted: IS_ZEROES,
            category_mask: IS_PRESENT | IS_ZEROES,
            category_anyof_mask: 0,
            return_mask: IS_PRESENT | IS_HUGE,
        };
        // SAFETY: reads and writes one `struct pm_scan_arg`, and writes at most `RUNS` `struct page_region`; both live
        // until the call returns. Without flags the call changes nothing of the process's memory.
        let count = unsafe { rustix::ioctl::ioctl(pages, Scan(&mut question)) }?;
        runs[..count as usize].iter().for_each(|run| add(run, found));
        if question.walk_end <= next {
            return Err(Errno::IO); // The kernel made no progress, which was never seen.
        }
        next = question.walk_end;
    }
    Ok(())
}

/// Answers with the number of runs written.
struct Scan<'a>(&'a mut Question);

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

/// Counts a run of pages in each 2 MiB that it overlaps. Runs come in ascending order.
fn add(run: &Run, found: &mut Vec<Look>) {
    let mut at = run.start;
    while at < run.end {
        let start = at - at % HUGE;
        let end = run.end.min(start + HUGE);
        let is_huge = Some(run.categories & IS_HUGE != 0);
        match found.last_mut().filter(|last| last.start == start) {
            // A scan that ended within a huge page tells of it in two runs.
            Some(last) => {
                last.present += end - at;
                last.is_huge = last.is_huge.min(is_huge);
            }
            None => found.push(Look { start, present: end - at, is_huge }),
        }
        at = end;
    }
}

/// Entry by entry.
fn read(pages: BorrowedFd<'_>, range: &Range<u64>, found: &mut Vec<Look>) -> io::Result<()> {
    const ENTRY: usize = size_of::<u64>();
    /// Present, and mapped by this process alone: a page of zeroes is not, and neither is one shared since a fork.
    const OWN: u64 = 1 << 63 | 1 << 56;
    let page = page_size() as u64;
    let mut entries = vec![0; HUGE_PAGE_BYTES / page_size() * ENTRY];
    for start in (range.start..range.end).step_by(HUGE_PAGE_BYTES) {
        let read = io::retry_on_intr(|| {
            io::pread(pages, entries.as_mut_slice(), start / page * ENTRY as u64)
        })?;
        let (words, _) = entries[..read].as_chunks::<ENTRY>();
        let is_there = |word: &&[u8; ENTRY]| u64::from_ne_bytes(**word) & OWN == OWN;
        let present = words.iter().filter(is_there).count() as u64 * page;
        if present > 0 {
            found.push(Look { start, present, is_huge: None });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcode_of_the_scan_is_the_kernels() {
        assert_eq!(PAGEMAP_SCAN, 0xC060_6610);
    }

    #[test]
    fn runs_across_ranges_count_in_each() {
        let run = |start, end, categories| Run { start, end, categories };
        let runs = [
            run(HUGE, 3 * HUGE, IS_PRESENT | IS_HUGE),
            run(3 * HUGE, 3 * HUGE + 8192, IS_PRESENT),
            run(4 * HUGE - 4096, 4 * HUGE + 4096, IS_PRESENT),
        ];
        let mut found = Vec::new();
        runs.iter().for_each(|run| add(run, &mut found));
        let look = |start, present, is_huge| Look { start, present, is_huge: Some(is_huge) };
        let expected = [
            look(HUGE, HUGE, true),
            look(2 * HUGE, HUGE, true),
            look(3 * HUGE, 12288, false),
            look(4 * HUGE, 4096, false),
        ];
        assert_eq!(found, expected);
    }
}
