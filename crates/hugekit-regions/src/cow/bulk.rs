//! Slots by the dozen, of which no thread waits for one: to own them, to enter them into the page tables, to clear
//! them, to detach them.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;

use super::apply::At;
use super::group::{CowHandle, ForkGroup, Reads, Tables};
use super::guard::{SlotGuards, TOGETHER};
use super::in_kernel::InKernel;
use super::mapping::CowMapping;
use super::refused::Refused;
use super::slot::{Action, Event, Fill};
use hugekit_bulk::PopulateOptions;
use hugekit_bulk::parallel::{JobError, Report, Threads};
use hugekit_bulk::populate::PopulateError;
use hugekit_sys::error_chain;
use hugekit_sys::memory;
use hugekit_sys::thread::without_signals;

/// The runs of slots of which `of` says the same.
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

fn by(threads: Threads) -> PopulateOptions<'static> {
    PopulateOptions::new().threads(threads)
}

/// Several slots of one mapping, which this thread has.
#[derive(Clone, Copy)]
pub(super) struct Several<'a> {
    group: &'a ForkGroup,
    tables: &'a Tables,
    mapping: &'a CowMapping,
    guards: &'a SlotGuards<'a>,
}

impl<'a> Several<'a> {
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

    fn at(&self, slot: usize) -> At<'a> {
        let Self { group, tables, mapping, guards } = *self;
        At { group, guard: guards.get(slot), mapping, frames: &tables.frames }
    }

    fn in_kernel(&self) -> InKernel<'a> {
        InKernel { group: self.group, mapping: self.mapping }
    }

    /// Whether writes pass as soon as nothing holds them back: no other region shows the slot.
    fn is_only_held_back(&self, slot: usize) -> bool {
        self.at(slot).plan(Event::Own) == [Action::Unprotect]
    }

    /// Lets writes to slots pass: one call opens each run of slots that are only protected.
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

    /// Lets writes to slots pass that no other region shows.
    pub(super) fn open_unshared(&self, slots: Range<usize>) -> Result<(), Refused> {
        let held_back = runs(slots, |slot| self.is_only_held_back(slot));
        held_back
            .filter(|(is_held_back, _)| *is_held_back)
            .try_for_each(|(_, run)| self.unprotect(run))
    }

    fn protect_some(&self, slots: Range<usize>, but: &[usize]) {
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

    /// Lets writes to a run of slots pass that only this mapping shows.
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

    /// Enters slots into the page tables from which nothing has to be copied.
    fn enter(&self, slots: Range<usize>) -> Result<(), Refused> {
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

    /// Detaches slots: neither needs what the other mappings of the group show there. How many it shared.
    pub(super) fn detach(&self, copied: bool) -> usize {
        let mut run: Option<(&'a CowMapping, Range<usize>)> = None;
        let unprotect = |(mapping, slots): (&'a CowMapping, Range<usize>)| {
            // If the kernel refuses, the next write asks again.
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
            // What cannot be copied is lost, and known as that.
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

impl At<'_> {
    /// Sets a part of the slot to zero. No other region sees that.
    fn release(&self, part: Range<usize>, at_once: bool) -> Result<(), Refused> {
        let is_whole = part.len() == self.frames.len_of(self.guard.slot());
        let may_wait = is_whole && !at_once && self.group.clears_at_fault();
        if may_wait && self.entry().slot.is_exclusive() {
            // What the kernel refuses is cleared at once.
            let _ = self.serve_event(Event::TakeBack, None);
        }
        if self.entry().slot.is_unready() {
            return Ok(()); // It reads as zeroes, whichever part of it.
        }
        if self.frames.is_broken(self.entry().frame) {
            return Err(Refused::Broken);
        }
        let event = if is_whole { Event::Release } else { Event::Own };
        let is_cleared = self.plan(event).contains(&Action::TakeReserved(Fill::Zeroes));
        self.serve_event(event, None)?;
        if !is_cleared {
            self.frames.clear(self.entry().frame, part.clone(), None);
        }
        self.group.pool.count_cleared_at_release(part.len());
        Ok(())
    }
}

impl CowHandle {
    /// Has each slot that bytes lie on see an event, so that a thread that waits for it waits for one copy at most,
    /// and then does something about [`TOGETHER`] of them that copies nothing as a rule; in pieces on several
    /// threads.
    fn each(
        &self,
        bytes: Range<usize>,
        options: &PopulateOptions<'_>,
        first: impl Fn(At<'_>) -> Option<Event> + Sync,
        then: impl Fn(Several<'_>, Range<usize>) -> Result<(), Refused> + Sync,
    ) -> Result<Report, JobError<PopulateError>> {
        let (group, granule) = (&*self.group, self.group.granule_bytes);
        let see = |_: &Tables, at: At<'_>| match first(at) {
            Some(event) => at.serve_event(event, None),
            None => Ok(()),
        };
        self.together(bytes, options, |some| {
            for slot in some.clone() {
                without_signals(|blocked| {
                    group.at_slot(self.start + slot * granule, blocked, see)
                })?;
            }
            self.at_once(some.clone(), |several| then(several, some.clone()))?;
            Ok(())
        })
    }

    /// Does something about [`TOGETHER`] of the slots that bytes lie on at a time, in pieces on several threads.
    fn together(
        &self,
        bytes: Range<usize>,
        options: &PopulateOptions<'_>,
        act: impl Fn(Range<usize>) -> Result<(), PopulateError> + Sync,
    ) -> Result<Report, JobError<PopulateError>> {
        let granule = self.group.granule_bytes;
        let start = bytes.start - bytes.start % granule;
        let len = bytes.end.max(bytes.start).next_multiple_of(granule) - start;
        let mapped = self.look(|_, mapping| mapping.mapping.len());
        let job = options.job(len).min_chunk(granule.max(2 << 20));
        let all = job.run(|chunk| {
            let mut slots = (start + chunk.start) / granule..(start + chunk.end) / granule;
            while !slots.is_empty() {
                let some = slots.start..slots.end.min(slots.start + TOGETHER);
                slots.start = some.end;
                act(some)?;
            }
            Ok(())
        });
        let all = all.map(|mut report| {
            report.bytes = len.min(mapped - start);
            report
        });
        all.map_err(|error| error.shifted_into(start, bytes))
    }

    /// Does something about slots that this thread has meanwhile.
    fn at_once(
        &self,
        slots: Range<usize>,
        act: impl Fn(Several<'_>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        without_signals(|blocked| {
            self.group.at_slots(self.start, slots.clone(), blocked, |tables, mapping, guards| {
                act(Several { group: &self.group, tables, mapping, guards })
            })
        })
    }

    /// Holds back writes to all but some slots, on several threads, before a fork has the gate alone and does so
    /// to what was written since: those who write meanwhile wait for a few slots each, and not for all.
    /// What the kernel refuses is not protected, and the table says so.
    pub(super) fn protect_ahead(&self, bytes: usize, but: &[usize], threads: Threads) {
        let _ = self.together(0..bytes, &by(threads), |some| {
            let _ = self.at_once(some.clone(), |several| {
                several.protect_some(some.clone(), but);
                Ok(())
            });
            Ok(())
        });
    }

    /// Makes every slot that bytes lie on the region's alone.
    pub(crate) fn own(
        &self,
        bytes: Range<usize>,
        threads: Threads,
    ) -> Result<Report, JobError<PopulateError>> {
        let separate = |_: At<'_>| Some(Event::Separate);
        self.each(bytes, &by(threads), separate, |several, slots| {
            several.own_all(slots.clone())?;
            several.enter(slots)
        })
    }

    /// Enters every slot that bytes lie on into the page tables; what is shared, for reading if that can be.
    pub(crate) fn prefault(
        &self,
        bytes: Range<usize>,
        options: &PopulateOptions<'_>,
    ) -> Result<Report, JobError<PopulateError>> {
        let group = &*self.group;
        let own_unreadable = |at: At<'_>| {
            let slot = at.entry().slot;
            if slot.is_unready() {
                return Some(Event::Separate);
            }
            let is_read_by_us = !slot.is_exclusive() && !slot.is_in_place();
            let is_copied = is_read_by_us && group.reads == Reads::Copy;
            (slot.is_displaced() || slot.is_lost() || is_copied).then_some(Event::Own)
        };
        self.each(bytes, options, own_unreadable, |several, slots| {
            for slot in slots.clone() {
                let at = several.at(slot);
                own_unreadable(at).map_or(Ok(()), |event| at.serve_event(event, None))?;
            }
            several.enter(slots)
        })
    }

    /// Clears or populates all that is not ready, and shows it to no thread.
    pub(crate) fn supply(
        &self,
        bytes: Range<usize>,
        threads: Threads,
    ) -> Result<(), JobError<PopulateError>> {
        let unready = |at: At<'_>| at.entry().slot.is_unready().then_some(Event::Separate);
        self.each(bytes, &by(threads), unready, |_, _| Ok(())).map(|_| ())
    }

    /// A thread is to see the memory through the file: no bytes of another owner may be left in it, nor bytes that
    /// were released, from now on.
    pub(crate) fn show_through_file(&self, bytes: usize, threads: Threads) {
        self.group.clear_at_once();
        if let Err(error) = self.supply(0..bytes, threads) {
            hugekit_sys::events::warn!(
                "not all of a region is ready in its file: {}",
                error_chain(&error)
            );
        }
    }

    /// Sets bytes to zero, whole folios: at once, or when they are touched. No other region sees that.
    pub(crate) fn release(&self, bytes: Range<usize>, at_once: bool) -> Result<(), PopulateError> {
        let (group, granule) = (&*self.group, self.group.granule_bytes);
        let mut next = bytes.start;
        while next < bytes.end {
            let slot = next / granule;
            let end = bytes.end.min((slot + 1) * granule);
            let part = next - slot * granule..end - slot * granule;
            let release = |_: &Tables, at: At<'_>| at.release(part.clone(), at_once);
            without_signals(|blocked| group.at_slot(self.start + next, blocked, release))?;
            next = end;
        }
        Ok(())
    }
}
