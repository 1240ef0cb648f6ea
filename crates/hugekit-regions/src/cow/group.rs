//! Regions with one table of slots: a region that is cleared at the fault, or regions that were forked from each
//! other. Here they are founded, joined and left.
//!
//! The thread that does one of these has the gate alone: no fault is served meanwhile. `serve.rs` has the faults.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use rustix::io::{self, Errno};

use super::ForkError;
use super::budget::Budget;
use super::entry::Entry;
use super::exclusive::{Whole, leave_to_kernel};
use super::frames::{Frames, GivenUp, Holding, Reservation, Run};
use super::guard::Alone;
use super::hold::{self, Hold};
use super::mapping::{CowMapping, MappingWords};
use super::mappings::Mappings;
use super::patience::Patience;
use super::refused::Refused;
use super::room::Room;
use super::sharers::Id;
use super::slot::{Event, Pages, Slot};
use super::tokens::Tokens;
use crate::fault::open::{self, Of};
use crate::fault::{self, no_fault};
use crate::fault::{FaultMode, Faults, Handlers, Registration, Serving};
use crate::pool::{Backing, Content, FaultError, Mapped, Pool, Reserved};
use hugekit_bulk::learning;
use hugekit_sys::error_chain;
use hugekit_sys::headroom;
use hugekit_sys::mapping::{Mapping, Spare, replace_by_nothing};
use hugekit_sys::memfd::{self, FilePages};
use hugekit_sys::memory;
use hugekit_sys::pagemap::PageMap;
use hugekit_sys::private_pages::{self, PrivatePiece};
use hugekit_sys::sync::{Claims, Gate};
use hugekit_sys::thread::without_signals;
use hugekit_sys::userfaultfd;

/// Base pages that one fault makes ready together, and that forks share together by default.
const BASE_GRANULE_BYTES: usize = 64 << 10;

/// One fork may take one part in so many of the mappings that forks may cost.
const MOST_OF_BUDGET: usize = 8;

/// A region, its forks and theirs.
#[derive(Debug)]
pub(crate) struct ForkGroup {
    pub(super) pool: Pool,
    pub(super) descriptor: OwnedFd,
    serving: Serving,
    /// Whether writes can be held back, and so the kernel be kept from `MADV_COLLAPSE`, which would map memory as it
    /// is.
    pub(super) watches_writes: bool,
    /// What sharing needs: from the first fork on.
    sharing: OnceLock<Sharing>,
    /// Whether what is released is cleared when it is touched next.
    clears_at_fault: private_pages::Private<AtomicBool>,
    pub(super) granule_bytes: usize,
    /// Which thread is at a slot, of all mappings together.
    pub(super) slots: Claims<()>,
    pub(super) gate: Gate<Tables>,
    pub(super) budget: Budget,
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
    pub(super) reads: Reads,
}

/// What a group needs as soon as its regions share memory.
#[derive(Debug)]
pub(super) struct Sharing {
    pub(super) hold: Hold,
    pub(super) spare: private_pages::Private<Spare>,
    /// A file without bytes: what is lost is mapped to it.
    pub(super) nothing: OwnedFd,
    /// By which it is seen what is mapped; `None` if it cannot be opened.
    pub(super) pagemap: Option<PageMap>,
}

/// A descriptor for the faults of a group, and what it can do.
#[derive(Debug)]
pub(crate) struct Opened {
    descriptor: OwnedFd,
    /// Threads that read it, or `None` if faults are served in place.
    threads: Option<usize>,
    watches_writes: bool,
}

impl Opened {
    /// One for first accesses to memory of a pool, and for writes to what is shared there.
    fn for_forks(backing: Backing, threads: Option<usize>) -> Result<Self, FaultError> {
        let descriptor = Self::open(threads, Of::SharedWrites(backing))?;
        Ok(Self { descriptor, threads, watches_writes: true })
    }

    /// One for first accesses to memory of a pool, and for writes if the kernel can.
    pub(crate) fn for_clearing(
        backing: Backing,
        threads: Option<usize>,
    ) -> Result<Self, FaultError> {
        match Self::for_forks(backing, threads) {
            Err(FaultError::Lacking { .. }) => {
                let descriptor = Self::open(threads, Of::FirstAccesses(backing))?;
                Ok(Self { descriptor, threads, watches_writes: false })
            }
            opened => opened,
        }
    }

    fn open(threads: Option<usize>, of: Of) -> Result<OwnedFd, FaultError> {
        match threads {
            Some(_) => open::for_handler_threads(of),
            None => open::for_serving_in_place(of),
        }
    }

    fn fault_mode(&self) -> FaultMode {
        self.threads.map_or(FaultMode::InPlace, |threads| FaultMode::Threaded { threads })
    }
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

/// Founds a group that is served as asked for: by one thread, if that is left to us and can be.
fn serve_by(
    fault_mode: FaultMode,
    may_be_in_place: bool,
    found: impl Fn(Option<usize>, Option<FaultError>) -> Result<Arc<ForkGroup>, FaultError>,
) -> Result<Arc<ForkGroup>, FaultError> {
    match fault_mode {
        FaultMode::InPlace => found(None, None),
        FaultMode::Threaded { threads } => found(Some(threads), None),
        FaultMode::Auto => match found(Some(1), None) {
            Err(fallback) if may_be_in_place => {
                hugekit_sys::events::info!(
                    "faults are served in place: {}",
                    error_chain(&fallback)
                );
                found(None, Some(fallback))
            }
            threaded => threaded,
        },
    }
}

/// Bytes of a granule by default: a folio, or several base pages.
pub(crate) fn usual_granule(pool: &Pool) -> usize {
    match pool.backing() {
        Backing::Base => BASE_GRANULE_BYTES.max(pool.page_size()),
        _ => pool.page_size(),
    }
}

impl ForkGroup {
    /// A group for a region that is to be forked. It has no region yet.
    pub(crate) fn create(pool: &Pool, len: usize, terms: Terms) -> Result<Arc<Self>, ForkError> {
        let Terms { granule_bytes, fault_mode, max_vmas } = terms;
        let group = serve_by(fault_mode, true, |threads, fallback| {
            let opened = Opened::for_forks(pool.backing(), threads)?;
            let group = Self::new(pool, len, granule_bytes, opened, fallback)?;
            group.clears_at_fault.store(false, Ordering::Relaxed);
            group.start(threads)
        })?;
        match group.share(max_vmas) {
            Ok(()) => Ok(group),
            Err(error) => {
                group.end();
                Err(error)
            }
        }
    }

    /// A group for a region that is cleared when it is touched. It has no region yet.
    pub(crate) fn create_unready(
        pool: &Pool,
        len: usize,
        fault_mode: FaultMode,
    ) -> Result<Arc<Self>, FaultError> {
        let may_be_in_place = fault::suits(pool.backing(), FaultMode::InPlace);
        serve_by(fault_mode, may_be_in_place, |threads, fallback| {
            let opened = Opened::for_clearing(pool.backing(), threads)?;
            Self::new(pool, len, usual_granule(pool), opened, fallback)?.start(threads)
        })
    }

    /// A group that no thread serves yet.
    pub(crate) fn new(
        pool: &Pool,
        len: usize,
        granule_bytes: usize,
        opened: Opened,
        fallback: Option<FaultError>,
    ) -> Result<Arc<Self>, FaultError> {
        // The first look at it may allocate, which no fault may.
        learning::prepare();
        let fault_mode = opened.fault_mode();
        let Opened { descriptor, watches_writes, .. } = opened;
        let tables = Tables {
            mappings: Mappings::default(),
            frames: Frames::new(granule_bytes, pool.page_size(), len),
        };
        let unmapped = |errno| FaultError::Kernel { call: "mmap", source: Errno::into(errno) };
        let flag = |set| private_pages::Private::new(AtomicBool::new(set)).map_err(unmapped);
        Ok(Arc::new(Self {
            reads: Reads::by(descriptor.as_fd()),
            descriptor,
            serving: Serving { fault_mode, fallback },
            watches_writes,
            sharing: OnceLock::new(),
            clears_at_fault: flag(true)?,
            granule_bytes,
            slots: Claims::new(len.div_ceil(granule_bytes)).map_err(unmapped)?,
            gate: Gate::new(tables).map_err(unmapped)?,
            budget: Budget::new().map_err(unmapped)?,
            unserved: flag(false)?,
            unwoken: flag(false)?,
            patience: private_pages::Private::new(Patience::default()).map_err(unmapped)?,
            reading: RwLock::new(()),
            handlers: Mutex::new(None),
            tokens: Tokens::default(),
            pool: pool.clone(),
        }))
    }

    /// Starts the threads that serve it, if threads do.
    fn start(self: Arc<Self>, threads: Option<usize>) -> Result<Arc<Self>, FaultError> {
        if let Some(threads) = threads {
            let handlers = Handlers::start(&(Arc::clone(&self) as Arc<dyn Faults>), threads)?;
            *self.handlers.lock().unwrap_or_else(PoisonError::into_inner) = Some(handlers);
        }
        Ok(self)
    }

    /// Gets what sharing needs, unless the group has it. What the first fork asks for holds for all.
    pub(crate) fn share(&self, max_vmas: Option<usize>) -> Result<(), ForkError> {
        if self.sharing.get().is_some() {
            return Ok(());
        }
        no_fault::prepare();
        self.budget.limit_to(max_vmas);
        let sharing = Sharing {
            hold: Hold::suited_to(&hold::Needs {
                pool: &self.pool,
                granule_bytes: self.granule_bytes,
                fault_mode: self.serving.fault_mode,
                reads: self.reads,
                slots: self.slots.len(),
                most_mappings: self.budget.left().1,
            }),
            spare: private_pages::Private::new(Spare::new(
                self.pool.memory().file(),
                self.pool.page_size(),
            ))
            .map_err(unmapped)?,
            nothing: memfd::create(c"hugekit:lost", FilePages::Shmem)
                .map_err(|errno| kernel("memfd_create", errno))?,
            pagemap: PageMap::open().ok(),
        };
        self.sharing.get_or_init(|| sharing);
        Ok(())
    }

    /// What sharing needs, once a region of the group was to be forked.
    pub(super) fn sharing(&self) -> Option<&Sharing> {
        self.sharing.get()
    }

    /// Whether a region of the group was to be forked.
    pub(crate) fn is_shared(&self) -> bool {
        self.sharing().is_some()
    }

    /// How writes are held back. Before the first fork, none are.
    pub(super) fn hold(&self) -> Hold {
        self.sharing().map_or(Hold::Marks, |sharing| sharing.hold)
    }

    /// Whether the first fork of its only region can share memory here, on these terms.
    pub(crate) fn suits(&self, terms: &Terms) -> bool {
        let served = self.serving.fault_mode;
        let is_served_so = [FaultMode::Auto, served].contains(&terms.fault_mode);
        let is_served = !self.unserved.load(Ordering::SeqCst);
        self.watches_writes
            && is_served
            && is_served_so
            && terms.granule_bytes == self.granule_bytes
    }

    /// Whether a slot that was released may stay as it is until it is touched: a fault there will be served.
    pub(super) fn clears_at_fault(&self) -> bool {
        self.clears_at_fault.load(Ordering::SeqCst) && !self.unserved.load(Ordering::SeqCst)
    }

    /// From now on, what is released is cleared at once.
    pub(super) fn clear_at_once(&self) {
        self.clears_at_fault.store(false, Ordering::SeqCst);
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
        match self.hold() {
            Hold::Marks | Hold::Removal => Ok(()),
            Hold::Rights => fault::serve_forbidden_writes(),
        }
    }

    /// Has writes to a mapping be held back where they are to be.
    pub(super) fn watch(&self, addresses: &Range<usize>, lazily: bool) -> io::Result<()> {
        userfaultfd::register_for_copies(self.descriptor.as_fd(), addresses, lazily)
    }

    /// Has every access to addresses come to us, of which the file may have no page.
    pub(super) fn watch_unready(&self, addresses: &Range<usize>) -> io::Result<()> {
        userfaultfd::register(self.descriptor.as_fd(), addresses, self.watches_writes)
    }

    /// Memory for what faults change of a mapping with these pieces and so many bytes; `whole` if it is one mapping
    /// of the kernel's.
    pub(super) fn room_for(
        &self,
        pieces: &[Reserved],
        bytes: usize,
        whole: bool,
    ) -> io::Result<(PrivatePiece, MappingWords)> {
        let slots = bytes.div_ceil(self.granule_bytes);
        Ok((Reservation::room(pieces)?, MappingWords::new(slots, whole)?))
    }

    /// What these pieces are in the gate. Their tokens stay outside.
    pub(super) fn reservation_of(&self, pieces: Vec<Reserved>, room: PrivatePiece) -> Reservation {
        let reservation = self.reservation(&pieces, room);
        self.tokens.add(pieces.into_iter().map(|(extent, _)| extent));
        reservation
    }

    fn reservation(&self, pieces: &[Reserved], room: PrivatePiece) -> Reservation {
        let (memory, page_size) = (self.pool.memory(), self.pool.page_size());
        Reservation::new(pieces, room, memory, self.granule_bytes, page_size)
    }

    /// The pieces that a reservation is made of, when it has not become a mapping's.
    pub(super) fn pieces_of(&self, holdings: &[Holding]) -> Vec<Reserved> {
        let piece = |holding: &Holding| {
            let (folios, contents) = holding.whole();
            (self.tokens.withdraw(&folios), contents)
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

    /// Takes in the region that the group begins with: with what its folios hold, if a thread must not see all of it
    /// yet. No user knows its addresses then.
    pub(crate) fn take_in(
        self: &Arc<Self>,
        mapped: Mapped,
        contents: Option<&[(usize, Content)]>,
    ) -> Result<CowHandle, (Mapped, FaultError)> {
        let (extent, mapping) = mapped.into_parts();
        let (folios, addresses) = (extent.folios(), mapping.addresses());
        let start = addresses.start;
        let held = contents.map_or_else(|| vec![(folios.len(), Content::Dirty)], <[_]>::to_vec);
        let pieces = vec![(extent, held)];
        let made = self.room_for(&pieces, mapping.len(), true);
        let made = made.map_err(|errno| refused("mmap", errno)).and_then(|(room, words)| {
            let registration = self.register(addresses)?;
            Ok((self.reservation(&pieces, room), words, registration))
        });
        self.tokens.add(pieces.into_iter().map(|(extent, _)| extent));
        let mut first = First { mapping: Some(mapping), words: None, is_ready: contents.is_none() };
        let begun = made.and_then(|(mut reservation, words, registration)| {
            first.words = Some(words);
            self.with_room(reservation.len(), |tables| {
                self.begin(tables, &mut first, &mut reservation)
            })?;
            Ok(registration)
        });
        match begun {
            Ok(registration) => {
                let group = Arc::clone(self);
                Ok(CowHandle { group, start, registration, is_member: true })
            }
            Err(error) => {
                let mapping = first.mapping.take().expect("not the group's after an error");
                Err((Mapped::of_parts(self.tokens.withdraw(&folios), mapping), error))
            }
        }
    }

    /// By the thread that has the gate alone: a thread that faults there waits until the table is filled.
    fn begin(
        &self,
        tables: &mut Tables,
        first: &mut First,
        reservation: &mut Reservation,
    ) -> Result<(), FaultError> {
        let mapping = first.mapping.as_ref().expect("not the group's yet");
        // Its threads may have ended already: no thread would hear of an access.
        let is_served = !self.unserved.load(Ordering::SeqCst);
        let is_watched = is_served && self.begin_to_watch(mapping, first.is_ready)?;
        let (mapping, words) = (first.mapping.take(), first.words.take());
        let (mapping, words) = mapping.zip(words).expect("made for this region");
        let reserve = tables.frames.add(reservation);
        let id = tables.mappings.next_id();
        let mapping = CowMapping::new(id, mapping, words, reserve, self.granule_bytes);
        mapping.counts().registered.store(is_watched, Ordering::Relaxed);
        tables.mappings.insert(mapping);
        let Tables { mappings, frames } = tables;
        show_reserve(mappings.alone(), id, |frame| {
            if first.is_ready { Slot::Exclusive(Pages::InPlace) } else { frames.fresh(frame) }
        });
        if !is_served {
            let whole = Whole::new(self, tables, id);
            whole.supply_all();
            whole.leave_if_own();
        }
        tables.check();
        Ok(())
    }

    /// Whether writes to all of it can be held back from now on.
    fn begin_to_watch(&self, mapping: &Mapping, is_ready: bool) -> Result<bool, FaultError> {
        let addresses = mapping.addresses();
        let is_watched = match is_ready {
            true if self.hold() != Hold::Marks => return Ok(false),
            true => self.watch(&addresses, false).map(|()| true),
            false => self.watch_unready(&addresses).map(|()| self.watches_writes),
        };
        let is_watched = is_watched.map_err(|errno| refused("UFFDIO_REGISTER", errno))?;
        if !is_ready {
            let unmapped = self.unmap_what_came_early(mapping);
            unmapped.map_err(|errno| refused("madvise", errno))?;
        }
        Ok(is_watched)
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

    /// The region costs so many of the kernel's mappings now.
    pub(super) fn count_vmas(&self, mapping: &CowMapping, vmas: isize) {
        let before = mapping.counts().vmas.swap(vmas, Ordering::Relaxed);
        self.budget.refund(before - vmas);
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
        let extent = self.tokens.withdraw(&run.folios);
        if run.to_kernel {
            // SAFETY: nothing maps them but the alias.
            return unsafe { self.pool.give_back_as_holes(extent) }.map_err(ForkError::Kept);
        }
        // SAFETY: nothing maps them but the alias; the contents are what was noted.
        unsafe { self.pool.give_back(extent, &[(run.folios.len(), run.content)]) };
        Ok(())
    }

    /// A thread that begins to read from now on does not find what was given up.
    fn wait_for_readers(&self) {
        drop(self.reading.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Gives up the mappings that are kept for a process that has none left. Async-signal-safe.
    pub(super) fn release_spare(&self) {
        if let Some(sharing) = self.sharing() {
            sharing.spare.release();
        }
    }

    /// Enters into the page tables what the file has.
    pub(super) fn enter_pages(
        &self,
        addresses: &Range<usize>,
        protected: bool,
    ) -> Result<(), Refused> {
        fault::show(self.descriptor.as_fd(), addresses, self.pool.backing(), protected)
            .map_err(Refused::Kernel)?;
        self.wake(addresses);
        Ok(())
    }

    /// Has the kernel answer accesses to addresses by SIGBUS; whether it does.
    pub(super) fn map_nothing(&self, addresses: &Range<usize>) -> bool {
        let map = |sharing: &Sharing| {
            // SAFETY: addresses of a region, of which the table says that their bytes are lost.
            unsafe { replace_by_nothing(&sharing.nothing, addresses) }.is_ok()
        };
        self.sharing().is_some_and(map)
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

/// The region that a group begins with, until it is the group's.
#[derive(Debug)]
struct First {
    mapping: Option<Mapping>,
    words: Option<MappingWords>,
    /// Whether threads may see all of it.
    is_ready: bool,
}

/// The mapping shows what came with it, alone, by addresses that map just that.
pub(super) fn show_reserve(alone: Alone<'_>, id: Id, slot_of: impl Fn(u64) -> Slot) {
    let mapping = alone.mappings().get(id);
    for slot in 0..mapping.slots() {
        let (guard, frame) = (alone.slot(slot), mapping.reserved_frame(slot));
        guard.set(mapping, Entry { frame, slot: slot_of(frame) });
        guard.stand_alone(mapping);
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
                plan.iter().for_each(|&action| guard.record_done(heir, action));
                heir.reserved_frame(slot)
            }
        };
        guard.leave_ring(mapping);
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
    /// Whether the group has not been left yet.
    pub(super) is_member: bool,
}

impl Drop for CowHandle {
    fn drop(&mut self) {
        if !self.is_member {
            return;
        }
        let _lent = headroom::lend();
        if !self.is_ours() {
            return self.group.forget_handlers();
        }
        if let Err(error) = self.leave_group(false) {
            hugekit_sys::events::error!("folios are lost: {}", error_chain(&error));
        }
    }
}

impl CowHandle {
    /// Whether this is the process that has the region.
    pub(crate) fn is_ours(&self) -> bool {
        self.group.pool.memory().is_ours()
    }

    pub(crate) fn granule_bytes(&self) -> usize {
        self.group.granule_bytes
    }

    pub(crate) fn mapped_len(&self) -> usize {
        self.look(|_, mapping| mapping.mapping.len())
    }

    /// Where in the pool's file a region begins that was never shared.
    pub(crate) fn file_offset(&self) -> u64 {
        self.look(|tables, mapping| tables.frames.offset(mapping.entry(0).frame))
    }

    /// Leaves a group that has no other region and never had one, with its addresses mapped. All of it is ready.
    pub(crate) fn become_plain(mut self) -> Mapped {
        self.is_member = false;
        let group = Arc::clone(&self.group);
        // If the kernel does not let go of it, no other group can watch it.
        let _ = without_signals(|blocked| leave_to_kernel(&group, blocked));
        group.end();
        drop(self.registration.take());
        let removed = without_signals(|blocked| {
            let mut tables = group.gate.alone(blocked);
            let id = tables.mappings.of_region(self.start).id();
            group.count_vmas(tables.mappings.get(id), 0);
            tables.mappings.remove(id)
        });
        let (first, page_size) = (removed.reserved_frame(0), group.pool.page_size());
        let first = without_signals(|blocked| group.gate.share(blocked).frames.offset(first));
        let first = first as usize / page_size;
        let folios = first..first + removed.mapping.len() / page_size;
        Mapped::of_parts(group.tokens.withdraw(&folios), removed.into_mapping())
    }

    /// Looks at the tables, while faults may change them slot by slot.
    pub(super) fn look<R>(&self, look: impl FnOnce(&Tables, &CowMapping) -> R) -> R {
        without_signals(|blocked| {
            let tables = self.group.gate.share(blocked);
            look(&tables, tables.mappings.of_region(self.start))
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
        self.leave_group(to_kernel)
    }

    fn leave_group(&mut self, to_kernel: bool) -> Result<(), ForkError> {
        self.is_member = false;
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
                    self.group.release_spare();
                    // SAFETY: the region's own addresses still, which no thread uses any more.
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

    /// Cuts the region to the folios that its first `bytes` lie on, and to their granules if the group has other
    /// regions; how many bytes these are. No thread uses the addresses behind them any more.
    pub(crate) fn truncate(&self, bytes: usize) -> Result<usize, ForkError> {
        let group = &*self.group;
        let (is_alone, len) =
            self.look(|tables, mapping| (tables.mappings.present() == 1, mapping.mapping.len()));
        let folio = group.pool.page_size();
        let unit = if is_alone { folio } else { group.granule_bytes.max(folio) };
        let kept = bytes.next_multiple_of(unit).min(len);
        let slots = kept.div_ceil(group.granule_bytes);
        if let Some(registration) = &self.registration {
            registration.serve_only(kept);
        }
        let mut given_up = GivenUp::new();
        without_signals(|blocked| {
            let mut tables = group.gate.alone(blocked);
            let mapping = tables.mappings.of_region(self.start);
            let (id, all) = (mapping.id(), mapping.slots());
            if kept == len {
                return Ok(());
            }
            // SAFETY: its own addresses, which no thread uses any more.
            if let Err(errno) = unsafe { tables.mappings.get_mut(id).mapping.unmap_from(kept) } {
                // Its tail is served again.
                self.registration.iter().for_each(|registration| registration.serve_only(len));
                return Err(kernel("munmap", errno));
            }
            give_up(&mut tables, id, slots..all, false);
            if is_alone {
                let last = tables.mappings.get(id).entry(slots - 1).frame;
                tables.frames.truncate(kept, last);
            }
            tables.frames.take_given_up(&mut given_up);
            let mapping = tables.mappings.get_mut(id);
            mapping.table.truncate(slots);
            mapping.end_epoch();
            tables.check();
            Ok::<_, ForkError>(())
        })?;
        group.return_given_up(given_up)?;
        Ok(kept)
    }
}

/// A call that the kernel refused.
fn refused(call: &'static str, errno: Errno) -> FaultError {
    FaultError::Kernel { call, source: errno.into() }
}

/// What faults change of a mapping has no place.
pub(super) fn unmapped(errno: Errno) -> ForkError {
    ForkError::NotMapped { mappings: 1, source: errno.into() }
}

pub(super) fn kernel(call: &'static str, errno: Errno) -> ForkError {
    ForkError::Kernel { call, source: errno.into() }
}
