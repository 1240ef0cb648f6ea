//! The memory that this process may still have, and the pages that it may be on.

use hugekit_machine::cgroup::Cgroups;
use hugekit_machine::hugepages::transparent_size;
use hugekit_machine::size::{MIB, Size};
use hugekit_machine::{Memory, Root, hugepages};
use procfs::process::Process;
use rustix::process::{Resource, getrlimit};

use crate::measure::LabError;
use crate::measure::machine::settings::huge_pages;

pub const THP_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Bytes of the transparent huge pages that the lab measures on.
const THP: usize = 2 * MIB;

/// Bytes that the machine, the control group and the limits of this process would still give.
pub fn available_memory(root: &Root) -> Result<usize, LabError> {
    let machine = Memory::read(root)?.available;
    let group = Cgroups::read(root).and_then(|groups| groups.memory()).ok().flatten();
    let group = group.map(|limit| limit.bytes.saturating_sub(limit.used.unwrap_or(0)));
    let bytes = machine.min(group.unwrap_or(u64::MAX)).min(addresses_left());
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Addresses kept for what is not measured on: alignment, stacks, and 64 MiB for each of several threads, where glibc
/// allocates.
const OTHER_ADDRESSES: u64 = 192 << 20;

/// Addresses that `ulimit -v` leaves to this process, less a quarter of them, or [`OTHER_ADDRESSES`].
fn addresses_left() -> u64 {
    let Some(limit) = getrlimit(Resource::As).current else { return u64::MAX };
    let pages = Process::myself().and_then(|process| process.statm()).map_or(0, |usage| usage.size);
    let left = limit.saturating_sub(pages * rustix::param::page_size() as u64);
    left.saturating_sub((left / 4).max(OTHER_ADDRESSES))
}

/// Huge pages that are free, promised to no mapping and within the control group's limit.
pub fn free_huge_pages(root: &Root, page_size: usize) -> Result<usize, LabError> {
    let size = page_size as u64;
    let free = huge_pages(root, size)?.map_or(0, |pool| pool.unpromised());
    let group = Cgroups::read(root).and_then(|groups| groups.hugetlb(size)).ok().flatten();
    let room = group.map(|limit| limit.bytes.saturating_sub(limit.used.unwrap_or(0)) / size);
    Ok(usize::try_from(free.min(room.unwrap_or(u64::MAX))).unwrap_or(usize::MAX))
}

/// True if the kernel has transparent huge pages of 2 MiB. A kernel without the file has none, and a kernel with large
/// base pages has larger ones.
pub fn has_thp(root: &Root) -> bool {
    root.path(THP_ENABLED).exists() && thp_size(root).is_none_or(|size| size == THP)
}

/// Bytes of a transparent huge page, where the kernel says: 512 MiB on some machines of 64 KiB base pages.
fn thp_size(root: &Root) -> Option<usize> {
    usize::try_from(transparent_size(root).ok()??).ok()
}

/// The reason why anonymous memory is not on transparent huge pages of 2 MiB.
pub fn why_no_thp(root: &Root) -> String {
    match thp_size(root) {
        Some(size) if size != THP => format!("they are of {} here", Size(size)),
        _ if !root.path(THP_ENABLED).exists() => "this kernel has none".to_owned(),
        _ => "the setting is never; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
            .to_owned(),
    }
}

/// The way to get this many more reserved pages, after a semicolon. Empty if the kernel has no pages of the size.
pub fn remedy(root: &Root, page_size: usize, missing: usize) -> String {
    let (page_size, missing) = (page_size as u64, missing as u64);
    let Ok(Some(pool)) = huge_pages(root, page_size) else { return String::new() };
    let spare = Memory::read(root).ok().map(|memory| memory.spare() / page_size);
    format!("; {}", hugepages::remedy(page_size, pool.total, missing, spare))
}
