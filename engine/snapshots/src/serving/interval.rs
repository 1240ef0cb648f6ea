//! The addresses of a snapshot, divided into granules.

use std::ops::Range;

use rustix::param::page_size;

/// A range, its whole pages, and their granules.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    range: Range<usize>,
    inner: Range<usize>,
    granule_bytes: usize,
}

impl Interval {
    pub(crate) fn new(range: Range<usize>, granule_bytes: usize) -> Self {
        let inner = inner_of(&range, page_size());
        Self { range, inner, granule_bytes }
    }

    /// Returns the requested range.
    pub(crate) fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Returns the whole pages of the range. They are protected, and divided into granules at multiples of the
    /// granule size. So the first and the last granule may be shorter. Empty if the range contains no whole page.
    pub(crate) fn inner(&self) -> &Range<usize> {
        &self.inner
    }

    pub(crate) fn granule_bytes(&self) -> usize {
        self.granule_bytes
    }

    /// Returns the number of granules.
    pub(crate) fn granules(&self) -> usize {
        if self.inner.is_empty() {
            return 0;
        }
        (self.inner.end - self.origin()).div_ceil(self.granule_bytes)
    }

    /// Returns the address at which the first granule would begin if it were whole: a multiple of the granule size.
    pub(crate) fn origin(&self) -> usize {
        self.inner.start - self.inner.start % self.granule_bytes
    }

    /// Returns the granule that contains an address of the inner range.
    pub(crate) fn granule_at(&self, address: usize) -> (usize, Range<usize>) {
        let index = (address - self.origin()) / self.granule_bytes;
        (index, self.granule(index))
    }

    pub(super) fn granule(&self, index: usize) -> Range<usize> {
        let start = self.origin() + index * self.granule_bytes;
        start.max(self.inner.start)..(start + self.granule_bytes).min(self.inner.end)
    }
}

/// Returns the whole units of a range, at multiples of their size. If there is none, returns an empty range at its
/// end.
pub(crate) fn inner_of(range: &Range<usize>, unit: usize) -> Range<usize> {
    let end = range.end - range.end % unit;
    match range.start.checked_next_multiple_of(unit) {
        Some(start) if start < end => start..end,
        _ => range.end..range.end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_of_any_range_lies_within() {
        assert_eq!(inner_of(&(5..100), 10), 10..100);
        assert_eq!(inner_of(&(10..109), 10), 10..100);
        assert_eq!(inner_of(&(11..19), 10), 19..19);
        assert_eq!(inner_of(&(11..29), 10), 29..29);
        assert_eq!(inner_of(&(usize::MAX - 3..usize::MAX), 16), usize::MAX..usize::MAX);
    }

    #[test]
    fn granules_of_an_interval_fill_its_whole_pages() {
        let page = page_size();
        for range in [5..40 * page, 3 * page..35 * page, page - 1..2 * page + 1, 7..9] {
            let interval = Interval::new(range, 16 * page);
            let granules: Vec<_> =
                (0..interval.granules()).map(|index| interval.granule(index)).collect();
            let bytes: usize = granules.iter().map(ExactSizeIterator::len).sum();
            assert_eq!(bytes, interval.inner().len());
            for (index, granule) in granules.iter().enumerate() {
                assert_eq!(interval.granule_at(granule.start), (index, granule.clone()));
                assert_eq!(interval.granule_at(granule.end - 1).0, index);
            }
        }
    }
}
