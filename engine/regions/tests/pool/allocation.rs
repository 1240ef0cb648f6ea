//! What is allocated is zero, and folios go from state to state.

use std::sync::Mutex;

use hugekit::pool::Backing;
use hugekit::{Pool, Threads};

use crate::backings::{Check, FOLIOS, is_zero, unscrubbed};
use crate::fixture::states;

fn region_of_any_length_is_zeroed_and_writable(backing: Backing) {
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

fn folios_used_and_scrubbed_go_from_hole_to_dirty_to_clean(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    assert_eq!(states(&pool), [FOLIOS, 0, 0, 0]);
    let mut region = pool.region(3 * page).unwrap();
    region.fill(1);
    assert_eq!(states(&pool), [FOLIOS - 3, 0, 3, 0]);
    drop(region);
    assert_eq!(states(&pool), [FOLIOS - 3, 0, 0, 3]);
    assert_eq!(pool.scrub().unwrap(), 3 * page as u64);
    assert_eq!(states(&pool), [FOLIOS - 3, 3, 0, 0]);
    assert!(is_zero(&pool.region(3 * page).unwrap()));
    let stats = pool.stats().unwrap();
    assert_eq!(stats.populated, 3 * page as u64);
    assert_eq!((stats.scrubbed_on_request, stats.scrubbed_at_allocation), (3 * page as u64, 0));
    assert_eq!((stats.allocations, stats.waits, stats.page_size), (2, 0, page));
}

fn region_of_dirty_folios_is_cleared_at_allocation(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    pool.region(FOLIOS * page).unwrap().fill(1);
    assert_eq!(states(&pool), [0, 0, 0, FOLIOS]);
    assert!(is_zero(&pool.region(3 * page).unwrap()));
    assert_eq!(pool.stats().unwrap().scrubbed_at_allocation, 3 * page as u64);
}

fn region_beside_clean_folios_gets_those_first(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let regions: Vec<_> = (0..FOLIOS).map(|_| pool.region(page).unwrap()).collect();
    let mut dirtied = regions.into_iter();
    drop(dirtied.by_ref().take(3).collect::<Vec<_>>());
    pool.scrub().unwrap();
    drop(dirtied);
    assert_eq!(states(&pool), [0, 3, 0, FOLIOS - 3]);
    let _clean: Vec<_> = (0..3).map(|_| pool.region(page).unwrap()).collect();
    assert_eq!(pool.stats().unwrap().scrubbed_at_allocation, 0);
}

fn build_of_an_uneven_capacity_rounds_it_up_and_reports_it(backing: Backing) {
    let page = backing.page_size();
    let pool = Pool::builder(2 * page + 1).backing(backing).strict(true).build().unwrap();
    let report = pool.backing_report();
    assert_eq!((report.asked_capacity, report.capacity), (2 * page + 1, 3 * page));
    assert_eq!((report.backing, report.asked), (backing, backing));
    assert!(report.fallbacks.is_empty());
    assert_eq!(pool.region(3 * page).unwrap().len(), 3 * page);
}

fn build_by_default_leaves_no_hole_and_is_watched(backing: Backing) {
    let bytes = FOLIOS * backing.page_size();
    for threads in [Threads::One, Threads::Auto, Threads::Exactly(2)] {
        let told = Mutex::new(Vec::new());
        let progress = |done, total| told.lock().unwrap().push((done, total));
        let pool = Pool::builder(bytes).backing(backing).strict(true);
        let pool = pool.threads(threads).progress(&progress).build().unwrap();
        assert_eq!(states(&pool), [0, FOLIOS, 0, 0]);
        assert_eq!(pool.stats().unwrap().populated, bytes as u64);
        assert_eq!(told.lock().unwrap().last(), Some(&(bytes, bytes)));
    }
}

fn region_whose_progress_panics_loses_no_folio(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    for dirty in [0, 2] {
        let before = states(&pool);
        let progress = |_, _| std::panic::resume_unwind(Box::new("as it was asked to"));
        let region = || pool.region_builder(FOLIOS * page).progress(&progress).build();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(region)).is_err());
        assert_eq!(states(&pool), before);
        assert_eq!(before[3], dirty);
        drop(pool.region(2 * page).unwrap());
    }
    assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    region_of_any_length_is_zeroed_and_writable,
    folios_used_and_scrubbed_go_from_hole_to_dirty_to_clean,
    region_of_dirty_folios_is_cleared_at_allocation,
    region_beside_clean_folios_gets_those_first,
    build_of_an_uneven_capacity_rounds_it_up_and_reports_it,
    build_by_default_leaves_no_hole_and_is_watched,
    region_whose_progress_panics_loses_no_folio,
];
