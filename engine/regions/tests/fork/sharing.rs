//! What one side writes or releases changes no byte of the other.

use hugekit::pool::Backing;
use hugekit_machine::Root;
use hugekit_machine::userfaultfd::{Features, Userfaultfd};

use crate::backings::{Check, is_zero};
use crate::fixture::{each, is_painted, paint};

/// Whether the kernel enters pages that are protected from the beginning; it has had this as long as it has protected
/// untouched pages.
pub(crate) fn reads_share() -> bool {
    let userfaultfd = Userfaultfd::read(&Root::default()).unwrap();
    userfaultfd.features.contains(Features::WRITE_PROTECT_UNPOPULATED)
}

fn fork_of_a_region_has_its_bytes(backing: Backing) {
    each(backing, 2, |_, region, fork, _| {
        let child = fork(&region);
        assert_eq!((child.len(), child.mapped_len()), (region.len(), region.mapped_len()));
        assert_eq!(child.shared_bytes().unwrap(), child.len());
        assert!(is_painted(&child, 1));
        assert!(is_painted(&region, 1));
        assert_eq!(child.shared_bytes().unwrap(), if reads_share() { child.len() } else { 0 });
        assert!(child.serving().is_some());
    });
}

fn write_to_a_fork_leaves_its_parent_as_it_was(backing: Backing) {
    each(backing, 2, |_, region, fork, _| {
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

fn write_to_a_parent_leaves_its_fork_as_it_was(backing: Backing) {
    each(backing, 2, |_, mut region, fork, _| {
        let child = fork(&region);
        let half = region.len() / 2;
        // Of half of it the child has seen something.
        assert!(is_painted(&child[..half], 1));
        paint(&mut region, 2);
        assert!(is_painted(&child, 1));
        assert!(is_painted(&region, 2));
    });
}

fn fork_of_a_fork_has_bytes_of_its_own(backing: Backing) {
    each(backing, 5, |_, mut region, fork, _| {
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

fn release_of_shared_granules_reads_zero_on_one_side(backing: Backing) {
    each(backing, 2, |_, mut region, fork, _| {
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

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    fork_of_a_region_has_its_bytes,
    write_to_a_fork_leaves_its_parent_as_it_was,
    write_to_a_parent_leaves_its_fork_as_it_was,
    fork_of_a_fork_has_bytes_of_its_own,
    release_of_shared_granules_reads_zero_on_one_side,
];
