//! Checks that memory is available: a collapse must neither compact nor reclaim memory.

use hugekit::HUGE_PAGE_BYTES;
use hugekit_machine::Root;
use hugekit_machine::cgroup::{Cgroups, MemoryLeft};
use hugekit_machine::memory::{free_blocks, pressure};

use crate::options::TendOptions;
use crate::status::Hindrance;
use crate::target::Target;

/// Returns the reason why nothing may be collapsed now; `None` if collapses are permitted.
pub(crate) fn hindrance(target: &Target, options: &TendOptions) -> Option<Hindrance> {
    if let Some(percent) = pressure(&Root::default())
        && percent >= options.most_pressure
    {
        return Some(Hindrance::Pressure { percent });
    }
    if let Some(free) = free_blocks(&Root::default(), HUGE_PAGE_BYTES as u64)
        && free < options.keep_free
    {
        return Some(Hindrance::NoFreeHugePages { free });
    }
    match left_of_groups(target) {
        MemoryLeft::Limited(limit) if limit.left() < options.keep_free => {
            Some(Hindrance::ControlGroup { left: limit.left() })
        }
        _ => None,
    }
}

/// Returns true if holes of this process may be filled. Memory that the process did not request
/// must not exceed a limit that the tender cannot read, because the kernel would then kill the
/// process.
pub(crate) fn may_grow(target: &Target) -> bool {
    left_of_groups(target) != MemoryLeft::Unknown
}

fn left_of_groups(target: &Target) -> MemoryLeft {
    let groups = Cgroups::of(&Root::default(), target.pid());
    groups.map_or(MemoryLeft::Unknown, |groups| groups.memory_left())
}
