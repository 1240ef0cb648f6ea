//! Placement of helpers: the allowed CPUs of each node, and the available CPU time.

use super::Limit;
use super::workers::Workers;
use hugekit_machine::cgroup::Cgroups;
use hugekit_machine::limits::Allowed;
use hugekit_machine::{CpuSet, Error, Root, Topology};

/// The CPUs by node, and the control group's quota in whole CPUs.
///
/// [`Job`](super::Job) uses the placement of this machine and of the calling thread. A caller can
/// pass the placement of a machine that files describe, see [`Root::at`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    nodes: Vec<NodeCpus>,
    quota: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeCpus {
    pub(super) id: u32,
    /// The allowed CPUs of the node. Empty if the node only has memory, or if none of its CPUs is
    /// allowed.
    pub(super) cpus: CpuSet,
}

impl Placement {
    /// Returns the placement of the main thread of a process on that machine.
    ///
    /// A quota of 1.5 CPUs counts as 2: the time is the same, and short jobs end sooner.
    ///
    /// # Errors
    /// A list of CPUs, a node, or a quota cannot be read or parsed.
    pub fn read(root: &Root) -> Result<Self, Error> {
        let quota = Cgroups::read(root)?.cpu_quota()?.map(|quota| whole_cpus(quota.cpus()));
        let machine = Self { nodes: nodes_of(&Topology::read(root)?), quota };
        Ok(machine.within(&Allowed::read(root)?.cpus))
    }

    /// Returns the placement of the calling thread on this machine. A job uses this placement by
    /// default.
    #[must_use]
    pub fn here() -> Self {
        Workers::current().placement()
    }

    /// Returns the placement of this machine with all CPUs, allowed or not. A file that cannot be
    /// read limits nothing.
    pub(super) fn of_this_machine() -> Self {
        let root = Root::default();
        let quota = Cgroups::read(&root).and_then(|groups| groups.cpu_quota()).ok().flatten();
        let nodes = Topology::read(&root).map(|topology| nodes_of(&topology)).unwrap_or_default();
        Self { nodes, quota: quota.map(|quota| whole_cpus(quota.cpus())) }
    }

    /// Returns the part of the placement within a mask. The nodes may be unreadable, or a CPU may
    /// have just come online. CPUs of the mask that belong to no node then form a node of their
    /// own.
    pub(super) fn within(&self, mask: &CpuSet) -> Self {
        let mut nodes = self.nodes.clone();
        for node in &mut nodes {
            node.cpus = node.cpus.intersection(mask);
        }
        if nodes.iter().all(|node| node.cpus.is_empty()) && !mask.is_empty() {
            nodes = vec![NodeCpus { id: 0, cpus: mask.clone() }];
        }
        Self { nodes, quota: self.quota }
    }

    /// Returns the number of allowed CPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.nodes.iter().map(|node| node.cpus.len()).sum()
    }

    /// Returns the highest useful number of threads: the number of CPUs, or the quota if that is
    /// smaller.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.limit().0
    }

    /// Returns the highest useful number of threads, and the reason of this limit.
    pub(super) fn limit(&self) -> (usize, Limit) {
        let cpus = self.cpus();
        match self.quota {
            Some(quota) if quota < cpus => (quota, Limit::CpuQuota(quota)),
            _ => (cpus, Limit::AllowedCpus(cpus)),
        }
    }

    pub(super) fn nodes(&self) -> &[NodeCpus] {
        &self.nodes
    }

    pub(super) fn node_of_cpu(&self, cpu: u32) -> Option<u32> {
        self.nodes.iter().find(|node| node.cpus.contains(cpu)).map(|node| node.id)
    }

    /// Returns the CPUs of a node; none if this machine has no such node.
    pub(super) fn cpus_of(&self, node: u32) -> CpuSet {
        let found = self.nodes.iter().find(|candidate| candidate.id == node);
        found.map(|node| node.cpus.clone()).unwrap_or_default()
    }

    pub(super) fn all_cpus(&self) -> CpuSet {
        self.nodes.iter().flat_map(|node| node.cpus.iter()).collect()
    }
}

fn nodes_of(topology: &Topology) -> Vec<NodeCpus> {
    let online = |node: &hugekit_machine::Node| node.cpus.intersection(&topology.online);
    topology.nodes.iter().map(|node| NodeCpus { id: node.id, cpus: online(node) }).collect()
}

fn whole_cpus(cpus: f64) -> usize {
    (cpus.ceil() as usize).max(1)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hugekit_invented_machines::Files;

    /// Returns a machine whose nodes have these CPUs, all of which are online and allowed by
    /// default.
    pub(in super::super) fn machine(nodes: &[(u32, &str)], allowed: &str) -> Files {
        let machine = Files::new().unwrap();
        let all: CpuSet = nodes
            .iter()
            .flat_map(|(_, cpus)| cpus.parse::<CpuSet>().unwrap().iter().collect::<Vec<_>>())
            .collect();
        machine.file("/sys/devices/system/cpu/online", all.to_string());
        let ids: CpuSet = nodes.iter().map(|node| node.0).collect();
        machine.file("/sys/devices/system/node/online", ids.to_string());
        for (id, cpus) in nodes {
            let meminfo = format!("Node {id} MemTotal: 64 kB\nNode {id} MemFree: 32 kB");
            machine.file(format!("/sys/devices/system/node/node{id}/cpulist"), cpus);
            machine.file(format!("/sys/devices/system/node/node{id}/meminfo"), meminfo);
        }
        let status = format!("Cpus_allowed_list:\t{allowed}\nMems_allowed_list:\t{ids}");
        machine.file("/proc/self/status", status);
        machine
    }

    fn read(machine: &Files) -> Placement {
        Placement::read(&Root::at(machine.path())).unwrap()
    }

    #[test]
    fn cpus_offline_or_not_allowed_do_not_count() {
        let machine = machine(&[(0, "0-3"), (1, "4-7")], "2-5,900");
        machine.file("/sys/devices/system/cpu/online", "0-4,6-7");
        let placement = read(&machine);
        assert_eq!(placement.cpus(), 3);
        assert_eq!(placement.cpus_of(0).to_string(), "2-3");
        assert_eq!(placement.cpus_of(1).to_string(), "4");
        assert_eq!(placement.limit(), (3, Limit::AllowedCpus(3)));
    }

    #[test]
    fn nodes_with_gaps_and_without_cpus_are_placed() {
        let placement = read(&machine(&[(0, "0-1"), (8, "64-65"), (255, "")], "0-65"));
        assert_eq!(placement.node_of_cpu(65), Some(8));
        assert!(placement.cpus_of(255).is_empty());
        assert!(placement.cpus_of(7).is_empty());
    }

    #[test]
    fn cpus_by_the_thousand_on_eight_nodes_are_placed() {
        let lists: Vec<String> = (0..8).map(|n| format!("{}-{}", n * 125, n * 125 + 124)).collect();
        let nodes: Vec<_> = (0..8).map(|n| (n, lists[n as usize].as_str())).collect();
        let placement = read(&machine(&nodes, "0-999"));
        assert_eq!(placement.limit(), (1000, Limit::AllowedCpus(1000)));
        assert_eq!(placement.node_of_cpu(999), Some(7));
    }

    #[test]
    fn cpus_under_a_quota_are_whole() {
        let machine = machine(&[(0, "0-7")], "0-7");
        machine.file("/proc/self/cgroup", "0::/a");
        let mount = "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";
        machine.file("/proc/self/mountinfo", mount);
        machine.file("/sys/fs/cgroup/a/cpu.max", "150000 100000");
        assert_eq!(read(&machine).limit(), (2, Limit::CpuQuota(2)));
        machine.file("/sys/fs/cgroup/a/cpu.max", "1000 100000");
        assert_eq!(read(&machine).limit(), (1, Limit::CpuQuota(1)));
    }

    #[test]
    fn cpus_that_no_node_claims_are_a_node_of_their_own() {
        let nowhere = Placement { nodes: Vec::new(), quota: None };
        let placement = nowhere.within(&"0-1".parse().unwrap());
        assert_eq!(placement.cpus(), 2);
        assert_eq!(placement.node_of_cpu(1), Some(0));
    }

    #[test]
    fn cpus_of_this_machine_are_those_this_thread_may_use() {
        let mask = hugekit_sys::thread::affinity().unwrap();
        assert_eq!(Placement::of_this_machine().within(&mask).all_cpus(), mask);
    }
}
