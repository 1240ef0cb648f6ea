//! An `io_uring`(7) with one registered buffer, whose pages the kernel holds whatever becomes of their addresses.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

const REGISTER_BUFFERS: u32 = 0;
const GET_EVENTS: u32 = 1;
const ENTRIES_AT: i64 = 0x1000_0000;
/// Bytes of the ring's mapping that are used here.
const MAPPED: usize = 4096;

/// `struct io_uring_params`: the offsets of what is used here by name.
#[repr(C)]
#[derive(Default)]
struct Params {
    before: [u32; 10],
    sq_head: u32,
    sq_tail: u32,
    sq_between: [u32; 4],
    sq_array: u32,
    sq_rest: [u32; 3],
    cq_head: u32,
    cq_tail: u32,
    cq_between: [u32; 3],
    cq_entries: u32,
    cq_rest: [u32; 4],
}

/// `struct io_uring_sqe`.
#[repr(C)]
struct Entry {
    opcode: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    offset: u64,
    address: u64,
    len: u32,
    operation_flags: u32,
    user_data: u64,
    buffer: u16,
    rest: [u16; 11],
}

/// A ring that can be asked once.
pub struct Ring {
    descriptor: OwnedFd,
    params: Params,
}

impl Ring {
    pub fn new() -> io::Result<Self> {
        let mut params = Params::default();
        // SAFETY: writes one `struct io_uring_params`.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut params) };
        if ring < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(ring as i32) }, params })
    }

    /// Has the kernel hold the pages of a buffer.
    pub fn register(&self, start: *const u8, len: usize) -> io::Result<()> {
        let buffer = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len };
        let (ring, call) = (self.descriptor.as_raw_fd(), libc::SYS_io_uring_register);
        // SAFETY: reads one `iovec`.
        match unsafe { libc::syscall(call, ring, REGISTER_BUFFERS, &raw const buffer, 1) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has the kernel read or write a file from its position on: `IORING_OP_…`, of the registered buffer by the address that
    /// it had then. Returns the kernel's answer.
    pub fn ask(self, opcode: u8, file: BorrowedFd<'_>, address: usize, len: u32) -> i32 {
        let (rings, entries) = (self.map(0), self.map(ENTRIES_AT));
        let entry = Entry {
            opcode,
            flags: 0,
            priority: 0,
            descriptor: file.as_raw_fd(),
            offset: u64::MAX,
            address: address as u64,
            len,
            operation_flags: 0,
            user_data: 0,
            buffer: 0,
            rest: [0; 11],
        };
        let word = |offset: u32| rings.wrapping_byte_add(offset as usize).cast::<AtomicU32>();
        // SAFETY: the offsets are the kernel's own and lie within what is mapped; there is one entry of each kind.
        unsafe {
            entries.cast::<Entry>().write(entry);
            (*word(self.params.sq_array)).store(0, Ordering::Relaxed);
            (*word(self.params.sq_tail)).store(1, Ordering::Release);
            let ring = self.descriptor.as_raw_fd();
            let nothing = std::ptr::null::<c_void>();
            let asked = libc::syscall(libc::SYS_io_uring_enter, ring, 1, 1, GET_EVENTS, nothing, 0);
            assert_eq!(asked, 1);
            // The answer follows the request's eight bytes of data.
            (*word(self.params.cq_entries + 8)).load(Ordering::Acquire).cast_signed()
        }
    }

    fn map(&self, offset: i64) -> *mut c_void {
        let (prot, ring) = (libc::PROT_READ | libc::PROT_WRITE, self.descriptor.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice replaces none; left to the end of the test.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), MAPPED, prot, libc::MAP_SHARED, ring, offset)
        };
        assert_ne!(start, libc::MAP_FAILED);
        start
    }
}
