//! A reader of a whole snapshot, with options.

use std::fmt;
use std::io::Write;

use hugekit_bulk::parallel::{Cancel, Progress};

use super::stream::Stream;
use crate::{Snapshot, SnapshotError, SnapshotStats};

/// A reader of all bytes of a snapshot, with options. [`Snapshot::reader`] makes it.
#[must_use = "a reader does nothing until copy_to or write_to"]
pub struct SnapshotReader<'a> {
    snapshot: Snapshot,
    progress: Option<&'a Progress<'a>>,
    cancel: Option<&'a Cancel>,
}

impl fmt::Debug for SnapshotReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotReader").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}

impl<'a> SnapshotReader<'a> {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot, progress: None, cancel: None }
    }

    /// Sets a callback that is called as `progress(done, total)`, in bytes, after each batch of at
    /// most 2 MiB. By default none. If the callback panics, the read ends and the panic reaches the
    /// caller.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Sets the flag that stops the read before its next batch. By default none.
    pub fn cancel(mut self, cancel: &'a Cancel) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Copies all bytes to `bytes`, which must be as long as the snapshot, and drops the snapshot.
    ///
    /// # Errors
    /// [`SnapshotError::LengthsDiffer`]. [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) or
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost.
    /// [`Forked`](SnapshotError::Forked) in a forked child.
    /// [`Cancelled`](SnapshotError::Cancelled). After an error the content of `bytes` is
    /// unspecified.
    ///
    /// # Panics
    /// If the progress callback panics.
    pub fn copy_to(self, bytes: &mut [u8]) -> Result<SnapshotStats, SnapshotError> {
        self.stream().copy_to(bytes)?;
        Ok(self.snapshot.stats())
    }

    /// Writes all bytes in order to `writer`, and drops the snapshot. The writer may be slow: no
    /// other thread waits for it.
    ///
    /// # Errors
    /// [`SnapshotError::Write`] if the writer fails.
    /// [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) or [`Changed`](SnapshotError::Changed)
    /// if the snapshot is lost. [`Forked`](SnapshotError::Forked) in a forked child.
    /// [`Cancelled`](SnapshotError::Cancelled). The bytes that were written before the error are a
    /// prefix of the snapshot.
    ///
    /// # Panics
    /// If the progress callback or the writer panics.
    pub fn write_to(self, writer: impl Write) -> Result<SnapshotStats, SnapshotError> {
        self.stream().write_to(writer)?;
        Ok(self.snapshot.stats())
    }

    fn stream(&self) -> Stream<'_> {
        Stream::new(&self.snapshot.source).watched(self.progress, self.cancel)
    }
}
