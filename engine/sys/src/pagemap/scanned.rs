//! The first wanted pages of this process, by [`scan`](mod@super::scan).

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{self, Errno};
use rustix::param::page_size;

use super::super::injection::{Novelty, has};
use super::scan::{
    IS_FILE, IS_HUGE, IS_PRESENT, IS_SWAPPED, IS_WRITTEN, IS_ZEROES, PageRun, ScanRequest, scan,
};

/// A filter for pages.
#[derive(Clone, Copy)]
struct ScanFilter {
    inverted: u64,
    all: u64,
    any: u64,
}

/// Pages whose writes are reported to a userfaultfd: protected pages that are mapped, swapped out
/// or marked. A discarded page is none of these.
const PROTECTED: ScanFilter =
    ScanFilter { inverted: IS_WRITTEN, all: IS_WRITTEN, any: IS_PRESENT | IS_SWAPPED };
const TOUCHED: ScanFilter = ScanFilter { inverted: 0, all: 0, any: IS_PRESENT | IS_SWAPPED };
const PRESENT: ScanFilter = ScanFilter { inverted: 0, all: IS_PRESENT, any: 0 };
const HUGE: ScanFilter = ScanFilter { inverted: 0, all: IS_HUGE, any: 0 };
/// Pages of huge pages, except the huge page of zeroes. Some kernels do not distinguish that page.
const HUGE_DATA: ScanFilter = ScanFilter { inverted: IS_ZEROES, all: IS_HUGE | IS_ZEROES, any: 0 };
const NOT_HUGE: ScanFilter = ScanFilter { inverted: IS_HUGE, all: IS_HUGE, any: 0 };
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

    pub(super) fn probe_file(&self, range: &Range<usize>) -> io::Result<bool> {
        Ok(self.first(range, OF_FILES)?.is_some())
    }

    /// Returns the first page of the range that was touched, or that is marked as protected.
    pub fn first_touched(&self, range: &Range<usize>) -> io::Result<Option<usize>> {
        Ok(self.first_of_at_most(1, range, TOUCHED)?.map(|found| found.start))
    }

    /// Returns the first page of the range that is not mapped as part of a huge page.
    pub fn first_not_huge(&self, range: &Range<usize>) -> io::Result<Option<usize>> {
        Ok(self.first_of_at_most(1, range, NOT_HUGE)?.map(|found| found.start))
    }

    /// Returns true if a page of the range is in the page tables.
    pub fn probe_present(&self, range: &Range<usize>) -> io::Result<bool> {
        Ok(self.first(range, PRESENT)?.is_some())
    }

    /// Returns true if a part of the range is mapped as huge pages.
    pub fn probe_huge(&self, range: &Range<usize>) -> io::Result<bool> {
        Ok(self.first(range, HUGE)?.is_some())
    }

    /// Like [`probe_huge`](Self::probe_huge), but the kernel's huge page of zeroes does not count,
    /// if the kernel distinguishes it.
    pub fn probe_huge_data(&self, range: &Range<usize>) -> io::Result<bool> {
        Ok(self.first(range, HUGE_DATA)?.is_some())
    }

    /// Returns the first run of wanted pages. A second run ends the walk.
    fn first(&self, range: &Range<usize>, wanted: ScanFilter) -> io::Result<Option<Range<usize>>> {
        self.first_of_at_most(0, range, wanted)
    }

    /// Like [`first`](Self::first). The walk also ends after this many pages, unless the number is
    /// 0.
    fn first_of_at_most(
        &self,
        max_pages: u64,
        range: &Range<usize>,
        wanted: ScanFilter,
    ) -> io::Result<Option<Range<usize>>> {
        let request = ScanRequest {
            range: range.start as u64..range.end as u64,
            max_pages,
            inverted: wanted.inverted,
            all: wanted.all,
            any: wanted.any,
            returned: 0,
        };
        let mut run = [PageRun::default()];
        let found = scan(self.0.as_fd(), &request, &mut run)?;
        let [PageRun { start, end, .. }] = run;
        Ok((found.runs > 0).then_some(start as usize..end as usize))
    }
}
