//! Private anonymous memory as a program has it, to be snapshotted.
#![allow(unsafe_code)]
use std::ops::Range;
use std::ptr;

use hugekit::HUGE_PAGE_BYTES as HUGE;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Mapped memory at a multiple of 2 MiB, unmapped on drop.
#[derive(Debug)]
pub struct Memory {
    mapped: *mut u8,
    mapped_len: usize,
    start: *mut u8,
    len: usize,
}

// SAFETY: only accessed as atomics, or by code that says why it may.
unsafe impl Send for Memory {}
// SAFETY: only accessed as atomics, or by code that says why it may.
unsafe impl Sync for Memory {}

impl Memory {
    /// Untouched memory, on huge pages or on base pages.
    pub fn untouched(len: usize, huge: bool) -> Self {
        let mapped_len = len + HUGE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces none.
        let mapped = unsafe {
            mmap_anonymous(ptr::null_mut(), mapped_len, prot, MapFlags::PRIVATE).unwrap()
        };
        let mapped = mapped.cast::<u8>();
        let start = mapped.map_addr(|address| address.next_multiple_of(HUGE));
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: changes no byte.
        unsafe { madvise(mapped.cast(), mapped_len, advice).unwrap() };
        Self { mapped, mapped_len, start, len }
    }

    /// Memory of which every word is `value`.
    pub fn filled(len: usize, huge: bool, value: u64) -> Self {
        let memory = Self::untouched(len, huge);
        memory.words().iter().for_each(|word| word.store(value, Ordering::Relaxed));
        if huge {
            memory.collapse();
        }
        memory
    }

    /// Moves base pages to huge pages: if the setting is `never`, the kernel makes huge pages only on request.
    fn collapse(&self) {
        for _ in 0..100 {
            // SAFETY: changes no byte.
            let collapsed =
                unsafe { libc::madvise(self.start.cast(), self.len, libc::MADV_COLLAPSE) } == 0;
            let error = std::io::Error::last_os_error().raw_os_error();
            // The kernel has its hands on a page at this moment.
            if collapsed || ![Some(libc::EAGAIN), Some(libc::EBUSY)].contains(&error) {
                return;
            }
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped as long as this is, aligned, and zeroes are valid atomics.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / 8) }
    }

    /// All of it.
    pub fn range(&self) -> *const [u8] {
        ptr::slice_from_raw_parts(self.start, self.len)
    }

    /// Its addresses.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.start.addr();
        start..start + self.len
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; tests that unmapped part of it have put nothing else there.
        unsafe { munmap(self.mapped.cast(), self.mapped_len).unwrap() };
    }
}
