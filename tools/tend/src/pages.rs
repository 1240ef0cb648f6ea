//! The page tables of a process: for each 2 MiB of a mapping, the number of pages, and if they are
//! one huge page.
//!
//! Kernels from 6.7 on report runs of pages (`PAGEMAP_SCAN`). On older kernels, page tables are
//! read entry by entry, and huge pages are not known. One call reads at most 64 MiB of pages,
//! because the kernel holds the process's memory map for reading meanwhile.
//!
//! A page that was only read is the kernel's page of zeroes. It counts as a hole, because a
//! collapse would allocate it.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use hugekit::HUGE_PAGE_BYTES;
use hugekit_sys::pagemap::entries;
use hugekit_sys::pagemap::scan::{self, IS_HUGE, IS_PRESENT, IS_ZEROES, PageRun, ScanRequest};
use rustix::io::{self, Errno};
use rustix::param::page_size;

const HUGE: u64 = HUGE_PAGE_BYTES as u64;
const TOGETHER: u64 = 32 * HUGE;

/// The highest number of runs that one scan returns. A scan with more runs continues at its end.
const RUNS: usize = 1024;

/// The pages of 2 MiB of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) start: u64,
    /// Bytes in memory.
    pub(crate) present: u64,
    /// True if the bytes are one huge page; `None` if the kernel is too old to report this.
    pub(crate) is_huge: Option<bool>,
}

/// Returns every 2 MiB of a range with pages in memory, ascending. The range's ends are aligned.
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

/// Returns true if the memory of this page map still belongs to a process. It ends when its process
/// ends or starts another program.
pub(crate) fn is_memory_there(pages: BorrowedFd<'_>) -> bool {
    let mut entry = [0; size_of::<u64>()];
    io::retry_on_intr(|| io::pread(pages, entry.as_mut_slice(), 0)).is_ok_and(|count| count > 0)
}

fn scan(pages: BorrowedFd<'_>, range: &Range<u64>, found: &mut Vec<Look>) -> io::Result<()> {
    let mut runs = [PageRun::default(); RUNS];
    let mut next = range.start;
    while next < range.end {
        let request = ScanRequest {
            range: next..range.end,
            max_pages: TOGETHER / page_size() as u64,
            inverted: IS_ZEROES,
            all: IS_PRESENT | IS_ZEROES,
            any: 0,
            returned: IS_PRESENT | IS_HUGE,
        };
        let scanned = scan::scan(pages, &request, &mut runs)?;
        runs[..scanned.runs].iter().for_each(|run| add(run, found));
        if scanned.walk_end <= next {
            return Err(Errno::IO); // The kernel made no progress, which was never seen.
        }
        next = scanned.walk_end;
    }
    Ok(())
}

/// Counts a run of pages in each 2 MiB that it overlaps. Runs come in ascending order.
fn add(run: &PageRun, found: &mut Vec<Look>) {
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

/// Reads the page table entry by entry.
fn read(pages: BorrowedFd<'_>, range: &Range<u64>, found: &mut Vec<Look>) -> io::Result<()> {
    for start in (range.start..range.end).step_by(HUGE_PAGE_BYTES) {
        let entries = entries::all(pages, &(start..start + HUGE))?;
        let own = entries.iter().filter(|entry| entry.is_own()).count();
        if own > 0 {
            let present = (own * page_size()) as u64;
            found.push(Look { start, present, is_huge: None });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_across_ranges_count_in_each() {
        let run = |start, end, categories| PageRun { start, end, categories };
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
