//! A child process has no part of its parent's fork groups.

use std::sync::Mutex;

use hugekit::pool::Backing;
use hugekit::region::ForkError;
use hugekit::{Pool, Region, RegionError};

use crate::backings::Check;
use crate::child::in_a_child;
use crate::fixture::{each, is_painted};

/// In a child process nothing of a fork group is there, in whatever state it is, and what it does changes
/// nothing for the parent.
fn fork_group_in_a_child_process_is_refused(backing: Backing) {
    each(backing, 3, |pool, mut region, fork, _| {
        let mut child = fork(&region);
        let grandchild = fork(&child);
        child[0] = 5;
        region[backing.page_size()] = 6;
        let regions = Mutex::new(vec![region, child, grandchild]);
        let code = in_a_child(|| {
            let mut regions = std::mem::take(&mut *regions.lock().unwrap());
            for region in &mut regions {
                if !matches!(region.fork(), Err(ForkError::Forked)) {
                    return 1;
                }
                let refused = [region.release(0..region.len()), region.prepare_write(0..1)];
                if refused.iter().any(|refused| *refused != Err(RegionError::Forked)) {
                    return 2;
                }
            }
            drop(regions);
            // A fork group of its own.
            let pool = Pool::builder(64 << 10).backing(Backing::Base).build().unwrap();
            let mut region = pool.region(32 << 10).unwrap();
            let mut child = region.fork().unwrap();
            region[1] = 1;
            child[2] = 2;
            i32::from((region[1], region[2], child[1], child[2]) != (1, 0, 0, 2)) * 3
        });
        assert_eq!(code, 0);
        let regions = regions.into_inner().unwrap();
        let [region, child, grandchild] = <[Region; 3]>::try_from(regions).unwrap();
        assert_eq!((region[0], child[0], grandchild[0]), (31, 5, 31));
        assert_eq!(child[backing.page_size()], child[backing.page_size() + 1]);
        drop((region, child));
        assert!(is_painted(&grandchild, 1));
        drop(grandchild);
        assert_eq!(pool.stats().unwrap().in_use, 0);
    });
}

pub(crate) const CHECKS: &[Check] =
    hugekit_testing::checks![fork_group_in_a_child_process_is_refused];
