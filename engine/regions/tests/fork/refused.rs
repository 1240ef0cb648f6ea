//! Forks that cannot be are errors, and change nothing.

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::region::ForkError;
use hugekit::{HUGE_PAGE_BYTES, RegionError, error_chain};

use crate::backings::{Check, FOLIOS, builder, unscrubbed};
use crate::fixture::{granules, is_painted, paint, pool};
use crate::permitted::fault_modes;

fn fork_beyond_the_pool_is_an_error_and_changes_nothing(backing: Backing) {
    for fault_mode in fault_modes() {
        let pool = unscrubbed(backing);
        let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
        paint(&mut region, 1);
        let refused = region.fork_builder().fault_mode(fault_mode).build().unwrap_err();
        let message = error_chain(&refused).to_string();
        assert!(message.contains("0 bytes free"), "{message}");
        assert!(matches!(refused, ForkError::Pool(_)));
        assert!(region.serving().is_none());
        assert!(is_painted(&region, 1));
        paint(&mut region, 2);
        assert!(is_painted(&region, 2));
    }
}

fn fork_on_bad_terms_is_a_typed_error(backing: Backing) {
    let pool = pool(backing, 2);
    let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
    paint(&mut region, 1);
    for granule in [0, 3, 2048, 12288, HUGE_PAGE_BYTES + 4096, 4 << 20, usize::MAX] {
        match region.fork_builder().granule(granule).build() {
            Err(ForkError::Granule { granule: asked, least, most }) => {
                assert_eq!(asked, granule);
                assert!(least <= most && most <= HUGE_PAGE_BYTES);
            }
            other => panic!("{granule}: {other:?}"),
        }
    }
    let fault_mode = FaultMode::Threaded { threads: 0 };
    assert!(matches!(
        region.fork_builder().fault_mode(fault_mode).build(),
        Err(ForkError::Fault(_))
    ));
    assert!(region.serving().is_none());
    let granule = *granules(backing).last().unwrap();
    let how = || region.fork_builder().granule(granule).fault_mode(FaultMode::InPlace);
    let child = how().build().unwrap();
    let other = granule ^ 8192;
    let differs = child.fork_builder().granule(other).build();
    assert!(matches!(differs, Err(ForkError::GranuleDiffers { .. })), "{differs:?}");
    let fault_mode = FaultMode::Threaded { threads: 1 };
    let differs = child.fork_builder().fault_mode(fault_mode).build();
    assert!(matches!(differs, Err(ForkError::FaultModeDiffers { .. })), "{differs:?}");
    drop(child);
    assert!(is_painted(&region, 1));
}

/// A holder of the file writes past any protection, so one excludes the other.
fn fork_and_file_of_one_region_exclude_each_other(backing: Backing) {
    let pool = pool(backing, 2);
    let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
    // SAFETY: no thread writes the file.
    unsafe { region.file() }.unwrap();
    assert!(matches!(region.fork(), Err(ForkError::FileGiven)));
    drop(region);
    let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
    let child = region.fork().unwrap().share();
    for forked in [&region, &child] {
        // SAFETY: the file is refused, so nothing is done with it.
        assert_eq!(unsafe { forked.file() }.unwrap_err(), RegionError::Forks);
    }
}

fn fork_of_a_gigantic_page_is_refused(backing: Backing) {
    let pool = builder(backing, 1).build().unwrap();
    let mut region = pool.region(1).unwrap();
    region[0] = 7;
    assert!(matches!(region.fork(), Err(ForkError::Gigantic)));
    assert_eq!(region[0], 7);
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    fork_on_bad_terms_is_a_typed_error,
    fork_and_file_of_one_region_exclude_each_other,
    fork_beyond_the_pool_is_an_error_and_changes_nothing,
];

pub(crate) const GIGANTIC: &[Check] = hugekit_testing::checks![fork_of_a_gigantic_page_is_refused];
