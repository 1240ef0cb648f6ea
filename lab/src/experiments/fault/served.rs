//! Faults that hugekit serves itself: of memory that is clean but not plain (*minor*), *dirty*, or a *hole*;
//! in place and threaded; while the other CPUs are idle, and while another thread of the process runs.

use crate::measure::LabError;
use crate::measure::part::Part;
use hugekit::error_chain;
use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::{Pool, PoolError, Region};

use crate::experiments::memory_sources::{CLEARED_EARLIER, soil, unscrubbed};

/// The clear that a fault of dirty memory is made of, without the fault.
pub(super) const CLEAR_ALONE: &str = "clear-alone";

/// The state of a page when it is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    Minor,
    Dirty,
    Hole,
}

/// A kind of fault.
#[derive(Debug)]
pub(super) struct LazyRegion {
    pool: Pool,
    kind: PageState,
    fault_mode: FaultMode,
    busy: bool,
}

const FAULT_MODES: [FaultMode; 2] = [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }];

impl LazyRegion {
    /// Every kind that this machine allows, on the best huge pages that it has, and why the others are not
    /// measured.
    pub(super) fn all(row: usize) -> Result<(Vec<Self>, Vec<String>), LabError> {
        let (mut all, mut left_out) = (Vec::new(), Vec::new());
        let build = |backing| unscrubbed(row).backing(backing).strict(true).build();
        let taken_back = are_taken_back();
        let Ok(pool) = build(Backing::Hugetlb2M).or_else(|_| build(Backing::Thp)) else {
            return Ok((all, vec!["faults served by hugekit left out: no huge pages".into()]));
        };
        // A hole of other memory is populated when it is allocated.
        let mut holes = pool.backing().is_reserved().then_some(PageState::Hole);
        if let (Some(_), Err(error)) = (holes, taken_back) {
            left_out.push(format!("holes left out: {}", error_chain(&error)));
            holes = None;
        }
        for fault_mode in FAULT_MODES {
            soil(&pool)?;
            if let Err(error) = at_fault(&pool, row, fault_mode) {
                left_out.push(format!("{} left out: {}", name(fault_mode), error_chain(&error)));
                continue;
            }
            for kind in [PageState::Minor, PageState::Dirty].into_iter().chain(holes) {
                for busy in [false, true] {
                    all.push(Self { pool: pool.clone(), kind, fault_mode, busy });
                }
            }
        }
        Ok((all, left_out))
    }

    pub(super) fn page_size(&self) -> usize {
        self.pool.page_size()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// The pool that its regions are of.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// `dirty-in-place`, `minor-threaded-busy`.
    pub(super) fn label(&self) -> String {
        let kind = match self.kind {
            PageState::Minor => "minor",
            PageState::Dirty => "dirty",
            PageState::Hole => "hole",
        };
        let busy = if self.busy { "-busy" } else { "" };
        format!("{kind}-{}{busy}", name(self.fault_mode))
    }

    /// A region, all of it of this kind but the first page.
    pub(super) fn take(&self, row: usize) -> Result<Region, LabError> {
        match self.kind {
            PageState::Minor => return Ok(minor(&self.pool, row, self.fault_mode)?),
            PageState::Dirty => soil(&self.pool)?,
            PageState::Hole => self.pool.region(self.pool.capacity())?.retire()?,
        }
        Ok(at_fault(&self.pool, row, self.fault_mode)?)
    }
}

/// Checks that the kernel takes reserved pages back, and that a filter of system calls allows it. If not, the pool loses
/// the page, so this pool has a single page.
fn are_taken_back() -> Result<(), LabError> {
    let pool = unscrubbed(1).backing(Backing::Hugetlb2M).strict(true).build()?;
    Ok(pool.region(1)?.retire()?)
}

fn name(fault_mode: FaultMode) -> &'static str {
    if fault_mode == FaultMode::InPlace { "in-place" } else { "threaded" }
}

fn at_fault(pool: &Pool, len: usize, fault_mode: FaultMode) -> Result<Region, PoolError> {
    pool.region_builder(len).clearing(Clearing::OnFault).fault_mode(fault_mode).build()
}

/// A region that is clean but for its first page, which has the others served as well and is touched
/// already.
fn minor(pool: &Pool, len: usize, fault_mode: FaultMode) -> Result<Region, PoolError> {
    pool.scrub()?;
    drop(pool.region(1)?);
    let mut region = at_fault(pool, len, fault_mode)?;
    region[0] = 1;
    Ok(region)
}

/// Two such regions, served in place, each of half of the pool: what is clean would be allocated before
/// what is mixed.
pub(super) fn two_regions(pool: &Pool, half: usize) -> Result<[Region; 2], LabError> {
    let (one, other) = (pool.region(half)?, pool.region(pool.capacity() - half)?);
    drop(one);
    let one = minor(pool, half, FaultMode::InPlace)?;
    drop(other);
    Ok([one, minor(pool, pool.capacity() - half, FaultMode::InPlace)?])
}

/// The kernel's faults against those that hugekit serves: both clear, or the pool did earlier.
pub(super) fn compare(part: &mut Part) {
    let pairs = [
        (CLEAR_ALONE, "dirty-in-place"),
        ("kernel-hugetlb", "dirty-in-place"),
        ("kernel-thp", "dirty-in-place"),
        ("kernel-hugetlb", "dirty-threaded"),
        ("kernel-hugetlb", "hole-in-place"),
        ("kernel-hugetlb", "hole-threaded"),
        ("kernel-hugetlb", "minor-in-place"),
        ("kernel-hugetlb", "minor-threaded"),
    ];
    for (other, served) in pairs {
        part.compare(
            (other, served),
            "2MiB",
            served.starts_with("minor").then_some(CLEARED_EARLIER),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_machine::size::MIB;

    fn pool() -> Pool {
        unscrubbed(4 * MIB).backing(Backing::Base).build().unwrap()
    }

    #[test]
    fn all_but_the_first_page_is_of_the_kind() {
        let pool = pool();
        for fault_mode in FAULT_MODES {
            for kind in [PageState::Minor, PageState::Dirty] {
                let served = LazyRegion { pool: pool.clone(), kind, fault_mode, busy: false };
                let Ok(region) = served.take(4 * MIB) else {
                    continue; // A process that may not serve faults of system calls has the other fault_mode.
                };
                let before = pool.stats().unwrap().scrubbed_at_fault;
                assert!(region.iter().step_by(4096).skip(1).all(|&byte| byte == 0));
                let cleared = pool.stats().unwrap().scrubbed_at_fault - before;
                let all = 4 * MIB as u64;
                assert_eq!(
                    cleared,
                    if kind == PageState::Dirty { all } else { 0 },
                    "{}",
                    served.label()
                );
            }
        }
    }

    #[test]
    fn two_regions_are_served_and_clean_but_for_a_page_each() {
        let pool = pool();
        let regions = two_regions(&pool, 2 * MIB).unwrap();
        assert!(regions.iter().all(|region| region.serving().is_some()));
        let before = pool.stats().unwrap().scrubbed_at_fault;
        assert!(regions.iter().all(|region| region[100 << 10] == 0));
        assert_eq!(pool.stats().unwrap().scrubbed_at_fault - before, 0);
    }

    #[test]
    fn only_what_clears_is_like_for_like() {
        let mut part = Part::new("fault");
        for name in ["kernel-hugetlb", "dirty-in-place", "minor-threaded"] {
            part.add_case(&format!("{name}/2MiB"), crate::record::Unit::Microseconds, vec![4.0]);
        }
        compare(&mut part);
        let ids: Vec<(&str, bool)> =
            part.ratios.iter().map(|ratio| (ratio.id.as_str(), ratio.like_for_like)).collect();
        let expected = [
            ("fault/kernel-hugetlb-vs-dirty-in-place/2MiB", true),
            ("fault/kernel-hugetlb-vs-minor-threaded/2MiB", false),
        ];
        assert_eq!(ids, expected);
    }
}
