//! The two system calls: a process by descriptor, and its memory put on huge pages.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use hugekit::HUGE_PAGE_BYTES;
use rustix::io::Errno;

/// The kernel's; libc has it for glibc alone.
pub(crate) const MADV_COLLAPSE: libc::c_int = 25;

/// Checks that memory of this process may be collapsed at all, by a collapse of no memory.
pub(crate) fn check_permitted(process: BorrowedFd<'_>) -> Result<(), Errno> {
    advise(process, &[])
}

/// Puts the 2 MiB at `start` on a huge page, or leaves them as they are: on one already is fine. Nothing the process
/// reads changes.
pub(crate) fn collapse(process: BorrowedFd<'_>, start: u64) -> Result<(), Errno> {
    let range = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(start as usize),
        iov_len: HUGE_PAGE_BYTES,
    };
    advise(process, &[range])
}

fn advise(process: BorrowedFd<'_>, ranges: &[libc::iovec]) -> Result<(), Errno> {
    // SAFETY: the kernel reads the descriptions of so many ranges. These are addresses of the other process, and what is
    // asked for changes no byte of it.
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
    if done >= 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}
