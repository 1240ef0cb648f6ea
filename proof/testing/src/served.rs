//! Regions whose faults are served by us.

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::{Pool, Region};

/// A pool of this many folios, all of them dirty, that clears nothing by itself.
pub fn soiled(backing: Backing, folios: usize) -> Pool {
    let pool = Pool::builder(folios * backing.page_size()).backing(backing).strict(true);
    let pool = pool.scrub_threads(0).build().unwrap();
    pool.region(folios * backing.page_size()).unwrap().fill(0xd1);
    pool
}

/// A region of it that is cleared when it is touched, served as asked.
pub fn at_fault(pool: &Pool, len: usize, fault_mode: FaultMode) -> Region {
    let region = pool
        .region_builder(len)
        .clearing(Clearing::OnFault)
        .fault_mode(fault_mode)
        .build()
        .unwrap();
    assert_eq!(region.serving().unwrap().fault_mode, fault_mode);
    region
}
