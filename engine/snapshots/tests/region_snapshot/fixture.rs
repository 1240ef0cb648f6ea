//! What the checks of snapshots of regions have in common: painted regions, and each way to take one.

use hugekit::pool::Backing;
use hugekit::{Pool, Region, Snapshot};
pub(crate) use hugekit_testing::permitted::fault_modes;
pub(crate) use hugekit_testing::states::copied;

use crate::backings::{FOLIOS, builder};

/// Granules that are shared on a backing: the usual one, and a small one.
pub(crate) fn granules(backing: Backing) -> Vec<usize> {
    let page = backing.page_size();
    match backing {
        Backing::Base => vec![page, 4 * page],
        _ if backing.is_reserved() => vec![page],
        _ => vec![page, 64 << 10],
    }
}

pub(crate) fn painted(at: usize) -> u8 {
    (at / 4096 + at / 97) as u8
}

/// How a region of a check is snapshotted.
pub(crate) type Take<'a> = &'a dyn Fn(&Region) -> Snapshot;

/// Calls `check` with a pool, a region of it that is painted and how to take snapshots, in every way.
pub(crate) fn each(
    backing: Backing,
    regions: usize,
    check: impl Fn(&Pool, Region, Take<'_>, usize),
) {
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            let pool = builder(backing, regions * FOLIOS).scrub_threads(0).build().unwrap();
            let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
            region.iter_mut().enumerate().for_each(|(at, byte)| *byte = painted(at));
            let take = |region: &Region| {
                Snapshot::of_region(region.fork_builder().granule(granule).fault_mode(fault_mode))
                    .unwrap()
            };
            check(&pool, region, &take, granule);
            assert_eq!(pool.stats().unwrap().in_use, 0, "{fault_mode:?} {granule}");
        }
    }
}

pub(crate) fn is_painted(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(at, &byte)| byte == painted(at))
}
