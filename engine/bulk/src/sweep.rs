//! The order in which the extents of a folio are processed.
//!
//! A thread faulted at one byte of the folio, or will read it: the *target*. The bytes that are
//! processed last are most likely still in the cache when the target is used. Bytes far from the
//! target need not be in the cache. So a [`Sweep`] yields [`SweepExtent`]s in order, each marked
//! [`Near`](Reach::Near) (stays cached) or [`Far`](Reach::Far) (may stream).
//!
//! There is one near window around the target's subpage. It has `near_bytes`, counted in whole
//! subpages. It is clipped, not shifted, at both ends of the folio, and always contains the
//! target's subpage. If the number of subpages is even, the right side has one more. The published
//! radius of two pages is `near_bytes` = 5 subpages.
//!
//! | order | source | extents |
//! | --- | --- | --- |
//! | [`Sequential`](Order::Sequential) | gigantic pages | ascending: far, the window, far |
//! | [`Converging`](Order::Converging) | target subpage last, 2018 | single subpages, the farthest from the target first |
//! | [`Sectioned`](Order::Sectioned) | clearing in extents, 2023 | left far, right far, then the window |
//!
//! Empty extents are skipped. A sweep never splits far extents, because the idea of the work of
//! 2023 is an instruction that knows the real length. Callers with threads, progress or learning do
//! split far extents. A sweep allocates nothing.

use std::ops::Range;

/// Bytes of a subpage, the unit of an order: the base page of x86-64 and of most other machines.
pub const SUBPAGE_BYTES: usize = 4096;

/// Bytes above which a folio is gigantic: the largest order of the page allocator (4 MiB, 1,024
/// base pages). In longer folios no cache holds a useful neighbourhood of the target, so the order
/// gains nothing.
pub const GIGANTIC_OVER_BYTES: usize = 4 << 20;

/// The distance of an extent to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// Outside the near window: no thread reads the extent soon, so it may stream past the cache.
    Far,
    /// In the near window: the extent should stay in the cache.
    Near,
}

/// A contiguous piece of a folio that one call processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepExtent {
    /// Offsets in bytes from the start of the folio; never empty.
    pub bytes: Range<usize>,
    /// Near or far.
    pub reach: Reach,
}

/// The order of the extents of a folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// Ascending. The window is an extent of its own.
    Sequential,
    /// Single subpages, the farthest from the target first, the target's subpage last.
    Converging,
    /// Left of the window, right of the window, then the window. Each part ascends.
    Sectioned,
}

impl Order {
    /// All orders.
    pub const ALL: &'static [Self] = &[Self::Sequential, Self::Converging, Self::Sectioned];

    /// Returns the order for a folio of `len` bytes: sectioned if there is a target, sequential for
    /// gigantic folios and for folios without a target.
    #[must_use]
    pub const fn for_folio(len: usize, target: Option<usize>) -> Self {
        match target {
            Some(_) if len <= GIGANTIC_OVER_BYTES => Self::Sectioned,
            _ => Self::Sequential,
        }
    }

    /// Returns the extents of a folio of `len` bytes in this order. `target` is an offset in bytes.
    /// Without a target there is no near window, and the orders other than sequential begin from
    /// offset 0.
    ///
    /// `len` need not be a multiple of the subpage: the last subpage is then shorter.
    ///
    /// # Panics
    /// If `target` is not below `len`.
    #[must_use]
    pub fn extents(self, len: usize, target: Option<usize>, near_bytes: usize) -> Sweep {
        #[cfg(hugekit_faults)]
        last_target::note(target);
        let window = target.map_or(0..0, |target| near_window(len, target, near_bytes));
        let state = match self {
            Self::Converging => {
                SweepState::Converging(Converging::new(len, target.unwrap_or(0), window))
            }
            Self::Sequential => SweepState::Sections(Sections::new([
                (0..window.start, Reach::Far),
                (window.clone(), Reach::Near),
                (window.end..len, Reach::Far),
            ])),
            Self::Sectioned => SweepState::Sections(Sections::new([
                (0..window.start, Reach::Far),
                (window.end..len, Reach::Far),
                (window, Reach::Near),
            ])),
        };
        Sweep(state)
    }
}

/// The target of the folio that was processed last, which tests compare with the address that they touched.
#[cfg(hugekit_faults)]
pub mod last_target {
    use std::sync::atomic::{AtomicUsize, Ordering};

    static LAST: AtomicUsize = AtomicUsize::new(usize::MAX);

    pub(super) fn note(target: Option<usize>) {
        LAST.store(target.unwrap_or(usize::MAX), Ordering::SeqCst);
    }

    /// Removes and returns the target. `None` if no folio was processed since the last call, or if
    /// the folio had no target.
    pub fn take() -> Option<usize> {
        Some(LAST.swap(usize::MAX, Ordering::SeqCst)).filter(|&target| target != usize::MAX)
    }
}

/// Returns the near window around `target` in a folio of `len` bytes: at least the target's
/// subpage.
///
/// # Panics
/// If `target` is not below `len`.
#[must_use]
pub fn near_window(len: usize, target: usize, near_bytes: usize) -> Range<usize> {
    assert!(target < len, "target {target} lies outside a folio of {len} bytes");
    let pages = near_bytes.div_ceil(SUBPAGE_BYTES).max(1);
    let page = target / SUBPAGE_BYTES;
    let first = page.saturating_sub((pages - 1) / 2);
    let end = page.saturating_add(pages / 2 + 1);
    first * SUBPAGE_BYTES..end.saturating_mul(SUBPAGE_BYTES).min(len)
}

/// The extents of one folio in processing order.
#[derive(Clone, Debug)]
pub struct Sweep(SweepState);

#[derive(Clone, Debug)]
enum SweepState {
    Sections(Sections),
    Converging(Converging),
}

impl Iterator for Sweep {
    type Item = SweepExtent;

    #[inline]
    fn next(&mut self) -> Option<SweepExtent> {
        match &mut self.0 {
            SweepState::Sections(sections) => sections.next(),
            SweepState::Converging(converging) => converging.next(),
        }
    }
}

/// Up to three extents. Empty extents are skipped.
#[derive(Clone, Debug)]
struct Sections {
    parts: [(Range<usize>, Reach); 3],
    next: usize,
}

impl Sections {
    fn new(parts: [(Range<usize>, Reach); 3]) -> Self {
        Self { parts, next: 0 }
    }

    fn next(&mut self) -> Option<SweepExtent> {
        while let Some((bytes, reach)) = self.parts.get(self.next).cloned() {
            self.next += 1;
            if !bytes.is_empty() {
                return Some(SweepExtent { bytes, reach });
            }
        }
        None
    }
}

/// The order of 2018, for `N` subpages and target `n`. First the surplus of the longer side,
/// towards the target. Then the rest, which is symmetric around the target: left end and right end
/// in turn, inwards. The last pair is `n - 1, n`.
#[derive(Clone, Debug)]
struct Converging {
    len: usize,
    window: Range<usize>,
    /// Subpages not yet processed.
    pages: Range<usize>,
    /// Subpages that remain after the surplus.
    symmetric: Range<usize>,
    left_is_next: bool,
}

impl Converging {
    fn new(len: usize, target: usize, window: Range<usize>) -> Self {
        let pages = len.div_ceil(SUBPAGE_BYTES);
        let target = target / SUBPAGE_BYTES;
        let symmetric = if 2 * target <= pages { 0..2 * target } else { 2 * target - pages..pages };
        Self { len, window, pages: 0..pages, symmetric, left_is_next: true }
    }

    #[inline]
    fn next(&mut self) -> Option<SweepExtent> {
        let page = if self.pages.end > self.symmetric.end {
            self.pages.next_back()
        } else if self.pages.start < self.symmetric.start {
            self.pages.next()
        } else {
            self.next_of_symmetric()
        }?;
        Some(self.extent_of(page))
    }

    #[inline]
    fn next_of_symmetric(&mut self) -> Option<usize> {
        self.left_is_next = !self.left_is_next;
        if self.left_is_next { self.pages.next_back() } else { self.pages.next() }
    }

    #[inline]
    fn extent_of(&self, page: usize) -> SweepExtent {
        let start = page * SUBPAGE_BYTES;
        let reach = if self.window.contains(&start) { Reach::Near } else { Reach::Far };
        SweepExtent { bytes: start..(start + SUBPAGE_BYTES).min(self.len), reach }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = SUBPAGE_BYTES;

    fn pages(order: Order, pages: usize, target: usize) -> Vec<usize> {
        order.extents(pages * PAGE, Some(target * PAGE), 0).map(|e| e.bytes.start / PAGE).collect()
    }

    #[test]
    fn converging_around_the_first_page_descends() {
        assert_eq!(pages(Order::Converging, 5, 0), [4, 3, 2, 1, 0]);
    }

    #[test]
    fn converging_around_the_last_page_ends_there() {
        assert_eq!(pages(Order::Converging, 5, 4), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn converging_takes_the_tail_first_when_the_target_is_on_the_left() {
        assert_eq!(pages(Order::Converging, 8, 2), [7, 6, 5, 4, 0, 3, 1, 2]);
    }

    #[test]
    fn converging_takes_the_head_first_when_the_target_is_on_the_right() {
        assert_eq!(pages(Order::Converging, 8, 5), [0, 1, 2, 7, 3, 6, 4, 5]);
    }

    #[test]
    fn window_of_the_published_radius_is_clipped_at_both_ends() {
        let window = |target| near_window(512 * PAGE, target * PAGE, 5 * PAGE);
        assert_eq!(window(100), 98 * PAGE..103 * PAGE);
        assert_eq!(window(1), 0..4 * PAGE);
        assert_eq!(window(511), 509 * PAGE..512 * PAGE);
    }

    #[test]
    fn window_of_even_pages_has_its_odd_one_on_the_right() {
        assert_eq!(near_window(64 * PAGE, 10 * PAGE, 4 * PAGE), 9 * PAGE..13 * PAGE);
    }

    #[test]
    fn sectioned_around_a_target_is_left_right_window() {
        let extents: Vec<_> =
            Order::Sectioned.extents(512 * PAGE, Some(100 * PAGE + 7), 5 * PAGE).collect();
        assert_eq!(
            extents,
            [
                SweepExtent { bytes: 0..98 * PAGE, reach: Reach::Far },
                SweepExtent { bytes: 103 * PAGE..512 * PAGE, reach: Reach::Far },
                SweepExtent { bytes: 98 * PAGE..103 * PAGE, reach: Reach::Near },
            ]
        );
    }

    #[test]
    fn gigantic_folio_and_one_without_a_target_are_swept_ascending() {
        let order = |len| Order::for_folio(len, Some(0));
        assert_eq!(order(GIGANTIC_OVER_BYTES), Order::Sectioned);
        assert_eq!(order(GIGANTIC_OVER_BYTES + 1), Order::Sequential);
        assert_eq!(Order::for_folio(PAGE, None), Order::Sequential);
    }

    #[test]
    fn sweep_without_a_target_is_one_far_extent() {
        let extents: Vec<_> = Order::Sequential.extents(1 << 30, None, 1 << 20).collect();
        assert_eq!(extents, [SweepExtent { bytes: 0..1 << 30, reach: Reach::Far }]);
    }

    #[test]
    fn sweep_of_an_empty_folio_has_no_extents() {
        for order in Order::ALL {
            assert_eq!(order.extents(0, None, PAGE).count(), 0);
        }
    }
}
