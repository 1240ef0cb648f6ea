//! Makes a fork, with exclusive access to the gate.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ForkError;
use super::apply::MappingSlot;
use super::compact::Compaction;
use super::epoch::NextEpoch;
use super::error::{Failed, Refused, kernel, unmapped};
use super::fork_support::Protection;
use super::frames::{Broken, Frames, Holding, Near, ReservedFrames};
use super::guard::SlotGuard;
use super::handle::CowHandle;
use super::mapping::{CowMapping, MappingWords};
use super::protect_region::between;
use super::slot::{Presence, Slot};
use super::slot_table::{MappingId, SlotEntry};
use super::tables::Tables;
use super::unshared::UnsharedSlots;
use super::whole_region::WholeRegion;
use crate::pool::Reserved;
use hugekit_sys::mapping::SharedMapping;
use hugekit_sys::thread::without_signals;

/// The memory that a fork needs, and the part of it that is left if the fork fails. It is allocated and dropped
/// outside of the gate.
#[derive(Debug)]
struct ForkMemory {
    /// For each run of the fork's frames, its offset in the file and its length.
    runs: Vec<(u64, usize)>,
    unused: Vec<Holding>,
    words: Option<MappingWords>,
}

/// Makes a fork of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkMaker<'a> {
    pub(crate) parent: &'a CowHandle,
    /// The slots that the fork does not share.
    pub(crate) unshared: &'a UnsharedSlots,
    /// The length of the parent and of the fork.
    pub(crate) bytes: usize,
}

impl ForkMaker<'_> {
    /// Forks the region. `pieces` is the place that is reserved for the child.
    pub(crate) fn fork(
        &self,
        pieces: Vec<Reserved>,
        mut epoch: Option<&mut NextEpoch<'_>>,
    ) -> Result<CowHandle, ForkError> {
        let (group, bytes) = (&self.parent.group, self.bytes);
        let slots = bytes.div_ceil(group.granule_bytes);
        epoch.iter_mut().for_each(|epoch| epoch.allocate(slots));
        if epoch.as_ref().is_some_and(|epoch| !epoch.follows_on(self.parent)) {
            group.folios.return_pieces(pieces);
            return Err(ForkError::OtherEpoch);
        }
        if let Err(error) = self.begin_fork() {
            group.folios.return_pieces(pieces);
            return Err(error);
        }
        let addresses = match self.try_fork(pieces, epoch.as_deref_mut()) {
            Err(error @ ForkError::Mappings { .. }) => {
                let Self { parent, unshared, .. } = *self;
                Compaction { region: parent, unshared, bytes }.run(error)?;
                let pieces = group.pool.reserve(bytes, group.granule_bytes)?;
                self.try_fork(pieces, epoch)
            }
            other => other,
        }?;
        // No user knows the addresses of the child yet.
        let child = |registration| CowHandle::new(Arc::clone(group), addresses.start, registration);
        match group.register(addresses.clone()) {
            Ok(registration) => Ok(child(registration)),
            Err(error) => {
                child(None).leave(false)?;
                Err(error.into())
            }
        }
    }

    /// Protects the region ahead, before the fork takes exclusive access to the gate. Reserved huge pages are
    /// protected as fast inside.
    fn begin_fork(&self) -> Result<(), ForkError> {
        let Self { parent, unshared, bytes } = *self;
        let group = &*parent.group;
        group.check_handlers()?;
        if group.protection() != Protection::Marks || group.pool.backing().is_reserved() {
            return Ok(());
        }
        without_signals(|blocked| {
            let mut tables = group.gate.alone(blocked);
            group.check_served()?;
            let id = tables.mappings.of_region(parent.start).id();
            WholeRegion::new(group, &mut tables, id).watch_writes()
        })?;
        parent.bulk().protect_ahead(bytes, unshared.unprotected(), group.pool.threads());
        Ok(())
    }

    fn try_fork(
        &self,
        pieces: Vec<Reserved>,
        epoch: Option<&mut NextEpoch<'_>>,
    ) -> Result<Range<usize>, ForkError> {
        let (group, bytes) = (&self.parent.group, self.bytes);
        let (private, words) = match group.memory_for(&pieces, bytes, false) {
            Ok(made) => made,
            Err(errno) => {
                group.folios.return_pieces(pieces);
                return Err(unmapped(errno));
            }
        };
        let mut reservation = group.reservation_of(pieces, private);
        let mut memory = ForkMemory {
            runs: Vec::with_capacity(group.most_runs().min(bytes.div_ceil(group.granule_bytes))),
            unused: Vec::with_capacity(reservation.len()),
            words: Some(words),
        };
        let forked = group.alone_with_room(reservation.len(), |tables| {
            let reserve = tables.frames.add(&mut reservation);
            self.fork_alone(tables, reserve, &mut memory, epoch)
        });
        forked.map_err(|(_reserve, failed)| {
            group.folios.return_unused(&memory.unused);
            failed.into()
        })
    }

    /// Adds the child, whose reserved frames are in the tables already. Does not allocate.
    fn fork_alone(
        &self,
        tables: &mut Tables,
        reserve: ReservedFrames,
        memory: &mut ForkMemory,
        epoch: Option<&mut NextEpoch<'_>>,
    ) -> Result<Range<usize>, (ReservedFrames, Failed)> {
        let parent = tables.mappings.of_region(self.parent.start).id();
        let (mapping, extra) = match self.prepare(tables, parent, &reserve, memory) {
            Ok(mapped) => mapped,
            Err(failed) => {
                tables.frames.take_last(&reserve, &mut memory.unused);
                return Err((reserve, failed));
            }
        };
        let words = memory.words.take().expect("made for this child");
        let id = tables.mappings.next_id();
        let child = CowMapping::new(id, mapping, words, reserve, self.parent.group.granule_bytes);
        child.counts().vmas.store(extra, Ordering::Relaxed);
        let addresses = child.addresses();
        tables.mappings.insert(child);
        self.share_table(WholeRegion::new(&self.parent.group, tables, parent), id);
        let parent = tables.mappings.get(parent);
        epoch.into_iter().for_each(|epoch| epoch.begin(parent, self.unshared.all()));
        tables.check();
        Ok(addresses)
    }

    /// Maps the frames that the child will show, holds back the parent's writes, and copies pinned slots. Returns the
    /// child's mapping, and how many of the kernel's mappings it needs beyond the first one.
    fn prepare(
        &self,
        tables: &mut Tables,
        parent: MappingId,
        reserve: &ReservedFrames,
        memory: &mut ForkMemory,
    ) -> Result<(SharedMapping, isize), Failed> {
        let parent = WholeRegion::new(&self.parent.group, tables, parent);
        let (mapping, extra) = self.map_child(parent, reserve, &mut memory.runs)?;
        let held_back = parent.protect_all_but(self.unshared.unprotected());
        match held_back.and_then(|()| self.copy_unshared(parent, reserve)) {
            Ok(()) => Ok((mapping, extra)),
            Err(failed) => {
                // SAFETY: the mapping is new, and no other thread knows it.
                let _ = unsafe { mapping.unmap() };
                parent.group.budget.refund(extra);
                Err(failed)
            }
        }
    }

    /// Maps the frames of the parent for the child, with one mapping for each run of frames. Every access there is a
    /// fault that hugekit serves. Returns the mapping, and how many of the kernel's mappings it needs beyond the
    /// first one.
    fn map_child(
        &self,
        parent: WholeRegion<'_>,
        reserve: &ReservedFrames,
        runs: &mut Vec<(u64, usize)>,
    ) -> Result<(SharedMapping, isize), Failed> {
        let (WholeRegion { group, mapping: parent, frames, .. }, unshared) =
            (parent, self.unshared);
        group.check_served()?;
        let needed = add_runs(parent, frames, reserve, unshared.all(), runs) - 1;
        let pool = group.pool.memory();
        let (left, most) = group.budget.left();
        if needed >= group.most_runs() || !group.budget.spend(needed as isize) {
            return Err(ForkError::Mappings { needed, left, most }.into());
        }
        let mapping = SharedMapping::of_pieces(pool.file(), runs, group.pool.page_size());
        let mapping = mapping.map_err(|errno| {
            group.budget.refund(needed as isize);
            ForkError::NotMapped { mappings: runs.len(), source: errno.into() }
        })?;
        let addresses = mapping.addresses();
        let is_left_out = |&slot: &usize| unshared.is_left_out(slot, frames.len_of(slot));
        let is_unready = (0..parent.slots()).any(|slot| parent.entry(slot).slot.is_unready())
            || unshared.all().iter().any(is_left_out);
        let watched = match is_unready {
            true => group.descriptor.watch_unready(&addresses),
            false => group.descriptor.watch(&addresses, true),
        };
        let watched = watched.map_err(|errno| kernel("UFFDIO_REGISTER", errno)).and_then(|()| {
            group.unmap_what_came_early(&mapping).map_err(|errno| kernel("madvise", errno))?;
            if pool.in_core_dumps() {
                return Ok(());
            }
            mapping.keep_from_dumps().map_err(|errno| kernel("madvise", errno))
        });
        match watched {
            Ok(()) => Ok((mapping, needed as isize)),
            Err(error) => {
                // SAFETY: the mapping is new, and no other thread knows it.
                let _ = unsafe { mapping.unmap() };
                group.budget.refund(needed as isize);
                Err(error.into())
            }
        }
    }

    /// Fills the child's table. The parent's slots are protected or unready now, or the child does not share them. At
    /// a slot that is not shared, the child shows its own frame: a copy, or zeroes if it inherits no byte or the
    /// parent is not ready. All other slots are shared. The child's page tables are empty.
    fn share_table(&self, parent: WholeRegion<'_>, child: MappingId) {
        let WholeRegion { group, alone, frames, mapping: parent } = parent;
        let (child, unshared) = (alone.mappings().get(child), self.unshared);
        assert_eq!(parent.slots(), child.slots(), "tables of different lengths");
        for slot in between(parent.slots(), unshared.all()).flatten() {
            let guard = &alone.slot(slot);
            let entry = guard.entry(parent);
            let Some(shown) = entry.slot.child() else {
                show_fresh(guard, child, frames);
                continue;
            };
            let entry = SlotEntry { slot: shown, ..entry };
            guard.join(child, parent);
            guard.set(child, entry);
            if entry.slot.is_lost() {
                MappingSlot { group, guard, mapping: child, frames }.lose(entry);
            }
        }
        for &slot in unshared.all() {
            let (guard, frame) = (&alone.slot(slot), child.reserved_frame(slot));
            let is_unready = guard.entry(parent).slot.is_unready();
            if is_unready || unshared.is_left_out(slot, frames.len_of(slot)) {
                show_fresh(guard, child, frames);
                continue;
            }
            guard.stand_alone(child);
            guard.set(child, SlotEntry { frame, slot: Slot::Exclusive(Presence::Absent) });
            child.counts().copied_at_once.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Copies slots that are not shared to the child's own frames, except for bytes that the child does not inherit.
    fn copy_unshared(
        &self,
        parent: WholeRegion<'_>,
        reserve: &ReservedFrames,
    ) -> Result<(), Failed> {
        let (WholeRegion { frames, mapping: parent, .. }, unshared) = (parent, self.unshared);
        for &slot in unshared.all() {
            let (len, entry) = (frames.len_of(slot), parent.entry(slot));
            if entry.slot.is_unready() || unshared.is_left_out(slot, len) {
                continue;
            }
            let copied = frames.copy(entry.frame, reserve.frame(slot), Near::Neither);
            copied.map_err(|Broken| Refused::Broken)?;
            unshared
                .left_out_of(slot, len)
                .for_each(|bytes| frames.clear(reserve.frame(slot), bytes, None));
        }
        Ok(())
    }
}

/// Makes the child show zeroes, in its reserved frame.
fn show_fresh(guard: &SlotGuard<'_>, child: &CowMapping, frames: &Frames) {
    let frame = child.reserved_frame(guard.slot());
    guard.stand_alone(child);
    guard.set(child, SlotEntry { frame, slot: frames.fresh(frame) });
}

/// Adds the offset and the length of each run of frames that a child shows to `runs`, as far as there is room.
/// Returns the number of runs.
fn add_runs(
    parent: &CowMapping,
    frames: &Frames,
    reserve: &ReservedFrames,
    unshared: &[usize],
    runs: &mut Vec<(u64, usize)>,
) -> usize {
    let (mut count, mut end) = (0, None);
    let mut add = |frame: u64, bytes: usize| {
        let offset = frames.offset(frame);
        let follows = end.replace(offset + bytes as u64) == Some(offset);
        count += usize::from(!follows);
        if count > runs.capacity() {
            return;
        }
        match runs.last_mut().filter(|_| follows) {
            Some((_, len)) => *len += bytes,
            None => runs.push((offset, bytes)),
        }
    };
    let (slots, mut unshared, mut slot) = (parent.slots(), unshared, 0);
    while slot < slots {
        let next = unshared.first().copied().unwrap_or(slots);
        let is_unshared = next == slot;
        if is_unshared || parent.entry(slot).slot.is_unready() {
            add(reserve.frame(slot), frames.len_of(slot));
            (slot, unshared) = (slot + 1, &unshared[usize::from(is_unshared)..]);
        } else {
            let run = parent.table.run_of(slot..next, |entry| !entry.slot.is_unready());
            add(parent.entry(slot).frame, parent.addresses_of(slot..slot + run).len());
            slot += run;
        }
    }
    count
}
