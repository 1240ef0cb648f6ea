//! Memory that a process has freed lazily (`MADV_FREE`): it is there until the kernel needs it.
//!
//! A collapse copies all pages of its range, and the copies are memory like any other. The kernel tells of single pages
//! only whoever may see page frames; others leave the whole mapping alone.

use std::fs::File;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use hugekit::HUGE_PAGE_BYTES;
use hugekit_sys::pagemap::entries;
use rustix::io;

use crate::pages::Look;

/// Bits of `/proc/kpageflags`, of the kernel's `kernel-page-flags.h`.
const ANONYMOUS: u64 = 1 << 12;
const SWAP_BACKED: u64 = 1 << 14;

const FLAGS: usize = size_of::<u64>();

/// Takes 2 MiB in which pages are lazily freed, or may be, out of the looks. `partly` are the ranges of mappings with such
/// pages. Returns the bytes of their pages in memory.
pub(crate) fn without_freed(
    pages: BorrowedFd<'_>,
    partly: &[Range<u64>],
    looks: &mut Vec<Look>,
) -> io::Result<u64> {
    if partly.is_empty() {
        return Ok(0);
    }
    let frames = File::open("/proc/kpageflags").ok();
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

/// `None` if that cannot be seen.
fn has_freed(pages: BorrowedFd<'_>, frames: Option<&File>, start: u64) -> io::Result<Option<bool>> {
    let Some(frames) = frames else { return Ok(None) };
    let entries = entries::all(pages, &(start..start + HUGE_PAGE_BYTES as u64))?;
    let mut runs: Vec<Range<u64>> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.is_own()) {
        let Some(frame) = entry.frame() else { return Ok(None) };
        match runs.last_mut().filter(|run| run.end == frame) {
            Some(run) => run.end += 1,
            None => runs.push(frame..frame + 1),
        }
    }
    let seen: Option<Vec<bool>> = runs.iter().map(|run| any_freed(frames, run)).collect();
    Ok(seen.map(|seen| seen.contains(&true)))
}

/// Looks at frames that follow each other.
fn any_freed(frames: &File, run: &Range<u64>) -> Option<bool> {
    let mut bytes = vec![0; (run.end - run.start) as usize * FLAGS];
    frames.read_exact_at(&mut bytes, run.start * FLAGS as u64).ok()?;
    let mut flags = bytes.chunks_exact(FLAGS);
    Some(flags.any(|flags| {
        let flags = u64::from_ne_bytes(flags.try_into().expect("eight bytes"));
        flags & (ANONYMOUS | SWAP_BACKED) == ANONYMOUS
    }))
}
