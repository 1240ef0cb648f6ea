//! What `fork(2)` costs on this machine by entry of a page table, measured; and by that what it costs a process.
#![allow(unsafe_code)]

use std::io;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use hugekit::HUGE_PAGE_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::mappings::Extent;
use hugekit_sys::mapping::MADV_COLLAPSE;

/// Huge pages that a fork is measured with, and as much memory on base pages: enough for a fork to take several times
/// what it takes without.
const HUGE_PAGES: usize = 32;

/// The shortest of this many forks is the time of a fork by itself.
const FORKS: usize = 7;

/// What a fork costs on this machine, whatever else it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForkCost {
    /// A process with as good as no memory.
    pub process: Duration,
    /// Each base page that is there.
    pub base_page: Duration,
    /// Each transparent huge page.
    pub huge_page: Duration,
}

impl ForkCost {
    /// Measures forks of the calling process, which has 64 MiB more meanwhile: some twenty, of a tenth of a second
    /// together. It should be a small one, because its own memory is copied, too.
    ///
    /// # Errors
    /// The kernel gives no such memory, or no process.
    pub fn measure() -> io::Result<Self> {
        let process = least_of_forks()?;
        let memory = Memory::of_base_pages(HUGE_PAGES * HUGE_PAGE_BYTES)?;
        let pages = HUGE_PAGES * (HUGE_PAGE_BYTES / page_size());
        let base_page = least_of_forks()?.saturating_sub(process) / pages as u32;
        let huge_page = match memory.collapse() {
            true => least_of_forks()?.saturating_sub(process) / HUGE_PAGES as u32,
            // To copy such an entry also takes a page table, to split it later: no more than the copy of that.
            false => base_page * (HUGE_PAGE_BYTES / page_size()) as u32,
        };
        Ok(Self { process, base_page, huge_page })
    }

    /// About how long a fork keeps a process that has so much private memory.
    #[must_use]
    pub fn estimate(&self, memory: Extent) -> Duration {
        let entries = |bytes: u64, size: usize| (bytes / size as u64) as f64;
        let base_pages = entries(memory.all.saturating_sub(memory.huge), page_size());
        let huge_pages = entries(memory.huge, HUGE_PAGE_BYTES);
        self.process + self.base_page.mul_f64(base_pages) + self.huge_page.mul_f64(huge_pages)
    }
}

/// Of children that end at once.
fn least_of_forks() -> io::Result<Duration> {
    let mut least = Duration::MAX;
    for _ in 0..FORKS {
        let began = Instant::now();
        // SAFETY: the child does nothing but end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: runs no destructor and takes no lock.
            unsafe { libc::_exit(0) };
        }
        least = least.min(began.elapsed());
        let child = Pid::from_raw(child).filter(|child| child.as_raw_pid() > 0);
        let child = child.ok_or_else(io::Error::last_os_error)?;
        rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
    }
    Ok(least)
}

/// Private anonymous memory, aligned to huge pages.
struct Memory {
    mapping: NonNull<u8>,
    mapped: usize,
    start: NonNull<u8>,
    len: usize,
}

impl Memory {
    fn of_base_pages(len: usize) -> io::Result<Self> {
        let mapped = len + HUGE_PAGE_BYTES;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapping =
            unsafe { mmap_anonymous(ptr::null_mut(), mapped, access, MapFlags::PRIVATE) }?;
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: within the mapping, which is longer by one huge page.
        let start = unsafe { mapping.add(mapping.as_ptr().align_offset(HUGE_PAGE_BYTES)) };
        let memory = Self { mapping, mapped, start, len };
        memory.advise(Advice::LinuxNoHugepage)?;
        for at in (0..len).step_by(page_size()) {
            // SAFETY: within the mapping, of which no reference exists.
            unsafe { start.add(at).write_volatile(1) };
        }
        memory.advise(Advice::LinuxHugepage)?;
        Ok(memory)
    }

    /// Whether all of it is on huge pages now.
    fn collapse(&self) -> bool {
        // SAFETY: the mapping's memory, of which no byte changes.
        let done = unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, MADV_COLLAPSE) };
        done == 0
    }

    /// A kernel without transparent huge pages has no such advice.
    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the mapping's memory, of which these advices change no byte.
        match unsafe { madvise(self.start.as_ptr().cast(), self.len, advice) } {
            Err(rustix::io::Errno::INVAL) => Ok(()),
            advised => Ok(advised?),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: what was mapped, of which no reference exists.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_of_memory_costs_what_its_entries_do() {
        let nanos = Duration::from_nanos;
        let cost = ForkCost { process: nanos(1000), base_page: nanos(10), huge_page: nanos(500) };
        let huge = 3 * HUGE_PAGE_BYTES as u64;
        let small = 7 * page_size() as u64;
        assert_eq!(cost.estimate(Extent { huge, all: huge + small }), nanos(1000 + 1500 + 70));
        assert_eq!(cost.estimate(Extent { huge: 8, all: 0 }), nanos(1000));
    }

    #[test]
    fn base_pages_cost_more_than_no_memory() {
        let cost = ForkCost::measure().unwrap();
        assert!(cost.process > Duration::ZERO, "{cost:?}");
        let a_gigabyte = cost.estimate(Extent { huge: 0, all: 1 << 30 });
        assert!(a_gigabyte > cost.process, "{cost:?}");
    }
}
