//! Memory of another process, identified by a descriptor, that is put on huge pages.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use rustix::io::{self, Errno};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::Pid;

use super::HUGE_PAGE_BYTES;
use super::last_error;
use super::mapping::MADV_COLLAPSE;

/// Checks that memory of this process may be collapsed, by a collapse of no memory.
pub fn check_collapse(process: BorrowedFd<'_>) -> io::Result<()> {
    advise(process, &[])
}

/// Puts the 2 MiB at `start` on a huge page, or leaves them as they are. Memory on a huge page is
/// no error. The content does not change.
pub fn collapse(process: BorrowedFd<'_>, start: u64) -> io::Result<()> {
    let range = libc::iovec {
        iov_base: ptr::without_provenance_mut(start as usize),
        iov_len: HUGE_PAGE_BYTES,
    };
    advise(process, &[range])
}

/// A byte of this process that the kernel cannot read.
#[derive(Debug)]
pub struct UnreadableByte {
    page: NonNull<libc::c_void>,
    page_size: usize,
}

impl UnreadableByte {
    /// Reserves a page without access.
    pub fn new() -> io::Result<Self> {
        let (page_size, access) = (rustix::param::page_size(), ProtFlags::empty());
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let page = unsafe { mmap_anonymous(ptr::null_mut(), page_size, access, MapFlags::PRIVATE) };
        let page = NonNull::new(page?).ok_or(Errno::NOMEM)?;
        Ok(Self { page, page_size })
    }

    /// Makes the page at `address` of another process writable in its page tables, as a write of
    /// that process does, if the page may be written. A hole is filled with zeroes. The content
    /// does not change: for `process_vm_writev(2)` the kernel gets the page for writing before it
    /// reads the source bytes, and that read fails.
    pub fn make_writable(&self, process: Pid, address: u64) {
        let byte = libc::iovec { iov_base: self.page.as_ptr(), iov_len: 1 };
        let to =
            libc::iovec { iov_base: ptr::without_provenance_mut(address as usize), iov_len: 1 };
        // SAFETY: the kernel reads one description of a place on each side, and no byte: the page of this process has no
        // access, and only this value knows and unmaps it.
        unsafe { libc::process_vm_writev(process.as_raw_pid(), &byte, 1, &to, 1, 0) };
    }
}

impl Drop for UnreadableByte {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and known to this value only.
        let _ = unsafe { munmap(self.page.as_ptr(), self.page_size) };
    }
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

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use rustix::process::getpid;

    use super::*;

    #[test]
    fn page_that_is_made_writable_keeps_its_bytes() {
        let byte = UnreadableByte::new().unwrap();
        let memory = vec![7_u8; 3 * rustix::param::page_size()];
        for at in (0..memory.len()).step_by(1000) {
            byte.make_writable(getpid(), (memory.as_ptr().addr() + at) as u64);
        }
        assert!(black_box(&memory).iter().all(|&byte| byte == 7));
        // No memory is there, and the kernel's.
        byte.make_writable(getpid(), 0);
        byte.make_writable(getpid(), u64::MAX);
    }
}
