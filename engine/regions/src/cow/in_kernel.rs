//! The kernel's part of one mapping: lets writes through, holds them back, and maps frames.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::error::Refused;
use super::fork_support::Protection;
use super::frames::Frames;
use super::group::ForkGroup;
use super::mapping::CowMapping;
use super::slot::Action;
use hugekit_sys::mapping::{replace, set_writable};
use hugekit_sys::pagemap::PageMap;

/// The most attempts to protect huge pages that other threads map again at the same moment.
const TRIES: u32 = 1000;

/// A mapping of a group, in the kernel. The caller has the guards of the slots, or exclusive access to the gate.
#[derive(Clone, Copy)]
pub(super) struct InKernel<'a> {
    pub(super) group: &'a ForkGroup,
    pub(super) mapping: &'a CowMapping,
}

impl InKernel<'_> {
    /// Lets writes through to slots of a run that [`run_to_open`](Self::run_to_open) has found. Returns the action
    /// that was carried out.
    pub(super) fn open(&self, frames: &Frames, slots: Range<usize>) -> Result<Action, Refused> {
        // A failed call may have let writes through to some of the slots.
        slots.clone().for_each(|slot| self.mapping.unwritten.clear(slot));
        if self.group.protection() == Protection::Removal {
            let cost = self.mapping.cost_to_open(slots.clone());
            let first = self.mapping.entry(slots.start).frame;
            // If the frames cannot be mapped, base pages are opened below.
            if self.map_slots(slots.clone(), frames.offset(first), cost).is_ok() {
                return Ok(Action::MapInPlace);
            }
        }
        self.protect(slots, false).map(|()| Action::Unprotect)
    }

    /// Returns how many of these held-back slots one call opens.
    pub(super) fn run_to_open(&self, slots: Range<usize>) -> usize {
        match self.group.protection() {
            Protection::Marks => slots.len(),
            Protection::Rights | Protection::Removal => self.mapping.run_alike(slots),
        }
    }

    /// Holds back writes to slots, or lets them through. Either all of these slots are in place, or none is.
    pub(super) fn protect(&self, slots: Range<usize>, on: bool) -> Result<(), Refused> {
        if self.is_by_rights(slots.start) {
            return self.set_rights(slots, !on);
        }
        let addresses = self.mapping.addresses_of(slots);
        for _ in 0..TRIES {
            if let Err(errno) = self.group.descriptor.protect(&addresses, on) {
                // The kernel marks one mapping after the other, and leaves the marks on those before the mapping that
                // it refuses. The table does not change for their slots, and a write to a marked page of such a slot
                // would fault for ever.
                if on {
                    let _ = self.group.descriptor.protect(&addresses, false);
                }
                return Err(Refused::Kernel(errno));
            }
            if !on || self.are_marked(&addresses) {
                return Ok(());
            }
        }
        Err(Refused::Kernel(Errno::AGAIN))
    }

    /// Returns true if the rights of the mapping hold back writes to a slot.
    pub(super) fn is_by_rights(&self, slot: usize) -> bool {
        self.group.protection() == Protection::Rights && self.mapping.is_in_place(slot)
    }

    /// Returns true if all pages have marks. Kernels without `PAGEMAP_SCAN`, before 6.7, may leave
    /// out a huge page of shared memory that another thread maps again while the kernel splits it
    /// (seen with 6.1).
    fn are_marked(&self, addresses: &Range<usize>) -> bool {
        match self.group.fork_support().and_then(|support| support.pagemap.as_ref()) {
            Some(map @ PageMap::Read(_)) if self.group.pool.backing().is_transparent() => {
                map.probe_protected(addresses) == Ok(true)
            }
            _ => true,
        }
    }

    /// Sets the rights of slots. The cost of holding back writes is counted later, for the whole region.
    fn set_rights(&self, slots: Range<usize>, writable: bool) -> Result<(), Refused> {
        let addresses = self.mapping.addresses_of(slots.clone());
        let cost = if writable { self.mapping.cost_to_open(slots) } else { 0 };
        if !self.group.budget.spend(cost) {
            return Err(Refused::Mappings);
        }
        // SAFETY: addresses of the region; its threads may write what it alone shows, and their other writes are
        // served.
        unsafe { set_writable(&addresses, writable) }.map_err(|errno| {
            self.group.budget.refund(cost);
            if errno == Errno::NOMEM { Refused::Mappings } else { Refused::Kernel(errno) }
        })?;
        self.mapping.counts().vmas.fetch_add(cost, Ordering::Relaxed);
        Ok(())
    }

    /// Maps slots anew. They show successive frames of the mapping's own.
    pub(super) fn map_slots(
        &self,
        slots: Range<usize>,
        offset: u64,
        cost: isize,
    ) -> Result<(), Refused> {
        if !self.group.budget.spend(cost) {
            return Err(Refused::Mappings);
        }
        let (memory, addresses) = (self.group.pool.memory(), self.mapping.addresses_of(slots));
        // SAFETY: addresses of the region; its user expects what the frame holds, and no other thread has it.
        let replaced =
            unsafe { replace(memory.file(), offset, &addresses, memory.in_core_dumps()) };
        if let Err(errno) = replaced {
            self.group.budget.refund(cost);
            let is_mappings = errno == Errno::NOMEM;
            return Err(if is_mappings { Refused::Mappings } else { Refused::Kernel(errno) });
        }
        self.mapping.counts().vmas.fetch_add(cost, Ordering::Relaxed);
        self.mapping.counts().registered.store(false, Ordering::Relaxed);
        self.group.descriptor.wake(&addresses);
        Ok(())
    }
}
