//! Holds back the writes of a whole region, before a fork shares its memory or before it moves.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::apply::remove_pages;
use super::error::{Failed, Refused, kernel};
use super::fork_support::Protection;
use super::slot::{Action, Event};
use super::whole_region::WholeRegion;

impl WholeRegion<'_> {
    /// Holds back writes to all slots except some, with one call for each run. If a call fails, the slots that were
    /// protected stay protected, and the table says so.
    pub(super) fn protect_all_but(&self, some: &[usize]) -> Result<(), Failed> {
        let WholeRegion { group, alone, mapping, .. } = *self;
        self.watch_writes()?;
        for part in between(mapping.slots(), some) {
            let mut slot = part.start;
            while slot < part.end {
                let (run, event) = match group.protection() {
                    Protection::Marks => {
                        (mapping.table.run_as_exclusive(slot..part.end), Event::Forked)
                    }
                    Protection::Rights => (mapping.run_alike(slot..part.end), Event::Forked),
                    Protection::Removal => (mapping.run_alike(slot..part.end), Event::TakenOut),
                };
                let next = slot + run;
                for &action in alone.slot(slot).plan(mapping, event) {
                    self.protect_run(slot..next, action)?;
                    (slot..next).for_each(|slot| alone.slot(slot).record_done(mapping, action));
                }
                slot = next;
            }
        }
        if group.protection() != Protection::Marks {
            self.recount_vmas();
        }
        Ok(())
    }

    /// Registers the region as its protection needs. If rights hold writes back, no registration is needed: frames
    /// that a handler has entered are registered all the time.
    pub(super) fn watch_writes(&self) -> Result<(), Failed> {
        let WholeRegion { group, alone, mapping, .. } = *self;
        if group.protection() == Protection::Rights || mapping.is_registered() {
            return Ok(());
        }
        if group.protection() == Protection::Removal {
            for slot in 0..mapping.slots() {
                let guard = alone.slot(slot);
                let plan = guard.plan(mapping, Event::Watched);
                plan.iter().for_each(|&action| guard.record_done(mapping, action));
            }
        }
        group
            .descriptor
            .watch(&mapping.addresses(), group.protection() == Protection::Removal)
            .map_err(|errno| kernel("UFFDIO_REGISTER", errno))?;
        mapping.counts().registered.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn protect_run(&self, slots: Range<usize>, action: Action) -> Result<(), Failed> {
        let in_kernel = self.in_kernel();
        let call = match action {
            Action::TakeOut => "madvise",
            _ if in_kernel.is_by_rights(slots.start) => "mprotect",
            _ => "UFFDIO_WRITEPROTECT",
        };
        let held = match action {
            Action::TakeOut => remove_pages(&self.mapping.addresses_of(slots)),
            _ => in_kernel.protect(slots, true),
        };
        held.map_err(|refused| match refused {
            Refused::Kernel(errno) => kernel(call, errno).into(),
            refused => refused.into(),
        })
    }

    /// Counts the kernel's mappings of the region again, after large parts of it have become one mapping.
    fn recount_vmas(&self) {
        let (mut slot, mut runs) = (0, 0);
        while slot < self.mapping.slots() {
            slot += self.mapping.run_alike(slot..self.mapping.slots());
            runs += 1;
        }
        self.group.count_vmas(self.mapping, runs - 1);
    }
}

/// Returns the runs of slots between some slots.
pub(super) fn between(slots: usize, some: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let starts = std::iter::once(0).chain(some.iter().map(|slot| slot + 1));
    let ends = some.iter().copied().chain([slots]);
    starts.zip(ends).map(|(start, end)| start..end).filter(|slots| !slots.is_empty())
}
