//! The part of a job that was done before the job ended early. A caller can use it to continue or
//! to undo the job.

use std::ops::Range;

/// The bytes of a job that are done: ascending ranges of offsets. No two ranges touch.
///
/// Bytes of a failed chunk are not included, although some of them may be done.
///
/// ```
/// use hugekit_bulk::parallel::{Cancel, Job, JobError};
///
/// let cancel = Cancel::new();
/// let half = |chunk: std::ops::Range<usize>| {
///     if chunk.end == 600 {
///         cancel.cancel();
///     }
///     Ok::<(), std::convert::Infallible>(())
/// };
/// let job = Job::new(1000).min_chunk(100).cancel(&cancel);
/// let Err(JobError::Cancelled { done }) = job.threads(hugekit::Threads::One).run(half) else { unreachable!() };
/// assert_eq!(done.ranges(), [0..600]);
/// assert_eq!(done.left().collect::<Vec<_>>(), [600..1000]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    ranges: Vec<Range<usize>>,
    asked: Range<usize>,
}

impl Done {
    /// Returns the state of a job of `len` bytes of which nothing is done.
    #[doc(hidden)]
    pub const fn nothing(len: usize) -> Self {
        Self { ranges: Vec::new(), asked: 0..len }
    }

    /// Returns the state of a job of `len` bytes that is done up to `end`. If the heap has no room
    /// for this state, returns the state of which nothing is done.
    pub(super) fn until(end: usize, len: usize) -> Self {
        let mut ranges = Vec::new();
        if end > 0 && ranges.try_reserve(1).is_ok() {
            ranges.push(0..end);
        }
        Self { ranges, asked: 0..len }
    }

    /// Returns the state of a job of `len` bytes of which these ranges are done. The ranges may be
    /// in any order; they do not overlap, and none is empty.
    pub(super) fn new(mut ranges: Vec<Range<usize>>, len: usize) -> Self {
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let joins = last.end == next.start;
            if joins {
                last.end = next.end;
            }
            joins
        });
        Self { ranges, asked: 0..len }
    }

    /// Returns the ranges without the bytes of `hole`.
    #[must_use]
    pub(super) fn without(self, hole: &Range<usize>) -> Self {
        if hole.is_empty() {
            return self;
        }
        let around = |range: Range<usize>| {
            let before = range.start..range.end.min(hole.start);
            let after = range.start.max(hole.end)..range.end;
            [before, after].into_iter().filter(|part| !part.is_empty())
        };
        Self { ranges: self.ranges.into_iter().flat_map(around).collect(), asked: self.asked }
    }

    /// Converts offsets of the job to offsets of the caller. The job began at `offset` and covers
    /// whole pages; the caller requested the bytes of `asked`.
    #[must_use]
    pub(super) fn shifted_into(self, offset: usize, asked: Range<usize>) -> Self {
        let shifted = |range| shifted_into(range, offset, &asked);
        let ranges = self.ranges.into_iter().map(shifted).filter(|range| !range.is_empty());
        Self { ranges: ranges.collect(), asked }
    }

    /// Returns the ranges that are done.
    #[must_use]
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Returns the ranges that are not done. A caller can continue the job with these ranges.
    pub fn left(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(self.asked.start).chain(self.ranges.iter().map(|r| r.end));
        let ends = self.ranges.iter().map(|range| range.start).chain([self.asked.end]);
        starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty())
    }

    /// Returns the number of bytes that are done.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Returns the whole range that was requested, done or not.
    #[must_use]
    pub const fn asked(&self) -> &Range<usize> {
        &self.asked
    }
}

/// Returns the part of a job's range that lies in the bytes that the caller requested. The job
/// began at `offset`.
pub(super) fn shifted_into(
    range: Range<usize>,
    offset: usize,
    asked: &Range<usize>,
) -> Range<usize> {
    (range.start + offset).max(asked.start)..(range.end + offset).min(asked.end)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges_of(is_done: &[bool]) -> Vec<Range<usize>> {
        is_done.iter().enumerate().filter(|(_, done)| **done).map(|(at, _)| at..at + 1).collect()
    }

    #[test]
    fn done_in_the_middle_leaves_both_ends() {
        let done = Done::new(vec![20..30, 10..20, 40..50], 100);
        assert_eq!(done.ranges(), [10..30, 40..50]);
        assert_eq!(done.left().collect::<Vec<_>>(), [0..10, 30..40, 50..100]);
        assert_eq!((done.bytes(), done.asked()), (30, &(0..100)));
        let pages = done.shifted_into(1000, 1015..1045);
        assert_eq!(pages.ranges(), [1015..1030, 1040..1045]);
        assert!(pages.left().eq(std::iter::once(1030..1040)));
    }

    proptest! {
        #[test]
        fn done_and_left_are_every_byte_once(
            mut expected in prop::collection::vec(any::<bool>(), 0..200),
            from in 0_usize..200,
            hole in (0_usize..200, 0_usize..200).prop_map(|(a, b)| a.min(b)..a.max(b)),
        ) {
            let len = expected.len();
            let (before, after): (Vec<_>, Vec<_>) =
                ranges_of(&expected).into_iter().partition(|range| range.start < from);
            let done = Done::new([after, before].concat(), len).without(&hole);
            expected.iter_mut().take(hole.end).skip(hole.start).for_each(|done| *done = false);
            let mut seen = vec![false; len];
            done.ranges().iter().cloned().flatten().for_each(|at| seen[at] = true);
            prop_assert_eq!(&seen, &expected);
            prop_assert!(done.ranges().is_sorted_by(|a, b| a.end < b.start));
            done.left().flatten().for_each(|at| seen[at] ^= true);
            prop_assert!(seen.iter().all(|&seen| seen));
            prop_assert_eq!(done.left().map(|range| range.len()).sum::<usize>(), len - done.bytes());
        }
    }
}
