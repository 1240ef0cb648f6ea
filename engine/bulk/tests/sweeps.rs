//! Properties of the orders in which a folio's extents are processed.

use hugekit_bulk::sweep::{Order, Reach, SUBPAGE_BYTES as PAGE, SweepExtent, near_window};
use proptest::prelude::*;

/// A folio of 1 page to 1 GiB, mostly powers of two as real folios are, and a target in it.
fn folio_and_target() -> impl Strategy<Value = (usize, usize)> {
    let pages = prop_oneof![
        3 => (0_u32..=9).prop_map(|log2| 1_usize << log2),
        2 => 1_usize..=600,
        1 => Just((1 << 30) / PAGE),
    ];
    (pages, any::<prop::sample::Index>()).prop_map(|(pages, at)| {
        let len = pages * PAGE;
        (len, at.index(len))
    })
}

fn near_bytes() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1_usize..=40 * PAGE, Just(5 * PAGE), Just(1 << 20), Just(usize::MAX)]
}

fn collect(order: Order, len: usize, target: usize, near: usize) -> Vec<SweepExtent> {
    order.extents(len, Some(target), near).collect()
}

/// The converging order stated independently: pages by their distance from the target, the
/// farthest first; of two at the same distance the right one first.
fn by_distance(pages: usize, target: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..pages).collect();
    order.sort_by_key(|&page| (std::cmp::Reverse(page.abs_diff(target)), page < target));
    order
}

proptest! {
    #[test]
    fn sweep_in_every_order_is_a_partition((len, target) in folio_and_target(), near in near_bytes()) {
        for &order in Order::ALL {
            let mut extents = collect(order, len, target, near);
            extents.sort_by_key(|extent| extent.bytes.start);
            let mut end = 0;
            for extent in &extents {
                prop_assert_eq!(extent.bytes.start, end);
                prop_assert!(extent.bytes.end > end);
                end = extent.bytes.end;
            }
            prop_assert_eq!(end, len);
        }
    }

    #[test]
    fn sweep_with_a_target_has_the_window_in_near_extents((len, target) in folio_and_target(), near in near_bytes()) {
        let window = near_window(len, target, near);
        prop_assert!(window.contains(&target));
        for &order in Order::ALL {
            for extent in collect(order, len, target, near) {
                let inside = window.contains(&extent.bytes.start);
                prop_assert_eq!(extent.reach == Reach::Near, inside);
                prop_assert!(inside == window.contains(&(extent.bytes.end - 1)));
            }
        }
    }

    #[test]
    fn window_around_any_target_is_centred_and_clipped((len, target) in folio_and_target(), pages in 1_usize..64) {
        let window = near_window(len, target, pages * PAGE);
        let page = (target / PAGE) as isize;
        let first = (page - (pages as isize - 1) / 2).max(0) as usize;
        let last = (page as usize + pages / 2).min(len / PAGE - 1);
        prop_assert_eq!(window, first * PAGE..(last + 1) * PAGE);
    }

    #[test]
    fn converging_on_any_target_is_by_distance((len, target) in folio_and_target(), near in near_bytes()) {
        let extents = collect(Order::Converging, len, target, near);
        prop_assert!(extents.iter().all(|extent| extent.bytes.len() == PAGE));
        let order: Vec<usize> = extents.iter().map(|extent| extent.bytes.start / PAGE).collect();
        prop_assert_eq!(order, by_distance(len / PAGE, target / PAGE));
    }

    #[test]
    fn sequential_past_any_target_ascends((len, target) in folio_and_target(), near in near_bytes()) {
        let extents = collect(Order::Sequential, len, target, near);
        prop_assert!(extents.is_sorted_by_key(|extent| extent.bytes.start));
        prop_assert!(extents.len() <= 3);
    }

    #[test]
    fn sectioned_around_any_target_is_left_right_window((len, target) in folio_and_target(), near in near_bytes()) {
        let extents = collect(Order::Sectioned, len, target, near);
        let window = near_window(len, target, near);
        let parts = [0..window.start, window.end..len, window];
        let expected: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let actual: Vec<_> = extents.into_iter().map(|extent| extent.bytes).collect();
        prop_assert_eq!(actual, expected);
    }

    #[test]
    fn sweep_with_a_short_last_page_keeps_it(len in 1_usize..3 * PAGE, at in any::<prop::sample::Index>()) {
        for &order in Order::ALL {
            let extents = collect(order, len, at.index(len), 0);
            prop_assert_eq!(extents.iter().map(|extent| extent.bytes.len()).sum::<usize>(), len);
        }
    }
}

#[test]
#[should_panic(expected = "lies outside")]
fn sweep_with_a_target_outside_is_refused() {
    let _ = Order::Sectioned.extents(PAGE, Some(PAGE), 0);
}
