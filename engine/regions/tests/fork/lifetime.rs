//! Regions of a fork group go in any order: what is left of them and of their folios.

use hugekit::pool::Backing;

use crate::backings::{Check, FOLIOS};
use crate::fixture::{each, folios_in_use, is_painted, paint};

fn drop_of_forks_in_any_order_keeps_the_others_bytes(backing: Backing) {
    each(backing, 4, |pool, mut region, fork, granule| {
        for parent_first in [true, false] {
            let mut child = fork(&region);
            let page = backing.page_size();
            child[0] = 7;
            region[3 * page] = 8;
            if parent_first {
                drop(region);
                folios_in_use(pool, granule, FOLIOS);
                assert_eq!(child[0], 7);
                assert_eq!(child[3 * page], child[3 * page + 1]);
                paint(&mut child, 3);
                assert!(is_painted(&child, 3));
                region = child;
            } else {
                drop(child);
                folios_in_use(pool, granule, FOLIOS);
                assert_eq!((region[1], region[3 * page]), (31, 8));
            }
            paint(&mut region, 1);
        }
    });
}

fn write_by_the_last_sharer_copies_nothing(backing: Backing) {
    each(backing, 2, |pool, mut region, fork, _| {
        let child = fork(&region);
        drop(child);
        let dirty = pool.stats().unwrap().dirty;
        region[9] = 1;
        assert_eq!(region.shared_bytes().unwrap(), 0);
        let child = fork(&region);
        drop(region);
        assert_eq!(pool.stats().unwrap().dirty, dirty);
        assert_eq!(child.shared_bytes().unwrap(), 0);
        assert_eq!(child[9], 1);
    });
}

fn retire_of_a_fork_gives_its_pages_to_the_kernel(backing: Backing) {
    each(backing, 3, |pool, region, fork, granule| {
        let mut child = fork(&region);
        let other = fork(&region);
        paint(&mut child, 2);
        child.retire().unwrap();
        folios_in_use(pool, granule, 2 * FOLIOS);
        assert!(pool.stats().unwrap().holes >= FOLIOS);
        region.retire().unwrap();
        assert!(is_painted(&other, 1));
    });
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    drop_of_forks_in_any_order_keeps_the_others_bytes,
    write_by_the_last_sharer_copies_nothing,
    retire_of_a_fork_gives_its_pages_to_the_kernel,
];
