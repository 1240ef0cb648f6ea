//! The actions of a slot's plan, carried out: here alone a group's tables and the kernel's change together.
//!
//! Of each action the kernel's part comes first, because it can fail, and the table says afterwards what is. Where
//! others lose what they show, it is the other way round: the tables of those who read past their addresses
//! must tell of it before any writer is let through.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::entry::Entry;
use super::frames::{Broken, Frames, Near};
use super::group::{ForkGroup, Sharing};
use super::guard::SlotGuard;
use super::hold::Hold;
use super::mapping::{BLOCK, CowMapping};
use super::refused::Refused;
use super::slot::{Action, Event, Fill, Lack, Slot};
use crate::fault;
use crate::pool::{Backing, Content};
use hugekit_sys::mapping::{replace, replace_by_nothing, set_writable};
use hugekit_sys::pagemap::PageMap;
use hugekit_sys::{memory, userfaultfd};

/// So often huge pages are protected that others map again at that moment.
const TRIES: u32 = 1000;

/// A mapping at a slot that this thread has, and where frames are.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) guard: &'a SlotGuard<'a>,
    pub(super) mapping: &'a CowMapping,
    pub(super) frames: &'a Frames,
}

impl<'a> At<'a> {
    pub(super) fn entry(&self) -> Entry {
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

    fn with_mapping(&self, mapping: &'a CowMapping) -> Self {
        Self { mapping, ..*self }
    }

    /// Of the other mappings that show the same frame.
    fn sharers(&self) -> impl Iterator<Item = Self> {
        self.guard.sharers(self.mapping).map(|mapping| self.with_mapping(mapping))
    }
}

impl ForkGroup {
    /// Does all that an event takes. `near` is the offset that a thread is about to access.
    pub(super) fn serve_event(
        &self,
        at: At<'_>,
        event: Event,
        near: Option<usize>,
    ) -> Result<(), Refused> {
        let plan = at.plan(event);
        for &action in plan {
            self.apply(at, action, near)?;
        }
        if !plan.is_empty() {
            self.join_blocks(at);
        }
        Ok(())
    }

    /// Carries out one action, after which the table says that it is done.
    pub(super) fn apply(
        &self,
        at: At<'_>,
        action: Action,
        near: Option<usize>,
    ) -> Result<(), Refused> {
        let mut done = action;
        match action {
            Action::Supply => return self.supply(at, near),
            Action::TakeBack => self.take_back(at)?,
            Action::Leave => done = self.show_alone(at, true)?,
            Action::Enter { protected: false } => done = self.show_alone(at, false)?,
            Action::Enter { protected: true } => self.enter_pages(&at.addresses(), true)?,
            Action::Remove | Action::TakeOut => remove_pages(&at.addresses())?,
            Action::DisplaceOthers => return self.displace_others(at, near),
            Action::TakeReserved(fill) => return self.take_reserved(at, fill, near),
            Action::MapInPlace => self.map_in_place(at)?,
            Action::Unprotect => done = self.open(at.mapping, at.frames, at.slots())?,
            Action::Protect => self.protect(at.mapping, at.slots(), true)?,
            Action::Watch | Action::ShowCopy { .. } | Action::Inherit => {}
            Action::Refuse => return Err(Refused::Broken),
        }
        at.guard.record_done(at.mapping, done);
        Ok(())
    }

    /// Gives an unready frame what it lacks, near the offset `near` last.
    pub(super) fn supply(&self, at: At<'_>, near: Option<usize>) -> Result<(), Refused> {
        self.check_sound(at)?;
        let (Entry { frame, slot }, len) = (at.entry(), at.frames.len_of(at.guard.slot()));
        if slot == Slot::Unready(Lack::Page) {
            at.frames.populate(frame).map_err(Refused::Unpopulated)?;
            self.pool.count_populated_at_fault(len);
        } else {
            at.frames.clear(frame, 0..len, near);
            self.pool.count_cleared_at_fault(len);
        }
        at.guard.record_done(at.mapping, Action::Supply);
        Ok(())
    }

    /// A slot whose memory is known to have failed is lost as soon as it is to be shown once more.
    fn check_sound(&self, at: At<'_>) -> Result<(), Refused> {
        let entry = at.entry();
        if !at.frames.is_broken(entry.frame) {
            return Ok(());
        }
        self.lose(at, entry);
        Err(Refused::Broken)
    }

    /// Has every access to a slot come to us, and forgets its bytes. What was left to the kernel must be ours before
    /// it is unmapped: a plain fault in between would show it as it is.
    fn take_back(&self, at: At<'_>) -> Result<(), Refused> {
        self.watch_unready(&at.addresses()).map_err(Refused::Kernel)?;
        at.guard.record_done(at.mapping, Action::Watch);
        remove_pages(&at.addresses())
    }

    /// Lets threads see a frame that only this region shows. The kernel enters it by itself from then on if that is
    /// wanted, and where it can enter a huge page, of which a handler would make base pages. What was done.
    fn show_alone(&self, at: At<'_>, by_kernel: bool) -> Result<Action, Refused> {
        self.check_sound(at)?;
        let backing = self.pool.backing();
        let is_huge = backing == Backing::Thp && self.granule_bytes == self.pool.page_size();
        let by_kernel = is_huge || by_kernel && !backing.is_reserved();
        if by_kernel && self.leave_slot(at).is_ok() {
            return Ok(Action::Leave);
        }
        if self.enter_pages(&at.addresses(), false).is_ok() {
            return Ok(Action::Enter { protected: false });
        }
        // Nothing of the descriptor is asked for this.
        self.try_to_map_in_place(at).map(|()| Action::MapInPlace)
    }

    /// Leaves a slot's addresses to the kernel. The mappings that this may cost are not counted: a slot may be left
    /// and taken back any number of times, and where the kernel has none left, it says so.
    fn leave_slot(&self, at: At<'_>) -> Result<(), Refused> {
        userfaultfd::unregister(self.descriptor.as_fd(), &at.addresses())
            .map_err(Refused::Kernel)?;
        at.mapping.counts().registered.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Leaves a hole to the kernel, which puts zeroes there.
    pub(super) fn let_kernel_populate(&self, at: At<'_>) -> Result<(), Refused> {
        at.frames.note(at.entry().frame, Content::Dirty);
        self.leave_slot(at)?;
        at.guard.record_done(at.mapping, Action::Supply);
        at.guard.record_done(at.mapping, Action::Leave);
        Ok(())
    }

    /// Lets writes through to slots of a run that [`run_to_open`](Self::run_to_open) has found. What was done.
    pub(super) fn open(
        &self,
        mapping: &CowMapping,
        frames: &Frames,
        slots: Range<usize>,
    ) -> Result<Action, Refused> {
        // A call that fails may have let writes through to some of them.
        slots.clone().for_each(|slot| mapping.unwritten.clear(slot));
        if self.hold() == Hold::Removal {
            let cost = mapping.cost_to_open(slots.clone());
            let first = mapping.entry(slots.start).frame;
            // By base pages, where that cannot be.
            if self.map_slots(mapping, slots.clone(), frames.offset(first), cost).is_ok() {
                return Ok(Action::MapInPlace);
            }
        }
        self.protect(mapping, slots, false).map(|()| Action::Unprotect)
    }

    /// How many of these held-back slots one call opens.
    pub(super) fn run_to_open(&self, mapping: &CowMapping, slots: Range<usize>) -> usize {
        match self.hold() {
            Hold::Marks => slots.len(),
            Hold::Rights | Hold::Removal => mapping.run_alike(slots),
        }
    }

    /// Holds back writes to slots that are all in place, or none, or lets them through.
    pub(super) fn protect(
        &self,
        mapping: &CowMapping,
        slots: Range<usize>,
        on: bool,
    ) -> Result<(), Refused> {
        if self.is_by_rights(mapping, slots.start) {
            return self.set_rights(mapping, slots, !on);
        }
        let addresses = mapping.addresses_of(slots);
        for _ in 0..TRIES {
            userfaultfd::protect(self.descriptor.as_fd(), &addresses, on)
                .map_err(Refused::Kernel)?;
            if !on || self.are_marked(&addresses) {
                return Ok(());
            }
        }
        Err(Refused::Kernel(Errno::AGAIN))
    }

    /// Whether what holds writes of a slot back are the rights of its mapping.
    pub(super) fn is_by_rights(&self, mapping: &CowMapping, slot: usize) -> bool {
        self.hold() == Hold::Rights && mapping.is_in_place(slot)
    }

    /// Whether marks are where they were asked for. Kernels whose page map has to be read, before 6.7, may leave a
    /// huge page of shared memory out that another thread maps again while it is taken apart (seen with 6.1).
    fn are_marked(&self, addresses: &Range<usize>) -> bool {
        match self.sharing().and_then(|sharing| sharing.pagemap.as_ref()) {
            Some(map @ PageMap::Read(_)) if self.pool.backing() == Backing::Thp => {
                map.probe_protected(addresses) == Ok(true)
            }
            _ => true,
        }
    }

    /// What it costs to hold back writes is counted afterwards, of the whole region.
    fn set_rights(
        &self,
        mapping: &CowMapping,
        slots: Range<usize>,
        writable: bool,
    ) -> Result<(), Refused> {
        let addresses = mapping.addresses_of(slots.clone());
        let cost = if writable { mapping.cost_to_open(slots) } else { 0 };
        if !self.budget.spend(cost) {
            return Err(Refused::Mappings);
        }
        // SAFETY: addresses of the region; its threads may write what it alone shows, and their other writes are
        // served.
        unsafe { set_writable(&addresses, writable) }.map_err(|errno| {
            self.budget.refund(cost);
            if errno == Errno::NOMEM { Refused::Mappings } else { Refused::Kernel(errno) }
        })?;
        mapping.counts().vmas.fetch_add(cost, Ordering::Relaxed);
        Ok(())
    }

    /// Enters into the page tables what the file has.
    fn enter_pages(&self, addresses: &Range<usize>, protected: bool) -> Result<(), Refused> {
        fault::show(self.descriptor.as_fd(), addresses, self.pool.backing(), protected)
            .map_err(Refused::Kernel)?;
        self.wake(addresses);
        Ok(())
    }

    /// The frame stays the mapping's; of the others one owns the copy that the rest of them share.
    fn displace_others(&self, at: At<'_>, near: Option<usize>) -> Result<(), Refused> {
        // First, because it can fail.
        for other in at.sharers() {
            for &action in other.plan(Event::OwnerWrites) {
                self.apply(other, action, None)?;
            }
        }
        let Some(heir) = at.sharers().next() else { return Ok(()) };
        let copy = heir.reserved_frame();
        let near = near.map_or(Near::Neither, Near::Original);
        let copied = at.frames.copy(at.entry().frame, copy, near);
        heir.mapping.counts().received.fetch_add(1, Ordering::Relaxed);
        for (number, other) in at.sharers().enumerate() {
            let slot = other.entry().slot.after(Action::ShowCopy { owner: number == 0 });
            self.show(other, Entry { frame: copy, slot }, copied);
        }
        at.guard.leave_ring(at.mapping);
        Ok(())
    }

    /// The mapping shows the frame that was reserved for it, once that is mapped.
    fn take_reserved(&self, at: At<'_>, fill: Fill, near: Option<usize>) -> Result<(), Refused> {
        let own = at.reserved_frame();
        let near = near.map_or(Near::Neither, Near::Copy);
        let filled = match fill {
            Fill::Copy => at.frames.copy(at.entry().frame, own, near),
            // Before any thread can look: the pool's memory holds what its last owner left there.
            Fill::Zeroes => {
                at.frames.clear(own, 0..at.frames.len_of(at.guard.slot()), None);
                Ok(())
            }
            Fill::AsIs => Ok(()),
        };
        at.guard.leave_ring(at.mapping);
        let slot = at.entry().slot.after(Action::TakeReserved(fill));
        self.show(at, Entry { frame: own, slot }, filled);
        filled.map_err(|Broken| Refused::Broken)
    }

    /// The mapping shows another frame from now on, or has lost the slot if that could not be copied.
    fn show(&self, at: At<'_>, entry: Entry, copied: Result<(), Broken>) {
        match copied {
            Ok(()) => at.guard.set(at.mapping, entry),
            Err(Broken) => self.lose(at, entry),
        }
    }

    /// The mapping's slot could not be copied: accesses are answered as those to failed memory are, by SIGBUS.
    pub(super) fn lose(&self, at: At<'_>, entry: Entry) {
        at.guard.set(at.mapping, Entry { slot: entry.slot.lost(), ..entry });
        let addresses = at.addresses();
        if !self.map_nothing(&addresses) {
            // No mapping is left: accesses come to us, and are refused.
            let _ = remove_pages(&addresses);
        }
        self.wake(&addresses);
    }

    /// Has the kernel answer accesses to addresses by SIGBUS; whether it does.
    pub(super) fn map_nothing(&self, addresses: &Range<usize>) -> bool {
        let map = |sharing: &Sharing| {
            // SAFETY: addresses of a region, of which the table says that their bytes are lost.
            unsafe { replace_by_nothing(&sharing.nothing, addresses) }.is_ok()
        };
        self.sharing().is_some_and(map)
    }

    /// Maps at a slot's addresses the frame that is the mapping's own and that no other shows.
    fn map_in_place(&self, at: At<'_>) -> Result<(), Refused> {
        self.try_to_map_in_place(at).inspect_err(|_| self.remove_displaced(at))
    }

    /// What the region does not show any more, and could not be replaced, is another's, whose owner may write it.
    pub(super) fn remove_displaced(&self, at: At<'_>) {
        let slot = at.entry().slot;
        if slot.is_displaced() && slot.may_be_entered() {
            let _ = self.apply(at, Action::Remove, None);
        }
    }

    fn try_to_map_in_place(&self, at: At<'_>) -> Result<(), Refused> {
        let cost = at.mapping.cost_of(at.guard.slot(), !self.pool.backing().is_reserved());
        self.map_slots(at.mapping, at.slots(), at.frames.offset(at.entry().frame), cost)
    }

    /// Maps slots anew, which show frames of the mapping's own that follow each other.
    fn map_slots(
        &self,
        mapping: &CowMapping,
        slots: Range<usize>,
        offset: u64,
        cost: isize,
    ) -> Result<(), Refused> {
        if !self.budget.spend(cost) {
            return Err(Refused::Mappings);
        }
        let (memory, addresses) = (self.pool.memory(), mapping.addresses_of(slots));
        // SAFETY: addresses of the region; its user expects what the frame holds, and no other thread has it.
        let replaced =
            unsafe { replace(memory.file(), offset, &addresses, memory.in_core_dumps()) };
        if let Err(errno) = replaced {
            self.budget.refund(cost);
            let is_mappings = errno == Errno::NOMEM;
            return Err(if is_mappings { Refused::Mappings } else { Refused::Kernel(errno) });
        }
        mapping.counts().vmas.fetch_add(cost, Ordering::Relaxed);
        mapping.counts().registered.store(false, Ordering::Relaxed);
        self.wake(&addresses);
        Ok(())
    }

    /// Makes one mapping of a slot and its neighbours, where the kernel does not: a block as soon as all of
    /// it is the region's own, so that each slot is mapped anew a few times at most. No thread changes such
    /// slots as long as the gate is shared; that others are writing there does not matter.
    pub(super) fn join_blocks(&self, at: At<'_>) {
        if !self.pool.backing().is_reserved() || !at.entry().slot.is_in_place() {
            return;
        }
        for (block, joined) in at.mapping.blocks_of(at.guard.slot()) {
            let index = block.start / block.len();
            if joined.get(index) {
                continue;
            }
            let whole = at.mapping.is_run_of_its_own(block.clone());
            if !whole || !joined.set(index) || self.remap(at, block).is_err() {
                return;
            }
            let saved = BLOCK as isize - 1;
            self.budget.refund(saved);
            at.mapping.counts().vmas.fetch_sub(saved, Ordering::Relaxed);
        }
    }

    /// Maps a run of frames anew, as one mapping.
    fn remap(&self, at: At<'_>, slots: Range<usize>) -> Result<(), Refused> {
        let memory = self.pool.memory();
        let addresses = at.mapping.addresses_of(slots.clone());
        let offset = at.frames.offset(at.mapping.entry(slots.start).frame);
        // SAFETY: addresses of the region; the frames are what it showed there already, and no other thread has them.
        unsafe { replace(memory.file(), offset, &addresses, memory.in_core_dumps()) }
            .map_err(Refused::Kernel)?;
        at.mapping.counts().registered.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Has those threads go on that wait for one of the addresses: a thread that finds something mapped, or maps it
    /// anew, does not wake them.
    pub(super) fn wake(&self, addresses: &Range<usize>) {
        if !self.is_in_place() {
            let woken = userfaultfd::wake(self.descriptor.as_fd(), addresses);
            if woken.is_err() {
                self.unwoken.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Takes addresses out of the page tables: every access there comes to us.
pub(super) fn remove_pages(addresses: &Range<usize>) -> Result<(), Refused> {
    let start = ptr::with_exposed_provenance_mut(addresses.start);
    // SAFETY: addresses of a region, whose accesses wait for us from then on.
    unsafe { memory::unmap_pages(start, addresses.len()) }.map_err(Refused::Kernel)
}
