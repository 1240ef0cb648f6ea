//! CPUs and nodes: which there are, and which of them this process may use.

use std::iter;

use hugekit_machine::cgroup::{Cpuset, Layout, Quota};
use hugekit_machine::{CpuSet, Error, Node, Topology};

use crate::facts::{Facts, Groups};
use crate::line::{Line, Topic};
use crate::units;

const TOPIC: Topic = Topic("cpus");

pub(crate) fn lines(facts: &Facts) -> Vec<Line> {
    let mut lines = vec![
        TOPIC.about("online", &facts.topology, |topology| {
            TOPIC.ok("online", listed(&topology.online))
        }),
        TOPIC.about("allowed", &facts.allowed, |allowed| {
            allowed_line(&allowed.cpus, &facts.topology, &facts.groups.cpuset)
        }),
        TOPIC.about("cgroups", &facts.groups.layout, |layout| layout_line(*layout)),
        TOPIC.about("quota", &facts.groups.cpu_quota, |quota| quota_line(quota.as_ref())),
    ];
    lines.extend(facts.topology.iter().flat_map(|topology| node_lines(topology, facts)));
    lines
}

fn listed(cpus: &CpuSet) -> String {
    format!("{} ({cpus})", cpus.len())
}

/// Affinity can only narrow what the cpuset leaves, so the remedy is where the two part.
fn allowed_line(
    allowed: &CpuSet,
    topology: &Result<Topology, Error>,
    cpuset: &Result<Option<Cpuset>, Error>,
) -> Line {
    let Ok(Topology { online, .. }) = topology else { return TOPIC.ok("allowed", listed(allowed)) };
    let usable = allowed.intersection(online);
    let left = match cpuset {
        Ok(Some(cpuset)) => cpuset.cpus.intersection(online),
        _ => online.clone(),
    };
    let value = format!("{} of {} ({usable})", usable.len(), online.len());
    match cpuset {
        _ if usable == *online => TOPIC.ok("allowed", value),
        Ok(Some(cpuset)) if usable == left => TOPIC
            .limited("allowed", format!("{value}: the cgroup's cpuset"))
            .remedy(format!("echo {online} > {}", cpuset.file.display())),
        _ => TOPIC
            .limited("allowed", format!("{value}: affinity"))
            .remedy(format!("taskset -pc {left} $$")),
    }
}

fn layout_line(layout: Layout) -> Line {
    let value = match layout {
        Layout::None => "none mounted",
        Layout::V1 => "version 1",
        Layout::V2 => "version 2",
        Layout::Hybrid => "versions 1 and 2 (hybrid)",
    };
    TOPIC.ok("cgroups", value)
}

fn quota_line(quota: Option<&Quota>) -> Line {
    let Some(quota) = quota else { return TOPIC.ok("quota", "none") };
    let Quota { quota_us, period_us, file } = quota;
    let value = format!("{:.2} CPUs ({quota_us} of {period_us} µs)", quota.cpus());
    // The file of version 1 has only the quota in it.
    let unlimited = if file.ends_with("cpu.max") { "max" } else { "-1" };
    TOPIC.limited("quota", value).remedy(format!("echo {unlimited} > {}", file.display()))
}

fn node_lines(topology: &Topology, facts: &Facts) -> Vec<Line> {
    let nodes = &topology.nodes;
    let barred =
        |node: &Node| facts.allowed.as_ref().is_ok_and(|allowed| !allowed.nodes.contains(node.id));
    let line =
        |node| if barred(node) { barred_line(node, nodes, &facts.groups) } else { node_line(node) };
    nodes.iter().flat_map(|node| iter::once(line(node)).chain(distances_line(node))).collect()
}

/// Makes the line of distances from this node, on a machine with several nodes.
fn distances_line(node: &Node) -> Option<Line> {
    let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
    let name = format!("node {} distances", node.id);
    (distances.len() > 1).then(|| TOPIC.ok(name, distances.join(" ")))
}

fn node_line(node: &Node) -> Line {
    let (name, cpus) = (format!("node {}", node.id), cpus_of(node));
    let (total, free) = (units::bytes(node.memory_total), units::bytes(node.memory_free));
    match node.memory_total {
        0 => TOPIC.note(name, format!("{cpus}; no memory: other nodes serve it")),
        _ => TOPIC.ok(name, format!("{cpus}; {total}, {free} free")),
    }
}

/// Only a cpuset bars a process from the memory of a node.
fn barred_line(node: &Node, nodes: &[Node], groups: &Groups) -> Line {
    let total = units::bytes(node.memory_total);
    let value = format!("{}; {total}, none of it for this process", cpus_of(node));
    let line = TOPIC.limited(format!("node {}", node.id), value);
    let all: CpuSet = nodes.iter().map(|node| node.id).collect();
    match &groups.cpuset {
        Ok(Some(Cpuset { file, .. })) => {
            line.remedy(format!("echo {all} > {}", file.with_file_name("cpuset.mems").display()))
        }
        _ => line,
    }
}

fn cpus_of(node: &Node) -> String {
    match node.cpus.is_empty() {
        true => "no CPUs".to_owned(),
        false => format!("CPUs {}", node.cpus),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;
    use crate::line::Verdict;

    fn cpus(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn allowed(usable: &str, cpuset: Option<&str>) -> Line {
        let topology = Ok(Topology { online: cpus("0-7"), nodes: Vec::new() });
        let file = PathBuf::from("/sys/fs/cgroup/job/cpuset.cpus");
        let cpuset = cpuset.map(|text| Cpuset { cpus: cpus(text), file });
        allowed_line(&cpus(usable), &topology, &Ok(cpuset))
    }

    #[test]
    fn affinity_and_cpuset_are_told_apart() {
        assert_eq!(allowed("0-7", Some("0-7")).verdict, Verdict::Ok);
        assert_eq!(allowed("0-1023", None).verdict, Verdict::Ok);
        assert_eq!(allowed("0", Some("0-3")).remedy.unwrap(), "taskset -pc 0-3 $$");
        assert_eq!(allowed("0", None).remedy.unwrap(), "taskset -pc 0-7 $$");
        let by_group = allowed("0-3", Some("0-3"));
        assert_eq!(by_group.remedy.unwrap(), "echo 0-7 > /sys/fs/cgroup/job/cpuset.cpus");
    }

    #[test]
    fn an_unknown_cpuset_still_leaves_the_verdict() {
        let topology = Ok(Topology { online: cpus("0-7"), nodes: Vec::new() });
        let denied = io::ErrorKind::PermissionDenied.into();
        let cpuset = Err(Error::Unreadable { path: "/proc/self/cgroup".into(), source: denied });
        assert_eq!(allowed_line(&cpus("0"), &topology, &cpuset).verdict, Verdict::Limited);
    }

    #[test]
    fn a_quota_is_lifted_as_its_version_wants() {
        let quota =
            |file| Quota { quota_us: 150_000, period_us: 100_000, file: PathBuf::from(file) };
        let line = quota_line(Some(&quota("/cg/cpu.max")));
        assert_eq!(line.value, "1.50 CPUs (150000 of 100000 µs)");
        assert_eq!(line.remedy.unwrap(), "echo max > /cg/cpu.max");
        let version_1 = quota_line(Some(&quota("/cg/cpu.cfs_quota_us")));
        assert_eq!(version_1.remedy.unwrap(), "echo -1 > /cg/cpu.cfs_quota_us");
        assert_eq!(quota_line(None).verdict, Verdict::Ok);
    }

    #[test]
    fn nodes_without_memory_or_permission() {
        let node = |id, memory_total| {
            let distances = vec![20, 10];
            Node { id, cpus: cpus("1"), memory_total, memory_free: 0, distances }
        };
        assert_eq!(distances_line(&node(1, 0)).unwrap().value, "20 10");
        assert_eq!(distances_line(&Node { distances: vec![10], ..node(0, 0) }), None);
        assert_eq!(node_line(&node(3, 0)).verdict, Verdict::Note);
        assert_eq!(node_line(&node(3, 1 << 30)).value, "CPUs 1; 1 GiB, 0 bytes free");
        let groups = Groups {
            layout: Ok(Layout::V2),
            cpu_quota: Ok(None),
            cpuset: Ok(Some(Cpuset { cpus: cpus("1"), file: "/cg/job/cpuset.cpus".into() })),
            memory: Ok(None),
            hugetlb: Vec::new(),
        };
        let line = barred_line(&node(3, 1 << 30), &[node(0, 1), node(3, 1)], &groups);
        assert_eq!(line.remedy.unwrap(), "echo 0,3 > /cg/job/cpuset.mems");
    }
}
