//! All of a snapshot read at once, with options.

use std::fmt;
use std::io::Write;

use hugekit_bulk::parallel::{Cancel, Progress};

use super::stream::Stream;
use super::{Snapshot, SnapshotError, SnapshotStats};

/// Reads all of a snapshot, and ends it: [`Snapshot::reader`].
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
    pub(super) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot, progress: None, cancel: None }
    }

    /// Calls `progress(done, total)`, in bytes, after each batch of at most 2 MiB. A panic of it ends the read.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Stops before the next batch once `cancel` is set.
    pub fn cancel(mut self, cancel: &'a Cancel) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Copies all bytes. `bytes` is as long as the snapshot.
    ///
    /// # Errors
    /// [`SnapshotError::LengthsDiffer`]; [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) and
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost; [`Forked`](SnapshotError::Forked);
    /// [`Cancelled`](SnapshotError::Cancelled). The content of `bytes` is unspecified then.
    ///
    /// # Panics
    /// If the progress callback does.
    pub fn copy_to(self, bytes: &mut [u8]) -> Result<SnapshotStats, SnapshotError> {
        self.stream().copy_to(bytes)?;
        Ok(self.snapshot.stats())
    }

    /// Writes all bytes in order. The writer may take its time: no thread waits for it.
    ///
    /// # Errors
    /// [`SnapshotError::Write`] if the writer fails; [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) and
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost; [`Forked`](SnapshotError::Forked);
    /// [`Cancelled`](SnapshotError::Cancelled). The bytes written before are the first part of the snapshot.
    ///
    /// # Panics
    /// If the progress callback or the writer does.
    pub fn write_to(self, writer: impl Write) -> Result<SnapshotStats, SnapshotError> {
        self.stream().write_to(writer)?;
        Ok(self.snapshot.stats())
    }

    fn stream(&self) -> Stream<'_> {
        Stream::new(&self.snapshot.source).watched(self.progress, self.cancel)
    }
}
