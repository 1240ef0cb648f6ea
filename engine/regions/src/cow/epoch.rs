//! What of a region was written since a moment: one bit for each slot, set when a fork is made, and cleared before
//! anything is let through that could change the slot's bytes.
//!
//! What holds writes back stays where it is after the fork has read a slot and gone: then the slot is its region's
//! alone, and the first write to it finds that out. So an epoch takes nothing but that bit.

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

/// Each epoch of the process has its own, so that none is taken for another region's.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A region's epoch: from its moment on it is noted what is written. Dropped, it holds no writes back any more.
#[derive(Debug)]
pub(crate) struct EpochWatch {
    group: Weak<ForkGroup>,
    number: u64,
}

/// The moment at which a region's epoch begins, as the fork that is made then finds it.
#[derive(Debug)]
pub(crate) struct NextEpoch<'a> {
    number: u64,
    /// The epoch before, if there was one.
    since: Option<&'a EpochWatch>,
    /// A bit for each slot: whether it was written since then.
    written: Vec<u64>,
}

impl<'a> NextEpoch<'a> {
    pub(crate) fn since(since: Option<&'a EpochWatch>) -> Self {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self { number, since, written: Vec::new() }
    }

    /// Allocates the words for a region's marks, before the gate is taken.
    pub(super) fn allocate(&mut self, slots: usize) {
        self.written = vec![u64::MAX; slots.div_ceil(64)];
    }

    /// Returns whether the epoch before is the last one of that region, if there was one.
    pub(super) fn follows_on(&self, region: &CowHandle) -> bool {
        self.since.is_none_or(|watch| region.look(|_, mapping| watch.is_of(mapping)))
    }

    /// Call with exclusive access to the gate, after every write has been held back except those to slots that are not
    /// held back. What is `unshared` counts as written.
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

    /// Returns the watch of a region that a fork was just made of: it notes writes from now on.
    pub(crate) fn watch(&self, fork: &CowHandle) -> EpochWatch {
        EpochWatch { group: Arc::downgrade(&fork.group), number: self.number }
    }

    /// Slots that were written since the epoch before, as runs.
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
    /// The slots of a range are not noted any more: they count as written, and their writes are held back by this no
    /// longer.
    pub(crate) fn end_of(&self, slots: Range<usize>) {
        self.each(slots, |batch, slots| {
            slots.clone().for_each(|slot| batch.mapping().unwritten.clear(slot));
            // Who writes there opens what the kernel does not open now.
            let _ = batch.open_unshared(slots);
            Ok(())
        });
    }

    /// Has writes to the slots of a range pass, after a copy where forks share them: they count as written.
    ///
    /// # Errors
    /// [`Lost`] if memory has failed that was to be copied, or the kernel refuses.
    pub(crate) fn own(&self, slots: Range<usize>) -> Result<(), Lost> {
        let mut owned = Ok(());
        self.each(slots, |batch, slots| {
            let done = batch.own_all(slots);
            owned = owned.and(done.as_ref().map_err(|_| Lost).copied());
            done
        });
        owned
    }

    /// Does something about [`BATCH_SLOTS`] of the slots at a time, as long as the region has this epoch.
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

    /// Returns whether it is the last epoch of a region.
    fn is_of(&self, mapping: &CowMapping) -> bool {
        mapping.counts().epoch.load(Ordering::SeqCst) == self.number
    }
}

impl Drop for EpochWatch {
    fn drop(&mut self) {
        self.end_of(0..usize::MAX);
    }
}
