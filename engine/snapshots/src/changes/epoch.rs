//! Successive states of memory, each stored as the changes since the previous state. The write
//! protection records the changes.
//!
//! A snapshot that begins an epoch keeps its granules protected after they are read. The first
//! write to a granule is recorded, and copies nothing. The next snapshot contains the bytes of the
//! written granules. It protects all granules again, except granules that are written all the time.

use std::io;
use std::ops::Range;

use super::heat::Heat;
use super::read_ahead::ReadAhead;
use crate::making::plan::Purpose;
use crate::reading::anonymous::Anonymous;
use crate::reading::source::SnapshotSource;
use crate::{Builder, Snapshot, SnapshotError, SnapshotStats};
#[cfg(doc)]
use hugekit_regions::SharedRegion;
use hugekit_regions::fault::Serving;
use hugekit_regions::region::{ForkBuilder, ForkError, RegionEpoch};
use hugekit_sys::headroom;

/// The bytes of a state that changed since the previous state. For the first state, all bytes.
///
/// [`Builder::first_epoch`] and [`Builder::since`] make it; for a region, [`first`](Self::first)
/// and [`since`](Self::since). If it is dropped before delivery, there is no [`Epoch`], and the
/// next state must be a first state again.
#[derive(Debug)]
pub struct Changes {
    snapshot: Snapshot,
    /// The epoch of the region. `None` for anonymous memory, which the snapshot itself watches.
    of_region: Option<RegionEpoch>,
    /// The changed ranges, as offsets, ascending.
    changed: Vec<Range<usize>>,
    heat: Heat,
}

/// The time since a state was saved. During an epoch, the library records the granules that are
/// written.
///
/// The first write to each granule costs one fault. A granule that was written in each of the last
/// states costs no fault, and [counts](Self::unwatched) as written. A drop of the epoch ends the
/// recording, and lifts the protection that no snapshot needs.
#[derive(Debug)]
pub struct Epoch {
    watch: WatchedMemory,
    heat: Heat,
    stats: SnapshotStats,
}

/// The memory whose writes are recorded.
#[derive(Debug)]
enum WatchedMemory {
    /// A snapshot that was read.
    Anonymous(Snapshot),
    Region(RegionEpoch),
}

impl Changes {
    /// Takes a snapshot of a region, as [`Snapshot::of_region`] does, and begins an [`Epoch`],
    /// which [`deliver`](Self::deliver) returns. [`since`](Self::since) then finds the changes. A
    /// region has one epoch at a time, the last one.
    ///
    /// ```
    /// use hugekit::pool::{Backing, Pool};
    /// use hugekit::snapshot::Changes;
    ///
    /// let pool = Pool::builder(2 << 20).backing(Backing::Base).build()?;
    /// let mut region = pool.region(1 << 20)?;
    /// let epoch = Changes::first(&region)?.deliver(|_, _| Ok(()))?;
    /// region[300_000] = 1;
    /// let changes = Changes::since(&region, epoch)?;
    /// assert!(changes.changed().eq([4 * 65536..5 * 65536]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotError::Fork`] if the region cannot be forked. The region is unchanged then.
    pub fn first<'a>(region: impl Into<ForkBuilder<'a>>) -> Result<Self, SnapshotError> {
        Self::of_region(&region.into(), None)
    }

    /// Takes a snapshot of the bytes of a region that were written since its epoch began.
    ///
    /// [Pinned](SharedRegion::pin) ranges count as written. A store to a shared region during the
    /// call is in this state, or is recorded for the next state.
    ///
    /// # Errors
    /// [`SnapshotError::Fork`] if the region cannot be forked. The region is unchanged then. The
    /// source is [`ForkError::OtherEpoch`] if the epoch is not the last epoch of this region.
    pub fn since<'a>(
        region: impl Into<ForkBuilder<'a>>,
        epoch: Epoch,
    ) -> Result<Self, SnapshotError> {
        match epoch {
            Epoch { watch: WatchedMemory::Region(before), heat, .. } => {
                Self::of_region(&region.into(), Some((before, heat)))
            }
            Epoch { watch: WatchedMemory::Anonymous(_), .. } => Err(ForkError::OtherEpoch.into()),
        }
    }

    fn of_region(
        region: &ForkBuilder<'_>,
        before: Option<(RegionEpoch, Heat)>,
    ) -> Result<Self, SnapshotError> {
        let (before, heat) = before.unzip();
        let (fork, epoch, changed) = region.read_only_since(before.as_ref())?;
        let granule = fork.granule_bytes();
        let indices = |run: &Range<usize>| run.start / granule..run.end.div_ceil(granule);
        let heat = match heat {
            Some(heat) => heat.after(changed.iter().map(indices)),
            None => Heat::unknown(epoch.len().div_ceil(granule)),
        };
        Ok(Self::new(SnapshotSource::Region(fork), Some(epoch), changed, heat))
    }

    /// Takes the first state of anonymous memory: all of a range.
    ///
    /// Like [`Builder::protect`], for callers with the contract of [`Builder::first_epoch`].
    pub(crate) fn first_of_anonymous(
        builder: &Builder,
        range: Range<usize>,
    ) -> Result<Self, SnapshotError> {
        headroom::check()?;
        let all = std::iter::once(0..range.len()).collect();
        let made = builder.protect(range, Purpose::Epoch { before: None }, None)?;
        let heat = Heat::unknown(made.snapshot.interval().granules());
        Ok(Self::new(SnapshotSource::Anonymous(made), None, all, heat))
    }

    /// Takes the next state of an epoch's anonymous memory.
    ///
    /// Like [`Builder::protect`], for callers with the contract of [`Builder::since`].
    pub(crate) fn since_of_anonymous(
        builder: Builder,
        epoch: Epoch,
    ) -> Result<Self, SnapshotError> {
        let Epoch { watch: WatchedMemory::Anonymous(before), heat, .. } = epoch else {
            return Err(ForkError::OtherEpoch.into());
        };
        before.source.check_process()?;
        headroom::check()?;
        let SnapshotSource::Anonymous(Anonymous { snapshot: state, .. }) = &before.source else {
            unreachable!("changes of anonymous memory are made of that");
        };
        let interval = state.interval();
        let made = builder.served_like(before.serving()).protect(
            interval.range().clone(),
            Purpose::Epoch { before: Some(state) },
            None,
        )?;
        // If the previous snapshot was lost, it has recorded nothing since.
        if let Some(failure) = state.failure() {
            return Err(before.source.error(failure));
        }
        let (range, inner) = (interval.range(), interval.inner());
        let granules = state.unsaved();
        let index_of = |address: usize| interval.granule_at(address).0;
        let indices = |run: &Range<usize>| index_of(run.start)..index_of(run.end - 1) + 1;
        let heat = heat.after(granules.iter().map(indices));
        let edges = [range.start..inner.start, inner.end..range.end];
        let [first, last] = edges.map(|edge| (!edge.is_empty()).then_some(edge));
        let changed = first.into_iter().chain(granules).chain(last);
        let offsets = |part: Range<usize>| part.start - range.start..part.end - range.start;
        Ok(Self::new(SnapshotSource::Anonymous(made), None, changed.map(offsets).collect(), heat))
    }

    fn new(
        source: SnapshotSource,
        of_region: Option<RegionEpoch>,
        changed: Vec<Range<usize>>,
        heat: Heat,
    ) -> Self {
        Self { snapshot: Snapshot { source }, of_region, changed, heat }
    }

    /// Returns the length of the whole state in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.snapshot.len()
    }

    /// Returns the ranges that may have changed: offsets in the state, ascending. The ranges are
    /// whole granules, except at the start and end of the state.
    pub fn changed(&self) -> impl Iterator<Item = Range<usize>> {
        self.changed.iter().cloned()
    }

    /// Returns the mode in which faults of writers are handled; `None` if nothing is protected.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.snapshot.serving()
    }

    /// Returns the costs of the snapshot so far.
    #[must_use]
    pub fn stats(&self) -> SnapshotStats {
        self.snapshot.stats()
    }

    /// Makes a range of the memory writable without a fault, as [`Snapshot::prepare_write`] does.
    /// The range counts as written in the next state.
    ///
    /// # Errors
    /// The errors of [`Snapshot::prepare_write`].
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), SnapshotError> {
        self.snapshot.prepare_write(range.clone())?;
        self.of_region.as_ref().map_or(Ok(()), |epoch| own(epoch, &range))
    }

    /// Calls `take(offset, bytes)` for the changed bytes in order, at most 2 MiB at a time. Returns
    /// the epoch that began when the snapshot was taken.
    ///
    /// `take` may be slow: no other thread waits for it. Another thread reads ahead, except for a
    /// few bytes.
    ///
    /// # Errors
    /// [`SnapshotError::Write`] if `take` fails.
    /// [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) or [`Changed`](SnapshotError::Changed)
    /// if the snapshot is lost. [`Forked`](SnapshotError::Forked) in a forked child. After an error
    /// there is no epoch.
    pub fn deliver(
        self,
        mut take: impl FnMut(usize, &[u8]) -> io::Result<()>,
    ) -> Result<Epoch, SnapshotError> {
        let and_then = |batch: &[Range<usize>]| self.let_hot_ones_be(batch);
        ReadAhead::new(&self.snapshot.source, &self.changed, &and_then).pass_all(&mut take)?;
        let stats = self.snapshot.stats();
        if let SnapshotSource::Anonymous(of) = &self.snapshot.source {
            of.end_copies();
        }
        let watch = match self.of_region {
            Some(epoch) => WatchedMemory::Region(epoch),
            None => WatchedMemory::Anonymous(self.snapshot),
        };
        Ok(Epoch { watch, heat: self.heat, stats })
    }

    /// Stops the watching of those granules of the batch that are written all the time.
    fn let_hot_ones_be(&self, batch: &[Range<usize>]) {
        let source = &self.snapshot.source;
        let is_hot = |part: &Range<usize>| {
            source.granule_of(part).is_some_and(|granule| self.heat.is_hot(granule))
        };
        for run in batch.chunk_by(|one, other| is_hot(one) == is_hot(other)) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            if is_hot(first) {
                self.stop_watching(first.start..last.end);
            }
        }
    }

    fn stop_watching(&self, addresses: Range<usize>) {
        match (&self.of_region, &self.snapshot.source) {
            (Some(epoch), SnapshotSource::Region(fork)) => epoch.end_of(&fork.offsets(&addresses)),
            (_, SnapshotSource::Anonymous(of)) => of.stop_watching(&addresses),
            _ => {}
        }
    }
}

fn own(epoch: &RegionEpoch, range: &Range<usize>) -> Result<(), SnapshotError> {
    epoch.own(range).map_err(|_lost| SnapshotError::Changed { address: epoch.address(range.start) })
}

impl Epoch {
    /// Makes a range of the memory writable without a fault. Call this before a system call or a
    /// device writes to the range. The range counts as written.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`], or [`Forked`](SnapshotError::Forked) in a forked child.
    /// [`SnapshotError::Changed`] if a region shares the range with forks and the range cannot be
    /// copied.
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), SnapshotError> {
        match &self.watch {
            WatchedMemory::Anonymous(snapshot) => snapshot.prepare_write(range),
            WatchedMemory::Region(epoch) if range.start > range.end || range.end > epoch.len() => {
                Err(SnapshotError::OutOfRange { range, len: epoch.len() })
            }
            WatchedMemory::Region(epoch) => own(epoch, &range),
        }
    }

    /// Returns the costs of the snapshot with which the epoch began.
    #[must_use]
    pub fn stats(&self) -> SnapshotStats {
        self.stats
    }

    /// Returns the number of bytes of the granules that are written all the time. Writes to these
    /// granules cost no faults, and the granules count as changed in the next state. If writes to a
    /// granule stop, the library notices this within seven states.
    #[must_use]
    pub fn unwatched(&self) -> usize {
        let granule_bytes = match &self.watch {
            WatchedMemory::Anonymous(snapshot) => snapshot.source.granule_bytes(),
            WatchedMemory::Region(epoch) => epoch.granule_bytes(),
        };
        self.heat.count_hot() * granule_bytes
    }
}
