//! A copy of memory as it is now, to memory of its own, while the owner goes on writing. No byte is copied twice: what a
//! writer has to preserve goes to its place in the copy.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::buffer::BATCH_BYTES;
use super::source::SnapshotSource;
use super::stream::Stream;
use crate::making::builder::{Builder, range_of};
use crate::making::plan::Purpose;
use crate::serving::delivery::{Destination, KeptMemory};
use crate::{SnapshotError, SnapshotStats};
use hugekit_bulk::parallel::Cancel;
use hugekit_regions::fault::Serving;

/// Memory that is being staged: neighbouring ranges, made by [`Builder::stage_many`]. The drop lifts the protection; bytes
/// that were not copied are zero or missing then.
#[derive(Debug)]
pub struct Staging {
    /// Anonymous memory, with a destination.
    source: SnapshotSource,
    memory: StagedMemory,
    parts: Vec<(usize, Range<usize>)>,
}

/// The memory of a staging. It has the bytes when [`Staging::copy`] has returned.
#[derive(Clone, Debug)]
pub struct StagedMemory(Arc<Destination>);

impl StagedMemory {
    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.0.start()
    }
}

impl Staging {
    /// Protects memory, with a destination from the beginning on. `parts` are the numbers and offsets of ranges in it.
    ///
    /// # Safety
    /// The conditions of [`Builder::of_anonymous`].
    pub(crate) unsafe fn new(
        options: &Builder,
        memory: *const [u8],
        parts: Vec<(usize, Range<usize>)>,
        kept: &KeptMemory,
    ) -> Result<Self, SnapshotError> {
        let range = range_of(memory)?;
        let room = |errno: rustix::io::Errno| SnapshotError::NoRoom {
            bytes: range.len(),
            source: errno.into(),
        };
        let destination = Arc::new(Destination::new(&range, kept).map_err(room)?);
        // A granule goes to a slot only while the reader is at it, and until the batch of the reader ends.
        let slots = 4 * BATCH_BYTES;
        let options = options.clone().for_staging(slots);
        let made = options.protect(range, Purpose::Once, Some(&destination))?;
        let source = SnapshotSource::Anonymous(made);
        Ok(Self { source, memory: StagedMemory(destination), parts })
    }

    /// Returns the number of each range in the call that made this, and where its bytes are in the memory.
    #[must_use]
    pub fn parts(&self) -> &[(usize, Range<usize>)] {
        &self.parts
    }

    /// Returns the memory that gets the bytes.
    #[must_use]
    pub fn memory(&self) -> StagedMemory {
        self.memory.clone()
    }

    /// Returns how faults of writers are handled. `None` if all bytes were copied at once.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.source.serving()
    }

    /// Copies all bytes that no writer has copied, and ends the protection.
    ///
    /// # Errors
    /// [`Changed`](SnapshotError::Changed) if the memory was unmapped or discarded; [`Forked`](SnapshotError::Forked) in a
    /// forked child; [`Cancelled`](SnapshotError::Cancelled).
    pub fn copy(self, cancel: Option<&Cancel>) -> Result<SnapshotStats, SnapshotError> {
        let delivery = self.source.delivery();
        let stream = Stream::new(&self.source).watched(None, cancel);
        // SAFETY: the memory has as many bytes as the snapshot, and no other snapshot is delivered there.
        unsafe { stream.copy_all(self.memory.start()) }?;
        drop(delivery);
        self.memory.0.complete().map_err(SnapshotError::kernel("mprotect"))?;
        Ok(self.source.stats())
    }
}
