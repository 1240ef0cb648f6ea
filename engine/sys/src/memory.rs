//! Populating memory, and finding the NUMA node of a page.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use rustix::io;
use rustix::mm::{Advice, MsyncFlags};

use super::injection::{Call, pass};
use super::last_error;

/// Populates every page of `start..start + len`, writable. The content does not change (Linux
/// 5.14). `start` and `len` are multiples of the page size.
///
/// Errors are those of madvise(2): `EINVAL` from an older kernel and for memory that may not be
/// written, `EFAULT` if an access would end in SIGBUS, `ENOMEM` for an unmapped address and if
/// memory is short.
pub fn populate_write(start: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: populating changes no byte of any mapping and unmaps nothing, so that there is no
    // memory, whichever code owns it, for which it breaks a promise.
    let populate = || unsafe {
        pass(Call::MadvisePopulate)?;
        rustix::mm::madvise(start.cast(), len, Advice::LinuxPopulateWrite)
    };
    io::retry_on_intr(populate)
}

/// Like [`populate_write`], by reads. For memory that is shared and populated already this is
/// sufficient, because its pages are mapped writable at once. Base pages are then mapped many at a
/// time (1 GiB in 90 ms instead of 250 ms).
pub fn populate_read(start: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: as for `populate_write`.
    let populate = || unsafe {
        pass(Call::MadvisePopulate)?;
        rustix::mm::madvise(start.cast(), len, Advice::LinuxPopulateRead)
    };
    io::retry_on_intr(populate)
}

/// Removes the pages of a shared mapping from the page tables, locked pages too. The file keeps
/// them. For huge pages this needs Linux 5.18. Async-signal-safe.
///
/// # Safety
/// The addresses belong to a shared mapping, whose users tolerate that their next access is a
/// fault.
pub unsafe fn unmap_pages(start: *mut u8, len: usize) -> io::Result<()> {
    pass(Call::MadviseDontNeed)?;
    // SAFETY: a shared mapping shows the same bytes when it is faulted in again; the rest is the caller's
    // to promise.
    unsafe {
        let locked = libc::madvise(start.cast(), len, libc::MADV_DONTNEED_LOCKED);
        if locked == 0 {
            return Ok(());
        }
        rustix::mm::madvise(start.cast(), len, Advice::LinuxDontNeed)
    }
}

/// Returns true if the kernel has `MADV_POPULATE_WRITE`. It checks the advice before the length.
pub fn can_populate() -> bool {
    populate_write(ptr::null_mut(), 0).is_ok()
}

/// Returns true if all pages of a mapped range are in memory. `start` and `len` are multiples of
/// the page size.
pub fn probe_present(start: *mut u8, len: usize) -> io::Result<bool> {
    let mut pages = vec![0_u8; len / rustix::param::page_size()];
    pass(Call::Mincore)?;
    // SAFETY: the kernel writes one byte for each page of the range.
    let refused = unsafe { libc::mincore(start.cast(), len, pages.as_mut_ptr()) } != 0;
    last_error(refused)?;
    Ok(pages.iter().all(|page| page & 1 == 1))
}

/// Returns true if every page of the range is mapped, readable or not. `start` and `len` are
/// multiples of the page size.
pub fn is_mapped(start: *const u8, len: usize) -> bool {
    let sync = || {
        pass(Call::Msync)?;
        // SAFETY: with MS_ASYNC alone, msync(2) writes nothing since Linux 2.6.19; it only looks the
        // mappings up.
        unsafe { rustix::mm::msync(start.cast_mut().cast(), len, MsyncFlags::ASYNC) }
    };
    sync().is_ok()
}

/// Returns the node that holds each of these addresses; `None` for a page that is not present.
pub fn nodes_of(addresses: &[*const u8]) -> io::Result<Vec<Option<u32>>> {
    let mut status: Vec<c_int> = vec![-1; addresses.len()];
    let nowhere = ptr::null::<c_int>();
    let (count, pages) = (addresses.len(), addresses.as_ptr().cast::<*const c_void>());
    pass(Call::MovePages)?;
    // SAFETY: `count` addresses are read and as many answers written; without target nodes
    // move_pages(2) moves nothing and follows no address.
    let refused = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, count, pages, nowhere, status.as_mut_ptr(), 0)
    } != 0;
    last_error(refused)?;
    Ok(status.into_iter().map(|node| u32::try_from(node).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_of_a_touched_page_is_known_and_of_a_hole_is_none() {
        let touched = [1_u8; 64];
        let Ok(nodes) = nodes_of(&[touched.as_ptr(), ptr::without_provenance(4096)]) else {
            return; // A sandbox without move_pages(2): callers then do without a node map.
        };
        assert!(nodes[0].is_some());
        assert_eq!(nodes[1], None);
    }

    #[test]
    fn is_mapped_of_a_hole_is_false() {
        let page = rustix::param::page_size();
        let here = (&raw const page).cast::<u8>().map_addr(|address| address & !(page - 1));
        assert!(is_mapped(here, page));
        assert!(!is_mapped(ptr::without_provenance(page), page));
    }
}
