//! Up to [`BATCH_SLOTS`](super::guard::BATCH_SLOTS) slots of one mapping, which the thread has claimed: one call of
//! the kernel for each run of equal slots.

use std::ops::Range;
use std::ptr;

use super::apply::MappingSlot;
use super::error::Refused;
use super::group::ForkGroup;
use super::guard::SlotGuards;
use super::in_kernel::InKernel;
use super::mapping::CowMapping;
use super::slot::{Action, Event};
use super::tables::Tables;
use hugekit_sys::memory;

/// The slots of one mapping that the thread has claimed.
#[derive(Clone, Copy)]
pub(super) struct SlotBatch<'a> {
    group: &'a ForkGroup,
    tables: &'a Tables,
    mapping: &'a CowMapping,
    guards: &'a SlotGuards<'a>,
}

impl<'a> SlotBatch<'a> {
    pub(super) fn new(
        group: &'a ForkGroup,
        tables: &'a Tables,
        mapping: &'a CowMapping,
        guards: &'a SlotGuards<'a>,
    ) -> Self {
        Self { group, tables, mapping, guards }
    }

    pub(super) fn mapping(&self) -> &'a CowMapping {
        self.mapping
    }

    pub(super) fn at(&self, slot: usize) -> MappingSlot<'a> {
        let Self { group, tables, mapping, guards } = *self;
        MappingSlot { group, guard: guards.get(slot), mapping, frames: &tables.frames }
    }

    fn in_kernel(&self) -> InKernel<'a> {
        InKernel { group: self.group, mapping: self.mapping }
    }

    /// Returns true if the slot is only held back: no other region shows it.
    fn is_only_held_back(&self, slot: usize) -> bool {
        self.at(slot).plan(Event::Own) == [Action::Unprotect]
    }

    /// Lets writes to slots through. Copies shared slots, and opens each run of slots that are only held back with
    /// one call.
    pub(super) fn own_all(&self, slots: Range<usize>) -> Result<(), Refused> {
        for slot in slots.clone() {
            self.at(slot).serve_event(Event::Separate, None)?;
        }
        let is_protected = |slot| self.is_only_held_back(slot);
        for (protected, run) in runs(slots, is_protected) {
            if protected {
                self.unprotect(run)?;
                continue;
            }
            run.into_iter().try_for_each(|slot| self.at(slot).serve_event(Event::Own, None))?;
        }
        Ok(())
    }

    /// Lets writes to those slots through that no other region shows.
    pub(super) fn open_unshared(&self, slots: Range<usize>) -> Result<(), Refused> {
        let held_back = runs(slots, |slot| self.is_only_held_back(slot));
        held_back
            .filter(|(is_held_back, _)| *is_held_back)
            .try_for_each(|(_, run)| self.unprotect(run))
    }

    /// Holds back writes to all slots except some. If the kernel refuses, the slots are not protected, and the table
    /// says so.
    pub(super) fn protect_some(&self, slots: Range<usize>, but: &[usize]) {
        let is_open = |slot| {
            let plan = self.at(slot).plan(Event::Forked);
            plan == [Action::Protect] && but.binary_search(&slot).is_err()
        };
        for (_, run) in runs(slots, is_open).filter(|(is_open, _)| *is_open) {
            let is_served = self.group.check_served().is_ok();
            if !is_served || self.in_kernel().protect(run.clone(), true).is_err() {
                return;
            }
            for slot in run {
                let at = self.at(slot);
                at.guard.record_done(at.mapping, Action::Protect);
            }
        }
    }

    /// Lets writes to a run of slots through that only this mapping shows.
    fn unprotect(&self, run: Range<usize>) -> Result<(), Refused> {
        let (in_kernel, mut rest) = (self.in_kernel(), run);
        while !rest.is_empty() {
            let next = rest.start + in_kernel.run_to_open(rest.clone());
            let opened = in_kernel.open(&self.tables.frames, rest.start..next)?;
            for slot in rest.start..next {
                let at = self.at(slot);
                at.guard.record_done(at.mapping, opened);
                at.join_blocks();
            }
            rest.start = next;
        }
        Ok(())
    }

    /// Enters slots into the page tables. No slot has to be copied.
    pub(super) fn enter(&self, slots: Range<usize>) -> Result<(), Refused> {
        for slot in slots.clone() {
            self.at(slot).serve_event(Event::Settle, None)?;
        }
        let is_in_place = |slot| self.at(slot).entry().slot.is_in_place();
        for (_, run) in runs(slots, is_in_place).filter(|(in_place, _)| *in_place) {
            let addresses = self.mapping.addresses_of(run);
            let start = ptr::with_exposed_provenance_mut(addresses.start);
            memory::populate_read(start, addresses.len()).map_err(Refused::Kernel)?;
        }
        Ok(())
    }

    /// Detaches slots: with `copied` the mapping keeps its bytes, otherwise it needs none. Returns how many slots
    /// were shared.
    pub(super) fn detach(&self, copied: bool) -> usize {
        let mut run: Option<(&'a CowMapping, Range<usize>)> = None;
        let unprotect = |(mapping, slots): (&'a CowMapping, Range<usize>)| {
            // If the kernel refuses, the next write asks it again.
            let _ = Self { mapping, ..*self }.unprotect(slots);
        };
        let mut count = 0;
        for guard in self.guards.iter() {
            let at = self.at(guard.slot());
            let plan = at.plan(Event::Detach { copied });
            if plan.is_empty() {
                continue;
            }
            count += 1;
            let other = guard.sharers(self.mapping).next();
            // A slot that cannot be copied is lost, and the table says so.
            for &action in plan {
                let _ = at.apply(action, None);
            }
            let freed = other.filter(|other| {
                let is_watched = other.unwritten.get(guard.slot());
                !is_watched && guard.plan(other, Event::Own) == [Action::Unprotect]
            });
            let Some(freed) = freed else { continue };
            match &mut run {
                Some((last, slots)) if last.id() == freed.id() && slots.end == guard.slot() => {
                    slots.end += 1;
                }
                _ => {
                    let next = (freed, guard.slot()..guard.slot() + 1);
                    run.replace(next).into_iter().for_each(unprotect);
                }
            }
        }
        run.into_iter().for_each(unprotect);
        count
    }
}

/// Returns the runs of slots for which `of` returns the same value.
fn runs<T: PartialEq>(
    slots: Range<usize>,
    of: impl Fn(usize) -> T,
) -> impl Iterator<Item = (T, Range<usize>)> {
    let mut rest = slots;
    std::iter::from_fn(move || {
        let said = rest.next().map(&of)?;
        let start = rest.start - 1;
        while !rest.is_empty() && of(rest.start) == said {
            rest.start += 1;
        }
        Some((said, start..rest.start))
    })
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::super::bulk::Bulk;
    use super::super::whole_region::WholeRegion;
    use crate::fault::FaultMode;
    use crate::pool::{Backing, Pool};
    use hugekit_bulk::parallel::Threads;
    use hugekit_sys::pagemap::PageMap;
    use hugekit_sys::thread::without_signals;
    use hugekit_testing::trials::skipped;
    use std::ptr;

    const GRANULE: usize = 64 << 10;

    /// The kernel marks the slots before one that a write has mapped anew, and refuses the rest. If the marks stayed,
    /// a write to such a slot would fault for ever, because the table does not contain them.
    #[test]
    fn slots_before_one_that_cannot_be_marked_are_not_marked() {
        let pool = Pool::builder(12 * GRANULE).backing(Backing::Base).scrub_threads(0);
        let pool = pool.build().unwrap();
        let mut parent = pool.region(4 * GRANULE).unwrap();
        parent.fill(1);
        let builder = parent.fork_builder().granule(GRANULE).fault_mode(FaultMode::InPlace);
        let fork = match builder.handle(None) {
            Ok(fork) => fork,
            Err(error) => return skipped(error),
        };
        let write = |slot: usize| {
            let byte = ptr::with_exposed_provenance_mut::<u8>(fork.start + slot * GRANULE);
            // SAFETY: a byte of the fork, which no other thread has.
            unsafe { byte.write_volatile(2) };
        };
        write(0);
        write(1);
        without_signals(|blocked| {
            let mut tables = fork.group.gate.alone(blocked);
            let id = tables.mappings.of_region(fork.start).id();
            WholeRegion::new(&fork.group, &mut tables, id).watch_writes().unwrap();
        });
        write(2);
        Bulk(&fork).protect_ahead(4 * GRANULE, &[], Threads::Exactly(1));
        let marked = PageMap::open().unwrap().first_protected(&(fork.start..fork.start + GRANULE));
        assert_eq!(marked, Ok(None));
        write(0);
        fork.leave(false).unwrap();
    }
}
