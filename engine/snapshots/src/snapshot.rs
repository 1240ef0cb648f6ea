//! Operations on a snapshot: read it in any order, copy or write all of it, map it as memory, split
//! it.
#![allow(unsafe_code)]

use std::io::Write;
use std::ops::Range;

use super::{Builder, SnapshotError, SnapshotReader, SnapshotStats};
use crate::reading::piece::SnapshotPiece;
use crate::reading::source::SnapshotSource;
use hugekit_bulk::Reuse;
use hugekit_regions::fault::Serving;
use hugekit_regions::region::ForkBuilder;
#[cfg(doc)]
use hugekit_regions::{Region, SharedRegion};

/// The bytes of a range of memory at one moment.
///
/// The memory is private anonymous memory ([`of_anonymous`](Self::of_anonymous)) or a region
/// ([`of_region`](Self::of_region)). A drop lifts the protection of the memory, except where
/// another snapshot needs it.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) source: SnapshotSource,
}

impl Snapshot {
    /// Takes a snapshot of private anonymous memory of this process, from any allocator, on any
    /// page size, in one mapping or several. [`builder`](Self::builder) makes snapshots with
    /// options.
    ///
    /// # Errors
    /// [`SnapshotError`] if the snapshot cannot be taken. If a mapping is the reason, the error
    /// contains it. The memory is unchanged then.
    ///
    /// # Safety
    /// The conditions of [`Builder::of_anonymous`].
    pub unsafe fn of_anonymous(memory: *const [u8]) -> Result<Self, SnapshotError> {
        // SAFETY: this function has the contract of `Builder::of_anonymous`.
        unsafe { Self::builder().of_anonymous(memory) }
    }

    /// Makes a builder of snapshots with options, such as the granule and the highest number of
    /// bytes of copies.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Takes a snapshot of a region. For 1 GiB, this lasts 0.4 to 2 ms on huge pages, and 67 ms on
    /// base pages ([costs]).
    ///
    /// The snapshot is a read-only [fork](Region::fork). The region keeps its pages. The first
    /// write to a granule copies the granule to bytes of the pool. This call reserves as many bytes
    /// as the region has, so the snapshot is never lost to writers, and may outlive the region.
    /// [`write_to`](Self::write_to) and [`copy_to`](Self::copy_to) release each granule after it is
    /// read. The reserved bytes return to the pool when the snapshot is dropped.
    ///
    /// `region` is a [`Region`], a [`SharedRegion`], or a [`ForkBuilder`] with options. If another
    /// thread writes to a granule of a shared region during the call, the snapshot may contain this
    /// store or not.
    ///
    /// ```
    /// use hugekit::Snapshot;
    /// use hugekit::pool::{Backing, Pool};
    ///
    /// let pool = Pool::builder(2 << 20).backing(Backing::Base).build()?;
    /// let mut state = pool.region(1 << 20)?;
    /// state.fill(1);
    /// let snapshot = Snapshot::of_region(&state)?;
    /// state.fill(2);
    /// let mut dump = Vec::new();
    /// snapshot.write_to(&mut dump)?;
    /// assert!(dump.iter().all(|&byte| byte == 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError::Fork`] if the region cannot be forked. The region is unchanged then.
    ///
    /// [costs]: https://github.com/hugekit/hugekit/blob/main/docs/snapshot.md#costs
    pub fn of_region<'a>(region: impl Into<ForkBuilder<'a>>) -> Result<Self, SnapshotError> {
        let fork = region.into().read_only()?;
        Ok(Self { source: SnapshotSource::Region(fork) })
    }

    /// Returns the mode in which faults of writers are handled. In place, a system call may write
    /// to the memory only after [`prepare_write`](Self::prepare_write). `None` if all bytes were
    /// copied at once, so nothing is protected.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.source.serving()
    }

    /// Returns the length of the snapshot in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.source.range().len()
    }

    /// Copies bytes of the snapshot from `offset` on into `bytes`. Several threads may read at the
    /// same time, and each byte may be read many times.
    ///
    /// # Errors
    /// - [`SnapshotError::OutOfRange`]: `bytes` is unchanged.
    /// - [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) or
    ///   [`Changed`](SnapshotError::Changed) if the snapshot is lost, and
    ///   [`Forked`](SnapshotError::Forked) in a forked child: the content of `bytes` is
    ///   unspecified.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        let range = self.addresses(offset, bytes.len())?;
        self.source.check_process()?;
        for part in self.source.parts(range.clone()) {
            let to = &mut bytes[part.start - range.start..part.end - range.start];
            // SAFETY: `to` is borrowed mutably, so its bytes can be written and no other thread uses them; each part
            // lies within it.
            unsafe { self.source.read_part(&part, to.as_mut_ptr(), Reuse::Unknown) }?;
        }
        Ok(())
    }

    /// Makes a range of the memory writable without a fault. Call this before a system call or a
    /// device writes to the range.
    ///
    /// The granules of the range are copied aside, and their protection is lifted except where
    /// another snapshot needs it. The snapshot keeps its bytes.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`]. [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) or
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost.
    /// [`Forked`](SnapshotError::Forked) in a forked child.
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), SnapshotError> {
        let range = self.addresses(range.start, range.end.saturating_sub(range.start))?;
        self.source.check_process()?;
        self.source.parts(range).try_for_each(|part| self.source.preserve(&part))
    }

    /// Splits the snapshot into one snapshot for each range. The parts can be read in any order.
    /// One snapshot of several arrays costs less than a snapshot of each array.
    ///
    /// Granules that belong to no range are released when the last part is dropped. All parts share
    /// one count of [costs](Self::stats).
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`] if a range lies outside the snapshot, or begins before the end
    /// of the previous range.
    pub fn split(self, ranges: &[Range<usize>]) -> Result<Vec<Self>, SnapshotError> {
        let pieces = SnapshotPiece::split(self.source, ranges)?;
        Ok(pieces.into_iter().map(|piece| Self { source: SnapshotSource::Piece(piece) }).collect())
    }

    /// Returns true if both are parts of one snapshot, or the same snapshot. They then have the
    /// same [`stats`](Self::stats).
    #[must_use]
    #[doc(hidden)]
    pub fn shares_cost_with(&self, other: &Self) -> bool {
        match (&self.source, &other.source) {
            (SnapshotSource::Piece(one), SnapshotSource::Piece(other)) => one.has_same_whole(other),
            _ => std::ptr::eq(self, other),
        }
    }

    /// Makes a reader with options: progress and cancellation.
    pub fn reader<'a>(self) -> SnapshotReader<'a> {
        SnapshotReader::new(self)
    }

    /// Copies all bytes to `bytes`, which must be as long as the snapshot, and drops the snapshot.
    /// [`reader`](Self::reader) does this with options.
    ///
    /// # Errors
    /// The errors of [`SnapshotReader::copy_to`].
    pub fn copy_to(self, bytes: &mut [u8]) -> Result<SnapshotStats, SnapshotError> {
        self.reader().copy_to(bytes)
    }

    /// Writes all bytes in order to `writer`, and drops the snapshot. [`reader`](Self::reader) does
    /// this with options.
    ///
    /// # Errors
    /// The errors of [`SnapshotReader::write_to`].
    pub fn write_to(self, writer: impl Write) -> Result<SnapshotStats, SnapshotError> {
        self.reader().write_to(writer)
    }

    /// Returns the costs of the snapshot so far.
    #[must_use]
    pub fn stats(&self) -> SnapshotStats {
        self.source.stats()
    }

    /// Returns the addresses of this many bytes from an offset on.
    pub(super) fn addresses(
        &self,
        offset: usize,
        len: usize,
    ) -> Result<Range<usize>, SnapshotError> {
        let end = offset.saturating_add(len);
        if end > self.len() {
            return Err(SnapshotError::OutOfRange { range: offset..end, len: self.len() });
        }
        let start = self.source.range().start;
        Ok(start + offset..start + end)
    }
}
