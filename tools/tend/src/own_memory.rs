//! Private anonymous memory of this process, for measurements.
#![allow(unsafe_code)]

use std::io;
use std::ptr::{self, NonNull};

use hugekit::HUGE_PAGE_BYTES;
use hugekit_sys::mapping::MADV_COLLAPSE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;

/// Addresses, aligned to huge pages.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    mapping: NonNull<u8>,
    mapped: usize,
    start: NonNull<u8>,
    len: usize,
}

impl OwnMemory {
    /// Returns addresses without pages.
    pub(crate) fn reserve(len: usize) -> io::Result<Self> {
        let mapped = len + HUGE_PAGE_BYTES;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapping =
            unsafe { mmap_anonymous(ptr::null_mut(), mapped, access, MapFlags::PRIVATE) }?;
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: within the mapping, which is longer by one huge page.
        let start = unsafe { mapping.add(mapping.as_ptr().align_offset(HUGE_PAGE_BYTES)) };
        Ok(Self { mapping, mapped, start, len })
    }

    /// Allocates memory that is present, on base pages.
    pub(crate) fn of_base_pages(len: usize) -> io::Result<Self> {
        let memory = Self::reserve(len)?;
        memory.advise(Advice::LinuxNoHugepage)?;
        memory.touch_all();
        memory.advise(Advice::LinuxHugepage)?;
        Ok(memory)
    }

    /// Writes a byte.
    pub(crate) fn touch(&self, at: usize) {
        assert!(at < self.len);
        // SAFETY: within the mapping, of which no reference exists.
        unsafe { self.start.add(at).write_volatile(1) };
    }

    /// Writes a byte of each base page.
    pub(crate) fn touch_all(&self) {
        (0..self.len).step_by(page_size()).for_each(|at| self.touch(at));
    }

    /// Collapses the memory, and fills holes. Returns true if all of it is on huge pages now.
    pub(crate) fn collapse(&self) -> bool {
        // SAFETY: the mapping's memory, of which no byte changes.
        let done = unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, MADV_COLLAPSE) };
        done == 0
    }

    /// Gives its pages back, and keeps their page tables. From Linux 6.14 on, a table goes with its pages if they are given
    /// back at once.
    pub(crate) fn discard_in_halves(&self) -> io::Result<()> {
        let half = HUGE_PAGE_BYTES / 2;
        (0..self.len)
            .step_by(half)
            .try_for_each(|at| self.advise_part(at, half, Advice::LinuxDontNeed))
    }

    /// Gives advice to the kernel. A kernel without transparent huge pages does not have this
    /// advice, which is no error.
    fn advise(&self, advice: Advice) -> io::Result<()> {
        self.advise_part(0, self.len, advice)
    }

    fn advise_part(&self, at: usize, len: usize, advice: Advice) -> io::Result<()> {
        assert!(at + len <= self.len);
        // SAFETY: within the mapping, of which no reference exists.
        match unsafe { madvise(self.start.add(at).as_ptr().cast(), len, advice) } {
            Err(rustix::io::Errno::INVAL) => Ok(()),
            advised => Ok(advised?),
        }
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, of which no reference exists.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

/// Tests that measure or notice forks of this process, and tests that change its memory, take turns.
#[cfg(test)]
pub(crate) fn in_turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
