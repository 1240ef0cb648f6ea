//! What a program does with a snapshot: read it in any order, copy or write all of it, show it as memory, cut it.
#![allow(unsafe_code)]

use std::io::Write;
use std::ops::Range;

use super::piece::Piece;
use super::source::SnapshotSource;
use super::{Builder, SnapshotError, SnapshotReader, SnapshotStats};
use hugekit_bulk::Reuse;
use hugekit_regions::fault::Serving;
use hugekit_regions::region::ForkBuilder;
#[cfg(doc)]
use hugekit_regions::{Region, SharedRegion};

/// Bytes of a range of memory as they were at one point in time: of any anonymous memory
/// ([`of_anonymous`](Self::of_anonymous)), or of a region ([`Snapshot::of_region`]). Dropped, it lifts the
/// protection that no other snapshot needs.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) source: SnapshotSource,
}

impl Snapshot {
    /// Takes a snapshot of private anonymous memory of this process, whatever mapped it, on huge pages or not, in
    /// one mapping or several. As [`builder`](Self::builder) without options.
    ///
    /// # Errors
    /// [`SnapshotError`], naming the mapping where one is in the way. Nothing is changed then.
    ///
    /// # Safety
    /// As for [`Builder::of_anonymous`].
    pub unsafe fn of_anonymous(memory: *const [u8]) -> Result<Self, SnapshotError> {
        // SAFETY: this function has the contract of `Builder::of_anonymous`.
        unsafe { Self::builder().of_anonymous(memory) }
    }

    /// A builder with options for a snapshot, such as the granule and the most bytes retained.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Takes a snapshot of a region, whatever its size in microseconds on huge pages.
    ///
    /// The snapshot is a [fork](Region::fork) that is only read. The region keeps its pages. A writer copies the
    /// granules that the snapshot still needs. The copies go to bytes of the pool that this call reserves, as many as
    /// the region has, so writers never outrun the snapshot, and it may outlive the region.
    /// [`write_to`](Self::write_to) and [`copy_to`](Self::copy_to) release each granule after reading it. The
    /// reserved bytes return to the pool when the snapshot is dropped.
    ///
    /// `region` is a [`Region`], a [`SharedRegion`], or a [`ForkBuilder`] with options. Stores to a shared region that
    /// race with the call are in the snapshot or not, granule by granule.
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
    /// [`SnapshotError::Fork`]; the region is unchanged then.
    pub fn of_region<'a>(region: impl Into<ForkBuilder<'a>>) -> Result<Self, SnapshotError> {
        let fork = region.into().read_only()?;
        Ok(Self { source: SnapshotSource::Region(fork) })
    }

    /// How writes to the memory are handled, and so whether system calls may write to it; `None` if nothing is
    /// protected, because all of it was copied at once.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.source.serving()
    }

    /// Bytes of the snapshot.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.source.range().len()
    }

    /// Copies bytes from `offset` on. Any number of threads may, and each byte may be read often.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`], nothing is copied then; [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) and
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost; [`Forked`](SnapshotError::Forked). What
    /// `bytes` holds after these is of no use.
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

    /// Makes a range of the memory writable without a fault from now on, as a system call or a
    /// device needs it: its granules are preserved, and protection that no other snapshot needs is
    /// lifted. The snapshot keeps its bytes.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`]; and [`CowLimitExceeded`](SnapshotError::CowLimitExceeded), [`Changed`](SnapshotError::Changed)
    /// if the snapshot is lost, [`Forked`](SnapshotError::Forked).
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), SnapshotError> {
        let range = self.addresses(range.start, range.end.saturating_sub(range.start))?;
        self.source.check_process()?;
        self.source.parts(range).try_for_each(|part| self.source.preserve(&part))
    }

    /// Cuts it into pieces, each of which is a snapshot that is read by itself, in any order: several arrays in one
    /// snapshot cost less than one snapshot each. What no piece has is let go, in whole granules, when the last of
    /// them is dropped. What they cost ([`stats`](Self::stats)) is counted for all of them together.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`] for a range that is not in it, or that begins before the one before it ends.
    pub fn split(self, ranges: &[Range<usize>]) -> Result<Vec<Self>, SnapshotError> {
        let pieces = Piece::split(self.source, ranges)?;
        Ok(pieces.into_iter().map(|piece| Self { source: SnapshotSource::Piece(piece) }).collect())
    }

    /// Whether both are pieces of one snapshot, or one and the same: their [`stats`](Self::stats) are then.
    #[must_use]
    #[doc(hidden)]
    pub fn shares_cost_with(&self, other: &Self) -> bool {
        match (&self.source, &other.source) {
            (SnapshotSource::Piece(one), SnapshotSource::Piece(other)) => one.has_same_whole(other),
            _ => std::ptr::eq(self, other),
        }
    }

    /// Reads all of it with options: progress, cancellation.
    pub fn reader<'a>(self) -> SnapshotReader<'a> {
        SnapshotReader::new(self)
    }

    /// Copies all of it, and ends it. [`reader`](Self::reader) has options.
    ///
    /// # Errors
    /// As of [`SnapshotReader::copy_to`].
    pub fn copy_to(self, bytes: &mut [u8]) -> Result<SnapshotStats, SnapshotError> {
        self.reader().copy_to(bytes)
    }

    /// Writes all of it in order, and ends it. [`reader`](Self::reader) has options.
    ///
    /// # Errors
    /// As of [`SnapshotReader::write_to`].
    pub fn write_to(self, writer: impl Write) -> Result<SnapshotStats, SnapshotError> {
        self.reader().write_to(writer)
    }

    /// What it has cost so far.
    #[must_use]
    pub fn stats(&self) -> SnapshotStats {
        self.source.stats()
    }

    /// The addresses of this many bytes from an offset on.
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
