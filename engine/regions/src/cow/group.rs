//! Creates a group and owns its parts. A group is one region that is cleared at the fault, or a region and its forks.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::io::{self, Errno};

use super::ForkError;
use super::budget::Budget;
use super::descriptor::{Descriptor, SharedReads};
use super::error::kernel;
use super::folios::GroupFolios;
use super::fork_support::{ForkSupport, GroupFacts, Protection};
use super::frames::{Frames, GivenUpFolios, Reservation};
use super::mapping::{CowMapping, MappingWords};
use super::mappings::Mappings;
use super::retries::Retries;
use super::tables::{Preallocated, Tables};
use crate::fault::{self, no_fault};
use crate::fault::{FaultMode, Faults, Handlers, Registration, Serving};
use crate::pool::{FaultError, Pool, Reserved};
use hugekit_bulk::learning;
use hugekit_sys::error_chain;
use hugekit_sys::mapping::SharedMapping;
use hugekit_sys::memory;
use hugekit_sys::pagemap::PageMap;
use hugekit_sys::private_pages::{self, PrivatePiece};
use hugekit_sys::sync::{Claims, Gate};
use hugekit_sys::thread::without_signals;

/// The granule on base pages, by default: the bytes that one fault makes ready and that forks share as a whole.
const BASE_GRANULE_BYTES: usize = 64 << 10;

/// A fork may use 1/8 of the mappings that forks may cost.
const MOST_OF_BUDGET: usize = 8;

/// A region, its forks, and their forks.
#[derive(Debug)]
pub(crate) struct ForkGroup {
    pub(super) pool: Pool,
    pub(super) descriptor: Descriptor,
    serving: Serving,
    /// From the first fork on.
    fork_support: OnceLock<ForkSupport>,
    /// True if released memory is cleared when it is touched next.
    clears_at_fault: private_pages::Private<AtomicBool>,
    pub(super) granule_bytes: usize,
    /// The claims of slots. A claim covers the slot in all mappings.
    pub(super) slots: Claims<()>,
    pub(super) gate: Gate<Tables>,
    pub(super) budget: Budget,
    /// True if the handlers have ended because the kernel refused their calls. Nothing can be shared any more.
    pub(super) unserved: private_pages::Private<AtomicBool>,
    /// Calls that the kernel refused to handler threads.
    pub(super) retries: private_pages::Private<Retries>,
    pub(super) folios: GroupFolios,
    handlers: Mutex<Option<Handlers>>,
    pub(super) shared_reads: SharedReads,
}

/// The terms that a group is created with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) granule_bytes: usize,
    pub(crate) fault_mode: FaultMode,
    pub(crate) max_vmas: Option<usize>,
}

/// Creates a group with the requested fault mode. With `Auto`, one thread serves the group. If that is not possible
/// and `may_be_in_place` is true, it is served in place.
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

/// Returns the default bytes of a granule: a folio, or several base pages.
pub(crate) fn usual_granule(pool: &Pool) -> usize {
    BASE_GRANULE_BYTES.max(pool.page_size())
}

impl ForkGroup {
    /// Creates a group for a region that will be forked. The group has no region yet.
    pub(crate) fn create(pool: &Pool, len: usize, terms: Terms) -> Result<Arc<Self>, ForkError> {
        let Terms { granule_bytes, fault_mode, max_vmas } = terms;
        let group = serve_by(fault_mode, true, |threads, fallback| {
            let descriptor = Descriptor::for_forks(pool.backing(), threads)?;
            let group = Self::new(pool, len, granule_bytes, descriptor, fallback)?;
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

    /// Creates a group for a region that is cleared at the first access. The group has no region yet.
    pub(crate) fn create_unready(
        pool: &Pool,
        len: usize,
        fault_mode: FaultMode,
    ) -> Result<Arc<Self>, FaultError> {
        let may_be_in_place = fault::suits(pool.backing(), FaultMode::InPlace);
        serve_by(fault_mode, may_be_in_place, |threads, fallback| {
            let descriptor = Descriptor::for_clearing(pool.backing(), threads)?;
            Self::new(pool, len, usual_granule(pool), descriptor, fallback)?.start(threads)
        })
    }

    /// Creates a group that no thread serves yet.
    pub(crate) fn new(
        pool: &Pool,
        len: usize,
        granule_bytes: usize,
        descriptor: Descriptor,
        fallback: Option<FaultError>,
    ) -> Result<Arc<Self>, FaultError> {
        // The first call may allocate, which no fault may do.
        learning::prepare();
        let tables = Tables {
            mappings: Mappings::default(),
            frames: Frames::new(granule_bytes, pool.page_size(), len),
        };
        let unmapped = |errno| FaultError::Kernel { call: "mmap", source: Errno::into(errno) };
        let flag = |set| private_pages::Private::new(AtomicBool::new(set)).map_err(unmapped);
        Ok(Arc::new(Self {
            shared_reads: descriptor.shared_reads(),
            serving: Serving { fault_mode: descriptor.fault_mode(), fallback },
            descriptor,
            fork_support: OnceLock::new(),
            clears_at_fault: flag(true)?,
            granule_bytes,
            slots: Claims::new(len.div_ceil(granule_bytes)).map_err(unmapped)?,
            gate: Gate::new(tables).map_err(unmapped)?,
            budget: Budget::new().map_err(unmapped)?,
            unserved: flag(false)?,
            retries: private_pages::Private::new(Retries::default()).map_err(unmapped)?,
            folios: GroupFolios::new(pool.clone()),
            handlers: Mutex::new(None),
            pool: pool.clone(),
        }))
    }

    /// Starts the threads that serve the group, if threads do.
    fn start(self: Arc<Self>, threads: Option<usize>) -> Result<Arc<Self>, FaultError> {
        if let Some(threads) = threads {
            let handlers = Handlers::start(&(Arc::clone(&self) as Arc<dyn Faults>), threads)?;
            *self.handlers.lock().unwrap_or_else(PoisonError::into_inner) = Some(handlers);
        }
        Ok(self)
    }

    /// Makes the parts that forks need, if the group does not have them yet. The options of the first fork apply to all
    /// later forks.
    pub(crate) fn share(&self, max_vmas: Option<usize>) -> Result<(), ForkError> {
        if self.fork_support.get().is_some() {
            return Ok(());
        }
        no_fault::prepare();
        self.budget.limit_to(max_vmas);
        let support = ForkSupport::new(&GroupFacts {
            pool: &self.pool,
            granule_bytes: self.granule_bytes,
            fault_mode: self.serving.fault_mode,
            shared_reads: self.shared_reads,
            slots: self.slots.len(),
            most_mappings: self.budget.left().1,
        })?;
        self.fork_support.get_or_init(|| support);
        Ok(())
    }

    /// Returns the parts that forks need. `None` before the first fork.
    pub(super) fn fork_support(&self) -> Option<&ForkSupport> {
        self.fork_support.get()
    }

    /// Returns true if a fork of a region of the group was made or attempted.
    pub(crate) fn is_shared(&self) -> bool {
        self.fork_support().is_some()
    }

    /// Returns how writes are held back. Before the first fork, none are.
    pub(super) fn protection(&self) -> Protection {
        self.fork_support().map_or(Protection::Marks, |support| support.protection)
    }

    /// Returns true if the group can be forked on these terms.
    pub(crate) fn suits(&self, terms: &Terms) -> bool {
        let served = self.serving.fault_mode;
        let is_served_so = [FaultMode::Auto, served].contains(&terms.fault_mode);
        let is_served = !self.unserved.load(Ordering::SeqCst);
        self.descriptor.watches_writes()
            && is_served
            && is_served_so
            && terms.granule_bytes == self.granule_bytes
    }

    /// Returns true if a released slot may stay uncleared until its next access: a fault there will
    /// be served.
    pub(super) fn clears_at_fault(&self) -> bool {
        self.clears_at_fault.load(Ordering::SeqCst) && !self.unserved.load(Ordering::SeqCst)
    }

    /// Clears released memory at once from now on.
    pub(super) fn clear_at_once(&self) {
        self.clears_at_fault.store(false, Ordering::SeqCst);
    }

    pub(crate) fn serving(&self) -> &Serving {
        &self.serving
    }

    /// Checks the options of a later fork against those of the group.
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

    /// If faults are served in place, registers the addresses with the signal handlers.
    pub(super) fn register(
        self: &Arc<Self>,
        addresses: Range<usize>,
    ) -> Result<Option<Registration>, FaultError> {
        let register = || Registration::new(addresses, Arc::clone(self) as Arc<dyn Faults>);
        self.descriptor.is_in_place().then(register).transpose()
    }

    /// Checks that hugekit's handlers get the signals of held-back writes.
    pub(super) fn check_handlers(&self) -> Result<(), FaultError> {
        match self.protection() {
            Protection::Marks | Protection::Removal => Ok(()),
            Protection::Rights => fault::serve_forbidden_writes(),
        }
    }

    /// Allocates the words that faults change, for a mapping of these pieces. `whole` is true if it is one mapping of
    /// the kernel.
    pub(super) fn memory_for(
        &self,
        pieces: &[Reserved],
        bytes: usize,
        whole: bool,
    ) -> io::Result<(PrivatePiece, MappingWords)> {
        let slots = bytes.div_ceil(self.granule_bytes);
        Ok((Reservation::memory_for(pieces)?, MappingWords::new(slots, whole)?))
    }

    /// Converts pieces to a reservation, which goes into the gate. Their tokens stay outside.
    pub(super) fn reservation_of(
        &self,
        pieces: Vec<Reserved>,
        private: PrivatePiece,
    ) -> Reservation {
        let reservation = self.reservation(&pieces, private);
        self.folios.add(pieces.into_iter().map(|(extent, _)| extent));
        reservation
    }

    /// Like [`reservation_of`](Self::reservation_of), but does not take the tokens.
    pub(super) fn reservation(&self, pieces: &[Reserved], private: PrivatePiece) -> Reservation {
        let (memory, page_size) = (self.pool.memory(), self.pool.page_size());
        Reservation::new(pieces, private, memory, self.granule_bytes, page_size)
    }

    /// Calls `act` with exclusive access to the gate. The tables then have room for one more mapping and this many more
    /// holdings, so `act` does not allocate.
    pub(super) fn alone_with_room<R>(
        &self,
        holdings: usize,
        act: impl FnOnce(&mut Tables) -> R,
    ) -> R {
        let (mut preallocated, mut act) = (Preallocated::default(), Some(act));
        loop {
            let done = without_signals(|blocked| {
                let mut tables = self.gate.alone(blocked);
                preallocated.extend(&mut tables, holdings)?;
                let act = act.take().expect("the tables have room once");
                Ok(act(&mut tables))
            });
            match done {
                Ok(done) => return done,
                Err(needed) => preallocated.allocate(needed),
            }
        }
    }

    /// Checks that the group is still served. Without a thread or a handler that serves faults, a held-back write
    /// would wait for ever. The caller has access to the gate.
    pub(super) fn check_served(&self) -> Result<(), ForkError> {
        if self.unserved.load(Ordering::SeqCst) {
            return Err(kernel("userfaultfd", Errno::PERM));
        }
        Ok(())
    }

    /// Returns the most runs of frames that one fork may map.
    pub(super) fn most_runs(&self) -> usize {
        let (_, most) = self.budget.left();
        most / MOST_OF_BUDGET + 1
    }

    /// Unmaps pages that appeared in a mapping before it was registered, because they let writes through. They can
    /// come from a fault of a neighbouring region, or from `mlockall` in this or another thread. On hugetlb,
    /// unmapping nothing costs half as much as the rest of a fork, because it interrupts the other CPUs. So the page
    /// map is read first.
    pub(super) fn unmap_what_came_early(&self, mapping: &SharedMapping) -> io::Result<()> {
        let addresses = mapping.addresses();
        let pagemap = self.fork_support().and_then(|support| support.pagemap.as_ref());
        let pagemap = pagemap.filter(|_| self.pool.backing().is_reserved());
        let came = pagemap.and_then(PageMap::scanned).map(|map| map.probe_present(&addresses));
        if came == Some(Ok(false)) {
            return Ok(());
        }
        // SAFETY: the pages belong to a shared mapping that no thread uses yet.
        unsafe { memory::unmap_pages(mapping.start().as_ptr(), mapping.len()) }
    }

    /// Records that the region now costs this many of the kernel's mappings.
    pub(super) fn count_vmas(&self, mapping: &CowMapping, vmas: isize) {
        let before = mapping.counts().vmas.swap(vmas, Ordering::Relaxed);
        self.budget.refund(before - vmas);
    }

    /// Returns given-up folios to the pool or to the kernel. Not in the gate.
    pub(super) fn return_given_up(&self, mut given_up: GivenUpFolios) -> Result<(), ForkError> {
        loop {
            self.folios.return_given_up(&given_up)?;
            if !given_up.is_full {
                return Ok(());
            }
            given_up = GivenUpFolios::new();
            without_signals(|blocked| self.gate.alone(blocked).frames.take_given_up(&mut given_up));
        }
    }

    /// Ends the handler threads. The last region has left.
    pub(crate) fn end(&self) {
        let handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handlers) = handlers {
            handlers.stop();
        }
    }

    /// Forgets the handler threads, in a forked child, which has none.
    pub(crate) fn forget_handlers(&self) {
        // Another thread may have held the lock when the process was forked.
        if let Some(handlers) = self.handlers.try_lock().ok().and_then(|mut held| held.take()) {
            handlers.forget();
        }
    }
}
