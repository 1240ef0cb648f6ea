//! What the checks of pools have in common: the states of folios.

use hugekit::Pool;
use hugekit::pool::PoolStats;

/// The states of all folios: holes, clean, in use, dirty.
pub(crate) fn states(pool: &Pool) -> [usize; 4] {
    let PoolStats { holes, clean, in_use, dirty, .. } = pool.stats().unwrap();
    [holes, clean, in_use, dirty]
}

pub(crate) fn wait_until(pool: &Pool, condition: impl Fn(PoolStats) -> bool) {
    while !condition(pool.stats().unwrap()) {
        std::thread::yield_now();
    }
}
