//! What a program does with a snapshot: read it in any order, copy or write all of it, show it as memory, cut it.
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

/// The bytes of a range of memory as they were at one moment.
///
/// The memory is private anonymous memory ([`of_anonymous`](Self::of_anonymous)) or a region
/// ([`of_region`](Self::of_region)). Dropping the snapshot lifts the protection that no other
/// snapshot needs.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) source: SnapshotSource,
}

impl Snapshot {
    /// Takes a snapshot of private anonymous memory of this process, from any allocator, on any
    /// page size, in one mapping or several. [`builder`](Self::builder) has options.
    ///
    /// # Errors
    /// [`SnapshotError`]; it names the mapping if that is the reason. Nothing is changed then.
    ///
    /// # Safety
    /// The conditions of [`Builder::of_anonymous`].
    pub unsafe fn of_anonymous(memory: *const [u8]) -> Result<Self, SnapshotError> {
        // SAFETY: this function has the contract of `Builder::of_anonymous`.
        unsafe { Self::builder().of_anonymous(memory) }
    }

    /// Makes a builder with options for a snapshot, such as the granule and the most bytes of
    /// copies.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Takes a snapshot of a region. On 1 GiB this takes 0.4 to 2 ms on huge pages, and 67 ms on
    /// base pages ([costs]).
    ///
    /// The snapshot is a read-only [fork](Region::fork). The region keeps its pages. The first
    /// write to a granule copies the granule to bytes of the pool. This call reserves as many bytes
    /// as the region has, so the snapshot is never lost to writers, and it may outlive the region.
    /// [`write_to`](Self::write_to) and [`copy_to`](Self::copy_to) release each granule after
    /// reading it. The reserved bytes return to the pool when the snapshot is dropped.
    ///
    /// `region` is a [`Region`], a [`SharedRegion`], or a [`ForkBuilder`] with options. A granule
    /// of a shared region that another thread writes during the call is in the snapshot with or
    /// without that store.
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
    /// [`SnapshotError::Fork`]. The region is unchanged then.
    ///
    /// [costs]: https://github.com/hugekit/hugekit/blob/main/docs/snapshot.md#costs
    pub fn of_region<'a>(region: impl Into<ForkBuilder<'a>>) -> Result<Self, SnapshotError> {
        let fork = region.into().read_only()?;
        Ok(Self { source: SnapshotSource::Region(fork) })
    }

    /// Returns how faults of writers are handled, and so whether system calls may write to the memory.
    /// `None` if nothing is protected because all bytes were copied at once.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.source.serving()
    }

    /// Returns the number of bytes of the snapshot.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.source.range().len()
    }

    /// Copies bytes of the snapshot from `offset` on into `bytes`. Several threads may read, and
    /// each byte may be read many times.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`]; nothing is copied then.
    /// [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) and
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost;
    /// [`Forked`](SnapshotError::Forked) in a forked child. The content of `bytes` is unspecified
    /// then.
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

    /// Makes a range of the memory writable without a fault, for a system call or a device that
    /// writes to it.
    ///
    /// Its granules are copied aside, and the protection that no other snapshot needs is lifted.
    /// The snapshot keeps its bytes.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`]; [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) and
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost;
    /// [`Forked`](SnapshotError::Forked) in a forked child.
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), SnapshotError> {
        let range = self.addresses(range.start, range.end.saturating_sub(range.start))?;
        self.source.check_process()?;
        self.source.parts(range).try_for_each(|part| self.source.preserve(&part))
    }

    /// Splits the snapshot into one snapshot for each range, which can be read in any order.
    /// Several arrays in one snapshot cost less than one snapshot each.
    ///
    /// Granules that belong to no range are released when the last part is dropped. All parts share
    /// their [costs](Self::stats).
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`] if a range lies outside, or begins before the range before it
    /// ends.
    pub fn split(self, ranges: &[Range<usize>]) -> Result<Vec<Self>, SnapshotError> {
        let pieces = SnapshotPiece::split(self.source, ranges)?;
        Ok(pieces.into_iter().map(|piece| Self { source: SnapshotSource::Piece(piece) }).collect())
    }

    /// Returns whether both are pieces of one snapshot, or one and the same: their [`stats`](Self::stats) are then.
    #[must_use]
    #[doc(hidden)]
    pub fn shares_cost_with(&self, other: &Self) -> bool {
        match (&self.source, &other.source) {
            (SnapshotSource::Piece(one), SnapshotSource::Piece(other)) => one.has_same_whole(other),
            _ => std::ptr::eq(self, other),
        }
    }

    /// Makes a reader with options: progress, cancellation.
    pub fn reader<'a>(self) -> SnapshotReader<'a> {
        SnapshotReader::new(self)
    }

    /// Copies all bytes to `bytes`, which must be as long as the snapshot, and drops the snapshot.
    /// [`reader`](Self::reader) has options.
    ///
    /// # Errors
    /// The errors of [`SnapshotReader::copy_to`].
    pub fn copy_to(self, bytes: &mut [u8]) -> Result<SnapshotStats, SnapshotError> {
        self.reader().copy_to(bytes)
    }

    /// Writes all bytes in order to `writer`, and drops the snapshot. [`reader`](Self::reader) has
    /// options.
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
