//! Huge pages that were split, put together again.
#![allow(unsafe_code)]

use rustix::io::Errno;

use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::mapping;

/// What came of [`collapse`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collapsed {
    /// Bytes that are on huge pages now.
    pub huge: usize,
    /// Bytes that are not: the kernel had no huge page, or they are protected, or no memory at all.
    pub fragmented: usize,
}

/// Puts the memory on transparent huge pages (`MADV_COLLAPSE`, Linux 6.1), as far as it has whole aligned 2 MiB:
/// what lies outside is not counted. For after a snapshot with granules of 64 KiB, or of memory that had
/// never been touched, both of which leave base pages. It copies, at 1 to 3 GiB a second, and writers wait
/// for the 2 MiB that it is at.
///
/// # Safety
/// No first access to the memory waits for a userfaultfd(2) whose owner has yet to supply what *shared* memory is to
/// show there (registered for minor faults): the kernel maps such memory as it is, past that owner. Private
/// memory and a region of a pool always may be collapsed: of the latter, what is still to be cleared, or shared
/// with forks, is refused by the kernel and counts as fragmented.
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
