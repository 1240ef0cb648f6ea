//! The memory that writers diverge from.

use crate::measure::LabError;
use crate::measure::machine::memory::{available_memory, free_huge_pages};
use crate::measure::workloads::anonymous::Pages;
use crate::measure::workloads::forking::{Shared, write_pages};
use crate::measure::workloads::writers::{Spent, WriterFn, in_processes, in_threads};
use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{Pool, Region};
use hugekit_machine::Root;

use super::HUGE;

const BASE_PAGES: &str = "a write to a shared transparent huge page has the kernel copy a base page, and the \
     copy stays on base pages; the region's is on the pages that the pool has, reserved at the fork";

const OTHER_PAGES: &str = "the region is on base pages, copied by 64 KiB";

/// Memory of the kernel or of a pool.
#[derive(Debug)]
pub(super) enum CowOrigin {
    Process(Pages, Shared),
    Region(Region),
}

const fn process_name(pages: Pages) -> &'static str {
    match pages {
        Pages::Thp => "fork2-thp",
        Pages::Hugetlb2M => "fork2-hugetlb",
        _ => "fork2-4k",
    }
}

impl CowOrigin {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Process(pages, _) => process_name(*pages),
            Self::Region(_) => "region",
        }
    }

    /// The differences, besides the pages, from a region on its pool's tier.
    pub(super) fn differs(&self, region: &Self) -> Option<&'static str> {
        let backing = match region {
            Self::Region(region) => region.pool().backing(),
            Self::Process(..) => Backing::Base,
        };
        match self {
            Self::Process(Pages::Hugetlb2M, _) if backing == Backing::Hugetlb2M => None,
            Self::Process(Pages::Base, _) if backing == Backing::Base => Some(OTHER_PAGES),
            _ => Some(BASE_PAGES),
        }
    }

    pub(super) const fn is_kernels_huge(&self) -> bool {
        matches!(self, Self::Process(Pages::Hugetlb2M, _))
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Process(_, shared) => shared.bytes(),
            Self::Region(region) => region,
        }
    }

    /// Writers diverge from it; the origin has written everything before.
    pub(super) fn diverge(
        &mut self,
        writers: usize,
        work: WriterFn,
    ) -> Result<Vec<Spent>, LabError> {
        write_pages(self.bytes());
        match self {
            Self::Process(_, shared) => in_processes(shared, writers, work),
            Self::Region(region) => {
                let mut forks =
                    (0..writers).map(|_| fork(region)).collect::<Result<Vec<_>, _>>()?;
                let mut forks: Vec<&mut [u8]> = forks.iter_mut().map(|fork| &mut **fork).collect();
                in_threads(&mut forks, work)
            }
        }
    }
}

pub(super) fn fork(region: &Region) -> Result<Region, LabError> {
    Ok(region.fork_builder().fault_mode(FaultMode::InPlace).build()?)
}

/// The kernel's, as far as it has such pages, and the region last.
pub(super) fn origins(
    pool: &Pool,
    unit: usize,
    writers: usize,
) -> Result<(Vec<CowOrigin>, Vec<String>), LabError> {
    let (mut origins, mut left_out) = (Vec::new(), Vec::new());
    let root = Root::default();
    let on_base = pool.backing() == Backing::Base;
    let base = on_base.then_some(Pages::Base);
    for pages in base.into_iter().chain([Pages::Thp, Pages::Hugetlb2M]) {
        let name = process_name(pages);
        // The kernel promises no memory for the copies of children, and a child without one is killed.
        let copies = (writers + 1) * unit;
        let enough = match pages {
            Pages::Hugetlb2M => free_huge_pages(&root, HUGE)? * HUGE >= copies,
            _ => available_memory(&root)? >= 2 * copies,
        };
        // Pages that others took meanwhile are too few of them, too.
        let shared = enough.then(|| Shared::new(pages, unit)).and_then(Result::ok);
        match shared.filter(|shared| pages != Pages::Thp || shared.is_huge()) {
            Some(shared) => origins.push(CowOrigin::Process(pages, shared)),
            None => left_out.push(format!(
                "{name} left out: too few such pages are free; `hugekit doctor` says why, `--setup` \
                 (root) reserves them"
            )),
        }
    }
    origins.push(CowOrigin::Region(pool.region(unit)?));
    Ok((origins, left_out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::memory_sources::unscrubbed;
    use hugekit_machine::size::MIB;

    fn mark(bytes: &mut [u8], index: usize) {
        bytes.fill(10 + index as u8);
    }

    #[test]
    fn both_kinds_diverge_and_the_origin_keeps_its_bytes() {
        let pool = unscrubbed(4 * 4 * MIB).backing(Backing::Base).build().unwrap();
        let region = CowOrigin::Region(pool.region(4 * MIB).unwrap());
        let process = CowOrigin::Process(Pages::Base, Shared::new(Pages::Base, 4 * MIB).unwrap());
        for mut origin in [region, process] {
            for writers in [1, 3] {
                origin.bytes().fill(7);
                let spent = origin.diverge(writers, mark).unwrap();
                assert_eq!(spent.len(), writers);
                assert!(spent.iter().all(|spent| spent.elapsed > 0));
                assert!(origin.bytes().chunks(4096).all(|page| (page[0], page[1]) == (8, 7)));
            }
        }
    }
}
