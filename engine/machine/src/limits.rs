//! Limits of this process that are not a cgroup's: affinity, memory nodes, mappings.

use super::{CpuSet, Error, Root, text};

/// The CPUs and nodes that this process may use, by its affinity and by cgroup cpusets together.
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

/// Returns the most mappings that a process may have. Each isolated huge page of a fork costs two.
///
/// # Errors
/// The file cannot be read or understood.
pub fn max_map_count(root: &Root) -> Result<u64, Error> {
    root.read_number("/proc/sys/vm/max_map_count")
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
}
