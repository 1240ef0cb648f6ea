//! Faults of a family: who is shown what he shares, and who is given a copy.
//!
//! All of this runs in signal handlers too. The thread that is at a slot shares the gate and has the slot, of all
//! regions of the family, to himself; he decides from the tables alone, because what the kernel reports may
//! be out of date by then.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::{self, Errno};
use rustix::param::page_size;

use super::family::{Family, Membership, State};
use super::frames::{Broken, Near};
use super::member::{BLOCK, Member};
use crate::fault::{Access, Faults, show};
use crate::parallel::{Job, JobError, Progress, Report, Threads};
use crate::pool::Content;
use crate::populate::PopulateError;
use crate::sync::Claim;
use crate::sys::mapping::{forbid, replace, replace_all, replace_by_nothing};
use crate::sys::thread::without_signals;
use crate::sys::{memory, userfaultfd};

/// Slots that a thread has at a time that does not serve a fault.
pub(super) const TOGETHER: usize = 32;

/// Why a slot could not be given what it needs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// It would cost more mappings than there are for forks, or than the process has.
    Mappings,
    /// Its memory has failed.
    Broken,
    Kernel(Errno),
}

impl From<Refused> for PopulateError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Mappings | Refused::Kernel(Errno::NOMEM) => Self::OutOfMemory,
            Refused::Broken => Self::Poisoned,
            Refused::Kernel(errno) => Self::Kernel(std::io::Error::from(errno).kind()),
        }
    }
}

impl Faults for Family {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn serve(&self, address: usize, access: Access) -> Result<(), PopulateError> {
        let served = self.at_slot(address, |state, member, slot| {
            let entry = member.table.get(slot);
            let is_write = match access {
                Access::Read => false,
                Access::Write => true,
                Access::Unknown => entry.is_accessed(),
            };
            // What is mapped elsewhere is moved for good: only what is one region's alone can be, because
            // others may access it the moment it is there.
            if is_write && !entry.is_writable() || member.stale.get(slot) {
                let target = (address - member.addresses().start) % self.granule_bytes;
                let began = Instant::now();
                let own = self.make_own(state, member, slot, Some(target));
                let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                for member in state.members() {
                    member.counts().longest_nanos.fetch_max(nanos, Ordering::Relaxed);
                }
                own
            } else {
                self.show(member, slot)
            }
        });
        served?;
        if self.unwoken.swap(false, Ordering::Relaxed) {
            return Err(PopulateError::Kernel(std::io::ErrorKind::PermissionDenied));
        }
        self.patience.is_served(self.number_at(address));
        Ok(())
    }

    /// The thread that waits there tries again, and meets the same trouble until it is over, or there is no patience
    /// left.
    fn leave(&self, address: usize) -> io::Result<()> {
        if !self.patience.bears_refusal_of(self.number_at(address)) {
            return Err(Errno::PERM);
        }
        rustix::thread::sched_yield();
        let page = address - address % page_size();
        // Others wait for the same slot, wherever it begins.
        let around = page.saturating_sub(self.granule_bytes)..page + self.granule_bytes;
        userfaultfd::wake(self.descriptor.as_fd(), &around)
    }

    /// Copies all that is shared, and closes what cannot be copied: accesses there end in a signal.
    fn give_up(&self) -> io::Result<()> {
        let state = self.gate.alone();
        self.unserved.store(true, Ordering::SeqCst);
        // Whom others keep from being copied can be once these are.
        for last in [false, true] {
            for member in state.members() {
                if self.complete(&state, member).is_err() && last {
                    self.close_unless_own(&state, member);
                }
            }
        }
        let mut left = Ok(());
        for member in state.members() {
            let unregistered =
                userfaultfd::unregister(self.descriptor.as_fd(), &member.addresses());
            left = left.and(unregistered);
        }
        left
    }

    fn break_(&self, address: usize) {
        let state = self.gate.share();
        if let Some(member) = state.at(address) {
            let frame = member.table.get(member.slot_at(address)).frame();
            state.frames.note(frame, Content::Broken);
        }
    }
}

impl Family {
    /// That of the slot at an address, for [`Patience`](super::patience::Patience): granules of the address space
    /// do, and no region lies at the first.
    fn number_at(&self, address: usize) -> usize {
        address / self.granule_bytes
    }

    /// Does something about the slot that has an address, and about all of its region if the kernel refuses that:
    /// to map all of it anew takes fewer mappings in the end, and nothing of the descriptor, of which a system-call
    /// filter may refuse everything. Nothing if no region has the address any more.
    fn at_slot(
        &self,
        address: usize,
        act: impl Fn(&State, &Member, usize) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        {
            let state = self.gate.share();
            let Some(member) = state.at(address) else { return Ok(()) };
            let slot = member.slot_at(address);
            let _busy = self.slots.claim(slot);
            if act(&state, member, slot).is_ok() {
                return Ok(());
            }
        }
        self.once_complete(address, |state, member| act(state, member, member.slot_at(address)))
    }

    /// As [`at_slot`](Self::at_slot), for [`TOGETHER`] slots at most of the region at an address.
    fn at_slots(
        &self,
        address: usize,
        slots: Range<usize>,
        act: impl Fn(&State, &Member, Range<usize>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        {
            let state = self.gate.share();
            let Some(member) = state.at(address) else { return Ok(()) };
            let _busy = self.claim(slots.clone());
            if act(&state, member, slots.clone()).is_ok() {
                return Ok(());
            }
        }
        self.once_complete(address, |state, member| act(state, member, slots))
    }

    /// Takes [`TOGETHER`] slots at most: ascending, so that another thread that takes several waits for none below one
    /// that he has.
    pub(super) fn claim(&self, slots: Range<usize>) -> [Option<Claim<'_, ()>>; TOGETHER] {
        debug_assert!(slots.len() <= TOGETHER);
        let mut busy = [const { None }; TOGETHER];
        for (busy, slot) in busy.iter_mut().zip(slots) {
            *busy = Some(self.slots.claim(slot));
        }
        busy
    }

    /// Does something about the region at an address, after a mapping was wanting and all of it was made its own.
    fn once_complete(
        &self,
        address: usize,
        act: impl FnOnce(&State, &Member) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let state = self.gate.alone();
        let Some(member) = state.at(address) else { return Ok(()) };
        if self.complete(&state, member).is_err() {
            // The process has no mapping left at all, but for those kept for this.
            self.spare.release();
            self.complete(&state, member)?;
        }
        act(&state, member)
    }

    /// Makes a slot its region's alone, and lets it be written. `target` is the offset that a thread is about
    /// to access.
    fn make_own(
        &self,
        state: &State,
        member: &Member,
        slot: usize,
        target: Option<usize>,
    ) -> Result<(), Refused> {
        self.separate(state, member, slot, target)?;
        if member.stale.get(slot) {
            self.place(state, member, slot)?;
        } else if !member.table.get(slot).is_writable() {
            let addresses = member.addresses_of(slot..slot + 1);
            userfaultfd::protect(self.descriptor.as_fd(), &addresses, false)
                .map_err(Refused::Kernel)?;
        }
        member.table.set(slot, member.table.get(slot).writable().accessed());
        self.join(state, member, slot);
        Ok(())
    }

    /// As [`make_own`](Self::make_own), of slots that no thread is about to access: what is only protected is opened
    /// by one call for each run.
    fn make_all_own(
        &self,
        state: &State,
        member: &Member,
        slots: Range<usize>,
    ) -> Result<(), Refused> {
        for slot in slots.clone() {
            self.separate_unless_own(state, member, slot)?;
        }
        let is_protected = |slot| !member.stale.get(slot) && !member.table.get(slot).is_writable();
        for (protected, run) in runs(slots, is_protected) {
            if protected {
                let addresses = member.addresses_of(run.clone());
                userfaultfd::protect(self.descriptor.as_fd(), &addresses, false)
                    .map_err(Refused::Kernel)?;
            }
            for slot in run {
                if member.stale.get(slot) {
                    self.place(state, member, slot)?;
                } else if !protected {
                    continue;
                }
                member.table.set(slot, member.table.get(slot).writable().accessed());
                self.join(state, member, slot);
            }
        }
        Ok(())
    }

    /// Makes one mapping of a slot and its neighbours, where the kernel does not: a block as soon as all of
    /// it is the region's own, so that each slot is mapped anew a few times at most. No thread changes such
    /// slots as long as the gate is shared; that others are writing there does not matter.
    fn join(&self, state: &State, member: &Member, slot: usize) {
        if !self.pool.backing().is_reserved() || !member.placed.get(slot) {
            return;
        }
        for (block, joined) in member.blocks_of(slot) {
            let index = block.start / block.len();
            if joined.get(index) {
                continue;
            }
            let whole = member.is_run_of_its_own(block.clone());
            if !whole || !joined.set(index) || self.remap(state, member, block).is_err() {
                return;
            }
            let saved = BLOCK as isize - 1;
            self.budget.give(saved);
            member.counts().mappings.fetch_sub(saved, Ordering::Relaxed);
        }
    }

    /// Maps a run of frames anew, as one mapping.
    fn remap(&self, state: &State, member: &Member, slots: Range<usize>) -> Result<(), Refused> {
        let (memory, addresses) = (self.pool.memory(), member.addresses_of(slots.clone()));
        let offset = state.frames.offset(member.table.get(slots.start).frame());
        // SAFETY: as for `place`.
        unsafe { replace(memory.file(), offset, &addresses, memory.in_core_dumps()) }
            .map_err(Refused::Kernel)?;
        member.counts().registered.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Gives every region that shows the slot's frame a frame of its own, but not yet what its addresses map.
    fn separate(
        &self,
        state: &State,
        member: &Member,
        slot: usize,
        target: Option<usize>,
    ) -> Result<(), Refused> {
        let (entry, frames) = (member.table.get(slot), &state.frames);
        if member.lost.get(slot) {
            return Err(Refused::Broken);
        }
        if member.keeps.get(slot) {
            return self.copy_for_others(state, member, slot, target);
        }
        let own = member.own_frame(slot);
        let copied = frames.copy(entry.frame(), own, target.map_or(Near::Neither, Near::Copy));
        self.turn_to_own(state, member, slot);
        copied.map_err(|Broken| self.lose(member, slot))
    }

    /// The region's slot, which shows no other region's frame any more, could not be copied: accesses are answered as
    /// those to failed memory are, by SIGBUS.
    pub(super) fn lose(&self, member: &Member, slot: usize) -> Refused {
        member.stale.set(slot);
        member.lost.set(slot);
        let addresses = member.addresses_of(slot..slot + 1);
        // SAFETY: addresses of the region; what they showed is lost.
        if unsafe { replace_by_nothing(&self.nothing, &addresses) }.is_err() {
            // No mapping is left: accesses come to us, and are refused.
            let _ = self.hide(member, slot);
        }
        self.wake(&addresses);
        Refused::Broken
    }

    /// The slot shows the region's own frame from now on, once that is mapped.
    pub(super) fn turn_to_own(&self, state: &State, member: &Member, slot: usize) {
        let (entry, own) = (member.table.get(slot), member.own_frame(slot));
        state.frames.put(entry.frame(), 1);
        state.frames.get(own, 1);
        member.keeps.set(slot);
        member.stale.set(slot);
        member.table.set(slot, entry.with_frame(own));
    }

    /// The region keeps its frame; of the others one gets a copy, which the rest of them share.
    pub(super) fn copy_for_others(
        &self,
        state: &State,
        member: &Member,
        slot: usize,
        target: Option<usize>,
    ) -> Result<(), Refused> {
        let (frame, frames) = (member.table.get(slot).frame(), &state.frames);
        let others = frames.sharers(frame) - 1;
        // First, because it can fail.
        for other in state.others(member, slot, frame).take(others) {
            if other.table.get(slot).is_accessed() {
                self.hide(other, slot)?;
            }
        }
        let mut copy = None;
        for other in state.others(member, slot, frame).take(others) {
            let (copy, copied) = *copy.get_or_insert_with(|| {
                let own = other.own_frame(slot);
                let copied = frames.copy(frame, own, target.map_or(Near::Neither, Near::Original));
                other.keeps.set(slot);
                other.counts().received.fetch_add(1, Ordering::Relaxed);
                (own, copied)
            });
            other.stale.set(slot);
            other.table.set(slot, other.table.get(slot).with_frame(copy));
            if copied.is_err() {
                self.lose(other, slot);
            }
        }
        if let Some((copy, _)) = copy {
            frames.get(copy, others);
            frames.put(frame, others);
        }
        Ok(())
    }

    /// Takes a slot out of a region's page tables: every access there comes to us.
    fn hide(&self, member: &Member, slot: usize) -> Result<(), Refused> {
        let addresses = member.addresses_of(slot..slot + 1);
        let start = ptr::with_exposed_provenance_mut(addresses.start);
        // SAFETY: addresses of a region, whose accesses wait for us from then on.
        unsafe { memory::unmap_pages(start, addresses.len()) }.map_err(Refused::Kernel)?;
        member.table.set(slot, member.table.get(slot).old());
        Ok(())
    }

    /// Maps at a slot's addresses the frame that the region keeps and no other region shows.
    fn place(&self, state: &State, member: &Member, slot: usize) -> Result<(), Refused> {
        self.try_to_place(state, member, slot)
            .inspect_err(|_| self.hide_stale(member, slot..slot + 1))
    }

    /// What the region does not show any more, and could not be replaced, is another's, who may write it.
    fn hide_stale(&self, member: &Member, slots: Range<usize>) {
        for slot in slots {
            if member.stale.get(slot) && member.table.get(slot).is_accessed() {
                let _ = self.hide(member, slot);
            }
        }
    }

    fn try_to_place(&self, state: &State, member: &Member, slot: usize) -> Result<(), Refused> {
        let cost = member.cost_of(slot, !self.pool.backing().is_reserved());
        if !self.budget.take(cost) {
            return Err(Refused::Mappings);
        }
        let addresses = member.addresses_of(slot..slot + 1);
        let (memory, offset) =
            (self.pool.memory(), state.frames.offset(member.table.get(slot).frame()));
        // SAFETY: addresses of the region; its user expects what the frame holds, and no other thread has it.
        let replaced =
            unsafe { replace(memory.file(), offset, &addresses, memory.in_core_dumps()) };
        if let Err(errno) = replaced {
            self.budget.give(cost);
            let is_mappings = errno == Errno::NOMEM;
            return Err(if is_mappings { Refused::Mappings } else { Refused::Kernel(errno) });
        }
        member.counts().mappings.fetch_add(cost, Ordering::Relaxed);
        member.counts().registered.store(false, Ordering::Relaxed);
        member.placed.set(slot);
        member.stale.clear(slot);
        self.wake(&addresses);
        Ok(())
    }

    /// Makes all of a region its own, and maps it by as few mappings as its frames allow. By the thread that has the
    /// gate alone.
    pub(super) fn complete(&self, state: &State, member: &Member) -> Result<(), Refused> {
        let slots = member.slots();
        for slot in 0..slots {
            match self.separate_unless_own(state, member, slot) {
                // Lost, and mapped as that.
                Err(Refused::Broken) => {}
                separated => separated?,
            }
        }
        let (mut slot, mut runs) = (0, 0);
        while slot < slots {
            if member.lost.get(slot) {
                (slot, runs) = (slot + 1, runs + 1);
                continue;
            }
            let first = member.table.get(slot).frame();
            let follows =
                |&at: &usize| member.shows(at, first + (at - slot) as u64) && !member.lost.get(at);
            let next = slot + (slot..slots).take_while(follows).count();
            self.show_run(member, slot..next, state.frames.offset(first))?;
            (slot, runs) = (next, runs + 1);
        }
        self.count_mappings(member, runs - 1);
        Ok(())
    }

    /// When faults are served no more, of a region that could not be made its own: if its addresses map what it
    /// alone shows, it is written freely, else it can be accessed no more. By the thread that has the gate alone.
    fn close_unless_own(&self, state: &State, member: &Member) {
        let is_own = |slot| {
            let is_alone = state.frames.sharers(member.table.get(slot).frame()) == 1;
            is_alone && member.placed.get(slot) && !member.stale.get(slot)
        };
        if !(0..member.slots()).all(is_own) {
            return self.close(member);
        }
        for slot in 0..member.slots() {
            member.table.set(slot, member.table.get(slot).writable().accessed());
        }
    }

    /// Has every access to a region end in a signal, for good; where nothing can be mapped, in SIGSEGV. What it
    /// shares would be written otherwise, so that the process ends if the kernel refuses that, too.
    fn close(&self, member: &Member) {
        for slot in 0..member.slots() {
            member.stale.set(slot);
            member.lost.set(slot);
            member.table.set(slot, member.table.get(slot).write_protected());
        }
        let addresses = member.addresses();
        // SAFETY: addresses of the region; what they showed is lost.
        let closed = unsafe { replace_by_nothing(&self.nothing, &addresses) }
            // SAFETY: as above.
            .or_else(|_| unsafe { forbid(&addresses) });
        if closed.is_err() {
            std::process::abort();
        }
    }

    /// Maps at once what a region keeps and no other region shows. By the thread that has the gate alone.
    pub(super) fn show_run(
        &self,
        member: &Member,
        slots: Range<usize>,
        offset: u64,
    ) -> Result<(), Refused> {
        let (memory, addresses) = (self.pool.memory(), member.addresses_of(slots.clone()));
        // SAFETY: as for `place`.
        unsafe { replace_all(memory.file(), offset, &addresses, memory.in_core_dumps()) }
            .inspect_err(|_| self.hide_stale(member, slots.clone()))
            .map_err(Refused::Kernel)?;
        member.counts().registered.store(false, Ordering::Relaxed);
        for slot in slots {
            member.placed.set(slot);
            member.stale.clear(slot);
            member.table.set(slot, member.table.get(slot).writable().accessed());
        }
        self.wake(&addresses);
        Ok(())
    }

    /// The region costs so many mappings now.
    pub(super) fn count_mappings(&self, member: &Member, mappings: isize) {
        let before = member.counts().mappings.swap(mappings, Ordering::Relaxed);
        self.budget.give(before - mappings);
    }

    fn separate_unless_own(
        &self,
        state: &State,
        member: &Member,
        slot: usize,
    ) -> Result<(), Refused> {
        if member.table.get(slot).is_writable() {
            return Ok(());
        }
        self.separate(state, member, slot, None)
    }

    /// Lets a slot be seen that nothing has to be copied for: protected from writes unless it is the region's
    /// alone.
    fn show(&self, member: &Member, slot: usize) -> Result<(), Refused> {
        let entry = member.table.get(slot);
        let addresses = member.addresses_of(slot..slot + 1);
        if member.placed.get(slot) {
            // Another thread has done what was to be done.
            self.wake(&addresses);
            return Ok(());
        }
        self.map(&addresses, !entry.is_writable())?;
        member.table.set(slot, entry.accessed());
        Ok(())
    }

    /// Maps what the file has.
    fn map(&self, addresses: &Range<usize>, protected: bool) -> Result<(), Refused> {
        show(self.descriptor.as_fd(), addresses, self.pool.backing(), protected)
            .map_err(Refused::Kernel)?;
        self.wake(addresses);
        Ok(())
    }

    /// Has those go on who wait for one of the addresses: a thread that finds something mapped, or maps it anew,
    /// does not wake them.
    fn wake(&self, addresses: &Range<usize>) {
        if !self.is_in_place() {
            let woken = userfaultfd::wake(self.descriptor.as_fd(), addresses);
            if woken.is_err() {
                self.unwoken.store(true, Ordering::Relaxed);
            }
        }
    }
}

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

impl Membership {
    /// Does something about each slot that bytes lie on, so that a thread that waits for it waits for one copy at most,
    /// and then something about [`TOGETHER`] of them that copies nothing as a rule; in pieces on several threads.
    fn each(
        &self,
        bytes: Range<usize>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
        one: impl Fn(&State, &Member, usize) -> Result<(), Refused> + Sync,
        all: impl Fn(&State, &Member, Range<usize>) -> Result<(), Refused> + Sync,
    ) -> Result<Report, JobError<PopulateError>> {
        let (family, granule) = (&*self.family, self.family.granule_bytes);
        let first = bytes.start - bytes.start % granule;
        let len = bytes.end.max(bytes.start).next_multiple_of(granule) - first;
        let job = Job::new(len).min_chunk(granule.max(2 << 20)).threads(threads);
        let job = progress.into_iter().fold(job, Job::progress);
        job.run(|chunk| {
            let mut slots = (first + chunk.start) / granule..(first + chunk.end) / granule;
            while !slots.is_empty() {
                let some = slots.start..slots.end.min(slots.start + TOGETHER);
                slots.start = some.end;
                for slot in some.clone() {
                    without_signals(|| family.at_slot(self.start + slot * granule, &one))?;
                }
                without_signals(|| family.at_slots(self.start, some, &all))?;
            }
            Ok(())
        })
    }

    /// Makes every slot that bytes lie on the region's alone.
    pub(in crate::region) fn own(
        &self,
        bytes: Range<usize>,
        threads: Threads,
    ) -> Result<Report, JobError<PopulateError>> {
        let family = &*self.family;
        let copy =
            |state: &State, member: &Member, slot| family.separate_unless_own(state, member, slot);
        self.each(bytes, threads, None, copy, |state, member, slots| {
            family.make_all_own(state, member, slots.clone())?;
            family.enter(member, slots)
        })
    }

    /// Enters every slot that bytes lie on into the page tables; what is shared, for reading.
    pub(in crate::region) fn prefault(
        &self,
        bytes: Range<usize>,
        threads: Threads,
        progress: Option<&Progress<'_>>,
    ) -> Result<Report, JobError<PopulateError>> {
        let family = &*self.family;
        let place = |state: &State, member: &Member, slot| match member.stale.get(slot) {
            true => family.make_own(state, member, slot, None),
            false => Ok(()),
        };
        self.each(bytes, threads, progress, place, |state, member, slots| {
            slots.clone().try_for_each(|slot| place(state, member, slot))?;
            family.enter(member, slots)
        })
    }

    /// Sets bytes to zero: whole folios. No other region sees that.
    pub(in crate::region) fn release(&self, bytes: Range<usize>) -> Result<(), PopulateError> {
        let (family, granule) = (&*self.family, self.family.granule_bytes);
        let mut next = bytes.start;
        while next < bytes.end {
            let slot = next / granule;
            let end = bytes.end.min((slot + 1) * granule);
            let part = next - slot * granule..end - slot * granule;
            let release = |state: &State, member: &Member, slot: usize| {
                family.release(state, member, slot, part.clone())
            };
            without_signals(|| family.at_slot(self.start + next, release))?;
            next = end;
        }
        Ok(())
    }
}

impl Family {
    /// Enters slots into the page tables from which nothing has to be copied.
    fn enter(&self, member: &Member, slots: Range<usize>) -> Result<(), Refused> {
        for (placed, run) in runs(slots, |slot| member.placed.get(slot)) {
            if placed {
                let addresses = member.addresses_of(run);
                let start = ptr::with_exposed_provenance_mut(addresses.start);
                memory::populate_read(start, addresses.len()).map_err(Refused::Kernel)?;
            } else {
                for slot in run {
                    self.show(member, slot)?;
                }
            }
        }
        Ok(())
    }

    fn release(
        &self,
        state: &State,
        member: &Member,
        slot: usize,
        part: Range<usize>,
    ) -> Result<(), Refused> {
        let whole = part.len() == state.frames.len_of(slot);
        if whole && !member.keeps.get(slot) && !member.table.get(slot).is_writable() {
            // Nothing of what is shared stays.
            state.frames.clear(member.own_frame(slot), part.clone());
            self.turn_to_own(state, member, slot);
            self.make_own(state, member, slot, None)?;
        } else {
            self.make_own(state, member, slot, None)?;
            state.frames.clear(member.table.get(slot).frame(), part.clone());
        }
        self.pool.count_cleared_at_release(part.len());
        Ok(())
    }
}
