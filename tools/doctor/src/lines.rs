//! All lines in the order of the report.

use crate::facts::Facts;
use crate::line::Line;
use crate::{caches, cpus, kvm, machine, memory, pools, routines, thp, userfaultfd};

pub(crate) fn all(facts: &Facts) -> Vec<Line> {
    let topics = [
        machine::lines,
        caches::lines,
        cpus::lines,
        memory::lines,
        pools::lines,
        thp::lines,
        userfaultfd::lines,
        kvm::lines,
    ];
    let facts_lines = topics.iter().flat_map(|lines| lines(facts));
    facts_lines.chain(routines::lines()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use hugekit_machine::Root;

    use super::*;
    use crate::line::Verdict;

    fn lines_of(files: &[(&str, &str)]) -> Vec<Line> {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        all(&Facts::read(&Root::at(directory.path())))
    }

    /// Rules that every report keeps to, whichever machine it is of.
    #[test]
    fn every_machine_has_a_report_whose_remedies_it_can_bear() {
        for machine in hugekit_invented_machines::MACHINES {
            let files = machine.files().unwrap();
            let facts = Facts::read(&Root::at(files.path()));
            let lines = all(&facts);
            assert_eq!(find(&lines, "kernel").verdict, Verdict::Ok, "{}", machine.name);
            assert_eq!(find(&lines, "processor").verdict, Verdict::Ok, "{}", machine.name);
            for line in &lines {
                assert!(!line.value.contains("expected"), "{}: {line:?}", machine.name);
                let remedy = line.remedy.as_deref().unwrap_or_default();
                let Some((count, file)) =
                    remedy.strip_prefix("echo ").and_then(|rest| rest.split_once(" > "))
                else {
                    continue;
                };
                if let Some(kib) =
                    file.split("hugepages-").nth(1).filter(|_| file.ends_with("nr_hugepages"))
                {
                    let kib: u64 = kib.split_once("kB").unwrap().0.parse().unwrap();
                    let held = machine.reserved.filter(|_| kib == 2048).unwrap_or(0);
                    let added = (count.parse::<u64>().unwrap() - held) * (kib << 10);
                    let spare = machine.available() - machine.memory / 8;
                    assert!(added > 0 && added <= spare, "{}: {remedy}", machine.name);
                }
            }
        }
    }

    fn find<'a>(lines: &'a [Line], name: &str) -> &'a Line {
        lines.iter().find(|line| line.name == name).unwrap()
    }

    #[test]
    fn an_empty_machine_has_every_topic() {
        let lines = lines_of(&[]);
        let topics: BTreeSet<&str> = lines.iter().map(|line| line.topic.0).collect();
        assert_eq!(topics.len(), 9);
        assert_eq!(find(&lines, "kernel").verdict, Verdict::Unknown);
    }

    #[test]
    fn garbage_costs_its_own_line_only() {
        let lines = lines_of(&[
            ("proc/meminfo", "\u{0}"),
            ("proc/sys/vm/max_map_count", "65530\n"),
            ("sys/devices/system/cpu/online", "many\n"),
        ]);
        let total = find(&lines, "total");
        assert_eq!(total.verdict, Verdict::Unknown);
        assert!(total.value.contains("proc/meminfo: expected MemTotal"));
        assert!(find(&lines, "online").value.contains("expected a list of CPUs, found \"many\""));
        assert_eq!(find(&lines, "mappings").verdict, Verdict::Note);
    }

    #[test]
    fn a_cgroup_that_cannot_be_found_is_said_in_each_line() {
        let invalid = [("proc/self/cgroup", "0::/"), ("proc/self/mountinfo/x", "")];
        let lines = lines_of(&invalid);
        for name in ["cgroups", "quota", "cgroup limit"] {
            assert!(find(&lines, name).value.contains("proc/self/mountinfo"), "{name}");
        }
    }
}
