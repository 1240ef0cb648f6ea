//! Making a fork, by the thread that has the gate alone.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ForkError;
use super::apply::At;
use super::compact::Compaction;
use super::epoch::Turn;
use super::error::{Failed, Refused, kernel, unmapped};
use super::fork_support::Protection;
use super::frames::{Broken, Frames, Holding, Near, ReservedFrames};
use super::guard::SlotGuard;
use super::handle::CowHandle;
use super::mapping::{CowMapping, MappingWords};
use super::protect_region::{HoldBack, between};
use super::slot::{Pages, Slot};
use super::slot_table::{Entry, MappingId};
use super::tables::Tables;
use super::unshared::Apart;
use super::whole_region::Whole;
use crate::pool::Reserved;
use hugekit_sys::mapping::Mapping;
use hugekit_sys::thread::without_signals;

/// The memory that a fork needs, and what is left of it if the fork fails. Allocated and dropped outside of the gate.
#[derive(Debug)]
struct Made {
    /// The offset in the file of each run of its frames, and its length.
    runs: Vec<(u64, usize)>,
    unused: Vec<Holding>,
    words: Option<MappingWords>,
}

/// Makes a fork of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkMaker<'a> {
    pub(crate) parent: &'a CowHandle,
    /// The slots that the fork does not share.
    pub(crate) apart: &'a Apart,
    /// The length of both.
    pub(crate) bytes: usize,
}

impl ForkMaker<'_> {
    /// Forks the region, whose child has this place.
    pub(crate) fn fork(
        &self,
        pieces: Vec<Reserved>,
        mut turn: Option<&mut Turn<'_>>,
    ) -> Result<CowHandle, ForkError> {
        let (group, bytes) = (&self.parent.group, self.bytes);
        let slots = bytes.div_ceil(group.granule_bytes);
        turn.iter_mut().for_each(|turn| turn.make_room(slots));
        if turn.as_ref().is_some_and(|turn| !turn.follows_on(self.parent)) {
            group.folios.return_pieces(pieces);
            return Err(ForkError::OtherEpoch);
        }
        if let Err(error) = self.begin_fork() {
            group.folios.return_pieces(pieces);
            return Err(error);
        }
        let addresses = match self.try_fork(pieces, turn.as_deref_mut()) {
            Err(error @ ForkError::Mappings { .. }) => {
                let Self { parent, apart, .. } = *self;
                Compaction { region: parent, apart, bytes }.run(error)?;
                let pieces = group.pool.reserve(bytes, group.granule_bytes)?;
                self.try_fork(pieces, turn)
            }
            other => other,
        }?;
        // No user knows the addresses yet.
        let child = |registration| CowHandle::new(Arc::clone(group), addresses.start, registration);
        match group.register(addresses.clone()) {
            Ok(registration) => Ok(child(registration)),
            Err(error) => {
                child(None).leave(false)?;
                Err(error.into())
            }
        }
    }

    /// The first steps of a fork, before it has the gate alone. Reserved pages are protected as fast with it.
    fn begin_fork(&self) -> Result<(), ForkError> {
        let Self { parent, apart, bytes } = *self;
        let group = &*parent.group;
        group.check_handlers()?;
        if group.protection() != Protection::Marks || group.pool.backing().is_reserved() {
            return Ok(());
        }
        without_signals(|blocked| {
            let mut tables = group.gate.alone(blocked);
            group.check_served()?;
            let id = tables.mappings.of_region(parent.start).id();
            HoldBack(Whole::new(group, &mut tables, id)).watch()
        })?;
        parent.bulk().protect_ahead(bytes, apart.not_held_back(), group.pool.threads());
        Ok(())
    }

    fn try_fork(
        &self,
        pieces: Vec<Reserved>,
        turn: Option<&mut Turn<'_>>,
    ) -> Result<Range<usize>, ForkError> {
        let (group, bytes) = (&self.parent.group, self.bytes);
        let (room, words) = match group.room_for(&pieces, bytes, false) {
            Ok(made) => made,
            Err(errno) => {
                group.folios.return_pieces(pieces);
                return Err(unmapped(errno));
            }
        };
        let mut reservation = group.reservation_of(pieces, room);
        let mut made = Made {
            runs: Vec::with_capacity(group.most_runs().min(bytes.div_ceil(group.granule_bytes))),
            unused: Vec::with_capacity(reservation.len()),
            words: Some(words),
        };
        let forked = group.alone_with_room(reservation.len(), |tables| {
            let reserve = tables.frames.add(&mut reservation);
            self.fork_alone(tables, reserve, &mut made, turn)
        });
        forked.map_err(|(_reserve, failed)| {
            group.folios.return_unused(&made.unused);
            failed.into()
        })
    }

    /// With what was just added for the child. Does not allocate.
    fn fork_alone(
        &self,
        tables: &mut Tables,
        reserve: ReservedFrames,
        made: &mut Made,
        turn: Option<&mut Turn<'_>>,
    ) -> Result<Range<usize>, (ReservedFrames, Failed)> {
        let parent = tables.mappings.of_region(self.parent.start).id();
        let (mapping, extra) = match self.prepare(tables, parent, &reserve, made) {
            Ok(mapped) => mapped,
            Err(failed) => {
                tables.frames.take_last(&reserve, &mut made.unused);
                return Err((reserve, failed));
            }
        };
        let words = made.words.take().expect("made for this child");
        let id = tables.mappings.next_id();
        let child = CowMapping::new(id, mapping, words, reserve, self.parent.group.granule_bytes);
        child.counts().vmas.store(extra, Ordering::Relaxed);
        let addresses = child.addresses();
        tables.mappings.insert(child);
        self.share_table(Whole::new(&self.parent.group, tables, parent), id);
        let parent = tables.mappings.get(parent);
        turn.into_iter().for_each(|turn| turn.begin_epoch(parent, self.apart.all()));
        tables.check();
        Ok(addresses)
    }

    /// Maps what a child will show, holds back its parent's writes and copies what is pinned: how many mappings
    /// more than one that takes.
    fn prepare(
        &self,
        tables: &mut Tables,
        parent: MappingId,
        reserve: &ReservedFrames,
        made: &mut Made,
    ) -> Result<(Mapping, isize), Failed> {
        let parent = Whole::new(&self.parent.group, tables, parent);
        let (mapping, extra) = self.map_child(parent, reserve, &mut made.runs)?;
        let held_back = HoldBack(parent).all_but(self.apart.not_held_back());
        match held_back.and_then(|()| self.copy_apart(parent, reserve)) {
            Ok(()) => Ok((mapping, extra)),
            Err(failed) => {
                // SAFETY: just mapped, and no other thread knows of it.
                let _ = unsafe { mapping.unmap() };
                parent.group.budget.refund(extra);
                Err(failed)
            }
        }
    }

    /// Maps for a child what its parent has, one mapping for each run of frames, so that every access comes
    /// to us; and how many mappings more than one that is.
    fn map_child(
        &self,
        parent: Whole<'_>,
        reserve: &ReservedFrames,
        runs: &mut Vec<(u64, usize)>,
    ) -> Result<(Mapping, isize), Failed> {
        let (Whole { group, mapping: parent, frames, .. }, apart) = (parent, self.apart);
        group.check_served()?;
        let needed = add_runs(parent, frames, reserve, apart.all(), runs) - 1;
        let pool = group.pool.memory();
        let (left, most) = group.budget.left();
        if needed >= group.most_runs() || !group.budget.spend(needed as isize) {
            return Err(ForkError::Mappings { needed, left, most }.into());
        }
        let mapping = Mapping::of_pieces(pool.file(), runs, group.pool.page_size());
        let mapping = mapping.map_err(|errno| {
            group.budget.refund(needed as isize);
            ForkError::NotMapped { mappings: runs.len(), source: errno.into() }
        })?;
        let addresses = mapping.addresses();
        let is_left_out = |&slot: &usize| apart.is_left_out(slot, frames.len_of(slot));
        let is_unready = (0..parent.slots()).any(|slot| parent.entry(slot).slot.is_unready())
            || apart.all().iter().any(is_left_out);
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
                // SAFETY: just mapped, and no other thread knows of it.
                let _ = unsafe { mapping.unmap() };
                group.budget.refund(needed as isize);
                Err(error.into())
            }
        }
    }

    /// Fills the table of a child of a mapping of which nothing can be written any more but what is not held back, and
    /// what is not ready. It shows frames of its own where it is apart: with zeroes where it inherits nothing or its
    /// parent is not ready, and else with copies. It shares all else. It begins with nothing in the page tables.
    fn share_table(&self, parent: Whole<'_>, child: MappingId) {
        let Whole { group, alone, frames, mapping: parent } = parent;
        let (child, apart) = (alone.mappings().get(child), self.apart);
        assert_eq!(parent.slots(), child.slots(), "tables of different lengths");
        for slot in between(parent.slots(), apart.all()).flatten() {
            let guard = &alone.slot(slot);
            let entry = guard.entry(parent);
            let Some(shown) = entry.slot.child() else {
                show_fresh(guard, child, frames);
                continue;
            };
            let entry = Entry { slot: shown, ..entry };
            guard.join(child, parent);
            guard.set(child, entry);
            if entry.slot.is_lost() {
                At { group, guard, mapping: child, frames }.lose(entry);
            }
        }
        for &slot in apart.all() {
            let (guard, frame) = (&alone.slot(slot), child.reserved_frame(slot));
            let is_unready = guard.entry(parent).slot.is_unready();
            if is_unready || apart.is_left_out(slot, frames.len_of(slot)) {
                show_fresh(guard, child, frames);
                continue;
            }
            guard.stand_alone(child);
            guard.set(child, Entry { frame, slot: Slot::Exclusive(Pages::Absent) });
            child.counts().copied_at_once.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Copies what a child does not share to its own place, but for the bytes that it does not inherit.
    fn copy_apart(&self, parent: Whole<'_>, reserve: &ReservedFrames) -> Result<(), Failed> {
        let (Whole { frames, mapping: parent, .. }, apart) = (parent, self.apart);
        for &slot in apart.all() {
            let (len, entry) = (frames.len_of(slot), parent.entry(slot));
            if entry.slot.is_unready() || apart.is_left_out(slot, len) {
                continue;
            }
            let copied = frames.copy(entry.frame, reserve.frame(slot), Near::Neither);
            copied.map_err(|Broken| Refused::Broken)?;
            apart
                .left_out_of(slot, len)
                .for_each(|bytes| frames.clear(reserve.frame(slot), bytes, None));
        }
        Ok(())
    }
}

/// A child shows zeroes, in the frame that was reserved for it.
fn show_fresh(guard: &SlotGuard<'_>, child: &CowMapping, frames: &Frames) {
    let frame = child.reserved_frame(guard.slot());
    guard.stand_alone(child);
    guard.set(child, Entry { frame, slot: frames.fresh(frame) });
}

/// Writes the offset and the length of each run of frames that a child shows, as far as there is room. Returns how many
/// runs there are.
fn add_runs(
    parent: &CowMapping,
    frames: &Frames,
    reserve: &ReservedFrames,
    apart: &[usize],
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
    let (slots, mut apart, mut slot) = (parent.slots(), apart, 0);
    while slot < slots {
        let next = apart.first().copied().unwrap_or(slots);
        let is_apart = next == slot;
        if is_apart || parent.entry(slot).slot.is_unready() {
            add(reserve.frame(slot), frames.len_of(slot));
            (slot, apart) = (slot + 1, &apart[usize::from(is_apart)..]);
        } else {
            let run = parent.table.run_of(slot..next, |entry| !entry.slot.is_unready());
            add(parent.entry(slot).frame, parent.addresses_of(slot..slot + run).len());
            slot += run;
        }
    }
    count
}
