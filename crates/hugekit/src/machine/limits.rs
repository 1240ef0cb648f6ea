//! Limits of this process that are not a cgroup's: affinity, memory nodes, mappings, locked memory.

use super::{CpuSet, Error, Root, text};

/// Where this process may run and allocate; the outcome of affinity and of cgroup cpusets together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// CPUs.
    pub cpus: CpuSet,
    /// Memory nodes.
    pub nodes: CpuSet,
}

impl Allowed {
    /// Reads what the main thread of this process may use.
    ///
    /// # Errors
    /// `/proc/self/status` cannot be read or understood.
    pub fn read(root: &Root) -> Result<Self, Error> {
        let expected = "Cpus_allowed_list and Mems_allowed_list";
        root.read_value("/proc/self/status", expected, |status| {
            let list = |key| text::field(status, key)?.parse().ok();
            Some(Self { cpus: list("Cpus_allowed_list:")?, nodes: list("Mems_allowed_list:")? })
        })
    }
}

/// How many mappings a process may have; each isolated huge page of a fork costs two.
///
/// # Errors
/// The file cannot be read or understood.
pub fn max_map_count(root: &Root) -> Result<u64, Error> {
    root.read_number("/proc/sys/vm/max_map_count")
}

/// A resource limit; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// In force.
    pub soft: Option<u64>,
    /// As far as the process may raise the soft one.
    pub hard: Option<u64>,
}

/// Bytes of memory this process may lock (`RLIMIT_MEMLOCK`).
///
/// # Errors
/// `/proc/self/limits` cannot be read or understood.
pub fn locked_memory(root: &Root) -> Result<ResourceLimit, Error> {
    root.read_value("/proc/self/limits", "Max locked memory", |limits| {
        let mut words = text::field(limits, "Max locked memory")?.split_ascii_whitespace();
        Some(ResourceLimit { soft: limit(words.next()?)?, hard: limit(words.next()?)? })
    })
}

/// The outer option is understanding, the inner one the limit.
#[allow(clippy::option_option)]
fn limit(word: &str) -> Option<Option<u64>> {
    match word {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    #[test]
    fn allowed_cpus_and_nodes() {
        let machine = Synthetic::new();
        machine
            .file("/proc/self/status", "Cpus_allowed_list:\t0-1023,1088\nMems_allowed_list:\t0,8");
        let allowed = Allowed::read(&machine.root()).unwrap();
        assert_eq!(allowed.cpus.len(), 1025);
        assert_eq!(allowed.nodes.to_string(), "0,8");
    }

    #[test]
    fn locked_memory_may_be_unlimited() {
        let machine = Synthetic::new();
        let row = "Max locked memory         8388608              unlimited            bytes     ";
        machine.file("/proc/self/limits", row);
        let limit = locked_memory(&machine.root()).unwrap();
        assert_eq!(limit, ResourceLimit { soft: Some(8 << 20), hard: None });
    }

    #[test]
    fn garbage_is_named() {
        let machine = Synthetic::new();
        machine.file("/proc/self/limits", "Max locked memory  lots");
        machine.file("/proc/sys/vm/max_map_count", "many");
        assert!(
            locked_memory(&machine.root()).unwrap_err().to_string().contains("Max locked memory")
        );
        assert!(max_map_count(&machine.root()).unwrap_err().to_string().contains("\"many\""));
    }
}
