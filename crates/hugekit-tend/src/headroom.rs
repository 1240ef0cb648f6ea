//! Whether there is memory to spare: a collapse must neither compact nor reclaim.

use std::fs;

use procfs::Current;
use procfs::process::Process;

use crate::settings::Settings;
use crate::status::Hindrance;
use crate::target::Target;

/// Why nothing may be collapsed now, if so.
pub(crate) fn hindrance(target: &Target, settings: &Settings) -> Option<Hindrance> {
    if let Ok(pressure) = procfs::MemoryPressure::current()
        && f64::from(pressure.some.avg10) >= settings.most_pressure
    {
        return Some(Hindrance::Pressure { percent: pressure.some.avg10.into() });
    }
    if let Some(free) = free_huge_blocks()
        && free < settings.keep_free
    {
        return Some(Hindrance::NoFreeHugePages { free });
    }
    let left = left_of_groups(target.process())?;
    (left < settings.keep_free).then_some(Hindrance::ControlGroup { left })
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

/// Bytes that the process's control group and those above may still take; `None` where no limit is set, or groups are
/// of version 1.
fn left_of_groups(process: &Process) -> Option<u64> {
    let groups = process.cgroups().ok()?;
    let group = groups.into_iter().find(|group| group.hierarchy == 0)?;
    let mut path = std::path::PathBuf::from("/sys/fs/cgroup");
    path.push(group.pathname.trim_start_matches('/'));
    let figure = |path: &std::path::Path, name: &str| -> Option<u64> {
        fs::read_to_string(path.join(name)).ok()?.trim().parse().ok()
    };
    let left = |path: &std::path::Path| {
        let (most, now) = (figure(path, "memory.max")?, figure(path, "memory.current")?);
        Some(most.saturating_sub(now))
    };
    path.ancestors().take_while(|path| path.starts_with("/sys/fs/cgroup")).filter_map(left).min()
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
