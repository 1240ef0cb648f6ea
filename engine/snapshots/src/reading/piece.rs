//! Parts of snapshots, for data that lies together in memory and is read separately.

use std::ops::Range;
use std::sync::Arc;

use super::source::SnapshotSource;
use crate::SnapshotError;

/// A range of a snapshot that is divided into pieces. The drop lets go of the granules that lie completely in it.
/// Granules of two pieces are held until the last piece is dropped.
#[derive(Debug)]
pub(crate) struct SnapshotPiece {
    whole: Arc<SnapshotSource>,
    range: Range<usize>,
}

impl SnapshotPiece {
    /// Divides a snapshot into pieces, one for each range of offsets.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`] for a range that lies outside, or that begins before the previous range ends.
    pub(crate) fn split(
        whole: SnapshotSource,
        ranges: &[Range<usize>],
    ) -> Result<Vec<Self>, SnapshotError> {
        let Range { start, end } = whole.range();
        let (len, mut reached) = (end - start, 0);
        for range in ranges {
            if range.start < reached || range.start >= range.end || range.end > len {
                return Err(SnapshotError::OutOfRange { range: range.clone(), len });
            }
            reached = range.end;
        }
        let whole = Arc::new(whole);
        let piece = |range: &Range<usize>| Self {
            whole: Arc::clone(&whole),
            range: start + range.start..start + range.end,
        };
        Ok(ranges.iter().map(piece).collect())
    }

    /// Returns true if both are pieces of one snapshot.
    pub(crate) fn has_same_whole(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.whole, &other.whole)
    }

    pub(super) fn whole(&self) -> &SnapshotSource {
        &self.whole
    }

    pub(super) fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Returns those of the granules that lie completely in the piece.
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

impl Drop for SnapshotPiece {
    fn drop(&mut self) {
        let own = self.own(&self.range);
        if !own.is_empty() && self.whole.check_process().is_ok() {
            self.whole.let_go(&own);
        }
    }
}
