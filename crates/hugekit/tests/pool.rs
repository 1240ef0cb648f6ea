//! Pools and regions on every backing: what is handed out is zero, whatever happened before.
//!
//! A harness of its own, because which backings there are is known only at run time: one that this
//! machine lacks is listed as ignored, with what the pool says about it.
#![allow(unsafe_code)]

use hugekit::Pool;
use hugekit::pool::{Backing, PoolBuilder, PoolError};
use libtest_mimic::{Arguments, Failed, Trial};

/// Folios of a test's pool.
const FOLIOS: usize = 8;

/// A pool of so many folios on exactly this backing.
fn builder(backing: Backing, folios: usize) -> PoolBuilder<'static> {
    Pool::builder(folios * backing.page_size()).backing(backing).strict(true)
}

/// A pool that clears at hand-out only.
fn unscrubbed(backing: Backing) -> Pool {
    builder(backing, FOLIOS).scrub_threads(0).build().unwrap()
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn any_length_is_zeroed_and_writable(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    for len in [1, 8, page - 1, page, page + 1, FOLIOS * page - 5, FOLIOS * page] {
        let mut region = pool.region(len).unwrap();
        assert_eq!((region.len(), region.mapped_len()), (len, len.next_multiple_of(page)));
        assert_eq!(region.as_ptr().addr() % page, 0);
        assert!(is_zero(&region), "{len}");
        region.fill(0xa5);
        assert!(region.iter().all(|&byte| byte == 0xa5));
    }
}

fn what_is_dirty_is_cleared_at_hand_out(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    pool.region(FOLIOS * page).unwrap().fill(1);
    let dirty = pool.stats().unwrap();
    assert_eq!((dirty.dirty, dirty.clean, dirty.scrubbed_at_hand_out), (FOLIOS, 0, 0));
    assert!(is_zero(&pool.region(3 * page).unwrap()));
    let after = pool.stats().unwrap();
    assert_eq!(after.scrubbed_at_hand_out, 3 * page as u64);
    assert_eq!(after.hand_outs, 2);
}

fn the_scrubber_cleans_in_the_background(backing: Backing) {
    let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
    pool.region(FOLIOS * page).unwrap().fill(1);
    while pool.stats().unwrap().dirty > 0 {
        std::thread::yield_now();
    }
    let clean = pool.stats().unwrap();
    assert_eq!(clean.scrubbed_in_background, (FOLIOS * page) as u64);
    assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
    assert_eq!(pool.stats().unwrap().scrubbed_at_hand_out, 0);
}

fn a_full_pool_says_what_is_left(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let regions: Vec<_> = (0..FOLIOS).map(|_| pool.region(page).unwrap()).collect();
    assert!(matches!(pool.region(1), Err(PoolError::NoRoom { free: 0, .. })));
    let apart: Vec<_> = regions.into_iter().enumerate().filter(|(at, _)| at % 2 == 0).collect();
    match pool.region(2 * page) {
        Err(PoolError::NoRoom { wanted, free, longest }) => {
            assert_eq!((wanted, free, longest), (2 * page, FOLIOS / 2 * page, page));
        }
        other => panic!("{other:?}"),
    }
    drop(apart);
    assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
}

type Check = fn(Backing);

const CHECKS: [(&str, Check); 4] = [
    ("any_length_is_zeroed_and_writable", any_length_is_zeroed_and_writable),
    ("what_is_dirty_is_cleared_at_hand_out", what_is_dirty_is_cleared_at_hand_out),
    ("the_scrubber_cleans_in_the_background", the_scrubber_cleans_in_the_background),
    ("a_full_pool_says_what_is_left", a_full_pool_says_what_is_left),
];

/// Why tests on this backing cannot run here.
fn lacking(backing: Backing) -> Option<String> {
    let populated = builder(backing, FOLIOS).populate_now(true).build();
    populated.err().map(|error| error.to_string())
}

fn trials_on(backing: Backing) -> Vec<Trial> {
    let lacking = lacking(backing);
    let trial = |(name, check): (&str, Check)| {
        let run = move || -> Result<(), Failed> {
            check(backing);
            Ok(())
        };
        let trial = Trial::test(format!("{backing:?}::{name}").to_lowercase(), run);
        match &lacking {
            None => trial,
            Some(reason) => trial.with_kind(format!("skipped: {reason}")).with_ignored_flag(true),
        }
    };
    CHECKS.into_iter().map(trial).collect()
}

fn main() {
    let backings = [Backing::Base, Backing::Thp, Backing::Hugetlb2M];
    let trials = backings.into_iter().flat_map(trials_on).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
