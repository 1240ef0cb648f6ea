//! The memory of the whole machine, without limits of cgroups.

use super::{Error, Root, text};

/// Memory of the machine in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Memory that the kernel manages.
    pub total: u64,
    /// Memory that is not in use.
    pub free: u64,
    /// Bytes available without swapping, by the kernel's estimate.
    pub available: u64,
    /// Memory of the huge-page pools, used or not. It is not available for anything else.
    pub hugetlb: u64,
    /// Swap space.
    pub swap_total: u64,
}

/// The fraction of all memory, 1/8, that is never reserved for huge pages, because the rest of the
/// system uses it.
const LEFT_ALONE: u64 = 8;

impl Memory {
    /// Returns the memory that can become huge pages without harm: the available memory, minus an
    /// eighth of all memory.
    pub fn spare(&self) -> u64 {
        self.available.saturating_sub(self.total / LEFT_ALONE)
    }

    /// Reads `/proc/meminfo`.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be read, or does not contain total, free or available memory.
    pub fn read(root: &Root) -> Result<Self, Error> {
        root.read_value("/proc/meminfo", "MemTotal and MemFree", parse)
    }
}

fn parse(meminfo: &str) -> Option<Memory> {
    let bytes = |key| text::bytes(meminfo, key);
    let free = bytes("MemFree:")?;
    Some(Memory {
        total: bytes("MemTotal:")?,
        free,
        available: bytes("MemAvailable:").unwrap_or(free),
        hugetlb: bytes("Hugetlb:").unwrap_or(0),
        swap_total: bytes("SwapTotal:").unwrap_or(0),
    })
}

/// Returns the share of the last ten seconds in which a task waited for memory, in percent. `None`
/// if the kernel does not count it.
pub fn pressure(root: &Root) -> Option<f64> {
    let text = root.read_if_present("/proc/pressure/memory").ok()??;
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

/// Returns the bytes that were swapped out since the machine's start. `None` if the kernel does not count them.
pub fn swapped_out(root: &Root) -> Option<u64> {
    let text = root.read_if_present("/proc/vmstat").ok()??;
    let pages = text.lines().find_map(|line| line.strip_prefix("pswpout "))?;
    Some(pages.parse::<u64>().ok()?.saturating_mul(rustix::param::page_size() as u64))
}

/// Returns the bytes that are free in blocks of at least this many bytes, by `/proc/buddyinfo`: an allocation of such a
/// block that finds none has the kernel compact memory at once.
pub fn free_blocks(root: &Root, least: u64) -> Option<u64> {
    let text = root.read_if_present("/proc/buddyinfo").ok()??;
    Some(text.lines().filter_map(|line| free_blocks_of_zone(line, least)).sum())
}

/// Parses `Node 0, zone Normal` and the numbers of free blocks of 1, 2, 4 … pages.
fn free_blocks_of_zone(line: &str, least: u64) -> Option<u64> {
    let (_, zone) = line.split_once("zone")?;
    let page = rustix::param::page_size() as u64;
    let of_order = |(order, count): (usize, &str)| {
        let bytes = page << order;
        let count: u64 = count.parse().unwrap_or(0);
        if bytes >= least { bytes * count } else { 0 }
    };
    Some(zone.split_ascii_whitespace().skip(1).enumerate().map(of_order).sum())
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    #[test]
    fn memory_in_kibibytes_becomes_bytes() {
        let machine = Synthetic::new();
        let meminfo =
            "MemTotal: 16 kB\nMemFree: 2 kB\nMemAvailable: 4 kB\nSwapTotal: 1 kB\nHugetlb: 8 kB";
        machine.file("/proc/meminfo", meminfo);
        let expected = Memory {
            total: 16 << 10,
            free: 2 << 10,
            available: 4 << 10,
            hugetlb: 8 << 10,
            swap_total: 1 << 10,
        };
        assert_eq!(Memory::read(&machine.root()).unwrap(), expected);
    }

    #[test]
    fn spare_memory_leaves_an_eighth_of_all() {
        let memory =
            |total, available| Memory { total, free: 0, available, hugetlb: 0, swap_total: 0 };
        assert_eq!(memory(800, 700).spare(), 600);
        assert_eq!(memory(800, 90).spare(), 0);
        assert_eq!(memory(u64::MAX, u64::MAX).spare(), u64::MAX - u64::MAX / 8);
    }

    #[test]
    fn memory_of_an_empty_file_is_an_error_that_names_it() {
        let machine = Synthetic::new();
        machine.file("/proc/meminfo", "");
        let message = Memory::read(&machine.root()).unwrap_err().to_string();
        assert!(message.contains("proc/meminfo: expected MemTotal"), "{message}");
    }

    #[test]
    fn pressure_is_that_of_some_tasks_in_ten_seconds() {
        let machine = Synthetic::new();
        assert_eq!(pressure(&machine.root()), None);
        let text = "some avg10=1.50 avg60=2.00 avg300=3.00 total=9\nfull avg10=0.50 total=8\n";
        machine.file("/proc/pressure/memory", text);
        assert_eq!(pressure(&machine.root()), Some(1.5));
    }

    #[test]
    fn swapped_out_pages_are_bytes() {
        let machine = Synthetic::new();
        assert_eq!(swapped_out(&machine.root()), None);
        machine.file("/proc/vmstat", "pswpin 7\npswpout 3\npgmajfault 9\n");
        let page = rustix::param::page_size() as u64;
        assert_eq!(swapped_out(&machine.root()), Some(3 * page));
    }

    #[test]
    fn free_blocks_of_a_size_and_more_are_counted() {
        let machine = Synthetic::new();
        assert_eq!(free_blocks(&machine.root(), 1), None);
        let page = rustix::param::page_size() as u64;
        let line = "Node 0, zone   Normal  7 7  3   2\n";
        machine.file("/proc/buddyinfo", format!("nonsense\n{line}{line}"));
        assert_eq!(free_blocks(&machine.root(), 4 * page), Some(2 * (3 * 4 + 2 * 8) * page));
    }
}
