//! A point in time of a region: a fork that is only read.
#![allow(unsafe_code)]

use std::ops::Range;
use std::time::Duration;

use super::mapped::Memory;
use super::{ForkBuilder, ForkError};
use crate::Reuse;
use crate::cow::{CowHandle, Lost};
use crate::fault::Serving;

/// What a region held at one point in time. Offsets are the region's.
#[derive(Debug)]
pub(crate) struct ReadOnlyFork {
    memory: Box<Memory>,
    origin: usize,
    granule_bytes: usize,
    /// Slots that were copied when it was made, because they are pinned.
    copied_at_once: u64,
}

/// What it has cost so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) copied_by_writers: u64,
    pub(crate) copied_at_once: u64,
    pub(crate) longest_fault: Duration,
}

impl<R> ForkBuilder<'_, R> {
    /// The region as it is now.
    pub(crate) fn read_only(&self) -> Result<ReadOnlyFork, ForkError> {
        let origin = self.origin().start().as_ptr().expose_provenance();
        let memory = Box::new(self.memory()?);
        let (granule_bytes, copied_at_once) = memory.as_fork(|fork| {
            fork.observe();
            (fork.granule_bytes(), fork.count_owned())
        });
        Ok(ReadOnlyFork { memory, origin, granule_bytes, copied_at_once })
    }
}

impl ReadOnlyFork {
    /// The addresses of the region that it is of.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.origin..self.origin + self.memory.len()
    }

    pub(crate) fn granule_bytes(&self) -> usize {
        self.granule_bytes
    }

    pub(crate) fn serving(&self) -> Option<&Serving> {
        self.memory.serving()
    }

    /// Whether this is the process that made it.
    pub(crate) fn is_ours(&self) -> bool {
        self.memory.pool().memory().is_ours()
    }

    /// Copies bytes of one granule: past the cache unless the copy is used soon.
    ///
    /// # Errors
    /// [`Lost`] if their memory has failed.
    ///
    /// # Safety
    /// As many bytes of `to` may be written, and no other thread uses them.
    pub(crate) unsafe fn read(
        &self,
        bytes: Range<usize>,
        to: *mut u8,
        reuse: Reuse,
    ) -> Result<(), Lost> {
        // SAFETY: the caller's to promise.
        self.memory.as_fork(|fork| unsafe { fork.read(bytes, to, reuse) })
    }

    /// No reader wants the granules that begin in this range any more.
    pub(crate) fn let_go(&self, bytes: &Range<usize>) {
        self.memory.as_fork(|fork| fork.detach(self.slots(bytes), false));
    }

    /// Has the granules of this range for itself, so that the regions that share them write them without a fault; how
    /// many had to be copied.
    pub(crate) fn preserve(&self, bytes: &Range<usize>) -> usize {
        self.memory.as_fork(|fork| fork.detach(self.slots(bytes), true))
    }

    fn slots(&self, bytes: &Range<usize>) -> Range<usize> {
        bytes.start / self.granule_bytes..bytes.end.div_ceil(self.granule_bytes)
    }

    pub(crate) fn cost(&self) -> Cost {
        let cost = self.memory.as_fork(CowHandle::cost);
        Cost {
            copied_by_writers: cost.received,
            copied_at_once: self.copied_at_once,
            longest_fault: Duration::from_nanos(cost.longest_nanos),
        }
    }
}
