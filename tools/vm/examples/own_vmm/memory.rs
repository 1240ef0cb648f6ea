//! Guest memory that a pager supplies, and that can be write-protected from outside.
#![allow(unsafe_code)]

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use hugekit::HUGE_PAGE_BYTES;
use hugekit_guests::small_vmm::send_handshake;
use hugekit_sys::userfaultfd;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use serde_json::json;

use crate::common::guest::GuestMemory;

/// `UFFD_FEATURE_EVENT_REMOVE`.
const EVENT_REMOVE: u64 = 1 << 3;

/// Memory, which stays until the process ends. Descriptor and connection stay open as long.
#[derive(Debug)]
pub(crate) struct Memory {
    start: *mut u8,
    bytes: usize,
    _faults: OwnedFd,
    _pager: UnixStream,
}

// SAFETY: a mapping is the process's, not a thread's.
unsafe impl Send for Memory {}

impl Memory {
    /// Memory without a page, which the pager at a socket supplies.
    pub(crate) fn of_pager(bytes: usize, pager: &Path) -> Result<Self, Box<dyn Error>> {
        let start = map(bytes)?;
        let faults = userfaultfd::new_whole()?;
        userfaultfd::enable(&faults, EVENT_REMOVE)?;
        userfaultfd::register_untouched(faults.as_fd(), &(start.addr()..start.addr() + bytes))?;
        let region = json!({
            "base_host_virt_addr": start.addr(), "size": bytes, "offset": 0, "page_size": 4096,
        });
        let pager = UnixStream::connect(pager)?;
        send_handshake(&pager, &json!([region]), Some(faults.as_fd()))?;
        Ok(Self { start, bytes, _faults: faults, _pager: pager })
    }
}

/// A mapping between two that cannot be accessed: the kernel joins it with no other.
fn map(bytes: usize) -> rustix::io::Result<*mut u8> {
    let all = bytes + 2 * HUGE_PAGE_BYTES;
    // SAFETY: a new mapping at an address of the kernel's choice replaces none.
    let mapped = unsafe {
        mmap_anonymous(std::ptr::null_mut(), all, ProtFlags::empty(), MapFlags::PRIVATE)
    }?;
    let behind_guard = |address: usize| (address + 1).next_multiple_of(HUGE_PAGE_BYTES);
    let start = mapped.map_addr(behind_guard);
    // SAFETY: within the mapping, in front of its last page, and no code uses it yet.
    unsafe { mprotect(start, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }?;
    Ok(start.cast())
}

// SAFETY: mapped until the process ends, and no code refers to it.
unsafe impl GuestMemory for Memory {
    fn address(&self) -> *mut u8 {
        self.start
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
