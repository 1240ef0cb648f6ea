//! The slots of a region that were written since a moment: one bit for each slot. The bit is set when a fork is made,
//! and cleared before hugekit lets anything through that could change the slot's bytes.
//!
//! After the fork has read a slot and detached it, writes to the slot are still held back. Then only its region shows
//! the slot, and the first write to it clears the bit. So an epoch costs nothing but the bits.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::Lost;
use super::batch::SlotBatch;
use super::error::Refused;
use super::group::ForkGroup;
use super::guard::{BATCH_SLOTS, SlotGuards};
use super::handle::CowHandle;
use super::mapping::CowMapping;
use super::tables::Tables;
use hugekit_sys::thread::without_signals;

/// The number of the last epoch. Numbers are unique in the process, so no epoch is mistaken for one of another
/// region.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The epoch of a region: it records which slots are written. When it is dropped, it no longer holds back writes.
#[derive(Debug)]
pub(crate) struct EpochWatch {
    group: Weak<ForkGroup>,
    number: u64,
}

/// An epoch that begins with the fork that is being made.
#[derive(Debug)]
pub(crate) struct NextEpoch<'a> {
    number: u64,
    /// The previous epoch, if there is one.
    since: Option<&'a EpochWatch>,
    /// A bit for each slot: true if the slot was written since the previous epoch.
    written: Vec<u64>,
}

impl<'a> NextEpoch<'a> {
    pub(crate) fn since(since: Option<&'a EpochWatch>) -> Self {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self { number, since, written: Vec::new() }
    }

    /// Allocates the words for the region's bits, before the gate is taken.
    pub(super) fn allocate(&mut self, slots: usize) {
        self.written = vec![u64::MAX; slots.div_ceil(64)];
    }

    /// Returns true if the previous epoch is the last one of this region, or there is none.
    pub(super) fn follows_on(&self, region: &CowHandle) -> bool {
        self.since.is_none_or(|watch| region.look(|_, mapping| watch.is_of(mapping)))
    }

    /// Begins the epoch. The caller has exclusive access to the gate, and has held back all writes except to
    /// unprotected slots. The `unshared` slots count as written.
    pub(super) fn begin(&mut self, mapping: &CowMapping, unshared: &[usize]) {
        mapping.unwritten.replace_all(true, |index, unwritten| {
            if self.since.is_some() {
                self.written[index] = !unwritten;
            }
        });
        for &slot in unshared {
            mapping.unwritten.clear(slot);
            self.written[slot / 64] |= 1 << (slot % 64);
        }
        mapping.counts().epoch.store(self.number, Ordering::SeqCst);
    }

    /// Returns the epoch of the region that was just forked. Writes are recorded from now on.
    pub(crate) fn watch(&self, fork: &CowHandle) -> EpochWatch {
        EpochWatch { group: Arc::downgrade(&fork.group), number: self.number }
    }

    /// Returns the slots that were written since the previous epoch, as runs.
    pub(crate) fn written(&self, slots: usize) -> impl Iterator<Item = Range<usize>> {
        let is_written = |slot: usize| self.written[slot / 64] & 1 << (slot % 64) != 0;
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = (next..slots).find(|&slot| is_written(slot))?;
            next = (start..slots).find(|&slot| !is_written(slot)).unwrap_or(slots);
            Some(start..next)
        })
    }
}

impl EpochWatch {
    /// Stops the recording for a range of slots. They count as written, and the epoch no longer holds back their
    /// writes.
    pub(crate) fn end_of(&self, slots: Range<usize>) {
        self.each(slots, |batch, slots| {
            slots.clone().for_each(|slot| batch.mapping().unwritten.clear(slot));
            // If the kernel refuses now, the next write to the slot opens it.
            let _ = batch.open_unshared(slots);
            Ok(())
        });
    }

    /// Lets writes to a range of slots through. Slots that forks share are copied first. The slots count as written.
    ///
    /// # Errors
    /// [`Lost`] if memory to copy has failed, or the kernel refuses.
    pub(crate) fn own(&self, slots: Range<usize>) -> Result<(), Lost> {
        let mut owned = Ok(());
        self.each(slots, |batch, slots| {
            let done = batch.own_all(slots);
            owned = owned.and(done.as_ref().map_err(|_| Lost).copied());
            done
        });
        owned
    }

    /// Calls `act` with at most [`BATCH_SLOTS`] of the slots at a time, as long as the region has this epoch.
    fn each(
        &self,
        slots: Range<usize>,
        mut act: impl FnMut(SlotBatch<'_>, Range<usize>) -> Result<(), Refused>,
    ) {
        let Some(group) = self.group.upgrade().filter(|group| group.pool.memory().is_ours()) else {
            return;
        };
        let mut next = slots.start;
        while next < slots.end {
            let wanted = next..slots.end.min(next + BATCH_SLOTS);
            next = wanted.end;
            let done = without_signals(|blocked| {
                let tables = group.gate.share(blocked);
                let mapping = self.mapping_of(&tables)?;
                let some = wanted.start..wanted.end.min(mapping.slots());
                if some.is_empty() {
                    return None;
                }
                let guards =
                    &SlotGuards::claim(&group.slots, &tables.mappings, some.clone(), blocked);
                act(SlotBatch::new(&group, &tables, mapping, guards), some).ok()
            });
            if done.is_none() {
                return;
            }
        }
    }

    fn mapping_of<'a>(&self, tables: &'a Tables) -> Option<&'a CowMapping> {
        tables.mappings.iter().find(|mapping| self.is_of(mapping))
    }

    /// Returns true if this is the last epoch of the region.
    fn is_of(&self, mapping: &CowMapping) -> bool {
        mapping.counts().epoch.load(Ordering::SeqCst) == self.number
    }
}

impl Drop for EpochWatch {
    fn drop(&mut self) {
        self.end_of(0..usize::MAX);
    }
}
