//! `hugekit doctor --json` of a guest, compared with the table.

use serde_json::Value;

use super::guest::{Guest, Rights};
use super::qemu::distance;

/// Returns the differences of the doctor's record from the table.
pub(super) fn differences(guest: &Guest, release: &str, printed: &str) -> Vec<String> {
    let said: Value = match serde_json::from_str(printed) {
        Ok(said) => said,
        Err(error) => return vec![format!("the doctor's record cannot be read: {error}")],
    };
    let value = |topic: &str, name: &str| {
        let mut lines = said["lines"].as_array().into_iter().flatten();
        let line = lines.find(|line| line["topic"] == topic && line["name"] == name);
        line.and_then(|line| line["value"].as_str()).unwrap_or_default()
    };
    let machine = |name: &str| &said["machine"][name];
    let mib = machine("memory_bytes").as_u64().unwrap_or_default() >> 20;
    // The firmware, the kernel and its tables of pages take a part of the memory.
    let is_all = (guest.mib as u64 / 4 * 3..=guest.mib as u64).contains(&mib);
    let swaps = !value("memory", "total").ends_with("no swap");
    let mut found = vec![
        (*machine("kernel") == release, format!("kernel {}", machine("kernel"))),
        (*machine("online_cpus") == guest.cpus, format!("{} CPUs", machine("online_cpus"))),
        (*machine("nodes") == guest.nodes, format!("{} nodes", machine("nodes"))),
        (is_all, format!("{mib} MiB of memory")),
        (swaps == (guest.swap_mib > 0), format!("memory: {}", value("memory", "total"))),
    ];
    for (topic, name, begins) in lines(guest) {
        let says = value(topic, &name);
        found.push((says.starts_with(&begins), format!("{topic}, {name}: {says}, not {begins}")));
    }
    for node in 0..guest.nodes {
        let says = value("cpus", &format!("node {node}"));
        found.push((is_node(guest, node, says), format!("node {node}: {says}")));
    }
    let wrong = found.into_iter().filter(|(is_right, _)| !is_right);
    wrong.map(|(_, says)| format!("the doctor prints {says}")).collect()
}

/// Returns true if the doctor prints this of a node: its CPUs, an equal part of the memory, and that some of it is
/// free.
fn is_node(guest: &Guest, node: usize, says: &str) -> bool {
    let each = guest.cpus / guest.nodes;
    let cpus = match (node * each, node * each + each - 1) {
        (first, last) if first == last => format!("CPUs {first}; "),
        (first, last) => format!("CPUs {first}-{last}; "),
    };
    let sizes = says.strip_prefix(&cpus).and_then(|rest| rest.strip_suffix(" free"));
    let sizes = sizes.and_then(|sizes| sizes.split_once(", "));
    let Some((Some(total), Some(free))) = sizes.map(|(total, free)| (mib(total), mib(free))) else {
        return false;
    };
    let part = (guest.mib / guest.nodes) as f64;
    // The first node has the firmware's and the kernel's own.
    (part * 0.7..=part).contains(&total) && 0.0 < free && free <= total
}

/// The MiB of a size in words.
fn mib(words: &str) -> Option<f64> {
    let (number, unit) = words.split_once(' ')?;
    let scale = [("KiB", 1.0 / 1024.0), ("MiB", 1.0), ("GiB", 1024.0)];
    let scale = scale.into_iter().find_map(|(name, scale)| (name == unit).then_some(scale))?;
    Some(number.parse::<f64>().ok()? * scale)
}

/// Lines that the doctor must have, and how their values begin.
fn lines(guest: &Guest) -> Vec<(&'static str, String, String)> {
    let thp = "transparent huge pages";
    let mut lines = vec![
        (thp, "anonymous memory".to_owned(), guest.thp.to_owned()),
        (thp, "shared memory".to_owned(), guest.shmem_thp.to_owned()),
    ];
    for (name, pages) in [("2 MiB", guest.reserved_2m), ("1 GiB", guest.reserved_1g)] {
        if pages > 0 {
            lines.push(("huge pages", name.to_owned(), format!("{pages} pages")));
            // The kernel reserves them on one node after the other.
            let each = format!("{} pages", pages / guest.nodes);
            let of_node = |node| ("huge pages", format!("{name} node {node}"), each.clone());
            lines.extend((0..guest.nodes).filter(|_| pages >= guest.nodes).map(of_node));
        }
    }
    for node in (0..guest.nodes).filter(|_| guest.nodes > 1) {
        let distances: Vec<_> = (0..guest.nodes).map(|to| distance(node, to).to_string()).collect();
        lines.push(("cpus", format!("node {node} distances"), distances.join(" ")));
    }
    let uses = match guest.rights {
        Rights::Root => "whole",
        Rights::User => "user mode only",
        Rights::NoUserfaultfd => "none",
    };
    lines.push(("userfaultfd", "uses".to_owned(), uses.to_owned()));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::guest::FleetTable;
    use super::*;

    #[test]
    fn each_wrong_word_of_the_doctors_is_a_difference() {
        let guest = &FleetTable::read().unwrap().guest[0];
        let line = |topic, name, value| serde_json::json!({ "topic": topic, "name": name, "value": value });
        let right = serde_json::json!({
            "machine": { "kernel": "7.3.4", "online_cpus": 2, "nodes": 1, "memory_bytes": 2_000_000_000 },
            "lines": [
                line("memory", "total", "1.9 GiB, no swap"),
                line("transparent huge pages", "anonymous memory", "madvise (2 MiB pages)"),
                line("transparent huge pages", "shared memory", "advise"),
                line("userfaultfd", "uses", "whole: faults of user code, system calls and KVM"),
                line("cpus", "node 0", "CPUs 0-1; 1.9 GiB, 512 MiB free"),
            ],
        });
        let none: [&str; 0] = [];
        assert_eq!(differences(guest, "7.3.4", &right.to_string()), none);
        for (path, wrong) in [
            ("/machine/kernel", "6.1".into()),
            ("/machine/online_cpus", 3.into()),
            ("/machine/nodes", 9.into()),
            ("/machine/memory_bytes", 1.into()),
            ("/lines/0/value", "1.9 GiB, 1 GiB of swap".into()),
            ("/lines/1/value", "never".into()),
            ("/lines/3/value", Value::Null),
            ("/lines/4/value", "CPUs 0; 1.9 GiB, 512 MiB free".into()),
            ("/lines/4/value", "CPUs 0-1; 1 GiB, 512 MiB free".into()),
            ("/lines/4/value", "CPUs 0-1; 1.9 GiB, 2 GiB free".into()),
            ("/lines/4/value", "CPUs 0-1; no memory: other nodes serve it".into()),
        ] {
            let mut said = right.clone();
            *said.pointer_mut(path).unwrap() = wrong;
            assert_eq!(differences(guest, "7.3.4", &said.to_string()).len(), 1, "{path}");
        }
        assert_eq!(differences(guest, "7.3.4", "no record").len(), 1);
    }

    #[test]
    fn each_node_has_its_part_of_everything() {
        let table = FleetTable::read().unwrap();
        let guest = table.guest.iter().find(|guest| guest.name == "four-nodes").unwrap();
        assert!(is_node(guest, 3, "CPUs 3; 503.7 MiB, 20 MiB free"));
        assert!(!is_node(guest, 3, "CPUs 2; 503.7 MiB, 20 MiB free"));
        let lines = lines(guest);
        let value = |name: &str| &lines.iter().find(|line| line.1 == name).unwrap().2;
        assert_eq!(value("node 2 distances"), "30 20 10 20");
        assert_eq!(value("2 MiB node 1"), "64 pages");
    }
}
