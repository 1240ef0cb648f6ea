//! The scrubber: what it cleans, when, and when not.

use hugekit::pool::Backing;

use crate::backings::{Check, FOLIOS, builder, is_zero};
use crate::fixture::{states, wait_until};

fn scrubber_of_dirty_folios_cleans_them_in_the_background(backing: Backing) {
    let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
    pool.region(FOLIOS * page).unwrap().fill(1);
    wait_until(&pool, |stats| stats.clean == FOLIOS);
    assert_eq!(pool.stats().unwrap().scrubbed_in_background, (FOLIOS * page) as u64);
    assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
    assert_eq!(pool.stats().unwrap().scrubbed_at_allocation, 0);
}

/// It naps while regions come and go, but it does not starve.
fn scrubber_while_regions_come_and_go_does_not_starve(backing: Backing) {
    let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
    drop(pool.region(FOLIOS * page).unwrap());
    while pool.stats().unwrap().scrubbed_in_background == 0 {
        pool.region(page).unwrap()[0] = 1;
    }
    wait_until(&pool, |stats| stats.clean == FOLIOS);
}

fn scrubber_with_watermarks_keeps_between_them(backing: Backing) {
    let page = backing.page_size();
    let pool = builder(backing, FOLIOS).watermarks(2 * page, 4 * page).build().unwrap();
    pool.region(FOLIOS * page).unwrap().fill(1);
    wait_until(&pool, |stats| stats.clean == 4);
    assert_eq!(states(&pool), [0, 4, 0, 4]);
    let two = pool.region(2 * page).unwrap();
    assert_eq!(states(&pool), [0, 2, 2, 4]);
    let third = pool.region(page).unwrap();
    wait_until(&pool, |stats| stats.clean == 4);
    assert_eq!(states(&pool), [0, 4, 3, 1]);
    drop((two, third));
    assert_eq!(states(&pool), [0, 4, 0, 4]);
}

fn scrubber_while_paused_cleans_nothing(backing: Backing) {
    let (pool, page) = (builder(backing, FOLIOS).build().unwrap(), backing.page_size());
    pool.pause_scrubbing().unwrap();
    for _ in 0..3 {
        pool.region(FOLIOS * page).unwrap().fill(1);
        assert_eq!(states(&pool), [0, 0, 0, FOLIOS]);
    }
    pool.resume_scrubbing().unwrap();
    wait_until(&pool, |stats| stats.clean == FOLIOS);
    for _ in 0..20 {
        pool.region(FOLIOS * page).unwrap().fill(1);
        pool.pause_scrubbing().unwrap();
        let paused = pool.stats().unwrap();
        assert_eq!(paused.dirty + paused.clean, FOLIOS);
        assert_eq!(pool.stats().unwrap(), paused);
        pool.resume_scrubbing().unwrap();
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    scrubber_of_dirty_folios_cleans_them_in_the_background,
    scrubber_while_regions_come_and_go_does_not_starve,
    scrubber_with_watermarks_keeps_between_them,
    scrubber_while_paused_cleans_nothing,
];
