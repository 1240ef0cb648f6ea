//! The memory of the whole machine, before any limit of a cgroup.

use super::{Error, Root, text};

/// Memory of the machine in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Memory that the kernel manages.
    pub total: u64,
    /// Memory that is not used for anything.
    pub free: u64,
    /// Bytes available without swapping, by the kernel's estimate.
    pub available: u64,
    /// Held by the huge-page pools, used or not; none of it is available for anything else.
    pub hugetlb: u64,
    /// Swap space.
    pub swap_total: u64,
}

/// This fraction of all memory, 1/8, is never reserved for huge pages: the rest of the system
/// uses it.
const LEFT_ALONE: u64 = 8;

impl Memory {
    /// Returns the memory that can become huge pages without harm: the available memory, less an eighth of all
    /// memory.
    pub fn spare(&self) -> u64 {
        self.available.saturating_sub(self.total / LEFT_ALONE)
    }

    /// Reads `/proc/meminfo`.
    ///
    /// # Errors
    /// The file cannot be read, or lacks the total or what is free.
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
}
