//! Memory that this process and its children see alike.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::AtomicU64;

use hugekit_machine::size::Size;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::measure::LabError;
use crate::measure::workloads::anonymous::Pages;

/// Shared anonymous memory, every byte of it written once.
#[derive(Debug)]
pub struct Outside {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory is mapped as long as the value lives; each user of the address says why it may.
unsafe impl Send for Outside {}
// SAFETY: as for Send: a shared reference gives only the address and atomics.
unsafe impl Sync for Outside {}

impl Outside {
    /// This many bytes, a multiple of the pages' size.
    pub fn new(pages: Pages, len: usize) -> Result<Self, LabError> {
        let huge = match pages {
            Pages::Hugetlb2M => MapFlags::HUGETLB | MapFlags::HUGE_2MB,
            _ => MapFlags::empty(),
        };
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | huge);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, prot, flags) }
            .map_err(|errno| LabError::Map { len: Size(len), source: errno.into() })?;
        let outside = Self { start: start.cast(), len };
        // SAFETY: the mapping, of which nothing is borrowed; the advice changes no byte.
        unsafe {
            if pages == Pages::Thp {
                let _ = madvise(start, len, Advice::LinuxHugepage);
            }
            outside.start.write_bytes(1, len);
        }
        Ok(outside)
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory is mapped and aligned to pages; atomics may have any value.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / size_of::<u64>()) }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and no thread borrows it any more.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
