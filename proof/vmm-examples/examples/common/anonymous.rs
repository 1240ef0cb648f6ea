//! Memory as a program without hugekit asks for it.
#![allow(unsafe_code)]

use std::error::Error;
use std::mem::MaybeUninit;
use std::{ptr, slice};

use hugekit::{HUGE_PAGE_BYTES, PopulateOptions, Threads};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::guest::GuestMemory;

/// A private mapping of the process.
#[derive(Debug)]
pub(crate) struct Anonymous {
    mapped: *mut u8,
    mapped_bytes: usize,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: a mapping is the process's, not a thread's; the value only names it.
unsafe impl Send for Anonymous {}

impl Anonymous {
    /// All of it is there.
    pub(crate) fn populated(bytes: usize) -> Result<Self, Box<dyn Error>> {
        let mapped = map(bytes, MapFlags::PRIVATE | MapFlags::POPULATE)?;
        Ok(Self { mapped, mapped_bytes: bytes, start: mapped, bytes })
    }

    /// All of it is there, on huge pages where the kernel has any.
    pub(crate) fn on_huge_pages(bytes: usize) -> Result<Self, Box<dyn Error>> {
        let mapped_bytes = bytes + HUGE_PAGE_BYTES;
        let mapped = map(mapped_bytes, MapFlags::PRIVATE)?;
        let start = mapped.map_addr(|address| address.next_multiple_of(HUGE_PAGE_BYTES));
        // SAFETY: within the mapping, and changes no byte of it. A kernel without huge pages has base pages.
        let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
        // SAFETY: mapped, of no content that a compiler would know, and nothing else refers to it yet.
        let memory = unsafe { slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), bytes) };
        PopulateOptions::new().threads(Threads::Auto).run(memory)?;
        Ok(Self { mapped, mapped_bytes, start, bytes })
    }
}

fn map(bytes: usize, flags: MapFlags) -> rustix::io::Result<*mut u8> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces none.
    unsafe { mmap_anonymous(ptr::null_mut(), bytes, prot, flags) }.map(<*mut _>::cast)
}

// SAFETY: mapped until dropped, and no code refers to it.
unsafe impl GuestMemory for Anonymous {
    fn address(&self) -> *mut u8 {
        self.start
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and the guest is gone.
        let _ = unsafe { munmap(self.mapped.cast(), self.mapped_bytes) };
    }
}
