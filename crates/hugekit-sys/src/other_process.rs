//! Memory of another process, named by its descriptor, put on huge pages.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io;

use super::HUGE_PAGE_BYTES;
use super::last_error;
use super::mapping::MADV_COLLAPSE;

/// Checks that memory of this process may be collapsed at all, by a collapse of no memory.
pub fn check_collapse(process: BorrowedFd<'_>) -> io::Result<()> {
    advise(process, &[])
}

/// Puts the 2 MiB at `start` on a huge page, or leaves them as they are: on one already is fine. Nothing the process
/// reads changes.
pub fn collapse(process: BorrowedFd<'_>, start: u64) -> io::Result<()> {
    let range = libc::iovec {
        iov_base: ptr::without_provenance_mut(start as usize),
        iov_len: HUGE_PAGE_BYTES,
    };
    advise(process, &[range])
}

fn advise(process: BorrowedFd<'_>, ranges: &[libc::iovec]) -> io::Result<()> {
    // SAFETY: the kernel reads as many descriptions of ranges as the slice has. Their addresses are those of the other
    // process, and a collapse changes no byte of it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            ranges.as_ptr(),
            ranges.len(),
            MADV_COLLAPSE,
            0,
        )
    };
    last_error(done < 0)
}
