//! Carries out the actions of a slot's plan. Only here and in `in_kernel.rs`, the tables of a group and the kernel's
//! mappings change together.
//!
//! The kernel's part of an action comes first, because it can fail. The table is changed afterwards. If other
//! mappings lose the frame that they show, the order is reversed: readers of snapshots do not use the addresses, so
//! the table must change before hugekit lets a writer through.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;

use super::error::Refused;
use super::frames::{Broken, Frames, Near};
use super::group::ForkGroup;
use super::guard::SlotGuard;
use super::in_kernel::InKernel;
use super::mapping::{BLOCK, CowMapping};
use super::slot::{Action, Event, Fill, Lack, Slot};
use super::slot_table::SlotEntry;
use crate::pool::Content;
use hugekit_sys::mapping::replace;
use hugekit_sys::memory;

/// A slot of one mapping. The calling thread has the guard of the slot.
#[derive(Clone, Copy)]
pub(super) struct MappingSlot<'a> {
    pub(super) group: &'a ForkGroup,
    pub(super) guard: &'a SlotGuard<'a>,
    pub(super) mapping: &'a CowMapping,
    pub(super) frames: &'a Frames,
}

impl<'a> MappingSlot<'a> {
    pub(super) fn entry(&self) -> SlotEntry {
        self.guard.entry(self.mapping)
    }

    pub(super) fn plan(&self, event: Event) -> &'static [Action] {
        self.guard.plan(self.mapping, event)
    }

    pub(super) fn addresses(&self) -> Range<usize> {
        self.mapping.addresses_of(self.slots())
    }

    fn slots(&self) -> Range<usize> {
        self.guard.slot()..self.guard.slot() + 1
    }

    fn reserved_frame(&self) -> u64 {
        self.mapping.reserved_frame(self.guard.slot())
    }

    /// Returns the kernel's part of the mapping.
    fn in_kernel(&self) -> InKernel<'a> {
        InKernel { group: self.group, mapping: self.mapping }
    }

    fn with_mapping(&self, mapping: &'a CowMapping) -> Self {
        Self { mapping, ..*self }
    }

    /// Returns the other mappings that show the same frame.
    fn sharers(&self) -> impl Iterator<Item = Self> {
        self.guard.sharers(self.mapping).map(|mapping| self.with_mapping(mapping))
    }

    /// Carries out the plan of an event. `near` is the offset that a thread is about to access.
    pub(super) fn serve_event(&self, event: Event, near: Option<usize>) -> Result<(), Refused> {
        let plan = self.plan(event);
        for &action in plan {
            self.apply(action, near)?;
        }
        if !plan.is_empty() {
            self.join_blocks();
        }
        Ok(())
    }

    /// Carries out one action, and records it in the table.
    pub(super) fn apply(&self, action: Action, near: Option<usize>) -> Result<(), Refused> {
        let mut done = action;
        match action {
            Action::Supply => return self.supply(near),
            Action::TakeBack => self.take_back()?,
            Action::Leave => done = self.show_alone(true)?,
            Action::Enter { protected: false } => done = self.show_alone(false)?,
            Action::Enter { protected: true } => self.enter(true)?,
            Action::Remove | Action::TakeOut => remove_pages(&self.addresses())?,
            Action::DisplaceOthers => return self.displace_others(near),
            Action::TakeReserved(fill) => return self.take_reserved(fill, near),
            Action::MapInPlace => self.map_in_place()?,
            Action::Unprotect => done = self.in_kernel().open(self.frames, self.slots())?,
            Action::Protect => self.in_kernel().protect(self.slots(), true)?,
            Action::Watch | Action::ShowCopy { .. } | Action::Inherit => {}
            Action::Refuse => return Err(Refused::Broken),
        }
        self.guard.record_done(self.mapping, done);
        Ok(())
    }

    /// Clears or populates an unready frame. The bytes near the offset `near` come last.
    pub(super) fn supply(&self, near: Option<usize>) -> Result<(), Refused> {
        self.check_sound()?;
        let (SlotEntry { frame, slot }, len) =
            (self.entry(), self.frames.len_of(self.guard.slot()));
        if slot == Slot::Unready(Lack::Page) {
            self.frames.populate(frame).map_err(Refused::Unpopulated)?;
            self.group.pool.count_populated_at_fault(len);
        } else {
            self.frames.clear(frame, 0..len, near);
            self.group.pool.count_cleared_at_fault(len);
        }
        self.guard.record_done(self.mapping, Action::Supply);
        Ok(())
    }

    /// Checks that the memory of the slot has not failed. If it has, the slot is lost now, because it is about to be
    /// shown.
    fn check_sound(&self) -> Result<(), Refused> {
        let entry = self.entry();
        if !self.frames.is_broken(entry.frame) {
            return Ok(());
        }
        self.lose(entry);
        Err(Refused::Broken)
    }

    /// Makes every access to the slot a fault again, and forgets its bytes. If the kernel served the slot, it is
    /// registered before it is unmapped. Otherwise a plain fault in between would map the frame as it is.
    fn take_back(&self) -> Result<(), Refused> {
        self.group.descriptor.watch_unready(&self.addresses()).map_err(Refused::Kernel)?;
        self.guard.record_done(self.mapping, Action::Watch);
        remove_pages(&self.addresses())
    }

    /// Lets threads see a frame that only this region shows. With `by_kernel`, the kernel enters the frame by itself
    /// from now on. The kernel also does this if it can enter a huge page, because a handler could enter only base
    /// pages. Returns the action that was carried out.
    fn show_alone(&self, by_kernel: bool) -> Result<Action, Refused> {
        self.check_sound()?;
        let backing = self.group.pool.backing();
        let is_huge =
            backing.is_transparent() && self.group.granule_bytes == self.group.pool.page_size();
        let by_kernel = is_huge || by_kernel && !backing.is_reserved();
        if by_kernel && self.leave_slot().is_ok() {
            return Ok(Action::Leave);
        }
        if self.enter(false).is_ok() {
            return Ok(Action::Enter { protected: false });
        }
        // This needs no call of the descriptor.
        self.try_to_map_in_place().map(|()| Action::MapInPlace)
    }

    /// Enters the frame into the page tables.
    fn enter(&self, protected: bool) -> Result<(), Refused> {
        self.group.descriptor.enter(&self.addresses(), protected).map_err(Refused::Kernel)
    }

    /// Leaves a slot's addresses to the kernel. The mappings that this may need are not counted: a slot may be left
    /// and taken back any number of times. If the kernel has no mapping left, the call fails.
    fn leave_slot(&self) -> Result<(), Refused> {
        self.group.descriptor.unregister(&self.addresses()).map_err(Refused::Kernel)?;
        self.mapping.counts().registered.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Leaves a hole to the kernel, which will populate it with zeroes.
    pub(super) fn let_kernel_populate(&self) -> Result<(), Refused> {
        self.frames.note(self.entry().frame, Content::Dirty);
        self.leave_slot()?;
        self.guard.record_done(self.mapping, Action::Supply);
        self.guard.record_done(self.mapping, Action::Leave);
        Ok(())
    }

    /// The mapping keeps the frame. All other mappings that show it get one copy, and one of them owns the copy.
    fn displace_others(&self, near: Option<usize>) -> Result<(), Refused> {
        // This comes first, because it can fail.
        for other in self.sharers() {
            for &action in other.plan(Event::OwnerWrites) {
                other.apply(action, None)?;
            }
        }
        let Some(heir) = self.sharers().next() else { return Ok(()) };
        let copy = heir.reserved_frame();
        let near = near.map_or(Near::Neither, Near::Original);
        let copied = self.frames.copy(self.entry().frame, copy, near);
        heir.mapping.counts().received.fetch_add(1, Ordering::Relaxed);
        for (number, other) in self.sharers().enumerate() {
            let slot = other.entry().slot.after(Action::ShowCopy { owner: number == 0 });
            other.show(SlotEntry { frame: copy, slot }, copied);
        }
        self.guard.leave_ring(self.mapping);
        Ok(())
    }

    /// Fills the frame that is reserved for the mapping, and shows it. The frame is mapped later.
    fn take_reserved(&self, fill: Fill, near: Option<usize>) -> Result<(), Refused> {
        let own = self.reserved_frame();
        let near = near.map_or(Near::Neither, Near::Copy);
        let filled = match fill {
            Fill::Copy => self.frames.copy(self.entry().frame, own, near),
            // No thread sees the frame yet. It still holds the bytes of its last owner.
            Fill::Zeroes => {
                self.frames.clear(own, 0..self.frames.len_of(self.guard.slot()), None);
                Ok(())
            }
            Fill::AsIs => Ok(()),
        };
        self.guard.leave_ring(self.mapping);
        let slot = self.entry().slot.after(Action::TakeReserved(fill));
        self.show(SlotEntry { frame: own, slot }, filled);
        filled.map_err(|Broken| Refused::Broken)
    }

    /// Records that the mapping shows another frame. If that frame could not be copied, the slot is lost.
    fn show(&self, entry: SlotEntry, copied: Result<(), Broken>) {
        match copied {
            Ok(()) => self.guard.set(self.mapping, entry),
            Err(Broken) => self.lose(entry),
        }
    }

    /// Marks the slot as lost, because it could not be copied. Accesses end in SIGBUS, as for failed memory.
    pub(super) fn lose(&self, entry: SlotEntry) {
        self.guard.set(self.mapping, SlotEntry { slot: entry.slot.lost(), ..entry });
        let addresses = self.addresses();
        if !self.group.fork_support().is_some_and(|support| support.map_empty_file(&addresses)) {
            // The process has no mapping left. Accesses are then faults, which hugekit refuses.
            let _ = remove_pages(&addresses);
        }
        self.group.descriptor.wake(&addresses);
    }

    /// Maps the mapping's own frame at the slot's addresses. No other mapping shows this frame.
    fn map_in_place(&self) -> Result<(), Refused> {
        self.try_to_map_in_place().inspect_err(|_| self.remove_displaced())
    }

    /// If the slot is displaced, removes the old frame from the page tables, because its owner may write to it.
    pub(super) fn remove_displaced(&self) {
        let slot = self.entry().slot;
        if slot.is_displaced() && slot.may_be_entered() {
            let _ = self.apply(Action::Remove, None);
        }
    }

    fn try_to_map_in_place(&self) -> Result<(), Refused> {
        let cost =
            self.mapping.cost_of(self.guard.slot(), !self.group.pool.backing().is_reserved());
        self.in_kernel().map_slots(self.slots(), self.frames.offset(self.entry().frame), cost)
    }

    /// Sets a part of the slot to zero, for this region only.
    pub(super) fn release(&self, part: Range<usize>, at_once: bool) -> Result<(), Refused> {
        let is_whole = part.len() == self.frames.len_of(self.guard.slot());
        let may_wait = is_whole && !at_once && self.group.clears_at_fault();
        if may_wait && self.entry().slot.is_exclusive() {
            // If the kernel refuses, the slot is cleared now.
            let _ = self.serve_event(Event::TakeBack, None);
        }
        if self.entry().slot.is_unready() {
            return Ok(()); // All of it reads as zeroes.
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

    /// Joins the slot and its neighbours to one mapping, if the kernel does not do so itself. A block is joined when
    /// all of its slots are the region's own, so each slot is mapped anew only a few times. No thread changes such
    /// slots while the gate is shared. Other threads may write to them.
    pub(super) fn join_blocks(&self) {
        if !self.group.pool.backing().is_reserved() || !self.entry().slot.is_in_place() {
            return;
        }
        for (block, joined) in self.mapping.blocks_of(self.guard.slot()) {
            let index = block.start / block.len();
            if joined.get(index) {
                continue;
            }
            let whole = self.mapping.is_run_of_its_own(block.clone());
            if !whole || !joined.set(index) || self.remap(block).is_err() {
                return;
            }
            let saved = BLOCK as isize - 1;
            self.group.budget.refund(saved);
            self.mapping.counts().vmas.fetch_sub(saved, Ordering::Relaxed);
        }
    }

    /// Maps a run of frames anew, as one mapping of the kernel.
    fn remap(&self, slots: Range<usize>) -> Result<(), Refused> {
        let memory = self.group.pool.memory();
        let addresses = self.mapping.addresses_of(slots.clone());
        let offset = self.frames.offset(self.mapping.entry(slots.start).frame);
        // SAFETY: addresses of the region; the frames are what it showed there already, and no other thread has them.
        unsafe { replace(memory.file(), offset, &addresses, memory.in_core_dumps()) }
            .map_err(Refused::Kernel)?;
        self.mapping.counts().registered.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Removes addresses from the page tables: every access there is then a fault that hugekit serves.
pub(super) fn remove_pages(addresses: &Range<usize>) -> Result<(), Refused> {
    let start = ptr::with_exposed_provenance_mut(addresses.start);
    // SAFETY: addresses of a region, whose accesses wait for us from then on.
    unsafe { memory::unmap_pages(start, addresses.len()) }.map_err(Refused::Kernel)
}
