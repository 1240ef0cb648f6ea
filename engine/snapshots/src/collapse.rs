//! Collapse: split huge pages are made huge again.
#![allow(unsafe_code)]

use rustix::io::Errno;

use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::mapping;

/// The result of [`collapse`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collapsed {
    /// Bytes that are on huge pages now.
    pub huge: usize,
    /// Bytes that are not on huge pages, because the kernel had no free huge page, or because the
    /// bytes are protected or not populated.
    pub fragmented: usize,
}

/// Collapses base pages into transparent huge pages (`MADV_COLLAPSE`, Linux 6.1), for every aligned
/// 2 MiB of the memory. Bytes outside of aligned 2 MiB are not counted.
///
/// Call this after a snapshot with granules of 64 KiB, or after a snapshot of memory that had never
/// been accessed: both leave base pages. The call copies 1 to 3 GiB per second. Writers wait for
/// the 2 MiB that are being copied.
///
/// # Safety
/// No other userfaultfd(2) handles minor faults of *shared* memory in the range: the kernel would
/// map bytes that their owner has not supplied yet. Private memory and regions of a pool always
/// satisfy this condition. Bytes of a region that are not cleared yet, or that are shared with
/// forks, count as fragmented.
pub unsafe fn collapse(memory: *const [u8]) -> Collapsed {
    let start = memory.cast::<u8>().expose_provenance();
    let end = start.saturating_add(memory.len());
    let mut collapsed = Collapsed::default();
    let mut next = start.checked_next_multiple_of(HUGE_PAGE_BYTES).unwrap_or(end);
    while next < end && end - next >= HUGE_PAGE_BYTES {
        let piece = std::ptr::with_exposed_provenance_mut(next);
        // SAFETY: no first access to the memory waits for another program's userfaultfd: the contract of this
        // function.
        let mut done = unsafe { mapping::collapse(piece, HUGE_PAGE_BYTES) };
        if done == Err(Errno::AGAIN) {
            // SAFETY: no first access to the memory waits for another program's userfaultfd: the contract of this
            // function. Another thread held one of its pages at that moment.
            done = unsafe { mapping::collapse(piece, HUGE_PAGE_BYTES) };
        }
        let count = if done.is_ok() { &mut collapsed.huge } else { &mut collapsed.fragmented };
        *count += HUGE_PAGE_BYTES;
        next += HUGE_PAGE_BYTES;
    }
    collapsed
}
