//! What cannot be seen from outside.

use rustix::param::page_size;

use hugekit::Region;
use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Pool};
use hugekit::region::ForkError;
use hugekit_testing::trials::skipped;

const PAGES: usize = 8;

/// Forks, and forks of a fork, of base pages, where each page is a granule.
fn forked(region: &Region, most: usize) -> Result<Region, ForkError> {
    let builder = region.fork_builder().granule(page_size()).fault_mode(FaultMode::InPlace);
    builder.max_vmas(most).build()
}

fn write(region: &mut Region, pages: impl IntoIterator<Item = usize>) {
    pages.into_iter().for_each(|page| region[page * page_size()] += 1);
}

/// A signal handler may have interrupted the allocator, and wait for a thread that has the gate.
#[test]
fn gate_while_held_sees_no_allocation() {
    // Longer than any table of a group's can have room for by chance.
    for children in [1, 40] {
        let pool = Pool::builder((children + 12) * PAGES * page_size()).backing(Backing::Base);
        let pool = pool.build().unwrap();
        let mut region = pool.region(PAGES * page_size()).unwrap();
        if let Err(ForkError::Fault(_)) = forked(&region, 8) {
            return skipped("no userfaultfd, no forks");
        }
        let mut forks: Vec<Region> = (0..children).map(|_| forked(&region, 8).unwrap()).collect();
        write(&mut region, [0, 3]);
        write(&mut forks[0], [1, 3, 5]);
        // Brings the first fork together: in its own place, and in a new one.
        forks.push(forked(&forks[0], 8).unwrap());
        write(&mut forks[0], [2, 4]);
        drop(region);
        forks.push(forked(&forks[0], 8).unwrap());
        forks[0].truncate(3 * page_size()).unwrap();
        forks[0].release(0..page_size()).unwrap();
        forks[0].prepare_write(0..3 * page_size()).unwrap();
        let last = forks.pop().unwrap();
        last.retire().unwrap();
        forks.truncate(1);
        let rest: Vec<Region> = std::iter::from_fn(|| forked(&forks[0], 8).ok()).collect();
        assert!(rest.len() > children, "{}", rest.len());
        drop(forks);
        drop(rest);
        assert_eq!(pool.stats().unwrap().in_use, 0);
    }
    assert_eq!(super::allocator_calls(), 0);
}
