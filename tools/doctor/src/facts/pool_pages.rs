//! Which pages a pool of transparent huge pages gets.
//!
//! The kernel's setting for shared memory does not answer this: where the setting forbids huge pages
//! at faults, `MADV_COLLAPSE` may still make them. So the doctor makes a pool, as a program would.

use hugekit::Pool;
use hugekit::pool::{Backing, PoolError};
use hugekit_machine::Root;

/// The pages of a pool on this machine.
#[derive(Debug)]
pub(crate) enum PoolPages {
    /// Faults allocate huge pages.
    Huge,
    /// Faults allocate base pages, and the pool collapses them into huge ones.
    Collapsed,
    /// Base pages, because the pool cannot have huge ones.
    Base(PoolError),
}

impl PoolPages {
    /// Makes a pool of one huge page and frees it. `None` for a machine that is described by files.
    pub(crate) fn of_pool(root: &Root) -> Option<Self> {
        root.is_this_machine().then(|| {
            match Pool::builder(1).ladder([Backing::Thp]).scrub_threads(0).build() {
                Ok(pool) if pool.backing_report().by_collapse => Self::Collapsed,
                Ok(_) => Self::Huge,
                Err(refused) => Self::Base(refused),
            }
        })
    }
}
