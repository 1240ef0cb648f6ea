//! Faults of a fork group: which threads are shown what they share, and which are given a copy.
//!
//! All of this runs in signal handlers too. A thread at a slot shares the gate and has the slot, of all mappings of
//! the group, to itself; it decides from the tables alone, because what the kernel reports may be out of date
//! by then.

use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::{self, Errno};
use rustix::param::page_size;

use super::apply::At;
use super::exclusive::{Whole, leave_to_kernel};
use super::group::{ForkGroup, Tables};
use super::guard::{SlotGuard, SlotGuards};
use super::mapping::CowMapping;
use super::refused::Refused;
use super::slot::{Action, Event, Lack, Slot};
use crate::fault::{Access, Faults, Forbidden};
use crate::pool::Content;
use hugekit_bulk::populate::PopulateError;
use hugekit_sys::thread::SignalsBlocked;
use hugekit_sys::userfaultfd;

impl Faults for ForkGroup {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn serve(
        &self,
        address: usize,
        access: Access,
        blocked: &SignalsBlocked,
    ) -> Result<(), PopulateError> {
        self.at_slot(address, blocked, |tables, at| {
            let event = match access {
                Access::Read => Event::Read,
                Access::Write => Event::Write,
                Access::Unknown => at.entry().slot.guess(),
            };
            let event = if event == Event::Read { self.reads.event() } else { event };
            self.serve_access(tables, at, event, address)
        })?;
        if self.unwoken.swap(false, Ordering::Relaxed) {
            return Err(PopulateError::Kernel(std::io::ErrorKind::PermissionDenied));
        }
        self.patience.reset(self.number_at(address));
        Ok(())
    }

    fn serve_forbidden(&self, address: usize, blocked: &SignalsBlocked) -> Forbidden {
        let became = Cell::new(Forbidden::NotHeldBack);
        let served = self.at_slot(address, blocked, |tables, at| {
            if !at.plan(Event::Write).is_empty() {
                became.set(Forbidden::Served);
            }
            self.serve_access(tables, at, Event::Write, address)
        });
        if served.is_ok() { became.get() } else { Forbidden::Refused }
    }

    /// The thread that waits there tries again, and meets the same trouble until it is over, or there is no patience
    /// left.
    fn leave(&self, address: usize, blocked: &SignalsBlocked) -> io::Result<()> {
        if self.leave_hole(address, blocked) {
            return Ok(());
        }
        if !self.patience.bears_refusal_of(self.number_at(address)) {
            return Err(Errno::PERM);
        }
        rustix::thread::sched_yield();
        let page = address - address % page_size();
        // Others wait for the same slot, wherever it begins.
        let around = page.saturating_sub(self.granule_bytes)..page + self.granule_bytes;
        userfaultfd::wake(self.descriptor.as_fd(), &around)
    }

    fn give_up(&self, blocked: &SignalsBlocked) -> io::Result<()> {
        leave_to_kernel(self, blocked)
    }

    fn break_(&self, address: usize, blocked: &SignalsBlocked) {
        let tables = self.gate.share(blocked);
        if let Some(mapping) = tables.mappings.at(address) {
            let frame = mapping.entry(mapping.slot_at(address)).frame;
            tables.frames.note(frame, Content::Broken);
        }
    }
}

impl ForkGroup {
    /// That of the slot at an address, for [`Patience`](super::patience::Patience): granules of the address space
    /// do, and no region lies at the first.
    fn number_at(&self, address: usize) -> usize {
        address / self.granule_bytes
    }

    /// Does what an access takes, and notes how long it took where an owner wants to know.
    fn serve_access(
        &self,
        tables: &Tables,
        at: At<'_>,
        event: Event,
        address: usize,
    ) -> Result<(), Refused> {
        match at.plan(event) {
            [] => {
                // Another thread has done what was to be done.
                self.wake(&at.addresses());
                Ok(())
            }
            [enter @ Action::Enter { .. }] => at.apply(*enter, None),
            // Without the frames of other plans, which a signal stack has no room for beside those of a clear. Nothing
            // that others share keeps this thread waiting.
            [Action::Supply, enter] => {
                at.supply(Some(self.within(at, address)))?;
                at.apply(*enter, None)
            }
            _ => {
                let began = Instant::now();
                let near = self.within(at, address);
                let served = at.serve_event(event, Some(near));
                let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                for mapping in tables.mappings.observed() {
                    mapping.counts().longest_nanos.fetch_max(nanos, Ordering::Relaxed);
                }
                served
            }
        }
    }

    /// The offset of an address in its slot.
    fn within(&self, at: At<'_>, address: usize) -> usize {
        (address - at.mapping.addresses().start) % self.granule_bytes
    }

    /// Leaves a hole that could not be populated to the kernel: it may have memory for it now, or it tells the thread
    /// in its own way that it has none. Whether there was one. From then on the folio counts as dirty.
    fn leave_hole(&self, address: usize, blocked: &SignalsBlocked) -> bool {
        let tables = self.gate.share(blocked);
        let Tables { mappings, frames } = &*tables;
        let Some(mapping) = mappings.at(address) else { return false };
        let guard = &SlotGuard::claim(&self.slots, mappings, mapping.slot_at(address), blocked);
        let at = At { group: self, guard, mapping, frames };
        at.entry().slot == Slot::Unready(Lack::Page) && at.let_kernel_populate().is_ok()
    }

    /// Does something about the slot that has an address, and about all of its region if the kernel refuses that:
    /// to map all of it anew takes fewer mappings in the end, and nothing of the descriptor, of which a system-call
    /// filter may refuse everything. That does not help where memory has failed or is short. Nothing if no region has
    /// the address any more.
    pub(super) fn at_slot(
        &self,
        address: usize,
        blocked: &SignalsBlocked,
        act: impl Fn(&Tables, At<'_>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        {
            let tables = self.gate.share(blocked);
            let Tables { mappings, frames } = &*tables;
            let Some(mapping) = mappings.at(address) else { return Ok(()) };
            let slot = mapping.slot_at(address);
            let guard = &SlotGuard::claim(&self.slots, mappings, slot, blocked);
            match act(&tables, At { group: self, guard, mapping, frames }) {
                Err(refused) if refused.is_for_mappings() => {}
                done => return done,
            }
        }
        self.once_exclusive(address, blocked, |tables, mapping| {
            let (frames, slot) = (&tables.frames, mapping.slot_at(address));
            let guard = &SlotGuard::claim(&self.slots, &tables.mappings, slot, blocked);
            act(tables, At { group: self, guard, mapping, frames })
        })
    }

    /// As [`at_slot`](Self::at_slot), for [`TOGETHER`](super::guard::TOGETHER) slots at most of the region at an
    /// address.
    pub(super) fn at_slots(
        &self,
        address: usize,
        slots: Range<usize>,
        blocked: &SignalsBlocked,
        act: impl Fn(&Tables, &CowMapping, &SlotGuards<'_>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        {
            let tables = self.gate.share(blocked);
            let Some(mapping) = tables.mappings.at(address) else { return Ok(()) };
            let guards = SlotGuards::claim(&self.slots, &tables.mappings, slots.clone(), blocked);
            match act(&tables, mapping, &guards) {
                Err(refused) if refused.is_for_mappings() => {}
                done => return done,
            }
        }
        self.once_exclusive(address, blocked, |tables, mapping| {
            let guards = SlotGuards::claim(&self.slots, &tables.mappings, slots, blocked);
            act(tables, mapping, &guards)
        })
    }

    /// Does something about the region at an address, after a mapping was wanting and all of it was made its own.
    #[cold]
    #[inline(never)] // what it needs of a signal stack is not there for each fault
    fn once_exclusive(
        &self,
        address: usize,
        blocked: &SignalsBlocked,
        act: impl FnOnce(&Tables, &CowMapping) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let mut tables = self.gate.alone(blocked);
        let Some(id) = tables.mappings.at(address).map(CowMapping::id) else { return Ok(()) };
        if Whole::new(self, &mut tables, id).make_exclusive().is_err() {
            // The process has no mapping left at all, but for those kept for this.
            self.release_spare();
            Whole::new(self, &mut tables, id).make_exclusive()?;
        }
        // No other thread has a slot now, because all share the gate for it.
        act(&tables, tables.mappings.get(id))
    }
}
