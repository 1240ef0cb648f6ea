//! Memory as programs get it from the kernel, without hugekit's library.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use anyhow::{Context, ensure};
use hugekit::HUGE_PAGE_BYTES;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Words of a base page.
pub(super) const PAGE: usize = 4096 / size_of::<u64>();

/// Bytes that are mapped as words, from a multiple of 2 MiB on.
pub(super) struct HelperMemory {
    mapping: NonNull<u64>,
    /// Bytes of the mapping.
    mapped: usize,
    /// Words of it before the first one that is used.
    offset: usize,
    /// Words that are used.
    words: usize,
}

impl HelperMemory {
    /// Private zeroed memory, on the pages that the machine gives to a program that asks for nothing.
    pub(super) fn anonymous(bytes: usize) -> anyhow::Result<Self> {
        let mapped = bytes + HUGE_PAGE_BYTES;
        let how = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), mapped, how.0, how.1) };
        let start = start.context("no memory can be mapped")?.cast::<u64>();
        let mapping = NonNull::new(start).context("the kernel maps nothing at address 0")?;
        let offset = start.cast::<u8>().align_offset(HUGE_PAGE_BYTES) / size_of::<u64>();
        Ok(Self { mapping, mapped, offset, words: bytes / size_of::<u64>() })
    }

    /// Private zeroed memory, on huge pages if the kernel has them, as QEMU asks for.
    pub(super) fn huge(bytes: usize) -> anyhow::Result<Self> {
        let mut memory = Self::anonymous(bytes)?;
        // SAFETY: within the mapping; the advice changes no byte. A kernel without huge pages refuses it.
        let _ = unsafe { madvise(memory.as_mut_ptr().cast(), bytes, Advice::LinuxHugepage) };
        Ok(memory)
    }

    /// Returns a file of this many bytes, where huge pages of the file can be mapped as such:
    /// QEMU's `align=2M`.
    pub(super) fn of_file(file: &File, bytes: usize, flags: MapFlags) -> anyhow::Result<Self> {
        let has = file.metadata()?.len();
        ensure!(has >= bytes as u64, "the file has {has} bytes, not {bytes}");
        let mut memory = Self::anonymous(bytes)?;
        let (start, flags) = (memory.as_mut_ptr().cast(), flags | MapFlags::FIXED);
        // SAFETY: the replaced memory belongs to this mapping, which has not been touched. Only the tour's own processes
        // have the file, which none of them shortens, and none of them writes to it while another one has mapped it.
        let mapped =
            unsafe { mmap(start, bytes, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) };
        mapped.context("the file cannot be mapped")?;
        Ok(memory)
    }

    /// Returns the same words as bytes.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        let words: &mut [u64] = self;
        // SAFETY: exactly the bytes of the words, which are borrowed as long; bytes need no alignment, and any bytes are
        // words.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
    }

    /// Puts all of it on huge pages, as far as the kernel can: how many bytes. Does what `hugekit tend` does from
    /// outside.
    pub(super) fn collapse(&mut self) -> Result<usize, Errno> {
        let (mut huge, mut refused) = (0, None);
        for piece in self.chunks_exact_mut(HUGE_PAGE_BYTES / size_of::<u64>()) {
            // SAFETY: memory of this mapping, which is borrowed here. A collapse changes no byte.
            let failed = unsafe {
                libc::madvise(piece.as_mut_ptr().cast(), HUGE_PAGE_BYTES, libc::MADV_COLLAPSE)
            };
            match failed {
                0 => huge += HUGE_PAGE_BYTES,
                _ => refused = Errno::from_io_error(&std::io::Error::last_os_error()),
            }
        }
        if huge == 0 { Err(refused.unwrap_or(Errno::INVAL)) } else { Ok(huge) }
    }
}

impl Deref for HelperMemory {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        // SAFETY: the words lie within the mapping, which lives as long as this value; any bytes are words, and a mapping
        // begins at a page. Only `deref_mut` writes to it, which borrows this value alone.
        unsafe {
            std::slice::from_raw_parts(self.mapping.as_ptr().wrapping_add(self.offset), self.words)
        }
    }
}

impl DerefMut for HelperMemory {
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as of `deref`, and the borrow of this value is the only one.
        unsafe {
            let start = self.mapping.as_ptr().wrapping_add(self.offset);
            std::slice::from_raw_parts_mut(start, self.words)
        }
    }
}

impl Drop for HelperMemory {
    fn drop(&mut self) {
        // SAFETY: the whole mapping is unmapped; every borrow of it has ended.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}
