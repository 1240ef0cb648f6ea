//! Regions that were forked from each other, and what they share: founding, joining and leaving.
//!
//! The thread that does one of these has the gate alone: no fault is served meanwhile. `serve.rs` has the faults.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::io::Errno;

use super::ForkError;
use super::budget::Budget;
use super::entry::Entry;
use super::frames::{Frames, GivenUp, Holding, Reservation, Run};
use super::guard::Alone;
use super::hold::Hold;
use super::mapping::{CowMapping, Words};
use super::mappings::Mappings;
use super::patience::Patience;
use super::room::Room;
use super::sharers::Id;
use super::slot::{Event, Pages, Slot};
use super::tokens::Tokens;
use crate::fault::open::{self, Of};
use crate::fault::{self, no_fault};
use crate::fault::{FaultMode, Faults, Handlers, Registration, Serving};
use crate::pool::{Content, Extent, FaultError, InUse, Pool, Reserved};
use hugekit_bulk::learning;
use hugekit_sys::mapping::{Mapping, Spare};
use hugekit_sys::memfd::{self, Pages as FilePages};
use hugekit_sys::pagemap::PageMap;
use hugekit_sys::private_pages::{self, PrivatePiece};
use hugekit_sys::sync::{Claims, Gate};
use hugekit_sys::thread::without_signals;
use hugekit_sys::userfaultfd;

/// A region, its forks and theirs.
#[derive(Debug)]
pub(crate) struct ForkGroup {
    pub(super) pool: Pool,
    pub(super) descriptor: OwnedFd,
    serving: Serving,
    pub(super) hold: Hold,
    pub(super) granule_bytes: usize,
    /// Which thread is at a slot, of all mappings together.
    pub(super) slots: Claims<()>,
    pub(super) gate: Gate<Tables>,
    pub(super) budget: Budget,
    pub(super) spare: private_pages::Private<Spare>,
    /// The handlers have ended because the kernel refused them: nothing can be shared any more.
    pub(super) unserved: private_pages::Private<AtomicBool>,
    /// The kernel refused to wake threads that wait: they are to be seen to by [`Faults::leave`].
    pub(super) unwoken: private_pages::Private<AtomicBool>,
    /// With what the kernel refuses to handler threads.
    pub(super) patience: private_pages::Private<Patience>,
    /// Shared by readers of frames that others may give up meanwhile.
    pub(super) reading: RwLock<()>,
    handlers: Mutex<Option<Handlers>>,
    tokens: Tokens,
    /// A file without bytes: what is lost is mapped to it.
    pub(super) nothing: OwnedFd,
    /// By which it is seen what is mapped; `None` if it cannot be opened.
    pub(super) pagemap: Option<PageMap>,
    pub(super) reads: Reads,
}

/// What comes of a read of what is shared, where the kernel has not entered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// It is entered, protected from writes.
    Share,
    /// The reader gets a copy, as if it wrote: this kernel enters no page of a file that is protected from the
    /// beginning (Linux 6.4), and to protect it afterwards would let a write pass in between.
    Copy,
}

impl Reads {
    fn by(descriptor: BorrowedFd<'_>) -> Self {
        if userfaultfd::can_map_protected(descriptor) { Self::Share } else { Self::Copy }
    }

    /// What happens to a slot that a thread reads.
    pub(super) fn event(self) -> Event {
        match self {
            Self::Share => Event::Read,
            Self::Copy => Event::Write,
        }
    }
}

/// What faults read and forks change. What a slot shows is changed by the thread that has a guard of it.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) mappings: Mappings,
    pub(super) frames: Frames,
}

/// What a group is founded with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) granule_bytes: usize,
    pub(crate) fault_mode: FaultMode,
    pub(crate) max_vmas: Option<usize>,
}

impl Tables {
    /// In debug builds, that owners and rings agree with what is shown: after each change by the thread that has the
    /// gate alone.
    pub(super) fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for mapping in self.mappings.iter() {
            (0..mapping.slots()).for_each(|slot| self.check_slot(mapping, slot));
        }
    }

    fn check_slot(&self, mapping: &CowMapping, slot: usize) {
        let entry = mapping.entry(slot);
        assert_eq!(self.frames.slot(entry.frame), slot, "{mapping:?}");
        let others = || self.mappings.sharers(mapping, slot);
        let agree = others().all(|other| other.entry(slot).frame == entry.frame);
        assert!(agree, "a ring of different frames: {self:?}");
        let owners = others().filter(|other| other.entry(slot).slot.is_owner()).count();
        let owners = owners + usize::from(entry.slot.is_owner());
        assert_eq!(owners, 1, "owners of frame {}: {self:?}", entry.frame);
        let is_alone = others().next().is_none();
        assert!(is_alone || !entry.slot.is_exclusive(), "shared and writable: {self:?}");
    }
}

impl ForkGroup {
    /// A group that has no region yet.
    pub(crate) fn found(pool: &Pool, len: usize, terms: Terms) -> Result<Arc<Self>, ForkError> {
        // The first look at it may allocate, which no fault may.
        learning::prepare();
        no_fault::prepare();
        let Terms { granule_bytes, fault_mode, max_vmas } = terms;
        let writes = Of::SharedWrites(pool.backing());
        let (threads, fallback) = match fault_mode {
            FaultMode::InPlace => (None, None),
            FaultMode::Threaded { threads } => (Some(threads), None),
            FaultMode::Auto => match open::for_handler_threads(writes) {
                Ok(_) => (Some(1), None),
                Err(fallback) => (None, Some(fallback)),
            },
        };
        let descriptor = match threads {
            Some(_) => open::for_handler_threads(writes)?,
            None => open::for_serving_in_place(writes)?,
        };
        let fault_mode =
            threads.map_or(FaultMode::InPlace, |threads| FaultMode::Threaded { threads });
        let slots = len.div_ceil(granule_bytes);
        let budget = Budget::new(max_vmas).map_err(unmapped)?;
        let reads = Reads::by(descriptor.as_fd());
        let hold = Hold::of(pool, granule_bytes, (fault_mode, reads), (slots, budget.left().1));
        let spare = Spare::new(pool.memory().file(), pool.page_size());
        let group = Arc::new(Self {
            reads,
            descriptor,
            serving: Serving { fault_mode, fallback },
            hold,
            granule_bytes,
            slots: Claims::new(slots).map_err(unmapped)?,
            gate: Gate::new(Tables {
                mappings: Mappings::default(),
                frames: Frames::new(granule_bytes, pool.page_size(), len),
            })
            .map_err(unmapped)?,
            budget,
            spare: private_pages::Private::new(spare).map_err(unmapped)?,
            unserved: private_pages::Private::new(AtomicBool::new(false)).map_err(unmapped)?,
            unwoken: private_pages::Private::new(AtomicBool::new(false)).map_err(unmapped)?,
            patience: private_pages::Private::new(Patience::default()).map_err(unmapped)?,
            reading: RwLock::new(()),
            handlers: Mutex::new(None),
            tokens: Tokens::default(),
            nothing: memfd::create(c"hugekit:lost", FilePages::Shmem)
                .map_err(|errno| kernel("memfd_create", errno))?,
            pagemap: PageMap::open().ok(),
            pool: pool.clone(),
        });
        if let Some(threads) = threads {
            let handlers = Handlers::start(&(Arc::clone(&group) as Arc<dyn Faults>), threads)?;
            *group.handlers.lock().unwrap_or_else(PoisonError::into_inner) = Some(handlers);
        }
        Ok(group)
    }

    pub(crate) fn serving(&self) -> &Serving {
        &self.serving
    }

    /// Whether what a later fork asks for is what the group has.
    pub(crate) fn check(
        &self,
        granule: Option<usize>,
        fault_mode: Option<FaultMode>,
    ) -> Result<(), ForkError> {
        let (own, served) = (self.granule_bytes, self.serving.fault_mode);
        if let Some(asked) = granule.filter(|&asked| asked != own) {
            return Err(ForkError::GranuleDiffers { asked, granule: own });
        }
        match fault_mode.filter(|&asked| asked != FaultMode::Auto && asked != served) {
            Some(asked) => Err(ForkError::FaultModeDiffers { asked, fault_mode: served }),
            None => Ok(()),
        }
    }

    pub(super) fn is_in_place(&self) -> bool {
        self.serving.fault_mode == FaultMode::InPlace
    }

    /// Has signals of this process's accesses at these addresses come to us, if that is how they come.
    pub(super) fn register(
        self: &Arc<Self>,
        addresses: Range<usize>,
    ) -> Result<Option<Registration>, FaultError> {
        let register = || Registration::new(addresses, Arc::clone(self) as Arc<dyn Faults>);
        self.is_in_place().then(register).transpose()
    }

    /// That signals of held-back writes come to us.
    pub(super) fn check_handlers(&self) -> Result<(), FaultError> {
        match self.hold {
            Hold::Marks | Hold::Removal => Ok(()),
            Hold::Rights => fault::serve_forbidden_writes(),
        }
    }

    /// Has writes to a mapping be held back where they are to be.
    pub(super) fn watch(&self, addresses: &Range<usize>, lazily: bool) -> Result<(), ForkError> {
        let watched = userfaultfd::register_for_copies(self.descriptor.as_fd(), addresses, lazily);
        watched.map_err(|errno| kernel("UFFDIO_REGISTER", errno))
    }

    /// Memory for what faults change of a mapping with these pieces and so many bytes; `whole` if it is one mapping
    /// of the kernel's.
    pub(super) fn room_for(
        &self,
        pieces: &[Reserved],
        bytes: usize,
        whole: bool,
    ) -> Result<(PrivatePiece, Words), ForkError> {
        let slots = bytes.div_ceil(self.granule_bytes);
        let room = Reservation::room(pieces);
        room.and_then(|room| Ok((room, Words::new(slots, whole)?))).map_err(unmapped)
    }

    /// What these pieces are in the gate. Their tokens stay outside.
    pub(super) fn reservation_of(&self, pieces: Vec<Reserved>, room: PrivatePiece) -> Reservation {
        let (memory, page_size) = (self.pool.memory(), self.pool.page_size());
        let reservation = Reservation::new(&pieces, room, memory, self.granule_bytes, page_size);
        self.tokens.add(pieces.into_iter().map(|(extent, _)| extent));
        reservation
    }

    /// The pieces that a reservation is made of, when it has not become a mapping's.
    pub(super) fn pieces_of(&self, holdings: &[Holding]) -> Vec<Reserved> {
        let piece = |holding: &Holding| {
            let (folios, contents) = holding.whole();
            (self.tokens.take(&folios), contents)
        };
        holdings.iter().map(piece).collect()
    }

    /// Has the gate alone, with room for a mapping and so many holdings more.
    pub(super) fn with_room<R>(&self, holdings: usize, act: impl FnOnce(&mut Tables) -> R) -> R {
        let (mut room, mut act) = (Room::default(), Some(act));
        loop {
            let done = without_signals(|blocked| {
                let mut tables = self.gate.alone(blocked);
                room.give(&mut tables, holdings)?;
                let act = act.take().expect("the room suffices once");
                Ok(act(&mut tables))
            });
            match done {
                Ok(done) => return done,
                Err(wanted) => room.grow(wanted),
            }
        }
    }

    /// The region that the group begins with.
    pub(crate) fn begin(
        self: &Arc<Self>,
        extent: Extent<InUse>,
        mapping: Mapping,
    ) -> Result<CowHandle, (Extent<InUse>, Mapping, ForkError)> {
        let start = mapping.start().as_ptr().addr();
        let addresses = start..start + mapping.len();
        let contents = vec![(extent.folios().len(), Content::Dirty)];
        let mut pieces = vec![(extent, contents)];
        let made = self.room_for(&pieces, mapping.len(), true).and_then(|made| {
            if self.hold == Hold::Marks {
                self.watch(&addresses, false)?;
            }
            Ok((made, self.register(addresses)?))
        });
        let ((room, words), registration) = match made {
            Ok(made) => made,
            Err(error) => {
                let (extent, _) = pieces.pop().expect("one piece");
                return Err((extent, mapping, error));
            }
        };
        let mut reservation = self.reservation_of(pieces, room);
        self.with_room(reservation.len(), |tables| {
            let reserve = tables.frames.add(&mut reservation);
            let id = tables.mappings.next_id();
            let mapping = CowMapping::new(id, mapping, words, reserve, self.granule_bytes);
            mapping.counts().registered.store(self.hold == Hold::Marks, Ordering::Relaxed);
            tables.mappings.insert(mapping);
            show_reserve(tables.mappings.alone(), id);
            tables.check();
        });
        Ok(CowHandle { group: Arc::clone(self), start, registration })
    }

    /// Gives back what no region shows any more. Not in the gate.
    pub(super) fn return_folios(&self, pieces: Vec<Reserved>) {
        self.wait_for_readers();
        for (extent, contents) in pieces {
            // SAFETY: nothing maps them but the alias; the contents are what was noted.
            unsafe { self.pool.give_back(extent, &contents) };
        }
    }

    /// Gives to the pool, or to the kernel, what was given up. Not in the gate.
    pub(super) fn return_given_up(&self, mut given_up: GivenUp) -> Result<(), ForkError> {
        loop {
            self.wait_for_readers();
            for run in &given_up.runs {
                self.return_run(run)?;
            }
            if !given_up.is_full {
                return Ok(());
            }
            given_up = GivenUp::new();
            without_signals(|blocked| self.gate.alone(blocked).frames.take_given_up(&mut given_up));
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
    pub(crate) fn end(&self) {
        let handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handlers) = handlers {
            handlers.stop();
        }
    }

    /// In a forked child, which has no handlers.
    pub(crate) fn forget_handlers(&self) {
        // Another thread may have held the lock when the process was forked.
        if let Some(handlers) = self.handlers.try_lock().ok().and_then(|mut held| held.take()) {
            handlers.forget();
        }
    }
}

/// The mapping shows what came with it, alone, by addresses that map just that.
pub(super) fn show_reserve(alone: Alone<'_>, id: Id) {
    let mapping = alone.mappings().get(id);
    for slot in 0..mapping.slots() {
        let (guard, frame) = (alone.slot(slot), mapping.reserved_frame(slot));
        guard.set(mapping, Entry { frame, slot: Slot::Exclusive(Pages::InPlace) });
        guard.begin(mapping);
    }
}

/// A mapping gives slots up: what others still show is owned by one of them from then on, which needs no place
/// for a copy of its own any more.
pub(super) fn give_up(tables: &mut Tables, id: Id, slots: Range<usize>, to_kernel: bool) {
    for slot in slots {
        let guard = tables.mappings.alone().slot(slot);
        let mapping = guard.mapping(id);
        let (entry, heir) = (guard.entry(mapping), guard.sharers(mapping).next());
        let spare = match heir {
            _ if !entry.slot.is_owner() => mapping.reserved_frame(slot),
            None => entry.frame,
            Some(heir) => {
                let plan = guard.plan(heir, Event::OwnerLeft);
                plan.iter().for_each(|&action| guard.is_done(heir, action));
                heir.reserved_frame(slot)
            }
        };
        guard.part(mapping);
        tables.frames.give_up(spare, to_kernel);
    }
}

/// A region's mapping in its group.
#[derive(Debug)]
pub(crate) struct CowHandle {
    pub(crate) group: Arc<ForkGroup>,
    /// Its address.
    pub(crate) start: usize,
    pub(super) registration: Option<Registration>,
}

impl CowHandle {
    pub(crate) fn granule_bytes(&self) -> usize {
        self.group.granule_bytes
    }

    /// Looks at the tables, while faults may change them slot by slot.
    pub(super) fn look<R>(&self, look: impl FnOnce(&Tables, &CowMapping) -> R) -> R {
        without_signals(|blocked| {
            let tables = self.group.gate.share(blocked);
            look(&tables, tables.mappings.of_region(self.start))
        })
    }

    /// Slots whose frame it owns.
    pub(crate) fn count_owned(&self) -> u64 {
        self.look(|_, mapping| {
            let is_owner = |&slot: &usize| mapping.entry(slot).slot.is_owner();
            (0..mapping.slots()).filter(is_owner).count() as u64
        })
    }

    /// Bytes that other regions show, too.
    pub(crate) fn count_shared(&self) -> usize {
        self.look(|tables, mapping| {
            let is_shared = |&slot: &usize| mapping.is_shared(slot);
            let slots = (0..mapping.slots()).filter(is_shared);
            slots.map(|slot| tables.frames.len_of(slot)).sum()
        })
    }

    /// Leaves the group: no thread uses the region's addresses any more. What only it had goes back to the
    /// pool, or to the kernel if that is to be.
    pub(crate) fn leave(mut self, to_kernel: bool) -> Result<(), ForkError> {
        // No thread is serving one of its faults any more when this is done, and none may wait for the gate.
        drop(self.registration.take());
        let mut given_up = GivenUp::new();
        let (_mapping, is_last) = without_signals(|blocked| {
            let mut tables = self.group.gate.alone(blocked);
            let id = tables.mappings.of_region(self.start).id();
            // SAFETY: its own addresses, which no thread uses any more. In the gate, because no thread may change
            // anything at these addresses once they may be another region's.
            unsafe { tables.mappings.get_mut(id).mapping.unmap() }
                .or_else(|_| {
                    // It may lie between others in one mapping, which takes one more to cut.
                    self.group.spare.release();
                    // SAFETY: as above.
                    unsafe { tables.mappings.get_mut(id).mapping.unmap() }
                })
                .map_err(|errno| kernel("munmap", errno))?;
            let slots = tables.mappings.get(id).slots();
            give_up(&mut tables, id, 0..slots, to_kernel);
            tables.frames.take_given_up(&mut given_up);
            let mapping = tables.mappings.remove(id);
            self.group.count_vmas(&mapping, 0);
            tables.check();
            Ok::<_, ForkError>((mapping, tables.mappings.present() == 0))
        })?;
        if is_last {
            self.group.end();
        }
        self.group.return_given_up(given_up)
    }

    /// Cuts the region to the folios and granules that its first `bytes` lie on; how many bytes these are.
    /// No thread uses the addresses behind them any more.
    pub(crate) fn truncate(&self, bytes: usize) -> Result<usize, ForkError> {
        let group = &*self.group;
        let unit = group.granule_bytes.max(group.pool.page_size());
        let len = self.look(|_, mapping| mapping.mapping.len());
        let kept = bytes.next_multiple_of(unit).min(len);
        let slots = kept.div_ceil(group.granule_bytes);
        if let Some(registration) = &self.registration {
            registration.cut(kept);
        }
        let mut given_up = GivenUp::new();
        without_signals(|blocked| {
            let mut tables = group.gate.alone(blocked);
            let mapping = tables.mappings.of_region(self.start);
            let (id, all) = (mapping.id(), mapping.slots());
            if slots == all {
                return Ok(());
            }
            // SAFETY: its own addresses, which no thread uses any more.
            if let Err(errno) = unsafe { tables.mappings.get_mut(id).mapping.unmap_from(kept) } {
                // Its tail is served again.
                self.registration.iter().for_each(|registration| registration.cut(len));
                return Err(kernel("munmap", errno));
            }
            give_up(&mut tables, id, slots..all, false);
            tables.frames.take_given_up(&mut given_up);
            let mapping = tables.mappings.get_mut(id);
            mapping.table.cut(slots);
            mapping.end_epoch();
            tables.check();
            Ok::<_, ForkError>(())
        })?;
        group.return_given_up(given_up)?;
        Ok(kept)
    }
}

/// What faults change of a mapping has no place.
pub(super) fn unmapped(errno: Errno) -> ForkError {
    ForkError::NotMapped { mappings: 1, source: errno.into() }
}

pub(super) fn kernel(call: &'static str, errno: Errno) -> ForkError {
    ForkError::Kernel { call, source: errno.into() }
}
