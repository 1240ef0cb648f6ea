//! States one after the other, each as what has changed since the one before, known by the protection itself.
//!
//! A snapshot that leaves an epoch keeps what was read protected: the first write to a granule is noted, and nothing is
//! copied. The next one begins with that: it has the bytes of those granules that were written, and watches all of them
//! again.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;

use super::anonymous::Anonymous;
use super::builder::{Builder, Kind, range_of};
use super::source::Source;
use super::stream::Buffer;
use super::{Snapshot, SnapshotError, Stats};
use crate::fault::Serving;

/// The bytes of a state that changed since the one before it; of the first one, all of them. Made by
/// [`Builder::first_epoch`] and [`Builder::since`]. Dropped before they were written out, they leave no [`Epoch`]: the
/// next state is a first one again.
#[derive(Debug)]
pub struct Changes {
    snapshot: Snapshot,
    /// Addresses, ascending.
    changed: Vec<Range<usize>>,
}

/// What was written since a state was saved is noted here, at the price of one fault for each granule. Dropped, it lifts
/// the protection that no other snapshot needs.
#[derive(Debug)]
pub struct Epoch(Snapshot);

impl Builder {
    /// Takes a snapshot of memory, as [`of_anonymous`](Self::of_anonymous) does, that leaves an [`Epoch`] when it is
    /// written out. [`in_background`](Self::in_background) is of no use here.
    ///
    /// # Errors
    /// As of [`of_anonymous`](Self::of_anonymous).
    ///
    /// # Safety
    /// As for [`of_anonymous`](Self::of_anonymous), until the last epoch is dropped.
    pub unsafe fn first_epoch(self, memory: *const [u8]) -> Result<Changes, SnapshotError> {
        let range = range_of(memory)?;
        let made = self.protect(range.clone(), Kind::Epoch { before: None })?;
        Ok(Changes { snapshot: made.into(), changed: vec![range] })
    }

    /// Takes a snapshot of the epoch's memory: of what was written since that began. The granule is the epoch's.
    ///
    /// Memory that was unmapped, discarded or replaced meanwhile counts as written, as far as it is there.
    ///
    /// # Errors
    /// As of [`of_anonymous`](Self::of_anonymous), and those of a snapshot that is lost: what was written is not known
    /// then, and a [first epoch](Self::first_epoch) is to be begun.
    ///
    /// # Safety
    /// As for [`first_epoch`](Self::first_epoch).
    pub unsafe fn since(self, epoch: Epoch) -> Result<Changes, SnapshotError> {
        let Epoch(before) = epoch;
        before.source.is_here()?;
        let Source::Anonymous(Anonymous { snapshot: state, .. }) = &before.source else {
            unreachable!("epochs are of anonymous memory");
        };
        let interval = state.interval();
        let made = self.protect(interval.range().clone(), Kind::Epoch { before: Some(state) })?;
        // Nothing was noted any more from then on.
        if let Some(failure) = state.failure() {
            return Err(before.source.error(failure));
        }
        let (range, inner) = (interval.range(), interval.inner());
        let edges = [range.start..inner.start, inner.end..range.end];
        let [first, last] = edges.map(|edge| (!edge.is_empty()).then_some(edge));
        let granules = state.unsaved();
        let changed = first.into_iter().chain(granules).chain(last).collect();
        Ok(Changes { snapshot: made.into(), changed })
    }
}

impl Changes {
    /// Bytes of the whole state.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.snapshot.len()
    }

    /// What may have changed: ranges of bytes of the state, ascending, in whole granules but at both ends.
    pub fn changed(&self) -> impl Iterator<Item = Range<usize>> {
        let start = self.snapshot.source.range().start;
        self.changed.iter().map(move |range| range.start - start..range.end - start)
    }

    /// How writes to the memory are handled; `None` if nothing is protected.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.snapshot.serving()
    }

    /// What it has cost so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.snapshot.stats()
    }

    /// As [`Snapshot::prepare_write`].
    ///
    /// # Errors
    /// As there.
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), SnapshotError> {
        self.snapshot.prepare_write(range)
    }

    /// Gives what has changed to `take`, in order and up to 2 MiB at a time, with the offset in the state. It may take
    /// its time: no thread waits for it. The epoch that this leaves began when the snapshot was taken.
    ///
    /// # Errors
    /// [`SnapshotError::Write`] if `take` fails; [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) and
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost; [`Forked`](SnapshotError::Forked). There is no epoch
    /// then.
    pub fn write_to(
        self,
        mut take: impl FnMut(usize, &[u8]) -> io::Result<()>,
    ) -> Result<Epoch, SnapshotError> {
        let Self { snapshot, changed } = self;
        let mut buffer = Buffer::new()?;
        let start = snapshot.source.range().start;
        for range in changed {
            let begins = range.start - start;
            snapshot.stream_range(range, None, None, |batch, done| {
                let mut take = |bytes: &[u8]| take(begins + done, bytes);
                snapshot.give(batch, begins + done, &mut buffer, &mut take)
            })?;
        }
        Ok(Epoch(snapshot))
    }
}

impl Epoch {
    /// Makes a range of the memory writable without a fault, as a system call or a device needs it: it counts as
    /// written.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`], [`Forked`](SnapshotError::Forked).
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), SnapshotError> {
        self.0.prepare_write(range)
    }

    /// How writes to the memory are handled; `None` if nothing is protected.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.0.serving()
    }
}

impl From<Anonymous> for Snapshot {
    fn from(of: Anonymous) -> Self {
        Self { source: Source::Anonymous(of) }
    }
}
