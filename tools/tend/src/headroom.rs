//! Whether there is memory to spare: a collapse must neither compact nor reclaim.

use std::fs;

use hugekit_machine::Root;
use hugekit_machine::cgroup::{Cgroups, MemoryLeft};

use crate::settings::Settings;
use crate::status::Hindrance;
use crate::target::Target;

/// Returns why nothing may be collapsed now; `None` if it may.
pub(crate) fn hindrance(target: &Target, settings: &Settings) -> Option<Hindrance> {
    if let Some(percent) = pressure()
        && percent >= settings.most_pressure
    {
        return Some(Hindrance::Pressure { percent });
    }
    if let Some(free) = free_huge_blocks()
        && free < settings.keep_free
    {
        return Some(Hindrance::NoFreeHugePages { free });
    }
    match left_of_groups(target) {
        MemoryLeft::Limited(limit) if limit.left() < settings.keep_free => {
            Some(Hindrance::ControlGroup { left: limit.left() })
        }
        _ => None,
    }
}

/// Returns whether holes of this process may be filled. Memory that it did not ask for must not exceed a limit that the
/// tender cannot read: the kernel would kill the process.
pub(crate) fn may_grow(target: &Target) -> bool {
    left_of_groups(target) != MemoryLeft::Unknown
}

fn left_of_groups(target: &Target) -> MemoryLeft {
    let groups = Cgroups::of(&Root::default(), target.pid());
    groups.map_or(MemoryLeft::Unknown, |groups| groups.memory_left())
}

/// The share of the last ten seconds in which some task waited for memory, in percent.
fn pressure() -> Option<f64> {
    let text = fs::read_to_string("/proc/pressure/memory").ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

/// Bytes that are free in blocks from which a huge page can be taken as it is, by `/proc/buddyinfo`: a collapse that
/// finds none would have the kernel compact memory at once, while a thread of the process waits.
fn free_huge_blocks() -> Option<u64> {
    let text = fs::read_to_string("/proc/buddyinfo").ok()?;
    Some(text.lines().filter_map(free_of_zone).sum())
}

/// `Node 0, zone Normal` and counts of free blocks of 1, 2, 4 … pages.
fn free_of_zone(line: &str) -> Option<u64> {
    let (_, zone) = line.split_once("zone")?;
    let page = rustix::param::page_size() as u64;
    let of_order = |(order, count): (usize, &str)| {
        let bytes = page << order;
        let count: u64 = count.parse().unwrap_or(0);
        if bytes >= hugekit::HUGE_PAGE_BYTES as u64 { bytes * count } else { 0 }
    };
    Some(zone.split_ascii_whitespace().skip(1).enumerate().map(of_order).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_blocks_of_a_huge_page_and_more_are_counted() {
        let page = rustix::param::page_size() as u64;
        let order = (hugekit::HUGE_PAGE_BYTES as u64 / page).ilog2() as usize;
        let mut counts = vec!["7"; order];
        counts.extend(["3", "2"]);
        let line = format!("Node 0, zone   Normal {}", counts.join("  "));
        assert_eq!(free_of_zone(&line), Some((3 + 2 * 2) * hugekit::HUGE_PAGE_BYTES as u64));
        assert_eq!(free_of_zone("nonsense"), None);
    }
}
