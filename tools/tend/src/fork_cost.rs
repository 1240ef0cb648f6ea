//! The cost of `fork(2)` per entry of a page table, measured on this machine. With the number of
//! entries of a process, it gives an estimate of its fork time.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use hugekit::HUGE_PAGE_BYTES;
use hugekit_sys::thread::cpu_time;
use rustix::param::page_size;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::mappings::Extent;
use crate::own_memory::OwnMemory;

/// The number of huge pages during a measurement, and the same amount of memory on base pages. With
/// them, a fork lasts several times as long as without.
const HUGE_PAGES: usize = 32;

/// The number of forks whose median is the time of a fork, because the host delays some forks.
const FORKS: usize = 5;

/// The number of forks without base pages. Such a fork lasts a tenth of a millisecond, and 32 huge
/// pages add less than this time varies, so the median needs more forks.
const SHORT_FORKS: usize = 41;

/// The cost of a fork on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForkCost {
    /// The cost of a process with almost no memory.
    pub process: Duration,
    /// The cost of each base page in memory.
    pub base_page: Duration,
    /// The cost of each transparent huge page.
    pub huge_page: Duration,
    /// The cost of each page table without an entry.
    pub spare_table: Duration,
}

impl ForkCost {
    /// Measures forks of the calling process. The process uses 64 MiB more meanwhile, and forks 128
    /// times, which lasts a tenth of a second. The process should be small, because its own memory
    /// is copied, too.
    ///
    /// Every page is written before each fork, as a server writes its data between two saves. A
    /// second fork without writes in between would last less than half as long, because the pages
    /// are write-protected already.
    ///
    /// # Errors
    /// The kernel's error if it provides no such memory, or no process.
    pub fn measure() -> io::Result<Self> {
        let process = median_of_forks(SHORT_FORKS, || true)?.unwrap_or_default();
        let memory = OwnMemory::of_base_pages(HUGE_PAGES * HUGE_PAGE_BYTES)?;
        let of_memory = |time: Option<Duration>, entries: usize| {
            time.map(|time| time.saturating_sub(process) / entries as u32)
        };
        let write = || {
            memory.touch_all();
            true
        };
        let pages = HUGE_PAGES * (HUGE_PAGE_BYTES / page_size());
        let base_page = of_memory(median_of_forks(FORKS, write)?, pages).unwrap_or_default();
        let on_huge_pages = median_of_forks(SHORT_FORKS, || write() && memory.collapse())?;
        // To copy such an entry also takes a page table, to split it later: no more than the copy of that.
        let at_most = base_page * (HUGE_PAGE_BYTES / page_size()) as u32;
        let huge_page = of_memory(on_huge_pages, HUGE_PAGES).unwrap_or(at_most);
        // The pages go, and their tables stay.
        let memory = OwnMemory::of_base_pages(HUGE_PAGES * HUGE_PAGE_BYTES)?;
        memory.discard_in_halves()?;
        let of_tables = median_of_forks(SHORT_FORKS, || true)?;
        let spare_table = of_memory(of_tables, HUGE_PAGES).unwrap_or_default();
        Ok(Self { process, base_page, huge_page, spare_table })
    }

    /// Returns an estimate of the time of a fork of a process with this private memory.
    #[must_use]
    pub fn estimate(&self, memory: Extent) -> Duration {
        let entries = |bytes: u64, size: usize| (bytes / size as u64) as f64;
        let base_pages = entries(memory.all.saturating_sub(memory.huge), page_size());
        let huge_pages = entries(memory.huge, HUGE_PAGE_BYTES);
        let tables = entries(memory.spare_tables, page_size());
        self.process
            + self.base_page.mul_f64(base_pages)
            + self.huge_page.mul_f64(huge_pages)
            + self.spare_table.mul_f64(tables)
    }
}

/// Returns the median time of forks. `None` if one of them could not be prepared.
fn median_of_forks(forks: usize, prepare: impl Fn() -> bool) -> io::Result<Option<Duration>> {
    let mut times = vec![Duration::ZERO; forks];
    for time in &mut times {
        if !prepare() {
            return Ok(None);
        }
        *time = time_of_fork()?;
    }
    times.sort_unstable();
    Ok(Some(times[forks / 2]))
}

/// Measures the fork of a child that ends at once. The result is CPU time, so other programs do not
/// count.
fn time_of_fork() -> io::Result<Duration> {
    let began = cpu_time();
    // SAFETY: the child calls only `_exit`, which is async-signal-safe.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: runs no destructor and takes no lock.
        unsafe { libc::_exit(0) };
    }
    let took = cpu_time().saturating_sub(began);
    let child = Pid::from_raw(child).filter(|child| child.as_raw_pid() > 0);
    let child = child.ok_or_else(io::Error::last_os_error)?;
    rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_memory::in_turn;

    #[test]
    fn fork_of_memory_costs_what_its_entries_do() {
        let nanos = Duration::from_nanos;
        let cost = ForkCost {
            process: nanos(1000),
            base_page: nanos(10),
            huge_page: nanos(500),
            spare_table: nanos(200),
        };
        let huge = 3 * HUGE_PAGE_BYTES as u64;
        let small = 7 * page_size() as u64;
        let extent = Extent { huge, all: huge + small, ..Extent::default() };
        assert_eq!(cost.estimate(extent), nanos(1000 + 1500 + 70));
        assert_eq!(cost.estimate(Extent { huge: 8, ..Extent::default() }), nanos(1000));
        let spare_tables = 4 * page_size() as u64;
        assert_eq!(cost.estimate(Extent { spare_tables, ..Extent::default() }), nanos(1800));
    }

    #[test]
    fn base_pages_cost_more_than_no_memory() {
        let _turn = in_turn();
        let cost = ForkCost::measure().unwrap();
        assert!(cost.process > Duration::ZERO, "{cost:?}");
        let a_gigabyte = cost.estimate(Extent { all: 1 << 30, ..Extent::default() });
        assert!(a_gigabyte > cost.process, "{cost:?}");
    }

    #[test]
    fn empty_tables_cost_less_than_full_ones() {
        let _turn = in_turn();
        let cost = ForkCost::measure().unwrap();
        let full = cost.base_page * (HUGE_PAGE_BYTES / page_size()) as u32;
        assert!(cost.spare_table > Duration::ZERO && cost.spare_table < full, "{cost:?}");
    }

    #[test]
    fn forks_are_measured_with_pages_that_were_written_since_the_last_fork() {
        let _turn = in_turn();
        let len = 2 * HUGE_PAGE_BYTES;
        let memory = OwnMemory::of_base_pages(len).unwrap();
        for _ in 0..3 {
            time_of_fork().unwrap();
            // The fork has write-protected all pages: a write to each of them faults.
            let before = faults_of_this_thread();
            memory.touch_all();
            let faults = faults_of_this_thread() - before;
            assert!(faults >= (len / page_size()) as i64, "{faults}");
        }
    }

    fn faults_of_this_thread() -> i64 {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the kernel writes to the place, which has room for it.
        let failed = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } != 0;
        assert!(!failed);
        // SAFETY: the call succeeded, so the kernel has written all of it.
        unsafe { usage.assume_init() }.ru_minflt
    }
}
