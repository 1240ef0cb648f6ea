//! Maps the kernel's huge page of zeroes in untouched memory that would get huge pages. Protecting it then needs one
//! entry for each huge page. Otherwise the kernel makes a page table of 512 marks for each.

use std::ops::Range;
use std::ptr::with_exposed_provenance_mut;

use rustix::param::page_size;

use crate::serving::interval::inner_of;
use hugekit_machine::Root;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::memory::populate_read;
use hugekit_sys::pagemap::Scanned;

/// If 0, reading memory that would get huge pages gives it huge pages of its own.
const USE_ZERO_PAGE: &str = "/sys/kernel/mm/transparent_hugepage/use_zero_page";

/// Maps the untouched huge pages of a range that lies in one mapping. Nothing here must succeed: pages that are not
/// mapped are marked later.
pub(crate) fn map(scanned: &Scanned, range: &Range<usize>) {
    let mut rest = inner_of(range, HUGE_PAGE_BYTES);
    while let Ok(Some(next)) = scanned.first_not_huge(&rest) {
        rest.start = next - next % HUGE_PAGE_BYTES;
        let Ok(touched) = scanned.first_touched(&rest) else { return };
        let end = touched.map_or(rest.end, |page| page - page % HUGE_PAGE_BYTES);
        let untouched = rest.start..end;
        if !untouched.is_empty() && !map_untouched(scanned, &untouched) {
            return;
        }
        rest.start = rest.end.min(end + HUGE_PAGE_BYTES);
    }
}

/// Returns true if the range could be mapped. If the mapping gets only base pages, one page is
/// touched to find that out.
fn map_untouched(scanned: &Scanned, range: &Range<usize>) -> bool {
    let read = |len| populate_read(with_exposed_provenance_mut(range.start), len).is_ok();
    let first = range.start..range.start + HUGE_PAGE_BYTES;
    Root::default().read_number(USE_ZERO_PAGE).is_ok_and(|used| used == 1)
        && read(page_size())
        && scanned.probe_huge(&first) == Ok(true)
        && read(range.len())
}

#[cfg(test)]
mod tests {
    use hugekit_sys::pagemap::PageMap;
    use hugekit_sys::private_pages::PrivateBytes;
    use rustix::mm::{Advice, madvise};

    use super::*;

    const PAGES: usize = 8;

    /// Which huge pages are mapped as such after the call, of memory whose third huge page was written before.
    #[allow(unsafe_code)]
    fn mapped_with(advice: Advice) -> Option<[bool; PAGES]> {
        let len = PAGES * HUGE_PAGE_BYTES;
        let memory = PrivateBytes::new(len, HUGE_PAGE_BYTES).unwrap();
        // SAFETY: the memory is this function's own, and the advice keeps its bytes.
        unsafe {
            madvise(memory.start().cast(), len, advice).unwrap();
            memory.start().add(3 * HUGE_PAGE_BYTES - 1).write(1);
        }
        let map = PageMap::open().ok()?;
        let scanned = map.scanned()?;
        let start = memory.start().expose_provenance();
        // Of the first and the last huge page, a base page is not part of the range.
        super::map(scanned, &(start + page_size()..start + len - page_size()));
        let page = |at: usize| start + at * HUGE_PAGE_BYTES..start + (at + 1) * HUGE_PAGE_BYTES;
        let mapped = std::array::from_fn(|at| scanned.probe_huge(&page(at)).unwrap());
        assert_eq!(scanned.probe_huge_data(&page(2)), Ok(mapped[2]));
        Some(mapped)
    }

    #[test]
    fn untouched_huge_pages_are_mapped_and_no_others() {
        let Some(mapped) = mapped_with(Advice::LinuxHugepage) else { return };
        // Written with huge pages: a machine that gives them maps their zeroes, too.
        if mapped[2] && Root::default().read_number(USE_ZERO_PAGE).is_ok_and(|used| used == 1) {
            assert_eq!(mapped, [false, true, true, true, true, true, true, false]);
        }
    }

    #[test]
    fn mapping_of_base_pages_keeps_them() {
        let Some(mapped) = mapped_with(Advice::LinuxNoHugepage) else { return };
        assert_eq!(mapped, [false; PAGES]);
    }
}
