//! Cache sizes: what decides between cached and streaming stores.

use hugekit::error_chain;
use hugekit_machine::CacheSizes;

use crate::facts::Facts;
use crate::line::{Line, Topic};
use crate::units;

const TOPIC: Topic = Topic("caches");

pub(crate) fn lines(facts: &Facts) -> Vec<Line> {
    match &facts.caches {
        Ok(sizes) => size_lines(sizes),
        Err(error) => vec![TOPIC.unknown("sizes", error_chain(error))],
    }
}

fn size_lines(sizes: &CacheSizes) -> Vec<Line> {
    let CacheSizes { l1d, l2, llc, llc_shared_by } = *sizes;
    let share = units::bytes((llc / llc_shared_by.max(1)) as u64);
    let sharers = units::count(llc_shared_by, "CPU");
    let last = match llc_shared_by {
        0 | 1 => format!("{}, of one CPU", units::bytes(llc as u64)),
        _ => format!("{}, shared by {sharers}: {share} each", units::bytes(llc as u64)),
    };
    vec![size_line("level 1 data", l1d), size_line("level 2", l2), TOPIC.ok("last level", last)]
}

fn size_line(name: &str, size: usize) -> Line {
    match size {
        0 => TOPIC.note(name, "none, or the kernel does not report it"),
        size => TOPIC.ok(name, units::bytes(size as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_level_is_divided_among_its_sharers() {
        let sizes = CacheSizes { l1d: 32 << 10, l2: 0, llc: 45 << 20, llc_shared_by: 36 };
        let lines = size_lines(&sizes);
        assert_eq!(lines[0].value, "32 KiB");
        assert!(lines[1].value.contains("does not report it"));
        assert_eq!(lines[2].value, "45 MiB, shared by 36 CPUs: 1.2 MiB each");
    }
}
