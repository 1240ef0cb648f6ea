//! NUMA nodes. A kernel without NUMA shows none; that machine counts as one node with everything.

use super::{CpuSet, Error, Memory, Root, text};

const NODES: &str = "/sys/devices/system/node";

/// The nodes of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// CPUs that are online.
    pub online: CpuSet,
    /// The online nodes, ascending by number. Numbers may have gaps.
    pub nodes: Vec<Node>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number of the node.
    pub id: u32,
    /// The online CPUs of the node; empty for a node with memory only.
    pub cpus: CpuSet,
    /// The memory of the node in bytes; 0 for a node with CPUs only.
    pub memory_total: u64,
    /// Bytes of the memory that are not in use.
    pub memory_free: u64,
    /// The distance to each node of the machine, in their order, from ACPI. It is 10 to the node
    /// itself, and 20 if an access takes twice as long. Empty if the kernel does not report it.
    pub distances: Vec<u32>,
}

impl Topology {
    /// Reads the online CPUs and nodes.
    ///
    /// # Errors
    /// [`Error`] if a list of CPUs or a node's memory cannot be read or understood.
    pub fn read(root: &Root) -> Result<Self, Error> {
        let online = online_cpus(root)?;
        let nodes = match online_nodes(root)? {
            Some(ids) => ids.iter().map(|id| node(root, id)).collect::<Result<_, _>>()?,
            None => vec![whole_machine(root, &online)?],
        };
        Ok(Self { online, nodes })
    }

    /// Returns the node that a CPU belongs to.
    pub fn node_of(&self, cpu: u32) -> Option<u32> {
        self.nodes.iter().find(|node| node.cpus.contains(cpu)).map(|node| node.id)
    }
}

pub(super) fn online_cpus(root: &Root) -> Result<CpuSet, Error> {
    cpu_list(root, "/sys/devices/system/cpu/online")
}

pub(super) fn online_nodes(root: &Root) -> Result<Option<CpuSet>, Error> {
    if !root.exists(NODES) {
        return Ok(None);
    }
    cpu_list(root, &format!("{NODES}/online")).map(Some)
}

fn cpu_list(root: &Root, path: &str) -> Result<CpuSet, Error> {
    root.read_value(path, "a list of CPUs", |text| text.parse().ok())
}

fn node(root: &Root, id: u32) -> Result<Node, Error> {
    let cpus = cpu_list(root, &format!("{NODES}/node{id}/cpulist"))?;
    let meminfo = format!("{NODES}/node{id}/meminfo");
    let (memory_total, memory_free) =
        root.read_value(meminfo, "MemTotal and MemFree", |meminfo| {
            Some((text::bytes(meminfo, "MemTotal:")?, text::bytes(meminfo, "MemFree:")?))
        })?;
    let distances = format!("{NODES}/node{id}/distance");
    let distances = match root.exists(&distances) {
        true => root.read_value(distances, "distances of nodes", numbers)?,
        false => Vec::new(),
    };
    Ok(Node { id, cpus, memory_total, memory_free, distances })
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    text.split_whitespace().map(|number| number.parse().ok()).collect()
}

fn whole_machine(root: &Root, online: &CpuSet) -> Result<Node, Error> {
    let Memory { total: memory_total, free: memory_free, .. } = Memory::read(root)?;
    let cpus = online.clone();
    Ok(Node { id: 0, cpus, memory_total, memory_free, distances: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::Synthetic;
    use super::*;

    fn machine(online: &str, nodes: &[(u32, &str, u64)]) -> Synthetic {
        let machine = Synthetic::new();
        machine.file("/sys/devices/system/cpu/online", online);
        let ids: CpuSet = nodes.iter().map(|node| node.0).collect();
        machine.file(format!("{NODES}/online"), ids.to_string());
        for (id, cpus, kib) in nodes {
            let meminfo =
                format!("Node {id} MemTotal: {kib} kB\nNode {id} MemFree: {} kB", kib / 2);
            machine.file(format!("{NODES}/node{id}/cpulist"), cpus);
            machine.file(format!("{NODES}/node{id}/meminfo"), meminfo);
        }
        machine
    }

    #[test]
    fn nodes_of_a_plain_machine_are_one() {
        let topology = Topology::read(&machine("0-1", &[(0, "0-1", 1024)]).root()).unwrap();
        let node = Node {
            id: 0,
            cpus: "0-1".parse().unwrap(),
            memory_total: 1 << 20,
            memory_free: 512 << 10,
            distances: Vec::new(),
        };
        assert_eq!(topology.nodes, [node]);
    }

    #[test]
    fn nodes_that_are_apart_have_their_distances() {
        let machine = machine("0-1", &[(0, "0", 64), (1, "1", 64)]);
        machine.file(format!("{NODES}/node0/distance"), "10 21\n");
        let nodes = Topology::read(&machine.root()).unwrap().nodes;
        assert_eq!([&nodes[0].distances[..], &nodes[1].distances], [&[10, 21][..], &[]]);
        machine.file(format!("{NODES}/node1/distance"), "far");
        assert!(Topology::read(&machine.root()).is_err());
    }

    #[test]
    fn nodes_of_over_a_thousand_cpus_are_read() {
        let lists: Vec<String> = (0..8).map(|n| format!("{}-{}", n * 256, n * 256 + 255)).collect();
        let nodes: Vec<_> = (0..8).map(|n| (n, lists[n as usize].as_str(), 4)).collect();
        let topology = Topology::read(&machine("0-2047", &nodes).root()).unwrap();
        assert_eq!(topology.online.len(), 2048);
        assert_eq!(topology.nodes.len(), 8);
        assert_eq!(topology.node_of(1500), Some(5));
        assert_eq!(topology.node_of(4000), None);
    }

    #[test]
    fn nodes_with_gaps_or_without_memory_or_cpus_are_read() {
        let nodes = [(0, "0-3", 0), (8, "4-7", 64), (255, "", 64)];
        let topology = Topology::read(&machine("0-7", &nodes).root()).unwrap();
        assert_eq!(topology.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 8, 255]);
        assert_eq!(topology.nodes[0].memory_total, 0);
        assert!(topology.nodes[2].cpus.is_empty());
        assert_eq!(topology.node_of(5), Some(8));
    }

    #[test]
    fn nodes_beside_offline_cpus_do_not_have_them() {
        let topology =
            Topology::read(&machine("0-2,4", &[(0, "0-2", 8), (1, "4", 8)]).root()).unwrap();
        assert_eq!(topology.online.len(), 4);
        assert_eq!(topology.node_of(3), None);
    }

    #[test]
    fn nodes_without_numa_are_one() {
        let machine = Synthetic::new();
        machine.file("/sys/devices/system/cpu/online", "0-3");
        machine.file("/proc/meminfo", "MemTotal: 8 kB\nMemFree: 4 kB\nMemAvailable: 4 kB");
        let topology = Topology::read(&machine.root()).unwrap();
        assert_eq!(topology.nodes.len(), 1);
        assert_eq!(topology.nodes[0].memory_total, 8192);
        assert_eq!(topology.node_of(3), Some(0));
    }

    #[test]
    fn nodes_of_garbage_are_an_error_that_names_it() {
        let machine = machine("0-1", &[(0, "0-1", 1024)]);
        machine.file(format!("{NODES}/node0/meminfo"), "\u{1}\u{2}");
        let message = Topology::read(&machine.root()).unwrap_err().to_string();
        assert!(message.contains("node0/meminfo: expected MemTotal"), "{message}");
    }
}
