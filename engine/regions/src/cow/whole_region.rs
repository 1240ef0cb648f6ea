//! Makes a whole region exclusive, or closes it if that is not possible. The thread has exclusive access to the gate.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::io;

use super::apply::MappingSlot;
use super::error::Refused;
use super::frames::Frames;
use super::group::ForkGroup;
use super::guard::{Alone, SlotGuard};
use super::in_kernel::InKernel;
use super::mapping::CowMapping;
use super::slot::{Action, Event, Lack, Presence, Slot};
use super::slot_table::{MappingId, SlotEntry};
use super::tables::Tables;
use crate::pool::Content;
use hugekit_sys::mapping::{forbid, replace_all};
use hugekit_sys::thread::SignalsBlocked;

/// A whole region. The thread has exclusive access to the gate.
#[derive(Clone, Copy)]
pub(super) struct WholeRegion<'a> {
    pub(super) group: &'a ForkGroup,
    pub(super) alone: Alone<'a>,
    pub(super) frames: &'a Frames,
    pub(super) mapping: &'a CowMapping,
}

impl<'a> WholeRegion<'a> {
    pub(super) fn new(group: &'a ForkGroup, tables: &'a mut Tables, id: MappingId) -> Self {
        let Tables { mappings, frames } = tables;
        let alone = mappings.alone();
        Self { group, alone, frames, mapping: alone.mappings().get(id) }
    }

    /// Returns the `index`th mapping of the group, by address.
    fn nth(group: &'a ForkGroup, tables: &'a mut Tables, index: usize) -> Self {
        let id = tables.mappings.nth(index);
        Self::new(group, tables, id)
    }

    /// Returns the slot of this guard.
    pub(super) fn at<'b>(&'b self, guard: &'b SlotGuard<'b>) -> MappingSlot<'b> {
        MappingSlot { group: self.group, guard, mapping: self.mapping, frames: self.frames }
    }

    pub(super) fn in_kernel(&self) -> InKernel<'a> {
        InKernel { group: self.group, mapping: self.mapping }
    }

    /// Makes all of the region exclusive, with as few of the kernel's mappings as its frames allow.
    pub(super) fn make_exclusive(&self) -> Result<(), Refused> {
        let Self { alone, mapping, .. } = *self;
        let slots = mapping.slots();
        for slot in 0..slots {
            let guard = alone.slot(slot);
            if guard.entry(mapping).slot.is_unready() {
                continue; // It maps its own frame, which no other region shows.
            }
            match self.at(&guard).serve_event(Event::Separate, None) {
                // The slot is lost, and mapped as a lost one.
                Err(Refused::Broken) => {}
                separated => separated?,
            }
        }
        let (mut slot, mut runs) = (0, 0);
        while slot < slots {
            let is_mapped = |slot: Slot| !slot.is_lost() && !slot.is_unready();
            let run = mapping.table.run_of(slot..slots, |entry| is_mapped(entry.slot)).max(1);
            let entry = mapping.entry(slot);
            if is_mapped(entry.slot) {
                self.map_run(slot..slot + run, entry.frame)?;
                for slot in slot..slot + run {
                    alone.slot(slot).record_done(mapping, Action::MapInPlace);
                }
            }
            (slot, runs) = (slot + run, runs + 1);
        }
        self.group.count_vmas(mapping, runs - 1);
        Ok(())
    }

    /// Maps slots permanently, as one run that begins with a frame. No other region shows them. The caller changes
    /// the table.
    pub(super) fn map_run(&self, slots: Range<usize>, first: u64) -> Result<(), Refused> {
        let (memory, addresses) =
            (self.group.pool.memory(), self.mapping.addresses_of(slots.clone()));
        let offset = self.frames.offset(first);
        // SAFETY: addresses of the region; its user expects what the frames hold, and no other thread has them.
        let mapped =
            unsafe { replace_all(memory.file(), offset, &addresses, memory.in_core_dumps()) };
        if let Err(errno) = mapped {
            slots.for_each(|slot| self.at(&self.alone.slot(slot)).remove_displaced());
            return Err(Refused::Kernel(errno));
        }
        self.mapping.counts().registered.store(false, Ordering::Relaxed);
        self.group.descriptor.wake(&addresses);
        Ok(())
    }

    /// Makes all of the region ready, because from now on the kernel alone serves its faults. The kernel populates
    /// holes.
    pub(super) fn supply_all(&self) {
        for slot in 0..self.mapping.slots() {
            let guard = self.alone.slot(slot);
            let at = self.at(&guard);
            match at.entry().slot {
                Slot::Unready(Lack::Page) => {
                    self.frames.note(at.entry().frame, Content::Dirty);
                    guard.record_done(self.mapping, Action::Supply);
                }
                // A slot whose memory has failed is lost, and the table says so.
                Slot::Unready(Lack::Clear) => drop(at.apply(Action::Supply, None)),
                _ => {}
            }
        }
    }

    /// Leaves the region to the kernel if its addresses map only frames that no other region shows.
    /// It can then be written freely. Returns true if it is such a region.
    pub(super) fn leave_if_own(&self) -> bool {
        let (slots, mapping) = (0..self.mapping.slots(), self.mapping);
        let is_own = slots.clone().all(|slot| {
            let guard = self.alone.slot(slot);
            guard.entry(mapping).slot.maps_its_own() && !guard.is_shared(mapping)
        });
        for slot in slots.filter(|_| is_own) {
            let guard = self.alone.slot(slot);
            let slot = Slot::Exclusive(Presence::InPlace);
            guard.set(mapping, SlotEntry { slot, ..guard.entry(mapping) });
        }
        is_own
    }

    /// Closes the region: every access ends permanently in SIGBUS, or in SIGSEGV if nothing can be mapped. If the
    /// kernel refuses that, too, the process ends, because a write would reach shared memory.
    fn close(&self) {
        for slot in 0..self.mapping.slots() {
            let guard = self.alone.slot(slot);
            let entry = guard.entry(self.mapping);
            guard.set(self.mapping, SlotEntry { slot: entry.slot.lost(), ..entry });
        }
        let addresses = self.mapping.addresses();
        let is_mapped =
            self.group.fork_support().is_some_and(|support| support.map_empty_file(&addresses));
        // SAFETY: addresses of the region, of which the table says that their bytes are lost.
        if !is_mapped && unsafe { forbid(&addresses) }.is_err() {
            std::process::abort();
        }
    }
}

/// Clears slots that are not ready, copies shared slots, and closes slots that cannot be copied: accesses there end in
/// a signal. From then on, the kernel alone serves the group's faults.
pub(super) fn leave_to_kernel(group: &ForkGroup, blocked: &SignalsBlocked) -> io::Result<()> {
    let mut tables = group.gate.alone(blocked);
    group.unserved.store(true, Ordering::SeqCst);
    for index in 0..tables.mappings.present() {
        WholeRegion::nth(group, &mut tables, index).supply_all();
    }
    // In the first round, other regions may keep a region from being made exclusive. After they have become exclusive
    // themselves, the second round succeeds.
    for last in [false, true] {
        for index in 0..tables.mappings.present() {
            let region = WholeRegion::nth(group, &mut tables, index);
            // If nothing was ever shared, nothing is held back, and nothing has to be mapped anew.
            if !group.is_shared() && region.leave_if_own() {
                continue;
            }
            let is_left = region.make_exclusive().is_ok();
            if !is_left && last && !region.leave_if_own() {
                region.close();
            }
        }
    }
    let mut left = Ok(());
    for mapping in tables.mappings.iter() {
        left = left.and(group.descriptor.unregister(&mapping.addresses()));
    }
    left
}
