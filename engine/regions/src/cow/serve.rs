//! Serves the faults of a fork group: a thread reads or writes at an address that one of its regions has.
//!
//! All of this also runs in signal handlers. A thread that serves a fault shares the gate and has claimed the slot in
//! all mappings of the group. It decides by the tables alone, because the report of the kernel may be out of date.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::{self, Errno};
use rustix::param::page_size;

use super::apply::MappingSlot;
use super::error::Refused;
use super::group::ForkGroup;
use super::guard::SlotGuard;
use super::slot::{Action, Event, Lack, Slot};
use super::tables::Tables;
use super::visit::Visit;
use super::whole_region::leave_to_kernel;
use crate::fault::{Access, Faults, Forbidden};
use crate::pool::Content;
use hugekit_bulk::populate::PopulateError;
use hugekit_sys::thread::SignalsBlocked;

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
        Visit { group: self, address, blocked }.slot(|tables, at| {
            let event = match access {
                Access::Read => Event::Read,
                Access::Write => Event::Write,
                Access::Unknown => at.entry().slot.guess(),
            };
            let event = if event == Event::Read { self.shared_reads.event() } else { event };
            SlotFault { tables, at, address }.serve(event)
        })?;
        if self.descriptor.has_unwoken() {
            return Err(PopulateError::Kernel(std::io::ErrorKind::PermissionDenied));
        }
        self.retries.reset(number_at(self, address));
        Ok(())
    }

    fn serve_forbidden(&self, address: usize, blocked: &SignalsBlocked) -> Forbidden {
        let became = Cell::new(Forbidden::NotHeldBack);
        let served = Visit { group: self, address, blocked }.slot(|tables, at| {
            if !at.plan(Event::Write).is_empty() {
                became.set(Forbidden::Served);
            }
            SlotFault { tables, at, address }.serve(Event::Write)
        });
        if served.is_ok() { became.get() } else { Forbidden::Refused }
    }

    /// Lets the waiting thread try again. It meets the same refusal until the refusal ends or
    /// [`Retries`](super::retries::Retries) permits no other try.
    fn leave(&self, address: usize, blocked: &SignalsBlocked) -> io::Result<()> {
        if leave_hole(self, address, blocked) {
            return Ok(());
        }
        if !self.retries.may_retry(number_at(self, address)) {
            return Err(Errno::PERM);
        }
        rustix::thread::sched_yield();
        let page = address - address % page_size();
        // Other threads wait for the same slot, wherever it begins.
        let around = page.saturating_sub(self.granule_bytes)..page + self.granule_bytes;
        self.descriptor.try_to_wake(&around)
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

/// A fault at an address, and the slot of that address.
#[derive(Clone, Copy)]
struct SlotFault<'a> {
    tables: &'a Tables,
    at: MappingSlot<'a>,
    address: usize,
}

impl SlotFault<'_> {
    /// Carries out the plan of an event. If an owner observes its mapping, records how long that took.
    fn serve(&self, event: Event) -> Result<(), Refused> {
        let at = self.at;
        match at.plan(event) {
            [] => {
                // Another thread has served the slot already.
                at.group.descriptor.wake(&at.addresses());
                Ok(())
            }
            [enter @ Action::Enter { .. }] => at.apply(*enter, None),
            // Not by `serve_event`: a signal stack has no room for its stack frames beside those of a clear. The slot
            // is not shared, so no other region makes this thread wait.
            [Action::Supply, enter] => {
                at.supply(Some(self.offset()))?;
                at.apply(*enter, None)
            }
            _ => {
                let began = Instant::now();
                let near = self.offset();
                let served = at.serve_event(event, Some(near));
                let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                for mapping in self.tables.mappings.observed() {
                    mapping.counts().longest_nanos.fetch_max(nanos, Ordering::Relaxed);
                }
                served
            }
        }
    }

    /// Returns the offset of the address in its slot.
    fn offset(&self) -> usize {
        (self.address - self.at.mapping.addresses().start) % self.at.group.granule_bytes
    }
}

/// Returns the number of the slot at an address, for [`Retries`](super::retries::Retries): the granule of the address
/// space. No region lies at granule 0.
fn number_at(group: &ForkGroup, address: usize) -> usize {
    address / group.granule_bytes
}

/// If the address lies in a hole that could not be populated, leaves it to the kernel. The kernel
/// may have memory for it now, or reports the shortage to the thread in its own way. Returns true
/// if there was a hole. From then on the folio counts as dirty.
fn leave_hole(group: &ForkGroup, address: usize, blocked: &SignalsBlocked) -> bool {
    let tables = group.gate.share(blocked);
    let Tables { mappings, frames } = &*tables;
    let Some(mapping) = mappings.at(address) else { return false };
    let guard = &SlotGuard::claim(&group.slots, mappings, mapping.slot_at(address), blocked);
    let at = MappingSlot { group, guard, mapping, frames };
    at.entry().slot == Slot::Unready(Lack::Page) && at.let_kernel_populate().is_ok()
}
