//! An `io_uring`(7) whose registered buffers the kernel holds by their pages, whatever becomes of their addresses: the
//! nearest thing to a device that every machine has.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::IoUring;
use io_uring::opcode::{Read, ReadFixed, WriteFixed};
use io_uring::squeue::Entry;
use io_uring::types::Fd;

/// The file's own position, as pipes need it.
const AT_POSITION: u64 = u64::MAX;

/// A ring that is asked for one thing at a time, and waited for.
pub struct Ring(IoUring);

impl Ring {
    pub fn new() -> io::Result<Self> {
        IoUring::new(1).map(Self)
    }

    /// Has the kernel hold the pages of these buffers, the first of which is number 0.
    pub fn register(&self, buffers: &[*mut [u8]]) -> io::Result<()> {
        let iovec =
            |buffer: &*mut [u8]| libc::iovec { iov_base: buffer.cast(), iov_len: buffer.len() };
        let buffers: Vec<libc::iovec> = buffers.iter().map(iovec).collect();
        // SAFETY: the kernel holds pages, not addresses, and answers EFAULT where none are mapped.
        unsafe { self.0.submitter().register_buffers(&buffers) }
    }

    /// Has the kernel let go of all of them.
    pub fn unregister(&self) -> io::Result<()> {
        self.0.submitter().unregister_buffers()
    }

    /// Reads a file from its position on, to addresses. Returns the kernel's answer.
    pub fn read(&mut self, file: BorrowedFd<'_>, address: *mut u8, len: usize) -> i32 {
        self.ask(Read::new(fd(file), address, len as u32).offset(AT_POSITION).build())
    }

    /// Reads a file from its position on into pages that buffer `number` holds: those that had these addresses when it
    /// was registered.
    pub fn read_fixed(
        &mut self,
        file: BorrowedFd<'_>,
        number: u16,
        address: *mut u8,
        len: usize,
    ) -> i32 {
        let read = ReadFixed::new(fd(file), address, len as u32, number);
        self.ask(read.offset(AT_POSITION).build())
    }

    /// Writes pages that buffer `number` holds to a file at its position.
    pub fn write_fixed(
        &mut self,
        file: BorrowedFd<'_>,
        number: u16,
        address: *const u8,
        len: usize,
    ) -> i32 {
        let write = WriteFixed::new(fd(file), address, len as u32, number);
        self.ask(write.offset(AT_POSITION).build())
    }

    fn ask(&mut self, entry: Entry) -> i32 {
        // SAFETY: the file and the memory outlive the request, which has ended when this function returns; the kernel
        // answers EFAULT to an address that is not mapped, or outside the buffer.
        unsafe { self.0.submission().push(&entry) }.expect("one request at a time");
        assert_eq!(self.0.submit_and_wait(1).unwrap(), 1);
        self.0.completion().next().expect("it was waited for").result()
    }
}

fn fd(file: BorrowedFd<'_>) -> Fd {
    let number: RawFd = file.as_raw_fd();
    Fd(number)
}
