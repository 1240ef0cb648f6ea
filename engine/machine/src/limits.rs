//! Limits of this process that are not limits of a cgroup: affinity, memory nodes, mappings,
//! addresses.

use super::{CpuSet, Error, Root, text};

/// The CPUs and nodes that this process may use, according to its affinity and to cgroup cpusets
/// together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The permitted CPUs.
    pub cpus: CpuSet,
    /// The permitted memory nodes.
    pub nodes: CpuSet,
}

impl Allowed {
    /// Reads the CPUs and nodes of the main thread of this process.
    ///
    /// # Errors
    /// [`Error`] if `/proc/self/status` cannot be read or understood.
    pub fn read(root: &Root) -> Result<Self, Error> {
        let expected = "Cpus_allowed_list and Mems_allowed_list";
        root.read_value("/proc/self/status", expected, |status| {
            let list = |key| text::field(status, key)?.parse().ok();
            Some(Self { cpus: list("Cpus_allowed_list:")?, nodes: list("Mems_allowed_list:")? })
        })
    }
}

/// Returns the highest number of mappings of a process. Each isolated huge page of a fork costs two
/// mappings.
///
/// # Errors
/// [`Error`] if the file cannot be read or understood.
pub fn max_map_count(root: &Root) -> Result<u64, Error> {
    root.read_number("/proc/sys/vm/max_map_count")
}

/// The limit that leaves a process the fewest bytes of private writable memory to map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimit {
    /// The name of the limit, and the way to set it.
    pub name: &'static str,
    /// Bytes that may still be mapped.
    pub left: u64,
}

impl AddressLimit {
    /// Reads `ulimit -v` and `ulimit -d` of this process, and the machine's limit if overcommit is
    /// off. `None` if there is no limit, or if none can be read.
    #[must_use]
    pub fn read(root: &Root) -> Option<Self> {
        let limits = root.read_if_present("/proc/self/limits").ok().flatten().unwrap_or_default();
        let status = root.read_if_present("/proc/self/status").ok().flatten().unwrap_or_default();
        let of_process = [
            ("Max address space", "VmSize:", "RLIMIT_AS (ulimit -v)"),
            ("Max data size", "VmData:", "RLIMIT_DATA (ulimit -d)"),
        ];
        let of_process = of_process.into_iter().filter_map(|(limit, used, name)| {
            let soft = limits.lines().find_map(|line| line.strip_prefix(limit))?;
            let soft: u64 = soft.split_ascii_whitespace().next()?.parse().ok()?;
            Some(Self { name, left: soft.saturating_sub(kibibytes(&status, used)?) })
        });
        of_process.chain(Self::of_promises(root)).min_by_key(|limit| limit.left)
    }

    fn of_promises(root: &Root) -> Option<Self> {
        let mode = root.read_number("/proc/sys/vm/overcommit_memory").ok()?;
        let memory = root.read_if_present("/proc/meminfo").ok()??;
        let (all, promised) =
            (kibibytes(&memory, "CommitLimit:")?, kibibytes(&memory, "Committed_AS:")?);
        let name = "vm.overcommit_ratio, because vm.overcommit_memory is 2";
        (mode == 2).then(|| Self { name, left: all.saturating_sub(promised) })
    }
}

/// Returns a number of KiB in a file of lines such as `VmSize:  17 kB`, in bytes.
fn kibibytes(file: &str, key: &str) -> Option<u64> {
    let number = text::field(file, key)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    Some(number << 10)
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    #[test]
    fn allowed_of_a_process_is_its_cpus_and_nodes() {
        let machine = Synthetic::new();
        machine
            .file("/proc/self/status", "Cpus_allowed_list:\t0-1023,1088\nMems_allowed_list:\t0,8");
        let allowed = Allowed::read(&machine.root()).unwrap();
        assert_eq!(allowed.cpus.len(), 1025);
        assert_eq!(allowed.nodes.to_string(), "0,8");
    }

    #[test]
    fn limits_of_garbage_are_an_error_that_names_it() {
        let machine = Synthetic::new();
        machine.file("/proc/sys/vm/max_map_count", "many");
        assert!(max_map_count(&machine.root()).unwrap_err().to_string().contains("\"many\""));
    }

    #[test]
    fn limit_of_addresses_is_the_one_that_leaves_the_least() {
        let machine = Synthetic::new();
        assert_eq!(AddressLimit::read(&machine.root()), None);
        let limits = |space: &str, data: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max data size             {data}           unlimited            bytes\n\
                 Max address space         {space}            unlimited            bytes\n"
            )
        };
        machine.file("/proc/self/status", "VmPeak:\t  99 kB\nVmSize:\t  10 kB\nVmData:\t  5 kB\n");
        let read = |machine: &Synthetic| {
            AddressLimit::read(&machine.root()).map(|limit| (limit.name, limit.left))
        };
        machine.file("/proc/self/limits", limits("unlimited", "unlimited"));
        assert_eq!(read(&machine), None);
        machine.file("/proc/self/limits", limits("20480", "unlimited"));
        assert_eq!(read(&machine), Some(("RLIMIT_AS (ulimit -v)", 10 << 10)));
        machine.file("/proc/self/limits", limits("20480", "14336"));
        assert_eq!(read(&machine), Some(("RLIMIT_DATA (ulimit -d)", 9 << 10)));
        machine.file("/proc/self/limits", limits("1", "unlimited"));
        assert_eq!(read(&machine), Some(("RLIMIT_AS (ulimit -v)", 0)));
        machine.file("/proc/self/limits", limits("20480", "unlimited"));
        machine.file("/proc/meminfo", "CommitLimit:  9 kB\nCommitted_AS:  8 kB\n");
        machine.file("/proc/sys/vm/overcommit_memory", "0\n");
        assert_eq!(read(&machine), Some(("RLIMIT_AS (ulimit -v)", 10 << 10)));
        machine.file("/proc/sys/vm/overcommit_memory", "2\n");
        let promises = "vm.overcommit_ratio, because vm.overcommit_memory is 2";
        assert_eq!(read(&machine), Some((promises, 1 << 10)));
    }
}
