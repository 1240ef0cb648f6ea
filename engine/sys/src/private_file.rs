//! A file mapped privately: writes of this process do not change the file.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io;
use rustix::mm::MapFlags;
use rustix::param::page_size;

use super::mapping::{self, READ_WRITE, SharedMapping};

/// The first bytes of a file, mapped privately for reading and writing. A drop unmaps them. A
/// forked child has a copy.
#[derive(Debug)]
pub struct PrivateFile {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: owns the address of a mapping that all threads of the process share. No method reads or writes a byte of it.
unsafe impl Send for PrivateFile {}
// SAFETY: as for `Send`: no method reads or writes through the address.
unsafe impl Sync for PrivateFile {}

impl PrivateFile {
    /// Maps the pages of the first `len` bytes at a multiple of `align`. `len` is not 0, and
    /// `align` is a power of two. Memory is allocated only when a byte is written. `EACCES` if the
    /// descriptor cannot be read.
    pub fn new(file: impl AsFd, len: usize, align: usize) -> io::Result<Self> {
        let len = len.checked_next_multiple_of(page_size()).ok_or(io::Errno::NOMEM)?;
        let held = SharedMapping::reserve(len, align)?;
        let how = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: what is replaced are the addresses just taken, which no thread uses.
        match unsafe { mapping::map(held.start().as_ptr(), len, READ_WRITE, how, file, 0) } {
            Ok(start) => Ok(Self { start, len }),
            Err(errno) => {
                // SAFETY: the addresses just taken, which no thread uses.
                unsafe { held.unmap() }?;
                Err(errno)
            }
        }
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        // SAFETY: exactly the addresses that were mapped; a reference into them borrows this value.
        let _ = unsafe { mapping::unmap(self.start.as_ptr(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{self, FilePages};

    #[test]
    fn file_stays_as_it_is_when_its_private_mapping_is_written() {
        let file = memfd::create(c"hugekit-test", FilePages::Shmem).unwrap();
        memfd::size(&file, 8192).unwrap();
        rustix::io::pwrite(&file, &[7], 4096).unwrap();
        memfd::seal_contents(&file).unwrap();
        let mapped = PrivateFile::new(&file, 8192, 2 << 20).unwrap();
        assert_eq!(mapped.start().as_ptr().addr() % (2 << 20), 0);
        let byte = mapped.start().as_ptr().wrapping_add(4096);
        // SAFETY: within the mapping, which no other thread uses and which is unmapped at the end of this test.
        unsafe {
            assert_eq!(byte.read(), 7);
            byte.write(8);
            assert_eq!(byte.read(), 8);
        }
        let mut there = [0];
        rustix::io::pread(&file, &mut there, 4096).unwrap();
        assert_eq!(there, [7]);
    }
}
