//! Making a fork, by the thread that has the gate alone.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::{self, Errno};

use super::ForkError;
use super::apart::Apart;
use super::apply::{At, remove_pages};
use super::entry::Entry;
use super::epoch::Turn;
use super::frames::{Broken, Frames, Holding, Near, ReservedFrames};
use super::group::{CowHandle, ForkGroup, Tables, kernel, unmapped};
use super::guard::{Alone, SlotGuard};
use super::hold::Hold;
use super::mapping::{CowMapping, MappingWords};
use super::refused::Refused;
use super::sharers::Id;
use super::slot::{Action, Event, Pages, Slot};
use crate::pool::Reserved;
use hugekit_bulk::populate::PopulateError;
use hugekit_sys::mapping::Mapping;
use hugekit_sys::memory;
use hugekit_sys::pagemap::PageMap;
use hugekit_sys::thread::without_signals;

/// One fork may take one part in so many of the mappings that forks may cost.
const MOST_OF_BUDGET: usize = 8;

/// What a fork takes, and what is left of it when there is none: allocated and dropped outside of the gate.
#[derive(Debug)]
struct Made {
    /// Where in the file each run of its frames lies, and how long it is.
    runs: Vec<(u64, usize)>,
    unused: Vec<Holding>,
    words: Option<MappingWords>,
}

/// A mapping and its fork.
#[derive(Clone, Copy, Debug)]
struct Family {
    parent: Id,
    child: Id,
}

/// Why there is no fork, as it is said in the gate, where nothing is allocated.
#[derive(Debug)]
pub(super) enum Failed {
    Error(ForkError),
    Refused(Refused),
}

impl From<ForkError> for Failed {
    fn from(error: ForkError) -> Self {
        Self::Error(error)
    }
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Failed> for ForkError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Error(error) => error,
            Failed::Refused(Refused::Mappings) => kernel("mmap", Errno::NOMEM),
            Failed::Refused(Refused::Broken) => Self::Copy(PopulateError::Poisoned),
            Failed::Refused(Refused::Unpopulated(error)) => Self::Copy(error),
            Failed::Refused(Refused::Kernel(errno)) => kernel("mmap", errno),
        }
    }
}

impl CowHandle {
    /// Forks the region, whose child has this place.
    pub(crate) fn fork(
        &self,
        pieces: Vec<Reserved>,
        apart: &Apart,
        bytes: usize,
        mut turn: Option<&mut Turn<'_>>,
    ) -> Result<Self, ForkError> {
        let group = &self.group;
        let slots = bytes.div_ceil(group.granule_bytes);
        turn.iter_mut().for_each(|turn| turn.make_room(slots));
        if turn.as_ref().is_some_and(|turn| !turn.follows_on(self)) {
            group.return_folios(pieces);
            return Err(ForkError::OtherEpoch);
        }
        if let Err(error) = self.begin_fork(apart.not_held_back(), bytes) {
            group.return_folios(pieces);
            return Err(error);
        }
        let addresses = match self.try_fork(pieces, apart, bytes, turn.as_deref_mut()) {
            Err(error @ ForkError::Mappings { .. }) => {
                self.compact(apart.pinned(), bytes, error)?;
                let pieces = group.pool.reserve(bytes, group.granule_bytes)?;
                self.try_fork(pieces, apart, bytes, turn)
            }
            other => other,
        }?;
        // No user knows the addresses yet.
        let child = |registration| {
            let (group, start) = (Arc::clone(group), addresses.start);
            Self { group, start, registration, is_member: true }
        };
        match group.register(addresses.clone()) {
            Ok(registration) => Ok(child(registration)),
            Err(error) => {
                child(None).leave(false)?;
                Err(error.into())
            }
        }
    }

    /// What is done before the gate is taken for all of a fork. Reserved pages are protected as fast with it.
    fn begin_fork(&self, not_held_back: &[usize], bytes: usize) -> Result<(), ForkError> {
        let group = &self.group;
        group.check_handlers()?;
        if group.hold() != Hold::Marks || group.pool.backing().is_reserved() {
            return Ok(());
        }
        without_signals(|blocked| {
            let mut tables = group.gate.alone(blocked);
            group.check_served()?;
            let alone = tables.mappings.alone();
            group.watch_parent(alone, alone.mappings().of_region(self.start))
        })?;
        self.protect_ahead(bytes, not_held_back, group.pool.threads());
        Ok(())
    }

    fn try_fork(
        &self,
        pieces: Vec<Reserved>,
        apart: &Apart,
        bytes: usize,
        turn: Option<&mut Turn<'_>>,
    ) -> Result<Range<usize>, ForkError> {
        let group = &self.group;
        let (room, words) = match group.room_for(&pieces, bytes, false) {
            Ok(made) => made,
            Err(errno) => {
                group.return_folios(pieces);
                return Err(unmapped(errno));
            }
        };
        let mut reservation = group.reservation_of(pieces, room);
        let mut made = Made {
            runs: Vec::with_capacity(group.most_runs().min(bytes.div_ceil(group.granule_bytes))),
            unused: Vec::with_capacity(reservation.len()),
            words: Some(words),
        };
        let forked = group.with_room(reservation.len(), |tables| {
            let reserve = tables.frames.add(&mut reservation);
            self.fork_alone(tables, reserve, &mut made, apart, turn)
        });
        forked.map_err(|(_reserve, failed)| {
            group.return_folios(group.pieces_of(&made.unused));
            failed.into()
        })
    }

    /// With what was just added for the child. Does not allocate.
    fn fork_alone(
        &self,
        tables: &mut Tables,
        reserve: ReservedFrames,
        made: &mut Made,
        apart: &Apart,
        turn: Option<&mut Turn<'_>>,
    ) -> Result<Range<usize>, (ReservedFrames, Failed)> {
        let group = &*self.group;
        let parent = tables.mappings.of_region(self.start).id();
        let (mapping, extra) = match group.prepare(tables, parent, &reserve, apart, made) {
            Ok(mapped) => mapped,
            Err(failed) => {
                tables.frames.take_last(&reserve, &mut made.unused);
                return Err((reserve, failed));
            }
        };
        let words = made.words.take().expect("made for this child");
        let id = tables.mappings.next_id();
        let child = CowMapping::new(id, mapping, words, reserve, group.granule_bytes);
        child.counts().vmas.store(extra, Ordering::Relaxed);
        let addresses = child.addresses();
        tables.mappings.insert(child);
        let Tables { mappings, frames } = tables;
        group.share_table(mappings.alone(), frames, Family { parent, child: id }, apart);
        turn.into_iter().for_each(|turn| turn.begin_epoch(mappings.get(parent), apart.all()));
        tables.check();
        Ok(addresses)
    }
}

impl ForkGroup {
    /// Maps what a child will show, holds back its parent's writes and copies what is pinned: how many mappings
    /// more than one that takes.
    fn prepare(
        &self,
        tables: &mut Tables,
        parent: Id,
        reserve: &ReservedFrames,
        apart: &Apart,
        made: &mut Made,
    ) -> Result<(Mapping, isize), Failed> {
        let Tables { mappings, frames } = tables;
        let alone = mappings.alone();
        let parent = alone.mappings().get(parent);
        let (mapping, extra) = self.map_child(parent, frames, reserve, apart, &mut made.runs)?;
        let protected = self.protect_parent(alone, parent, apart.not_held_back());
        match protected.and_then(|()| copy_apart(parent, frames, reserve, apart)) {
            Ok(()) => Ok((mapping, extra)),
            Err(failed) => {
                // SAFETY: just mapped, and no other thread knows of it.
                let _ = unsafe { mapping.unmap() };
                self.budget.refund(extra);
                Err(failed)
            }
        }
    }

    /// Maps for a child what its parent has, one mapping for each run of frames, so that every access comes
    /// to us; and how many mappings more than one that is.
    fn map_child(
        &self,
        parent: &CowMapping,
        frames: &Frames,
        reserve: &ReservedFrames,
        apart: &Apart,
        runs: &mut Vec<(u64, usize)>,
    ) -> Result<(Mapping, isize), Failed> {
        self.check_served()?;
        let needed = add_runs(parent, frames, reserve, apart.all(), runs) - 1;
        let pool = self.pool.memory();
        let (left, most) = self.budget.left();
        if needed >= self.most_runs() || !self.budget.spend(needed as isize) {
            return Err(ForkError::Mappings { needed, left, most }.into());
        }
        let mapping = Mapping::of_pieces(pool.file(), runs, self.pool.page_size());
        let mapping = mapping.map_err(|errno| {
            self.budget.refund(needed as isize);
            ForkError::NotMapped { mappings: runs.len(), source: errno.into() }
        })?;
        let addresses = mapping.addresses();
        let is_left_out = |&slot: &usize| apart.is_left_out(slot, frames.len_of(slot));
        let is_unready = (0..parent.slots()).any(|slot| parent.entry(slot).slot.is_unready())
            || apart.all().iter().any(is_left_out);
        let watched = match is_unready {
            true => self.watch_unready(&addresses),
            false => self.watch(&addresses, true),
        };
        let watched = watched.map_err(|errno| kernel("UFFDIO_REGISTER", errno)).and_then(|()| {
            self.unmap_what_came_early(&mapping).map_err(|errno| kernel("madvise", errno))?;
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
                self.budget.refund(needed as isize);
                Err(error.into())
            }
        }
    }

    /// That there is still a thread, or a handler, that accesses would come to: what was held back else would be
    /// waited for for ever. While the gate is shared at least.
    pub(super) fn check_served(&self) -> Result<(), ForkError> {
        if self.unserved.load(Ordering::SeqCst) {
            return Err(kernel("userfaultfd", Errno::PERM));
        }
        Ok(())
    }

    /// As many runs of frames as one fork may map.
    pub(super) fn most_runs(&self) -> usize {
        let (_, most) = self.budget.left();
        most / MOST_OF_BUDGET + 1
    }

    /// Before a mapping was registered, pages that let writes through may have come there: by the fault of a
    /// region whose mapping lies beside it, because the process locks what it maps, or another thread all that is
    /// mapped. (To unmap nothing from hugetlb costs half as much as the rest of a fork, because it interrupts the
    /// other CPUs: so it is looked at first.)
    pub(super) fn unmap_what_came_early(&self, mapping: &Mapping) -> io::Result<()> {
        let addresses = mapping.addresses();
        let pagemap = self.sharing().and_then(|sharing| sharing.pagemap.as_ref());
        let pagemap = pagemap.filter(|_| self.pool.backing().is_reserved());
        let came = pagemap.and_then(PageMap::scanned).map(|map| map.probe_present(&addresses));
        if came == Some(Ok(false)) {
            return Ok(());
        }
        // SAFETY: of a shared mapping that no thread uses yet.
        unsafe { memory::unmap_pages(mapping.start().as_ptr(), mapping.len()) }
    }

    /// Holds back writes to what a child is about to share: one call for each run. If one fails, what was
    /// protected stays so, and the table says it.
    pub(super) fn protect_parent(
        &self,
        alone: Alone<'_>,
        parent: &CowMapping,
        not_held_back: &[usize],
    ) -> Result<(), Failed> {
        self.watch_parent(alone, parent)?;
        for part in between(parent.slots(), not_held_back) {
            let mut slot = part.start;
            while slot < part.end {
                let (run, event) = match self.hold() {
                    Hold::Marks => (parent.table.run_as_exclusive(slot..part.end), Event::Forked),
                    Hold::Rights => (parent.run_alike(slot..part.end), Event::Forked),
                    Hold::Removal => (parent.run_alike(slot..part.end), Event::TakenOut),
                };
                let next = slot + run;
                for &action in alone.slot(slot).plan(parent, event) {
                    self.hold_back(parent, slot..next, action)?;
                    (slot..next).for_each(|slot| alone.slot(slot).record_done(parent, action));
                }
                slot = next;
            }
        }
        if self.hold() != Hold::Marks {
            self.recount_vmas(parent);
        }
        Ok(())
    }

    /// Has a mapping registered as its writes are held back. By rights, nothing has to be: what a handler has entered
    /// has been registered all the time.
    fn watch_parent(&self, alone: Alone<'_>, parent: &CowMapping) -> Result<(), Failed> {
        if self.hold() == Hold::Rights || parent.is_registered() {
            return Ok(());
        }
        if self.hold() == Hold::Removal {
            for slot in 0..parent.slots() {
                let guard = alone.slot(slot);
                let plan = guard.plan(parent, Event::Watched);
                plan.iter().for_each(|&action| guard.record_done(parent, action));
            }
        }
        self.watch(&parent.addresses(), self.hold() == Hold::Removal)
            .map_err(|errno| kernel("UFFDIO_REGISTER", errno))?;
        parent.counts().registered.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn hold_back(
        &self,
        parent: &CowMapping,
        slots: Range<usize>,
        action: Action,
    ) -> Result<(), Failed> {
        let (held, call) = match action {
            Action::TakeOut => (remove_pages(&parent.addresses_of(slots)), "madvise"),
            _ if self.is_by_rights(parent, slots.start) => {
                (self.protect(parent, slots, true), "mprotect")
            }
            _ => (self.protect(parent, slots, true), "UFFDIO_WRITEPROTECT"),
        };
        held.map_err(|refused| match refused {
            Refused::Kernel(errno) => kernel(call, errno).into(),
            refused => refused.into(),
        })
    }

    /// Of a region of which much has become one mapping.
    fn recount_vmas(&self, mapping: &CowMapping) {
        let (mut slot, mut runs) = (0, 0);
        while slot < mapping.slots() {
            slot += mapping.run_alike(slot..mapping.slots());
            runs += 1;
        }
        self.count_vmas(mapping, runs - 1);
    }

    /// Fills the table of a child of a mapping of which nothing can be written any more but what is not held back, and
    /// what is not ready. It shows frames of its own where it is apart: with zeroes where it inherits nothing or its
    /// parent is not ready, and else with copies. It shares all else. It begins with nothing in the page tables.
    fn share_table(&self, alone: Alone<'_>, frames: &Frames, family: Family, apart: &Apart) {
        let Family { parent, child } = family;
        let (parent, child) = (alone.mappings().get(parent), alone.mappings().get(child));
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
                self.lose(At { guard, mapping: child, frames }, entry);
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
}

/// A child shows zeroes, in the frame that was reserved for it.
fn show_fresh(guard: &SlotGuard<'_>, child: &CowMapping, frames: &Frames) {
    let frame = child.reserved_frame(guard.slot());
    guard.stand_alone(child);
    guard.set(child, Entry { frame, slot: frames.fresh(frame) });
}

/// The runs of slots between some.
fn between(slots: usize, some: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let starts = std::iter::once(0).chain(some.iter().map(|slot| slot + 1));
    let ends = some.iter().copied().chain([slots]);
    starts.zip(ends).map(|(start, end)| start..end).filter(|slots| !slots.is_empty())
}

/// Where in the file each run of what a child shows lies, and how long it is, as far as there is room; how many runs
/// there are.
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

/// Copies what a child does not share to its own place, but for the bytes that it does not inherit.
fn copy_apart(
    parent: &CowMapping,
    frames: &Frames,
    reserve: &ReservedFrames,
    apart: &Apart,
) -> Result<(), Failed> {
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
