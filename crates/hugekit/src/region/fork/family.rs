//! Regions that were forked from each other, and what they share: joining, forking and leaving.
//!
//! The thread that does one of these has the gate alone: no fault is served meanwhile. `serve.rs` has the faults.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::io::{self, Errno};

use super::super::RegionError;
use super::ForkError;
use super::budget::Budget;
use super::entry::Entry;
use super::frames::{Broken, Frames, GivenUp, Holding, Near, Own, Place, Run};
use super::member::{Member, Words};
use super::patience::Patience;
use super::room::Room;
use super::serve::Refused;
use super::table::Table;
use super::tokens::Tokens;
use crate::fault::open::{self, Of};
use crate::fault::unsure;
use crate::fault::{Faults, Handlers, Handling, Registration, Serving};
use crate::pool::{Content, Extent, FaultError, InUse, Pool, Reserved};
use crate::populate::PopulateError;
use crate::profile::Profile;
use crate::sync::{Claims, Gate};
use crate::sys::mapping::{Mapping, Spare};
use crate::sys::memfd::{self, Pages};
use crate::sys::own::{self, OwnPiece};
use crate::sys::thread::without_signals;
use crate::sys::{memory, pagemap, userfaultfd};

/// A region of the first of them, its forks and theirs.
#[derive(Debug)]
pub(crate) struct Family {
    pub(super) pool: Pool,
    pub(super) descriptor: OwnedFd,
    pub(super) serving: Serving,
    pub(super) granule_bytes: usize,
    /// Who is at a slot, of all regions together.
    pub(super) slots: Claims<()>,
    pub(super) gate: Gate<State>,
    pub(super) budget: Budget,
    pub(super) spare: own::Own<Spare>,
    /// The handlers have ended because the kernel refused them: nothing can be shared any more.
    pub(super) unserved: own::Own<AtomicBool>,
    /// The kernel refused to wake threads that wait: they are to be seen to by [`Faults::leave`].
    pub(super) unwoken: own::Own<AtomicBool>,
    /// With what the kernel refuses to handler threads.
    pub(super) patience: own::Own<Patience>,
    /// Shared by readers of frames that others may give up meanwhile.
    pub(super) reading: RwLock<()>,
    handlers: Mutex<Option<Handlers>>,
    tokens: Tokens,
    /// A file without bytes: what is lost is mapped to it.
    pub(super) nothing: OwnedFd,
    /// By which it is seen what is mapped; `None` if it cannot be opened.
    pagemap: Option<OwnedFd>,
}

/// What faults read and forks change. A slot's entries and marks are changed by the thread that has the slot.
#[derive(Debug)]
pub(super) struct State {
    /// By address.
    members: Vec<Member>,
    pub(super) frames: Frames,
}

/// One fork may take one part in so many of the mappings that forks may cost.
const MOST_OF_BUDGET: usize = 8;

/// What a family is founded with.
#[derive(Clone, Copy, Debug)]
pub(in crate::region) struct Terms {
    pub(in crate::region) granule_bytes: usize,
    pub(super) handling: Handling,
    pub(super) most_mappings: Option<usize>,
}

impl State {
    /// The region that has an address.
    pub(super) fn at(&self, address: usize) -> Option<&Member> {
        self.members.get(self.index(address)?)
    }

    fn at_mut(&mut self, address: usize) -> Option<&mut Member> {
        let index = self.index(address)?;
        self.members.get_mut(index)
    }

    fn index(&self, address: usize) -> Option<usize> {
        let after = self.members.partition_point(|member| member.addresses().end <= address);
        let member = self.members.get(after)?;
        member.addresses().contains(&address).then_some(after)
    }

    /// Without allocating, if there is [`Room`].
    fn insert(&mut self, member: Member) {
        let start = member.addresses().start;
        let at = self.members.partition_point(|other| other.addresses().start < start);
        self.members.insert(at, member);
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// In debug builds, that counts, keepers and places agree: after each change by the thread that has the gate
    /// alone.
    fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for member in &self.members {
            for slot in 0..member.slots() {
                let frame = member.table.get(slot).frame();
                assert_eq!(self.frames.slot(frame), slot, "{member:?}");
                let sharers = || self.members.iter().filter(|other| other.shows(slot, frame));
                let keepers = sharers().filter(|other| other.keeps.get(slot)).count();
                assert_eq!(keepers, 1, "keepers of frame {frame}: {self:?}");
                assert_eq!(self.frames.sharers(frame), sharers().count(), "{frame}: {self:?}");
                let has_place = !member.keeps.get(slot);
                assert!(!has_place || self.frames.sharers(member.own.frame(slot)) == 0, "{self:?}");
                let is_alone = !member.table.get(slot).is_writable() || sharers().count() == 1;
                assert!(is_alone, "frame {frame} is shared and writable: {self:?}");
            }
        }
    }

    /// Regions other than the one at an address that show a frame at a slot.
    pub(super) fn others<'a>(
        &'a self,
        member: &'a Member,
        slot: usize,
        frame: u64,
    ) -> impl Iterator<Item = &'a Member> {
        let others = self.members.iter().filter(move |other| !std::ptr::eq(*other, member));
        others.filter(move |other| other.shows(slot, frame))
    }
}

impl Family {
    /// A family that has no region yet.
    pub(in crate::region) fn found(
        pool: &Pool,
        len: usize,
        terms: Terms,
    ) -> Result<Arc<Self>, ForkError> {
        // The first look at it may allocate, which no fault may.
        let _ = Profile::current();
        unsure::prepare();
        let Terms { granule_bytes, handling, most_mappings } = terms;
        let writes = Of::SharedWrites(pool.backing());
        let (threads, fall) = match handling {
            Handling::InPlace => (None, None),
            Handling::Threaded { threads } => (Some(threads), None),
            Handling::Auto => match open::for_handler_threads(writes) {
                Ok(_) => (Some(1), None),
                Err(fall) => (None, Some(fall)),
            },
        };
        let descriptor = match threads {
            Some(_) => open::for_handler_threads(writes)?,
            None => open::for_handling_in_place(writes)?,
        };
        let handling = threads.map_or(Handling::InPlace, |threads| Handling::Threaded { threads });
        let slots = len.div_ceil(granule_bytes);
        let spare = Spare::new(pool.memory().file(), pool.page_size());
        let family = Arc::new(Self {
            descriptor,
            serving: Serving { handling, fall },
            granule_bytes,
            slots: Claims::new(slots).map_err(unmapped)?,
            gate: Gate::new(State {
                members: Vec::new(),
                frames: Frames::new(granule_bytes, pool.page_size(), len),
            })
            .map_err(unmapped)?,
            budget: Budget::new(most_mappings).map_err(unmapped)?,
            spare: own::Own::new(spare).map_err(unmapped)?,
            unserved: own::Own::new(AtomicBool::new(false)).map_err(unmapped)?,
            unwoken: own::Own::new(AtomicBool::new(false)).map_err(unmapped)?,
            patience: own::Own::new(Patience::default()).map_err(unmapped)?,
            reading: RwLock::new(()),
            handlers: Mutex::new(None),
            tokens: Tokens::default(),
            nothing: memfd::create(c"hugekit:lost", Pages::Shmem)
                .map_err(|errno| kernel("memfd_create", errno))?,
            pagemap: pagemap::open_own().ok(),
            pool: pool.clone(),
        });
        if let Some(threads) = threads {
            let handlers = Handlers::start(&(Arc::clone(&family) as Arc<dyn Faults>), threads)?;
            *family.handlers.lock().unwrap_or_else(PoisonError::into_inner) = Some(handlers);
        }
        Ok(family)
    }

    pub(crate) fn serving(&self) -> &Serving {
        &self.serving
    }

    /// Whether what a later fork asks for is what the family has.
    pub(super) fn check(
        &self,
        granule: Option<usize>,
        handling: Option<Handling>,
    ) -> Result<(), ForkError> {
        let (own, served) = (self.granule_bytes, self.serving.handling);
        if let Some(asked) = granule.filter(|&asked| asked != own) {
            return Err(ForkError::GranuleDiffers { asked, granule: own });
        }
        match handling.filter(|&asked| asked != Handling::Auto && asked != served) {
            Some(asked) => Err(ForkError::HandlingDiffers { asked, handling: served }),
            None => Ok(()),
        }
    }

    pub(super) fn is_in_place(&self) -> bool {
        self.serving.handling == Handling::InPlace
    }

    /// Has signals of this process's accesses at these addresses come to us, if that is how they come.
    fn register(
        self: &Arc<Self>,
        addresses: Range<usize>,
    ) -> Result<Option<Registration>, FaultError> {
        let register = || Registration::new(addresses, Arc::clone(self) as Arc<dyn Faults>);
        self.is_in_place().then(register).transpose()
    }

    /// Has writes of a region be held back where they are to be.
    fn watch(&self, addresses: &Range<usize>, lazily: bool) -> Result<(), ForkError> {
        let watched = userfaultfd::register_for_copies(self.descriptor.as_fd(), addresses, lazily);
        watched.map_err(|errno| kernel("UFFDIO_REGISTER", errno))
    }

    /// Memory for what faults change of a region with these pieces and so many bytes.
    fn room_for(
        &self,
        pieces: &[Reserved],
        words: impl FnOnce(usize) -> io::Result<Words>,
        bytes: usize,
    ) -> Result<(OwnPiece, Words), ForkError> {
        let room = Place::room(pieces, self.granule_bytes, self.pool.page_size());
        let words = room.and_then(|room| Ok((room, words(bytes.div_ceil(self.granule_bytes))?)));
        words.map_err(unmapped)
    }

    /// What these pieces are in the gate. Their tokens stay outside.
    fn place_of(&self, pieces: Vec<Reserved>, room: OwnPiece) -> Place {
        let (memory, page_size) = (self.pool.memory(), self.pool.page_size());
        let place = Place::new(&pieces, room, memory, self.granule_bytes, page_size);
        self.tokens.add(pieces.into_iter().map(|(extent, _)| extent));
        place
    }

    /// The pieces that a place is made of, when it has not become a region's.
    fn pieces_of(&self, holdings: &[Holding]) -> Vec<Reserved> {
        let piece = |holding: &Holding| {
            let (folios, contents) = holding.whole();
            (self.tokens.take(&folios), contents)
        };
        holdings.iter().map(piece).collect()
    }

    /// Has the gate alone, with room for a member and so many holdings more.
    fn with_room<R>(&self, holdings: usize, act: impl FnOnce(&mut State) -> R) -> R {
        let (mut room, mut act) = (Room::default(), Some(act));
        loop {
            let done = without_signals(|| {
                let mut state = self.gate.alone();
                let State { members, frames } = &mut *state;
                room.give(members, frames.holdings(), holdings)?;
                let act = act.take().expect("the room suffices once");
                Ok(act(&mut state))
            });
            match done {
                Ok(done) => return done,
                Err(wanted) => room.grow(wanted),
            }
        }
    }

    /// The region that the family begins with.
    pub(in crate::region) fn begin(
        self: &Arc<Self>,
        extent: Extent<InUse>,
        mapping: Mapping,
    ) -> Result<Membership, (Extent<InUse>, Mapping, ForkError)> {
        let start = mapping.start().as_ptr().addr();
        let addresses = start..start + mapping.len();
        let slots = mapping.len().div_ceil(self.granule_bytes);
        let contents = vec![(extent.folios().len(), Content::Dirty)];
        let mut pieces = vec![(extent, contents)];
        let made = self.room_for(&pieces, Words::of_first, mapping.len()).and_then(|made| {
            self.watch(&addresses, false)?;
            Ok((made, self.register(addresses)?))
        });
        let ((room, words), registration) = match made {
            Ok(made) => made,
            Err(error) => {
                let (extent, _) = pieces.pop().expect("one piece");
                return Err((extent, mapping, error));
            }
        };
        let mut place = self.place_of(pieces, room);
        self.with_room(place.len(), |state| {
            let own = state.frames.add(&mut place);
            (0..slots).for_each(|slot| state.frames.get(own.frame(slot), 1));
            state.insert(Member::first(mapping, words, own, self.granule_bytes));
            state.check();
        });
        Ok(Membership { family: Arc::clone(self), start, registration })
    }

    /// What lies in this process's mappings between the slots that are pinned.
    fn unpinned(slots: usize, pinned: &[usize]) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(pinned.iter().map(|slot| slot + 1));
        let ends = pinned.iter().copied().chain([slots]);
        starts.zip(ends).map(|(start, end)| start..end).filter(|slots| !slots.is_empty())
    }
}

/// A region's place in its family.
#[derive(Debug)]
pub(in crate::region) struct Membership {
    pub(in crate::region) family: Arc<Family>,
    /// Its address.
    pub(in crate::region) start: usize,
    registration: Option<Registration>,
}

impl Membership {
    /// Forks the region, whose child has this place. Slots that are pinned are in ascending order.
    pub(in crate::region) fn fork(
        &self,
        place: Vec<Reserved>,
        pinned: &[usize],
        bytes: usize,
    ) -> Result<Fresh, ForkError> {
        let family = &self.family;
        let addresses = match self.try_fork(place, pinned, bytes) {
            Err(error @ ForkError::Mappings { .. }) => {
                self.gather(pinned, bytes, error)?;
                let place = family.pool.reserve(bytes, family.granule_bytes)?;
                self.try_fork(place, pinned, bytes)
            }
            other => other,
        }?;
        // No user knows the addresses yet.
        let child = |registration| {
            let (family, start) = (Arc::clone(family), addresses.start);
            Membership { family, start, registration }
        };
        match family.register(addresses.clone()) {
            Ok(registration) => Ok(Fresh { membership: child(registration), bytes }),
            Err(error) => {
                child(None).leave(false)?;
                Err(error.into())
            }
        }
    }

    fn try_fork(
        &self,
        pieces: Vec<Reserved>,
        pinned: &[usize],
        bytes: usize,
    ) -> Result<Range<usize>, ForkError> {
        let family = &self.family;
        let (room, words) = match family.room_for(&pieces, Words::of_child, bytes) {
            Ok(made) => made,
            Err(error) => {
                family.return_folios(pieces);
                return Err(error);
            }
        };
        let mut place = family.place_of(pieces, room);
        let mut made = Made {
            runs: Vec::with_capacity(family.most_runs().min(bytes.div_ceil(family.granule_bytes))),
            unused: Vec::with_capacity(place.len()),
            words: Some(words),
        };
        let forked = family.with_room(place.len(), |state| {
            let own = state.frames.add(&mut place);
            self.fork_alone(state, own, &mut made, pinned)
        });
        forked.map_err(|(_own, failed)| {
            family.return_folios(family.pieces_of(&made.unused));
            failed.into()
        })
    }

    /// Brings a region together whose frames are scattered: into its own place if that is whole, or into a
    /// new one. `error` is what is said if neither can be.
    fn gather(&self, pinned: &[usize], bytes: usize, error: ForkError) -> Result<(), ForkError> {
        let family = &*self.family;
        let completed = self.with_gate(|state| {
            let member = state.at(self.start).expect("a member as long as this exists");
            let has_place = |slot| {
                let is_own = member.shows(slot, member.own.frame(slot));
                is_own || !member.keeps.get(slot)
            };
            let is_whole = (0..member.slots()).all(has_place);
            is_whole.then(|| family.complete(state, member))
        });
        match completed {
            Some(Ok(())) => return Ok(()),
            Some(Err(_)) => return Err(error),
            // Who holds a page of it does not see it move.
            None if !pinned.is_empty() => return Err(error),
            None => {}
        }
        let pieces = family.pool.reserve(bytes, family.granule_bytes)?;
        let room = Place::room(&pieces, family.granule_bytes, family.pool.page_size());
        let Some(room) = room.ok().filter(|_| pieces.len() == 1) else {
            family.return_folios(pieces);
            return Err(error);
        };
        let mut place = family.place_of(pieces, room);
        let (mut unused, mut given_up) = (Vec::with_capacity(place.len()), GivenUp::new());
        let moved = family.with_room(place.len(), |state| {
            let moved = family.rehome(state, self.start, &mut place, &mut unused);
            state.frames.take_given_up(&mut given_up);
            moved
        });
        family.return_given_up(given_up)?;
        family.return_folios(family.pieces_of(&unused));
        moved.map(|_before| ()).map_err(|(_own, failed)| failed.into())
    }

    fn with_gate<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        without_signals(|| act(&mut self.family.gate.alone()))
    }

    /// With `own`, which was just added for the child. Does not allocate.
    fn fork_alone(
        &self,
        state: &mut State,
        own: Own,
        made: &mut Made,
        pinned: &[usize],
    ) -> Result<Range<usize>, (Own, Failed)> {
        let family = &*self.family;
        let forked = family.prepare(state, self.start, &own, pinned, &mut made.runs);
        let forked = forked.and_then(|(mapping, extra)| {
            let protected = family.protect(state, self.start, pinned).and_then(|()| {
                let parent = state.at(self.start).expect("a member as long as this exists");
                copy_pinned(parent, &state.frames, &own, pinned)
            });
            if let Err(failed) = protected {
                // SAFETY: just mapped, and no other thread knows of it.
                let _ = unsafe { mapping.unmap() };
                family.budget.give(extra);
                return Err(failed);
            }
            Ok((mapping, extra))
        });
        let (mapping, extra) = match forked {
            Ok(mapped) => mapped,
            Err(failed) => {
                state.frames.take_last(&own, &mut made.unused);
                return Err((own, failed));
            }
        };
        let words = made.words.take().expect("made for this child");
        let State { members, frames } = state;
        let parent = members.iter_mut().find(|member| member.addresses().start == self.start);
        let parent = parent.expect("a member as long as this exists");
        copy_table(parent, &words.table, frames, &own, pinned);
        let child = Member::child(mapping, words, own, family.granule_bytes);
        (0..child.slots()).filter(|&slot| parent.lost.get(slot)).for_each(|slot| {
            family.lose(&child, slot);
        });
        child.counts().mappings.store(extra, Ordering::Relaxed);
        for &slot in pinned {
            child.keeps.set(slot);
        }
        let addresses = child.addresses();
        state.insert(child);
        state.check();
        Ok(addresses)
    }

    /// Leaves the family: no thread uses the region's addresses any more. What only it had goes back to the
    /// pool, or to the kernel if that is to be.
    pub(in crate::region) fn leave(mut self, to_kernel: bool) -> Result<(), ForkError> {
        // No thread is serving one of its faults any more when this is done, and none may wait for the gate.
        drop(self.registration.take());
        let mut given_up = GivenUp::new();
        let (_member, is_last) = without_signals(|| {
            let mut state = self.family.gate.alone();
            let index = state.index(self.start).expect("a member as long as this exists");
            // SAFETY: its own addresses, which no thread uses any more. In the gate, because no thread may change
            // anything at these addresses once they may be another region's.
            unsafe { state.members[index].mapping.unmap() }
                .or_else(|_| {
                    // It may lie between others in one mapping, which takes one more to cut.
                    self.family.spare.release();
                    // SAFETY: as above.
                    unsafe { state.members[index].mapping.unmap() }
                })
                .map_err(|errno| kernel("munmap", errno))?;
            let member = state.members.remove(index);
            give_up(&mut state, &member, 0..member.slots(), to_kernel);
            state.frames.take_given_up(&mut given_up);
            self.family.budget.give(member.counts().mappings.load(Ordering::Relaxed));
            state.check();
            Ok::<_, ForkError>((member, state.members.is_empty()))
        })?;
        if is_last {
            self.family.end();
        }
        self.family.return_given_up(given_up)
    }

    /// Cuts the region to the folios and granules that its first `bytes` lie on; how many bytes these are.
    /// No thread uses the addresses behind them any more.
    pub(in crate::region) fn truncate(&self, bytes: usize) -> Result<usize, ForkError> {
        let family = &*self.family;
        let unit = family.granule_bytes.max(family.pool.page_size());
        let len = self.entries(|_, member| member.mapping.len());
        let kept = bytes.next_multiple_of(unit).min(len);
        let slots = kept.div_ceil(family.granule_bytes);
        if let Some(registration) = &self.registration {
            registration.cut(kept);
        }
        let mut given_up = GivenUp::new();
        without_signals(|| {
            let mut state = family.gate.alone();
            let member = state.at_mut(self.start).expect("a member as long as this exists");
            let all = member.slots();
            if slots == all {
                return Ok(());
            }
            // SAFETY: its own addresses, which no thread uses any more.
            if let Err(errno) = unsafe { member.mapping.unmap_from(kept) } {
                // Its tail is served again.
                self.registration.iter().for_each(|registration| registration.cut(len));
                return Err(kernel("munmap", errno));
            }
            let index = state.index(self.start).expect("still there");
            let mut member = state.members.remove(index);
            give_up(&mut state, &member, slots..all, false);
            state.frames.take_given_up(&mut given_up);
            member.table.cut(slots);
            state.insert(member);
            state.check();
            Ok::<_, ForkError>(())
        })?;
        family.return_given_up(given_up)?;
        Ok(kept)
    }
}

/// What a fork takes, and what is left of it when there is none: allocated and dropped outside of the gate.
#[derive(Debug)]
struct Made {
    /// Where in the file each run of its frames lies, and how long it is.
    runs: Vec<(u64, usize)>,
    unused: Vec<Holding>,
    words: Option<Words>,
}

/// A region that no user has seen yet.
#[derive(Debug)]
pub(in crate::region) struct Fresh {
    pub(in crate::region) membership: Membership,
    pub(in crate::region) bytes: usize,
}

impl Family {
    /// Maps for a child what its parent has, one mapping for each run of frames, so that every access comes
    /// to us; and how many mappings more than one that is.
    fn prepare(
        &self,
        state: &mut State,
        parent: usize,
        own: &Own,
        pinned: &[usize],
        runs: &mut Vec<(u64, usize)>,
    ) -> Result<(Mapping, isize), Failed> {
        if self.unserved.load(Ordering::SeqCst) {
            return Err(kernel("userfaultfd", Errno::PERM).into());
        }
        let needed = add_runs(state, parent, own, pinned, runs) - 1;
        let pool = self.pool.memory();
        let (left, most) = self.budget.left();
        if needed >= self.most_runs() || !self.budget.take(needed as isize) {
            return Err(ForkError::Mappings { needed, left, most }.into());
        }
        let mapping = Mapping::of_pieces(pool.file(), runs, self.pool.page_size());
        let mapping = mapping.map_err(|errno| {
            self.budget.give(needed as isize);
            ForkError::NotMapped { mappings: runs.len(), source: errno.into() }
        })?;
        let start = mapping.start().as_ptr().addr();
        let watched = self.watch(&(start..start + mapping.len()), true).and_then(|()| {
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
                self.budget.give(needed as isize);
                Err(error.into())
            }
        }
    }

    /// As many runs of frames as one fork may map.
    fn most_runs(&self) -> usize {
        let (_, most) = self.budget.left();
        most / MOST_OF_BUDGET + 1
    }

    /// Before a mapping was registered, pages that let writes through may have come there: by the fault of a
    /// region whose mapping lies beside it, because the process locks what it maps, or another thread all that is
    /// mapped. (To unmap nothing from hugetlb costs half as much as the rest of a fork, because it interrupts the
    /// other CPUs: so it is looked at first.)
    fn unmap_what_came_early(&self, mapping: &Mapping) -> io::Result<()> {
        let start = mapping.start().as_ptr().addr();
        let addresses = start..start + mapping.len();
        let pagemap = self.pagemap.as_ref().filter(|_| self.pool.backing().is_reserved());
        let came = pagemap.map(|pagemap| pagemap::has_present(pagemap.as_fd(), &addresses));
        if came == Some(Ok(false)) {
            return Ok(());
        }
        // SAFETY: of a shared mapping that no thread uses yet.
        unsafe { memory::unmap_pages(mapping.start().as_ptr(), mapping.len()) }
    }

    /// Moves a region to a new place, which is one piece: no thread writes it meanwhile, and from one moment to
    /// the next it is there. What it had before, or the new place if it did not come to that.
    fn rehome(
        &self,
        state: &mut State,
        start: usize,
        place: &mut Place,
        unused: &mut Vec<Holding>,
    ) -> Result<Own, (Own, Failed)> {
        let own = state.frames.add(place);
        if let Err(failed) = self.move_to(state, start, &own) {
            state.frames.take_last(&own, unused);
            return Err((own, failed));
        }
        let index = state.index(start).expect("a member as long as its region exists");
        let mut member = state.members.remove(index);
        let slots = member.slots();
        give_up(state, &member, 0..slots, false);
        for slot in 0..slots {
            state.frames.get(own.frame(slot), 1);
            member.keeps.set(slot);
        }
        member.table.fill(Entry::new(own.frame(0)).writable().accessed());
        let before = std::mem::replace(&mut member.own, own);
        self.count_mappings(&member, 0);
        state.insert(member);
        state.check();
        Ok(before)
    }

    /// Copies what a region shows to a new place and maps that.
    fn move_to(&self, state: &mut State, start: usize, own: &Own) -> Result<(), Failed> {
        self.protect(state, start, &[])?;
        let member = state.at(start).expect("a member as long as its region exists");
        let frames = &state.frames;
        for slot in 0..member.slots() {
            if member.lost.get(slot) {
                return Err(Refused::Broken.into());
            }
            if member.keeps.get(slot) {
                self.copy_for_others(state, member, slot, None)?;
            }
            let copied =
                frames.copy(member.table.get(slot).frame(), own.frame(slot), Near::Neither);
            copied.map_err(|Broken| Refused::Broken)?;
        }
        Ok(self.show_run(member, 0..member.slots(), frames.offset(own.frame(0)))?)
    }

    /// Holds back writes to what a child is about to share: one call for each run. If one fails, what was
    /// protected stays so, and the table says it.
    fn protect(&self, state: &mut State, parent: usize, pinned: &[usize]) -> Result<(), Failed> {
        let descriptor = self.descriptor.as_fd();
        let parent = state.at(parent).expect("a member as long as its region exists");
        if !parent.is_registered() {
            self.watch(&parent.addresses(), false)?;
            parent.counts().registered.store(true, Ordering::Relaxed);
        }
        for part in Self::unpinned(parent.slots(), pinned) {
            let mut slot = part.start;
            while slot < part.end {
                let next = slot + parent.table.run_as_writable(slot..part.end);
                if parent.table.get(slot).is_writable() {
                    let addresses = parent.addresses_of(slot..next);
                    userfaultfd::protect(descriptor, &addresses, true)
                        .map_err(|errno| kernel("UFFDIO_WRITEPROTECT", errno))?;
                    parent.table.write_protect(slot..next);
                }
                slot = next;
            }
        }
        Ok(())
    }

    /// Gives back what no region shows any more. Not in the gate.
    fn return_folios(&self, pieces: Vec<Reserved>) {
        self.wait_for_readers();
        for (extent, contents) in pieces {
            // SAFETY: nothing maps them but the alias; the contents are what was noted.
            unsafe { self.pool.give_back(extent, &contents) };
        }
    }

    /// Gives to the pool, or to the kernel, what was given up. Not in the gate.
    fn return_given_up(&self, mut given_up: GivenUp) -> Result<(), ForkError> {
        loop {
            self.wait_for_readers();
            for run in &given_up.runs {
                self.return_run(run)?;
            }
            if !given_up.is_full {
                return Ok(());
            }
            given_up = GivenUp::new();
            without_signals(|| self.gate.alone().frames.take_given_up(&mut given_up));
        }
    }

    fn return_run(&self, run: &Run) -> Result<(), ForkError> {
        let extent = self.tokens.take(&run.folios);
        if run.to_kernel {
            // SAFETY: nothing maps them but the alias.
            return unsafe { self.pool.give_back_as_holes(extent) }.map_err(ForkError::Kept);
        }
        // SAFETY: as above; the contents are what was noted.
        unsafe { self.pool.give_back(extent, &[(run.folios.len(), run.content)]) };
        Ok(())
    }

    /// A thread that begins to read from now on does not find what was given up.
    fn wait_for_readers(&self) {
        drop(self.reading.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The last region has left.
    pub(in crate::region) fn end(&self) {
        let handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handlers) = handlers {
            handlers.stop();
        }
    }

    /// In a forked child, which has no handlers.
    pub(in crate::region) fn forget_handlers(&self) {
        // Another thread may have held the lock when the process was forked.
        if let Ok(mut handlers) = self.handlers.try_lock()
            && let Some(handlers) = handlers.take()
        {
            handlers.forget();
        }
    }
}

/// Where in the file each run of what a child shows lies, and how long it is, as far as there is room; how many runs
/// there are.
fn add_runs(
    state: &mut State,
    parent: usize,
    own: &Own,
    pinned: &[usize],
    runs: &mut Vec<(u64, usize)>,
) -> usize {
    let parent = state.index(parent).expect("a member as long as its region exists");
    let State { members, frames } = state;
    let parent = &mut members[parent];
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
    let (slots, mut pinned, mut slot) = (parent.slots(), pinned, 0);
    while slot < slots {
        let next = pinned.first().copied().unwrap_or(slots);
        if next == slot {
            add(own.frame(slot), frames.len_of(slot));
            (slot, pinned) = (slot + 1, &pinned[1..]);
        } else {
            let run = parent.table.run(slot..next);
            add(parent.table.get(slot).frame(), parent.addresses_of(slot..slot + run).len());
            slot += run;
        }
    }
    count
}

/// Copies what is pinned to a child's own place.
fn copy_pinned(
    parent: &Member,
    frames: &Frames,
    own: &Own,
    pinned: &[usize],
) -> Result<(), Failed> {
    pinned.iter().try_for_each(|&slot| {
        let copied = frames.copy(parent.table.get(slot).frame(), own.frame(slot), Near::Neither);
        copied.map_err(|Broken| Refused::Broken.into())
    })
}

/// Copies the table of a region of which nothing can be written any more but what is pinned: the child shares
/// all else, and shows the copies of what is pinned. It begins with nothing in the page tables.
fn copy_table(parent: &Member, child: &Table, frames: &Frames, own: &Own, pinned: &[usize]) {
    assert_eq!(parent.slots(), child.slots(), "tables of different lengths");
    for slot in Family::unpinned(parent.slots(), pinned).flatten() {
        parent.table.write_protect(slot..slot + 1);
        let entry = parent.table.get(slot);
        frames.get(entry.frame(), 1);
        child.set(slot, entry.old());
    }
    for &slot in pinned {
        frames.get(own.frame(slot), 1);
        child.set(slot, parent.table.get(slot).with_frame(own.frame(slot)).old());
    }
}

/// A region that is no member any more, or will have these slots no more, gives them up: what others still
/// show is kept by one of them from then on, which needs no place for a copy of its own any more.
fn give_up(state: &mut State, member: &Member, slots: Range<usize>, to_kernel: bool) {
    for slot in slots {
        let frame = member.table.get(slot).frame();
        let is_last = state.frames.put(frame, 1);
        let spare = if !member.keeps.get(slot) {
            member.own_frame(slot)
        } else if is_last {
            frame
        } else {
            let heir = state.others(member, slot, frame).next().expect("counted");
            heir.keeps.set(slot);
            heir.own_frame(slot)
        };
        state.frames.give_up(spare, to_kernel);
    }
}

/// Why there is no fork, as it is said in the gate, where nothing is allocated.
#[derive(Debug)]
enum Failed {
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
            Failed::Refused(Refused::Broken) => {
                Self::NotReady(Box::new(RegionError::Copy(PopulateError::Poisoned)))
            }
            Failed::Refused(Refused::Kernel(errno)) => kernel("mmap", errno),
        }
    }
}

/// What faults change of a region has no place.
fn unmapped(errno: Errno) -> ForkError {
    ForkError::NotMapped { mappings: 1, source: errno.into() }
}

pub(super) fn kernel(call: &'static str, errno: Errno) -> ForkError {
    ForkError::Kernel { call, source: errno.into() }
}

/// What a region shares at this moment.
impl Membership {
    pub(in crate::region) fn granule_bytes(&self) -> usize {
        self.family.granule_bytes
    }

    pub(super) fn entries<R>(&self, look: impl FnOnce(&State, &Member) -> R) -> R {
        without_signals(|| {
            let state = self.family.gate.share();
            look(&state, state.at(self.start).expect("a member as long as this exists"))
        })
    }

    /// Slots that it keeps.
    pub(in crate::region) fn count_kept(&self) -> u64 {
        self.entries(|_, member| {
            (0..member.slots()).filter(|&slot| member.keeps.get(slot)).count() as u64
        })
    }

    pub(in crate::region) fn count_shared(&self) -> usize {
        self.entries(|state, member| {
            let is_shared =
                |&slot: &usize| state.frames.sharers(member.table.get(slot).frame()) > 1;
            (0..member.slots()).filter(is_shared).map(|slot| state.frames.len_of(slot)).sum()
        })
    }
}
