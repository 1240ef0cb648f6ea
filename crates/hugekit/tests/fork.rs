//! Forks of regions, on every backing, served in place and threaded: each side changes its own bytes and
//! nobody else's, whoever writes first and goes first.
#![allow(unsafe_code)]

mod backings;

use backings::{Check, FOLIOS, builder, is_zero, trials};
use hugekit::fault::Handling;
use hugekit::pool::Backing;
use hugekit::region::ForkError;
use hugekit::{Pool, Region};
use libtest_mimic::Arguments;

const HANDLINGS: [Handling; 2] = [Handling::InPlace, Handling::Threaded { threads: 1 }];

/// A pool for so many regions of as many folios as a test's have.
fn pool(backing: Backing, regions: usize) -> Pool {
    builder(backing, regions * FOLIOS).scrub_threads(0).build().unwrap()
}

/// Granules that are shared on a backing: the usual one, and those at both ends.
fn granules(backing: Backing) -> Vec<usize> {
    match backing {
        Backing::Base => vec![4096, 16384],
        Backing::Thp => vec![2 << 20, 64 << 10],
        _ => vec![backing.page_size()],
    }
}

/// Calls `check` with a pool, a region of it and how to fork it, in every way.
fn each(backing: Backing, regions: usize, check: impl Fn(&Pool, Region, &dyn Fn(&Region) -> Region)) {
    for handling in HANDLINGS {
        for granule in granules(backing) {
            let pool = pool(backing, regions);
            let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
            paint(&mut region, 1);
            let fork = |region: &Region| {
                region.fork_builder().granule(granule).handling(handling).build().unwrap()
            };
            check(&pool, region, &fork);
            assert_eq!(pool.stats().unwrap().in_use, 0, "{handling:?} {granule}");
        }
    }
}

/// Bytes that tell where they are and who wrote them.
fn paint(bytes: &mut [u8], who: u8) {
    for (at, page) in bytes.chunks_mut(4096).enumerate() {
        page.fill(who.wrapping_mul(31).wrapping_add(at as u8));
    }
}

fn is_painted(bytes: &[u8], who: u8) -> bool {
    let page = |(at, page): (usize, &[u8])| {
        page.iter().all(|&byte| byte == who.wrapping_mul(31).wrapping_add(at as u8))
    };
    bytes.chunks(4096).enumerate().all(page)
}

fn a_fork_has_the_same_bytes(backing: Backing) {
    each(backing, 2, |_, region, fork| {
        let child = fork(&region);
        assert_eq!((child.len(), child.mapped_len()), (region.len(), region.mapped_len()));
        assert!(is_painted(&child, 1));
        assert!(is_painted(&region, 1));
        assert_eq!(child.shared_bytes().unwrap(), child.len());
        assert!(child.serving().is_some());
    });
}

fn what_a_child_writes_is_its_own(backing: Backing) {
    each(backing, 2, |_, region, fork| {
        let mut child = fork(&region);
        let page = backing.page_size();
        child[page + 5] = 0xee;
        assert_eq!(region[page + 5], region[page + 6]);
        assert_eq!(child[page + 6], region[page + 6]);
        assert!(child.shared_bytes().unwrap() < child.len());
        paint(&mut child, 2);
        assert!(is_painted(&child, 2));
        assert!(is_painted(&region, 1));
        assert_eq!(child.shared_bytes().unwrap(), 0);
        assert_eq!(region.shared_bytes().unwrap(), 0);
    });
}

fn what_a_parent_writes_is_its_own(backing: Backing) {
    each(backing, 2, |_, mut region, fork| {
        let child = fork(&region);
        let half = region.len() / 2;
        // Of half of it the child has seen something.
        assert!(is_painted(&child[..half], 1));
        paint(&mut region, 2);
        assert!(is_painted(&child, 1));
        assert!(is_painted(&region, 2));
    });
}

fn any_order_of_dropping(backing: Backing) {
    each(backing, 2, |pool, mut region, fork| {
        for parent_first in [true, false] {
            let mut child = fork(&region);
            let page = backing.page_size();
            child[0] = 7;
            region[3 * page] = 8;
            if parent_first {
                drop(region);
                assert_eq!(pool.stats().unwrap().in_use, FOLIOS);
                assert_eq!(child[0], 7);
                assert_eq!(child[3 * page], child[3 * page + 1]);
                paint(&mut child, 3);
                assert!(is_painted(&child, 3));
                region = child;
            } else {
                drop(child);
                assert_eq!(pool.stats().unwrap().in_use, FOLIOS);
                assert_eq!((region[1], region[3 * page]), (31, 8));
            }
            paint(&mut region, 1);
        }
    });
}

fn the_last_sharer_copies_nothing(backing: Backing) {
    each(backing, 2, |pool, mut region, fork| {
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

fn forks_of_forks(backing: Backing) {
    each(backing, 5, |_, mut region, fork| {
        let page = backing.page_size();
        let mut first = fork(&region);
        let mut second = fork(&region);
        first[page] = 1;
        let mut third = fork(&first);
        let fourth = fork(&second);
        region[0] = 0xa0;
        first[0] = 0xa1;
        third[page] = 0xa3;
        second[2 * page] = 0xa2;
        assert_eq!([region[0], first[0], second[0], third[0], fourth[0]], [0xa0, 0xa1, 31, 31, 31]);
        let at = page;
        let old = second[at + 1];
        let seen = [region[at], first[at], second[at], third[at], fourth[at]];
        assert_eq!(seen, [old, 1, old, 0xa3, old]);
        drop(region);
        drop(second);
        assert_eq!(fourth[2 * page], fourth[2 * page + 1]);
        assert_eq!((first[0], third[0], fourth[0]), (0xa1, 31, 31));
        drop(first);
        assert_eq!((third[page], fourth[page]), (0xa3, old));
    });
}

fn what_is_released_is_zero_on_one_side(backing: Backing) {
    each(backing, 2, |_, mut region, fork| {
        let page = backing.page_size();
        let mut child = fork(&region);
        child.release(page..3 * page).unwrap();
        assert!(is_zero(&child[page..3 * page]));
        assert!(is_painted(&region, 1));
        region.release(2 * page..4 * page).unwrap();
        assert!(is_zero(&region[2 * page..4 * page]) && is_zero(&child[page..3 * page]));
        assert!(is_painted(&child[..page], 1));
        assert_eq!(child[3 * page], region[5 * page].wrapping_sub((2 * page / 4096) as u8));
    });
}

fn a_shortage_is_an_error_and_changes_nothing(backing: Backing) {
    for handling in HANDLINGS {
        let pool = pool(backing, 1);
        let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
        paint(&mut region, 1);
        let refused = region.fork_builder().handling(handling).build().unwrap_err();
        let message = refused.to_string();
        assert!(message.contains("0 bytes are free"), "{message}");
        assert!(matches!(refused, ForkError::Pool(_)));
        assert!(is_painted(&region, 1));
        paint(&mut region, 2);
        assert!(is_painted(&region, 2));
    }
}

const CHECKS: &[Check] = &[
    ("a_fork_has_the_same_bytes", a_fork_has_the_same_bytes),
    ("what_a_child_writes_is_its_own", what_a_child_writes_is_its_own),
    ("what_a_parent_writes_is_its_own", what_a_parent_writes_is_its_own),
    ("any_order_of_dropping", any_order_of_dropping),
    ("the_last_sharer_copies_nothing", the_last_sharer_copies_nothing),
    ("forks_of_forks", forks_of_forks),
    ("what_is_released_is_zero_on_one_side", what_is_released_is_zero_on_one_side),
    (
        "a_shortage_is_an_error_and_changes_nothing",
        a_shortage_is_an_error_and_changes_nothing,
    ),
];

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials(CHECKS)).exit();
}
