//! Snapshots cut into pieces, each of which is one: for data that lies together in memory and is read apart.

use std::ops::Range;
use std::sync::Arc;

use super::source::Source;
use super::{Snapshot, SnapshotError};

/// A range of a snapshot that others have other ranges of. Dropped, it lets go of the granules that are all its own;
/// those that two pieces share are held until the last piece has gone.
#[derive(Debug)]
pub(super) struct Piece {
    whole: Arc<Source>,
    range: Range<usize>,
}

impl Piece {
    pub(super) fn whole(&self) -> &Source {
        &self.whole
    }

    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Of these, the granules that lie in the piece as a whole.
    pub(super) fn own(&self, granules: &Range<usize>) -> Range<usize> {
        let (inner, origin) = (self.whole.inner(), self.whole.origin());
        let granule = self.whole.granule_bytes();
        let begins = |address: usize| address - address.saturating_sub(origin) % granule;
        let start = match self.range.start {
            start if start <= inner.start => inner.start,
            start => origin + (start - origin).next_multiple_of(granule),
        };
        let end = if self.range.end >= inner.end { inner.end } else { begins(self.range.end) };
        granules.start.max(start)..granules.end.min(end)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let own = self.own(&self.range);
        if !own.is_empty() && self.whole.is_here().is_ok() {
            self.whole.let_go(&own);
        }
    }
}

impl Snapshot {
    /// Cuts it into pieces, each of which is a snapshot that is read by itself, in any order: several arrays in one
    /// snapshot cost less than one snapshot each. What no piece has is let go, in whole granules, when the last of
    /// them is dropped. What they cost ([`stats`](Self::stats)) is counted for all of them together.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`] for a range that is not in it, or that begins before the one before it ends.
    pub fn split(self, ranges: &[Range<usize>]) -> Result<Vec<Self>, SnapshotError> {
        let len = self.len();
        let mut reached = 0;
        for range in ranges {
            if range.start < reached || range.start >= range.end || range.end > len {
                return Err(SnapshotError::OutOfRange { range: range.clone(), len });
            }
            reached = range.end;
        }
        let start = self.source.range().start;
        let whole = Arc::new(self.source);
        let piece = |range: &Range<usize>| {
            let range = start + range.start..start + range.end;
            Self { source: Source::Piece(Piece { whole: Arc::clone(&whole), range }) }
        };
        Ok(ranges.iter().map(piece).collect())
    }

    /// Whether both are pieces of one snapshot, or one and the same: their [`stats`](Self::stats) are then.
    #[must_use]
    pub fn shares_cost_with(&self, other: &Self) -> bool {
        match (&self.source, &other.source) {
            (Source::Piece(one), Source::Piece(other)) => Arc::ptr_eq(&one.whole, &other.whole),
            _ => std::ptr::eq(self, other),
        }
    }
}
