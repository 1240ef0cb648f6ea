//! Memory that a process has freed lazily (`MADV_FREE`): the pages exist until the kernel needs
//! them.
//!
//! A collapse copies all pages of its range, and the copies are not lazily freed any more. The
//! kernel reports single lazily freed pages only to processes that may see page frames. Other
//! processes leave the whole mapping as it is.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use hugekit::HUGE_PAGE_BYTES;
use hugekit_sys::pagemap::entries;
use hugekit_sys::pagemap::frames::{FrameFlags, Frames};
use rustix::io;

use crate::pages::Look;

/// Removes each 2 MiB with pages that are lazily freed, or that may be, from `looks`. `partly` are
/// the ranges of mappings with such pages. Returns the bytes of the pages of the removed ranges in
/// memory.
pub(crate) fn without_freed(
    pages: BorrowedFd<'_>,
    partly: &[Range<u64>],
    looks: &mut Vec<Look>,
) -> io::Result<u64> {
    if partly.is_empty() {
        return Ok(0);
    }
    let frames = Frames::open();
    let mut freed = 0;
    let mut error = Ok(());
    looks.retain(|look| {
        let is_among = partly.iter().any(|range| range.contains(&look.start));
        if !is_among || look.is_huge == Some(true) || error.is_err() {
            return true;
        }
        match has_freed(pages, frames.as_ref(), look.start) {
            Ok(Some(false)) => true,
            Ok(_) => {
                freed += look.present;
                false
            }
            Err(errno) => {
                error = Err(errno);
                true
            }
        }
    });
    error.map(|()| freed)
}

/// Returns true if the range has lazily freed pages. `None` if this cannot be determined.
fn has_freed(
    pages: BorrowedFd<'_>,
    frames: Option<&Frames>,
    start: u64,
) -> io::Result<Option<bool>> {
    let Some(frames) = frames else { return Ok(None) };
    let entries = entries::all(pages, &(start..start + HUGE_PAGE_BYTES as u64))?;
    let own = entries.into_iter().filter(|entry| entry.is_own());
    let flags = frames.flags_of(own);
    Ok(flags.map(|flags| flags.into_iter().any(FrameFlags::is_freed_lazily)))
}
