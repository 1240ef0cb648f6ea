//! What the checks of forks have in common: pools, painted regions, and each way to fork one.

use hugekit::pool::Backing;
use hugekit::{Pool, Region};

use crate::backings::{FOLIOS, builder};
use crate::permitted::fault_modes;

/// A pool for so many regions of as many folios as a test's have.
pub(crate) fn pool(backing: Backing, regions: usize) -> Pool {
    builder(backing, regions * FOLIOS).scrub_threads(0).build().unwrap()
}

/// Folios that so many regions have, where granules are no smaller than folios: those smaller keep a folio
/// in use for as long as one of them is.
pub(crate) fn folios_in_use(pool: &Pool, granule: usize, folios: usize) {
    let in_use = pool.stats().unwrap().in_use;
    assert!(in_use == folios || granule < pool.page_size() && in_use > folios, "{in_use} {folios}");
}

/// Granules that are shared on a backing: the usual one, and those at both ends.
pub(crate) fn granules(backing: Backing) -> Vec<usize> {
    let page = backing.page_size();
    match backing {
        Backing::Base => vec![page, 4 * page],
        _ if backing.is_reserved() => vec![page],
        _ => vec![page, 64 << 10],
    }
}

/// Calls `check` with a pool, a region of it and how to fork it, in every way.
pub(crate) fn each(
    backing: Backing,
    regions: usize,
    check: impl Fn(&Pool, Region, &dyn Fn(&Region) -> Region, usize),
) {
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            let pool = pool(backing, regions);
            let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
            paint(&mut region, 1);
            let fork = |region: &Region| {
                region.fork_builder().granule(granule).fault_mode(fault_mode).build().unwrap()
            };
            check(&pool, region, &fork, granule);
            assert_eq!(pool.stats().unwrap().in_use, 0, "{fault_mode:?} {granule}");
        }
    }
}

/// Bytes that tell where they are and who wrote them.
pub(crate) fn paint(bytes: &mut [u8], who: u8) {
    for (at, page) in bytes.chunks_mut(4096).enumerate() {
        page.fill(who.wrapping_mul(31).wrapping_add(at as u8));
    }
}

pub(crate) fn is_painted(bytes: &[u8], who: u8) -> bool {
    let page = |(at, page): (usize, &[u8])| {
        page.iter().all(|&byte| byte == who.wrapping_mul(31).wrapping_add(at as u8))
    };
    bytes.chunks(4096).enumerate().all(page)
}
