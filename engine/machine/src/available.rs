//! Memory that processes may still use. The limit is the machine, or the control group of one of
//! them.

use std::fmt;
use std::path::PathBuf;

use super::Root;
use super::cgroup::{Cgroups, MemoryLeft};
use super::memory::Memory;

/// The memory that is available to some processes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// The number of bytes; `u64::MAX` if the kernel does not report it.
    pub bytes: u64,
    /// The file with the control group's limit that leaves the least; `None` if the machine is the
    /// limit.
    pub limit: Option<PathBuf>,
}

impl Available {
    /// Reads the available memory of the machine, and the memory that the control groups of these
    /// processes leave. A group whose limits this process cannot read does not count.
    pub fn read(root: &Root, pids: &[i32]) -> Self {
        Self::in_groups(root, pids.iter().filter_map(|&pid| Cgroups::of(root, pid).ok()))
    }

    /// Reads the available memory of the machine, and the memory that the control groups of this
    /// process leave.
    pub fn of_this_process(root: &Root) -> Self {
        Self::in_groups(root, Cgroups::read(root).into_iter())
    }

    fn in_groups(root: &Root, groups: impl Iterator<Item = Cgroups>) -> Self {
        let bytes = Memory::read(root).map_or(u64::MAX, |memory| memory.available);
        let of_machine = Self { bytes, limit: None };
        let of_group = |groups: Cgroups| match groups.memory_left() {
            MemoryLeft::Limited(limit) => {
                Some(Self { bytes: limit.left(), limit: Some(limit.file) })
            }
            _ => None,
        };
        let least = groups.filter_map(of_group).min_by_key(|group| group.bytes);
        least.filter(|group| group.bytes < bytes).unwrap_or(of_machine)
    }
}

/// Memory that may be populated for some processes until the kernel's files are read again. They
/// must be read again because other processes use memory, too.
#[derive(Debug)]
pub struct MemoryBudget {
    root: Root,
    pids: Vec<i32>,
    left: u64,
}

impl MemoryBudget {
    /// Bytes that are left to other processes. Without them, the kernel would end a process when
    /// memory runs out.
    pub const RESERVE: u64 = 32 << 20;

    /// The highest number of bytes of a budget.
    const MOST: u64 = 16 << 20;

    /// Makes a budget of the groups of these processes.
    #[must_use]
    pub fn of(root: &Root, pids: &[i32]) -> Self {
        Self { root: root.clone(), pids: pids.to_vec(), left: 0 }
    }

    /// Takes bytes from the budget that will be populated next.
    ///
    /// # Errors
    /// [`Available`] if this many bytes and [`RESERVE`](Self::RESERVE) are not available.
    pub fn take(&mut self, bytes: u64) -> Result<(), Available> {
        if self.left < bytes {
            let available = Available::read(&self.root, &self.pids);
            let free = available.bytes.saturating_sub(Self::RESERVE);
            self.left = free.min(Self::MOST.max(bytes));
            if self.left < bytes {
                return Err(available);
            }
        }
        self.left -= bytes;
        Ok(())
    }
}

impl fmt::Display for Available {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB available", self.bytes >> 20)?;
        match &self.limit {
            Some(file) => write!(f, " below {}", file.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    fn machine(limit: &str) -> Synthetic {
        let machine = Synthetic::new();
        machine.file("/proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable: 2048 kB\n");
        machine.file("/proc/7/cgroup", "0::/vm\n");
        machine.file("/proc/self/mountinfo", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 none rw\n");
        machine.file("/sys/fs/cgroup/vm/memory.max", limit);
        machine.file("/sys/fs/cgroup/vm/memory.current", "1048576\n");
        machine
    }

    #[test]
    fn group_that_leaves_less_than_the_machine_is_named() {
        let machine = machine("2097152\n");
        let available = Available::read(&machine.root(), &[7]);
        assert_eq!(available.bytes, 1 << 20);
        assert!(available.to_string().ends_with("/sys/fs/cgroup/vm/memory.max"), "{available}");
    }

    #[test]
    fn budget_ends_before_the_group_is_full_and_reads_again_when_it_is_used_up() {
        const MIB: u64 = 1 << 20;
        let machine = Synthetic::new();
        machine.file("/proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 4194304 kB\n");
        machine.file("/proc/7/cgroup", "0::/vm\n");
        machine.file("/proc/self/mountinfo", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 none rw\n");
        machine.file("/sys/fs/cgroup/vm/memory.max", format!("{}\n", 64 * MIB));
        machine.file("/sys/fs/cgroup/vm/memory.current", format!("{}\n", 12 * MIB));
        let mut budget = MemoryBudget::of(&machine.root(), &[7]);
        assert!(budget.take(15 * MIB).is_ok());
        // Nobody has used it meanwhile.
        assert!(budget.take(20 * MIB).is_ok());
        machine.file("/sys/fs/cgroup/vm/memory.current", format!("{}\n", 31 * MIB));
        let short = budget.take(2 * MIB).unwrap_err();
        assert_eq!(short.bytes, 33 * MIB);
        assert!(budget.take(MIB).is_ok());
    }

    #[test]
    fn group_that_slows_its_processes_down_counts_as_one_that_refuses() {
        let machine = machine("max\n");
        machine.file("/proc/self/cgroup", "0::/vm\n");
        assert_eq!(Available::of_this_process(&machine.root()).bytes, 2 << 20);
        machine.file("/sys/fs/cgroup/vm/memory.high", "1572864\n");
        let available = Available::of_this_process(&machine.root());
        assert_eq!(available.bytes, 512 << 10);
        assert!(available.to_string().ends_with("memory.high"), "{available}");
    }

    #[test]
    fn machine_that_has_less_than_the_group_leaves_counts() {
        for (limit, pids) in [("max\n", &[7][..]), ("1073741824\n", &[7]), ("0\n", &[])] {
            let available = Available::read(&machine(limit).root(), pids);
            assert_eq!(available, Available { bytes: 2 << 20, limit: None });
            assert_eq!(available.to_string(), "2 MiB available");
        }
    }
}
