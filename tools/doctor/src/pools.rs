//! Huge pages that the administrator reserved, and limits on them.

use hugekit::error_chain;
use hugekit_machine::cgroup::GroupLimit;
use hugekit_machine::hugepages::{HugePagePool, NodePool, remedy};
use hugekit_machine::{Error, Memory, Node};

use crate::facts::Facts;
use crate::line::{Line, Topic};
use crate::memory::lift;
use crate::units;

const TOPIC: Topic = Topic("huge pages");
const GIB: u64 = 1 << 30;

pub(crate) fn lines(facts: &Facts) -> Vec<Line> {
    let mut lines = match &facts.pools {
        Ok(pools) if pools.is_empty() => vec![no_pools("the kernel lists no size")],
        Ok(pools) => {
            let nodes = facts.topology.as_ref().map_or(&[][..], |topology| &topology.nodes);
            pools
                .iter()
                .flat_map(|pool| pool_lines(pool, facts.memory.as_ref().ok(), nodes))
                .collect()
        }
        Err(error) if error.is_not_found() => vec![no_pools(&error_chain(error).to_string())],
        Err(error) => vec![TOPIC.unknown("pools", error_chain(error))],
    };
    lines.extend(limit_lines(&facts.groups.hugetlb));
    lines
}

fn no_pools(why: &str) -> Line {
    TOPIC.missing("pools", why).remedy("needs a kernel with CONFIG_HUGETLBFS=y")
}

fn pool_lines(pool: &HugePagePool, memory: Option<&Memory>, nodes: &[Node]) -> Vec<Line> {
    let mut lines = vec![pool_line(pool, memory)];
    if pool.total > 0 {
        let node = |pool: &NodePool| nodes.iter().find(|node| node.id == pool.node);
        lines.extend(pool.nodes.iter().map(|on| node_line(pool.page_size, on, node(on))));
    }
    lines
}

fn pool_line(pool: &HugePagePool, memory: Option<&Memory>) -> Line {
    let HugePagePool { total, free, reserved, surplus, overcommit, .. } = pool;
    let name = units::bytes(pool.page_size);
    let value = format!(
        "{total} pages, {free} free, {reserved} promised, {surplus} surplus, overcommit {overcommit}"
    );
    let spare = memory.map(|memory| memory.spare() / pool.page_size);
    let remedy = remedy(pool.page_size, pool.total, pages_worth_adding(pool, spare), spare);
    match (pool.unpromised(), pool.may_grow_by()) {
        (1.., _) => TOPIC.ok(name, value),
        (0, 1..) => TOPIC
            .limited(name, format!("{value}: pages are made on request, if free memory permits"))
            .remedy(remedy),
        // Gigantic pages are used on request only, so their absence costs nothing.
        _ if pool.page_size >= GIB => TOPIC.note(name, value).remedy(remedy),
        _ => TOPIC.missing(name, value).remedy(remedy),
    }
}

/// Returns the pages of 1 GiB, or a quarter of the pages that the machine can spare; at least one.
fn pages_worth_adding(pool: &HugePagePool, spare: Option<u64>) -> u64 {
    let gib = GIB / pool.page_size;
    spare.map_or(gib, |spare| gib.min(spare / 4)).max(1)
}

fn node_line(page_size: u64, pool: &NodePool, on: Option<&Node>) -> Line {
    let NodePool { node, total, free, surplus } = *pool;
    let name = format!("{} node {node}", units::bytes(page_size));
    let value = format!("{total} pages, {free} free, {surplus} surplus");
    match total {
        0 => {
            let line = TOPIC.note(name, format!("{value}: its CPUs use other nodes"));
            // A node is left as much as the machine as a whole.
            match on.filter(|on| on.memory_free.saturating_sub(on.memory_total / 8) >= page_size) {
                Some(_) => line.remedy(format!(
                    "echo 1 > /sys/devices/system/node/node{node}/hugepages/hugepages-{}kB/nr_hugepages",
                    page_size >> 10
                )),
                None => line,
            }
        }
        _ => TOPIC.ok(name, value),
    }
}

fn limit_lines(limits: &[(u64, Result<Option<GroupLimit>, Error>)]) -> Vec<Line> {
    let line = |(size, limit): &(u64, Result<Option<GroupLimit>, Error>)| {
        let name = format!("{} limit", units::bytes(*size));
        match limit {
            Ok(None) => None,
            Ok(Some(limit)) => Some(limit_line(&name, *size, limit)),
            Err(error) => Some(TOPIC.unknown(name, error_chain(error))),
        }
    };
    let lines: Vec<Line> = limits.iter().filter_map(line).collect();
    if lines.is_empty() { vec![TOPIC.ok("cgroup limits", "none")] } else { lines }
}

fn limit_line(name: &str, page_size: u64, limit: &GroupLimit) -> Line {
    let pages = |bytes| units::count((bytes / page_size) as usize, "page");
    let used = limit.used.map_or(String::new(), |used| format!(", {} used", pages(used)));
    let kind = match limit.file.to_string_lossy().contains(".rsvd.") {
        true => "reserving",
        false => "using",
    };
    let value = format!("{kind} up to {}{used}", pages(limit.bytes));
    match limit.bytes {
        0 => TOPIC.missing(name, value),
        _ => TOPIC.limited(name, value),
    }
    .remedy(lift(limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Verdict;

    fn pool(page_size: u64, total: u64, free: u64, reserved: u64, overcommit: u64) -> HugePagePool {
        HugePagePool { page_size, total, free, reserved, surplus: 0, overcommit, nodes: Vec::new() }
    }

    #[test]
    fn verdicts_follow_what_can_be_had() {
        let verdict = |pool: &HugePagePool| pool_line(pool, None).verdict;
        assert_eq!(verdict(&pool(2 << 20, 512, 12, 11, 0)), Verdict::Ok);
        assert_eq!(verdict(&pool(2 << 20, 512, 12, 12, 8)), Verdict::Limited);
        assert_eq!(verdict(&pool(2 << 20, 512, 12, 12, 0)), Verdict::Missing);
        assert_eq!(verdict(&pool(GIB, 0, 0, 0, 0)), Verdict::Note);
    }

    #[test]
    fn the_remedy_adds_to_what_there_is_and_fits_the_memory() {
        let remedy = |pool: &HugePagePool, memory| pool_line(pool, memory).remedy.unwrap();
        let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        let memory =
            |total, available| Memory { total, free: 0, available, hugetlb: 0, swap_total: 0 };
        let large = memory(64 * GIB, 60 * GIB);
        let added = remedy(&pool(2 << 20, 100, 0, 0, 0), Some(&large));
        assert_eq!(added, format!("echo 612 > {path}"));
        let small = memory(GIB, (128 + 64) << 20);
        assert_eq!(remedy(&pool(2 << 20, 0, 0, 0, 0), Some(&small)), format!("echo 8 > {path}"));
        let gigantic = pool_line(&pool(GIB, 0, 0, 0, 0), Some(&small)).remedy.unwrap();
        assert!(
            gigantic.contains("cannot spare 1 more") && !gigantic.contains("echo"),
            "{gigantic}"
        );
    }

    #[test]
    fn limits_count_pages() {
        let file = "/cg/hugetlb.2MB.rsvd.max".into();
        let limit = GroupLimit { bytes: 4 << 20, used: Some(2 << 20), file };
        let line = limit_line("2 MiB limit", 2 << 20, &limit);
        assert_eq!(line.value, "reserving up to 2 pages, 1 page used");
        assert_eq!(line.remedy.unwrap(), "echo max > /cg/hugetlb.2MB.rsvd.max");
        assert_eq!(limit_lines(&[(2 << 20, Ok(None))])[0].value, "none");
    }

    #[test]
    fn a_node_left_out_is_worth_a_note() {
        let empty = NodePool { node: 1, total: 0, free: 0, surplus: 0 };
        let line = |memory_free| {
            let cpus = "1".parse().unwrap();
            let node =
                Node { id: 1, cpus, memory_total: 80 << 20, memory_free, distances: vec![20, 10] };
            node_line(2 << 20, &empty, Some(&node))
        };
        assert_eq!(line(64 << 20).verdict, Verdict::Note);
        assert!(line(64 << 20).remedy.unwrap().contains("node1/hugepages/hugepages-2048kB"));
        assert_eq!(line(11 << 20).remedy, None, "the node keeps an eighth of its memory");
    }
}
