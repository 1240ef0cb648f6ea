//! Noticing that this process is a fork of the one in which something was set up.
//!
//! A page that the kernel wipes in a forked child answers with a load. The process id alone would
//! not do: ids are used again, and two processes of nested PID namespaces may both be 1. The page
//! alone would not do either: emulators accept the advice and ignore it. So both are looked at.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::param::page_size;
use rustix::process::{Pid, getpid};

use super::injection::{Call, pass};

/// Left in memory by one process; [`is_ours`](Self::is_ours) in that process only.
#[derive(Debug)]
pub(crate) struct ForkMark {
    pid: Pid,
    /// `None` where the kernel has no such page.
    page: Option<NonNull<AtomicU8>>,
}

// SAFETY: the page is only accessed as an atomic, and stays mapped for as long as the mark exists.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// A mark of this process.
    pub(crate) fn new() -> Self {
        Self { pid: getpid(), page: marked_page() }
    }

    /// Whether the calling process is the one that made the mark.
    pub(crate) fn is_ours(&self) -> bool {
        // SAFETY: the page stays mapped, readable, for as long as the mark exists.
        let kept =
            self.page.is_none_or(|page| unsafe { page.as_ref() }.load(Ordering::Relaxed) == 1);
        kept && getpid() == self.pid
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            // SAFETY: exactly the page mapped in `marked_page`, of which no reference is left.
            let _ = unsafe { rustix::mm::munmap(page.as_ptr().cast(), page_size()) };
        }
    }
}

fn marked_page() -> Option<NonNull<AtomicU8>> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    pass(Call::Mmap).ok()?;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let page = unsafe {
        rustix::mm::mmap_anonymous(ptr::null_mut(), page_size(), prot, MapFlags::PRIVATE)
    }
    .ok()?;
    // SAFETY: the page just mapped is ours alone; refused, the advice leaves it as it is.
    unsafe {
        let wipe = || {
            pass(Call::Madvise)?;
            rustix::mm::madvise(page, page_size(), Advice::LinuxWipeOnFork)
        };
        if wipe().is_err() {
            let _ = rustix::mm::munmap(page, page_size());
            return None;
        }
    }
    let mark = NonNull::new(page.cast::<AtomicU8>())?;
    // SAFETY: the page is mapped, writable and zeroed, which is a valid atomic.
    unsafe { mark.as_ref() }.store(1, Ordering::Relaxed);
    Some(mark)
}
