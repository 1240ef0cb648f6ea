//! Memory: what there is, and what this process may take, map and lock of it.

use hugekit_machine::cgroup::GroupLimit;
use hugekit_machine::{Error, Memory};

use crate::facts::Facts;
use crate::facts::locked::ResourceLimit;
use crate::line::{Line, Topic};
use crate::units;

const TOPIC: Topic = Topic("memory");

/// Enough for forks that diverge in 256 GiB of 2 MiB pages.
const MANY_MAPPINGS: u64 = 1 << 19;

/// Half of the mappings are left to the program; each isolated huge page costs two of the rest.
const MAPPINGS_PER_ISOLATED_PAGE: u64 = 4;

pub(crate) fn lines(facts: &Facts) -> Vec<Line> {
    vec![
        TOPIC.about("total", &facts.memory, total_line),
        TOPIC.about("available", &facts.memory, available_line),
        TOPIC.about("cgroup limit", &facts.groups.memory, |limit| {
            limit_line(limit.as_ref(), &facts.memory)
        }),
        TOPIC.about("mappings", &facts.max_map_count, |count| mappings_line(*count)),
        TOPIC.about("locked memory", &facts.locked_memory, locked_line),
    ]
}

fn total_line(memory: &Memory) -> Line {
    let swap = match memory.swap_total {
        0 => "no swap".to_owned(),
        swap => format!("{} swap", units::bytes(swap)),
    };
    TOPIC.ok("total", format!("{}, {swap}", units::bytes(memory.total)))
}

fn available_line(memory: &Memory) -> Line {
    let value = format!("{}, {} free", units::bytes(memory.available), units::bytes(memory.free));
    match memory.hugetlb {
        0 => TOPIC.ok("available", value),
        held => TOPIC.ok("available", format!("{value}; {} in huge pages", units::bytes(held))),
    }
}

fn limit_line(limit: Option<&GroupLimit>, memory: &Result<Memory, Error>) -> Line {
    let Some(limit) = limit else { return TOPIC.ok("cgroup limit", "none") };
    let used = limit.used.map_or(String::new(), |used| format!(", {} used", units::bytes(used)));
    let value = format!("{}{used}", units::bytes(limit.bytes));
    if memory.as_ref().is_ok_and(|memory| limit.bytes >= memory.total) {
        return TOPIC.ok("cgroup limit", format!("{value}: more than the machine has"));
    }
    TOPIC.limited("cgroup limit", value).remedy(lift(limit))
}

/// Version 1 takes -1 for no limit, version 2 the word.
pub(crate) fn lift(limit: &GroupLimit) -> String {
    let version_1 = limit.file.to_string_lossy().ends_with("limit_in_bytes");
    format!("echo {} > {}", if version_1 { "-1" } else { "max" }, limit.file.display())
}

fn mappings_line(count: u64) -> Line {
    let isolated = count / MAPPINGS_PER_ISOLATED_PAGE;
    let value = format!("{count}: room for {isolated} huge pages that forks isolate");
    match count {
        MANY_MAPPINGS.. => TOPIC.ok("mappings", value),
        _ => {
            TOPIC.note("mappings", value).remedy(format!("sysctl vm.max_map_count={MANY_MAPPINGS}"))
        }
    }
}

fn locked_line(limit: &ResourceLimit) -> Line {
    let Some(soft) = limit.soft else { return TOPIC.ok("locked memory", "unlimited") };
    let value = format!("{} for pinned I/O buffers; hugekit locks none", units::bytes(soft));
    // The soft limit may be raised to the hard one by any process, beyond it by root's.
    let remedy = match limit.hard {
        Some(hard) if hard == soft => "prlimit --pid $$ --memlock=unlimited".to_owned(),
        Some(hard) => format!("ulimit -l {}", hard >> 10),
        None => "ulimit -l unlimited".to_owned(),
    };
    TOPIC.note("locked memory", value).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Verdict;

    fn limit(bytes: u64, file: &str) -> GroupLimit {
        GroupLimit { bytes, used: Some(1 << 20), file: file.into() }
    }

    fn memory(total: u64) -> Result<Memory, Error> {
        Ok(Memory { total, free: 0, available: 0, hugetlb: 0, swap_total: 0 })
    }

    #[test]
    fn a_limit_is_lifted_as_its_version_wants() {
        let line = limit_line(Some(&limit(1 << 30, "/cg/memory.max")), &memory(2 << 30));
        assert_eq!((line.verdict, line.value.as_str()), (Verdict::Limited, "1 GiB, 1 MiB used"));
        assert_eq!(line.remedy.unwrap(), "echo max > /cg/memory.max");
        let version_1 = limit(1 << 30, "/cg/memory.limit_in_bytes");
        assert_eq!(lift(&version_1), "echo -1 > /cg/memory.limit_in_bytes");
    }

    #[test]
    fn a_limit_above_the_machine_is_none() {
        let line = limit_line(Some(&limit(4 << 30, "/cg/memory.max")), &memory(2 << 30));
        assert_eq!(line.verdict, Verdict::Ok);
        assert_eq!(limit_line(None, &memory(1)).verdict, Verdict::Ok);
    }

    #[test]
    fn few_mappings_are_worth_a_note() {
        assert!(mappings_line(65530).value.contains("room for 16382 huge pages"));
        assert!(mappings_line(65530).remedy.is_some());
        assert_eq!(mappings_line(1 << 20).verdict, Verdict::Ok);
    }

    #[test]
    fn locked_memory_limit_is_raised_where_permitted() {
        let line = |soft, hard| locked_line(&ResourceLimit { soft, hard }).remedy;
        assert_eq!(line(None, None), None);
        assert_eq!(line(Some(8192), None).unwrap(), "ulimit -l unlimited");
        assert_eq!(line(Some(8192), Some(16384)).unwrap(), "ulimit -l 16");
        assert_eq!(line(Some(8192), Some(8192)).unwrap(), "prlimit --pid $$ --memlock=unlimited");
    }
}
