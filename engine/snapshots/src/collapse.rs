//! Huge pages that were split, put together again.
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
    /// Bytes that are not on huge pages: the kernel had none free, or the bytes are protected or
    /// not populated.
    pub fragmented: usize,
}

/// Joins base pages into transparent huge pages (`MADV_COLLAPSE`, Linux 6.1), for every aligned 2
/// MiB of the memory. Bytes outside these are not counted.
///
/// Use it after a snapshot with granules of 64 KiB, or of memory that had never been touched: both
/// leave base pages. It copies 1 to 3 GiB per second. Writers wait for the 2 MiB that are being
/// copied.
///
/// # Safety
/// No other userfaultfd(2) handles minor faults of *shared* memory in the range: the kernel would
/// map bytes that its owner has not supplied yet. Private memory and regions of a pool never have
/// this problem. Bytes of a region that are still to be cleared, or shared with forks, count as
/// fragmented.
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
