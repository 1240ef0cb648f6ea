//! Mapping the pages of a file in the page tables.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::io::{self, Errno};
use rustix::param::page_size;

use crate::pool::Backing;
use hugekit_sys::userfaultfd;

/// Maps the pages that the file has for these addresses, protected from writes if `protected`, and
/// wakes the threads that wait there. Async-signal-safe.
///
/// A page that is mapped already is skipped. If the owner's advice or locks for a part of the range
/// have split the mapping, the pages are mapped one by one. In both cases the function returns
/// true: the caller may have to wake waiting threads.
pub(crate) fn show(
    descriptor: BorrowedFd<'_>,
    addresses: &Range<usize>,
    backing: Backing,
    protected: bool,
) -> io::Result<bool> {
    let page = if backing.is_reserved() { backing.page_size() } else { page_size() };
    let (mut next, mut step, mut met) = (addresses.start, addresses.len(), false);
    while next < addresses.end {
        let part = next..addresses.end.min(next + step);
        let Err((mapped, errno)) = userfaultfd::map_present(descriptor, &part, protected) else {
            next = part.end;
            continue;
        };
        next += mapped;
        match errno {
            // A thread changes the process's mappings at this moment.
            Errno::AGAIN => {}
            // One call fills one mapping.
            Errno::NOENT if step > page => (step, met) = (page, true),
            // Mapped already; or not registered any more, and a plain access maps it.
            Errno::EXIST | Errno::NOENT => (next, met) = (next + page, true),
            other => return Err(other),
        }
    }
    Ok(met)
}
