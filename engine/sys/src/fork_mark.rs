//! Detection of a forked child: a mark shows if this process is the one in which something was set
//! up.
//!
//! The mark is a page that the kernel clears in a forked child, so a check is one load. It answers
//! the right question: is this *memory* the memory in which the mark was made? A child of `vfork`
//! or `posix_spawn` shares the memory until it calls `execve`, with another process ID, and its
//! writes must be handled like its parent's. The process ID would give the wrong answer there. It
//! is also reused later, and may be 1 on both sides of a PID namespace. The process ID is used only
//! if there is no such page: on a kernel before 4.14, and under an emulator that accepts every
//! advice and follows none (QEMU before 5.1). An advice that does not exist reveals such an
//! emulator.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::param::page_size;
use rustix::process::{Pid, getpid};

use super::injection::{Call, pass};
use super::{apart, mapping};

/// A mark in memory. [`is_ours`](Self::is_ours) is true only in the process that made it.
#[derive(Debug)]
pub struct ForkMark {
    by: By,
}

#[derive(Debug)]
enum By {
    /// A page that contains 1, except in a forked child.
    Page(NonNull<AtomicU8>),
    Process(Pid),
}

// SAFETY: the page is only accessed as an atomic, and stays mapped for as long as the mark exists.
unsafe impl Send for ForkMark {}
// SAFETY: a shared reference accesses the page only as an atomic.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Makes a mark of this process.
    pub fn new() -> Self {
        Self { by: marked_page().map_or_else(|| By::Process(getpid()), By::Page) }
    }

    /// Returns true if the calling process has the memory in which the mark was made, and not a
    /// copy of it. Async-signal-safe.
    pub fn is_ours(&self) -> bool {
        match &self.by {
            // SAFETY: the page stays mapped, readable, for as long as the mark exists.
            By::Page(page) => unsafe { page.as_ref() }.load(Ordering::Relaxed) == 1,
            By::Process(pid) => getpid() == *pid,
        }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        if let By::Page(page) = self.by {
            // SAFETY: exactly the page mapped in `marked_page`, of which no reference is left.
            let _ = unsafe { mapping::unmap(page.as_ptr().cast(), page_size()) };
        }
    }
}

/// An advice that no kernel knows.
const NO_ADVICE: libc::c_int = -1;

fn marked_page() -> Option<NonNull<AtomicU8>> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let page = apart::map_anonymous(page_size(), prot, MapFlags::PRIVATE).ok()?;
    let page = page.as_ptr().cast::<c_void>();
    // SAFETY: the page just mapped is ours alone, and an advice that is refused leaves it as it is.
    unsafe {
        let wiped = pass(Call::Madvise)
            .and_then(|()| rustix::mm::madvise(page, page_size(), Advice::LinuxWipeOnFork));
        if wiped.is_err() || libc::madvise(page, page_size(), NO_ADVICE) == 0 {
            let _ = mapping::unmap(page.cast(), page_size());
            return None;
        }
    }
    let mark = NonNull::new(page.cast::<AtomicU8>())?;
    // SAFETY: the page is mapped, writable and zeroed, which is a valid atomic.
    unsafe { mark.as_ref() }.store(1, Ordering::Relaxed);
    Some(mark)
}
