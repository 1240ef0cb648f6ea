//! Options of a pool, and its construction.

use std::borrow::Cow;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::core::{Core, Orders};
use super::memory::{PoolMemory, Recipe};
use super::scrubber::Scrubber;
use super::{
    Backing, BackingReport, Clearing, Fallback, InheritedMemory, NodePolicy, Pool, PoolError,
    PoolInner, limits,
};
use hugekit_bulk::parallel::{Progress, Threads};
use hugekit_lease::{DEFAULT_WAIT, Lease, LeaseError, MemoryFile, Unfit};
use hugekit_machine::Root;
use hugekit_sys::{headroom, memfd};

/// The source of the memory.
#[derive(Clone)]
enum MemorySource {
    /// A new file of this process.
    Own,
    /// A file that another process has populated. Only one pool can be made of the file, so clones
    /// of the builder share this value.
    Given(Arc<Mutex<Option<Given>>>),
    /// A unit of the broker at this socket.
    Broker(PathBuf),
}

/// A file that was given and not yet taken.
enum Given {
    Lease(Lease),
    File(OwnedFd),
}

/// Options of a pool, made by [`Pool::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until built"]
pub struct PoolBuilder<'a> {
    capacity: usize,
    ladder: Cow<'static, [Backing]>,
    strict: bool,
    nodes: NodePolicy,
    populate_on_allocation: bool,
    threads: Threads,
    progress: Option<&'a Progress<'a>>,
    watermarks: Option<(usize, usize)>,
    scrub_threads: usize,
    clearing: Clearing,
    in_core_dumps: bool,
    name: Cow<'static, str>,
    root: Root,
    source: MemorySource,
}

impl MemorySource {
    fn given(given: Given) -> Self {
        Self::Given(Arc::new(Mutex::new(Some(given))))
    }
}

impl fmt::Debug for PoolBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("capacity", &self.capacity)
            .field("ladder", &self.ladder)
            .field("strict", &self.strict)
            .finish_non_exhaustive()
    }
}

impl<'a> PoolBuilder<'a> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            ladder: Cow::Borrowed(&[Backing::Hugetlb2M, Backing::Thp, Backing::Base]),
            strict: false,
            nodes: NodePolicy::default(),
            populate_on_allocation: false,
            threads: Threads::Auto,
            progress: None,
            watermarks: None,
            scrub_threads: 1,
            clearing: Clearing::default(),
            in_core_dumps: true,
            name: Cow::Borrowed("pool"),
            root: Root::default(),
            source: MemorySource::Own,
        }
    }

    /// Sets the first backing to try. If it is not available, the next smaller backings are tried.
    /// By default [`Backing::Hugetlb2M`].
    pub fn backing(self, backing: Backing) -> Self {
        let from = Backing::ALL.iter().copied().skip_while(|&tier| tier != backing);
        self.ladder(from)
    }

    /// Sets the backings to try, in this order. By default reserved huge pages of 2 MiB,
    /// transparent huge pages, base pages.
    pub fn ladder(mut self, tiers: impl IntoIterator<Item = Backing>) -> Self {
        self.ladder = tiers.into_iter().collect();
        self
    }

    /// Sets if the first backing is required. If true, [`build`](Self::build) fails when the first
    /// backing is not available. If false, `build` tries the next backing, and
    /// [`Pool::backing_report`] returns the reasons. By default false.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Sets the NUMA nodes for the memory. By default [`NodePolicy::Process`].
    pub fn nodes(mut self, nodes: NodePolicy) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets the moment of population. If true, each region is populated when it is allocated, and
    /// each fork when it is made. If false, [`build`](Self::build) populates all memory, so regions
    /// and forks do not wait for it. By default false. In both cases, if threads handle a region's
    /// faults, its first fork starts a thread. This takes 0.2 ms, and up to 20 ms on busy CPUs.
    ///
    /// Set this option if the capacity is only an upper limit: other programs can then use memory
    /// that no region has used yet. [`build_inherited`](Self::build_inherited) ignores the option
    /// and always populates.
    pub fn populate_on_allocation(mut self, on_allocation: bool) -> Self {
        self.populate_on_allocation = on_allocation;
        self
    }

    /// Sets the number of threads that populate the pool, and that later clear or populate regions.
    /// By default [`Threads::Auto`].
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = threads;
        self
    }

    /// Sets a callback that is called after each chunk that `build` populates. By default none.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Sets the limits, in bytes, between which the scrubber works. It starts when fewer than `low`
    /// bytes are clean. It stops when `high` bytes are clean or none is dirty.
    ///
    /// By default the scrubber clears all dirty memory, but slowly while regions are allocated and
    /// dropped. A program that allocates and drops regions soon allocates the memory again.
    /// Clearing on another CPU at that time costs more than clearing at the allocation.
    pub fn watermarks(mut self, low: usize, high: usize) -> Self {
        self.watermarks = Some((low, high));
        self
    }

    /// Sets the number of low-priority threads that scrub. By default 1. With 0, memory is cleared
    /// only by an allocation or by [`Pool::scrub`].
    pub fn scrub_threads(mut self, threads: usize) -> Self {
        self.scrub_threads = threads;
        self
    }

    /// Sets the moment at which dirty memory is cleared, for regions without this option of their
    /// own. By default [`Clearing::OnAllocation`].
    pub fn clearing(mut self, clearing: Clearing) -> Self {
        self.clearing = clearing;
        self
    }

    /// Sets if core dumps contain the bytes of regions. By default true. Memory that belongs to no
    /// region is never in a core dump.
    pub fn in_core_dumps(mut self, included: bool) -> Self {
        self.in_core_dumps = included;
        self
    }

    /// Sets the name of the pool in `/proc/self/maps`: `/memfd:hugekit:NAME`. By default `pool`.
    /// The name is cut at the first NUL, and to the length that the kernel accepts.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Cow::Owned(name.into());
        self
    }

    /// Sets another machine's huge pages, memory and limits, for tests. By default this machine's.
    #[doc(hidden)]
    pub fn machine(mut self, root: Root) -> Self {
        self.root = root;
        self
    }

    /// Uses the memory of a lease instead of new memory. The length of the memory must be the
    /// pool's capacity.
    ///
    /// Only one pool can be made from the lease. The pool has the backing and the nodes of the
    /// lease; these options of the builder have no effect.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.source = MemorySource::given(Given::Lease(lease));
        self
    }

    /// Uses the memory of a file that another process has made and populated, for example a file
    /// inherited from `hugekit lease`. The length of the file must be the pool's capacity.
    ///
    /// [`build`](Self::build) checks that the file is memory, that its length cannot change, and
    /// that its page size is known. Only one pool can be made from the file.
    ///
    /// # Safety
    /// - All bytes of the file are zero.
    /// - As long as the pool or one of its regions exists, no other process, and no other code in
    ///   this process, writes to the file, maps it for writing, or punches holes into it.
    ///
    /// A file from a broker satisfies both conditions if the broker runs as root or as this
    /// process's user, and if no other descriptor and no other mapping of the file exist.
    #[allow(unsafe_code)]
    pub unsafe fn adopt(mut self, file: OwnedFd) -> Self {
        self.source = MemorySource::given(Given::File(file));
        self
    }

    /// Uses the memory of a lease that [`build`](Self::build) requests from the broker at `socket`.
    /// The capacity must be the size of a unit of the broker.
    ///
    /// If no unit is ready, `build` waits for a unit, at most [`DEFAULT_WAIT`]. For another limit,
    /// use [`Lease::ask`] and [`lease`](Self::lease).
    pub fn broker(mut self, socket: impl Into<PathBuf>) -> Self {
        self.source = MemorySource::Broker(socket.into());
        self
    }

    /// Makes the pool and populates all of its memory, in parallel. This lasts as long as the
    /// kernel needs to clear the memory.
    ///
    /// # Errors
    /// - [`PoolError::NoBytes`] or [`PoolError::TooLarge`] for the capacity,
    ///   [`PoolError::Watermarks`] for invalid watermarks.
    /// - [`PoolError::NoBacking`] if no backing is available. With [`strict`](Self::strict), an
    ///   error if the first backing is not available.
    /// - [`PoolError::Lease`] if the broker grants no lease, or if the leased memory does not fit.
    ///
    /// After an error the call keeps no memory.
    ///
    /// # Panics
    /// If the progress callback panics.
    pub fn build(&self) -> Result<Pool, PoolError> {
        self.check()?;
        match &self.source {
            MemorySource::Own => self.build_own(),
            MemorySource::Given(given) => {
                let given = given.lock().unwrap_or_else(PoisonError::into_inner).take();
                let memory = match given.ok_or(PoolError::Taken)? {
                    Given::Lease(lease) => lease.into_memory(),
                    Given::File(file) => MemoryFile::check(file)?,
                };
                self.build_of(memory)
            }
            MemorySource::Broker(socket) => {
                let lease = Lease::ask(socket, self.capacity, DEFAULT_WAIT)?;
                self.build_of(lease.into_memory())
            }
        }
    }

    /// Makes memory that forked children inherit, instead of a pool. The memory is populated, on
    /// the backing that the pool would use. Options for clearing and scrubbing have no effect.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build), and [`PoolError::NotInherited`] if the memory would
    /// come from a broker or from another process.
    ///
    /// # Panics
    /// If the progress callback panics.
    pub fn build_inherited(&self) -> Result<InheritedMemory, PoolError> {
        self.check()?;
        if !matches!(self.source, MemorySource::Own) {
            return Err(PoolError::NotInherited);
        }
        let populated = self.clone().populate_on_allocation(false);
        let (core, fallbacks) = populated.core_of_own()?;
        InheritedMemory::new(&core, self.report(&core, fallbacks))
    }

    /// Builds a pool of a file that keeps its promises.
    fn build_of(&self, file: MemoryFile) -> Result<Pool, PoolError> {
        let (backing, bytes) = (file.backing(), file.bytes());
        if bytes != super::whole_folios(self.capacity, backing.page_size())? {
            let unfit = Unfit::Other { bytes, wanted: self.capacity };
            return Err(LeaseError::Unfit(unfit).into());
        }
        let present = file.present()?;
        let memory = PoolMemory::adopt(file, &self.recipe())?;
        let core = self.core(memory, bytes)?;
        if present >= bytes as u64 {
            // SAFETY: who gave the file promised that its bytes are zero.
            #[allow(unsafe_code)]
            unsafe {
                core.take_for_clean();
            }
        }
        // No call says which part of the file is present. Populating present pages takes little time and changes nothing.
        self.populate_holes(&core)?;
        Ok(self.finish(core, Vec::new()))
    }

    fn build_own(&self) -> Result<Pool, PoolError> {
        let (core, fallbacks) = self.core_of_own()?;
        Ok(self.finish(core, fallbacks))
    }

    /// Makes the memory on the first available backing. Also returns the reasons why the backings
    /// before it are not available.
    fn core_of_own(&self) -> Result<(Core, Vec<Fallback>), PoolError> {
        let mut fallbacks = Vec::new();
        for &backing in if self.strict { &self.ladder[..1] } else { &self.ladder[..] } {
            match self.build_on(backing) {
                Ok(core) => return Ok((core, fallbacks)),
                Err(reason) => fallbacks.push(Fallback { backing, reason }),
            }
        }
        Err(match fallbacks.pop() {
            Some(only) if fallbacks.is_empty() => only.reason,
            last => {
                fallbacks.extend(last);
                PoolError::NoBacking { fallbacks }
            }
        })
    }

    fn check(&self) -> Result<(), PoolError> {
        headroom::check()?;
        match self.watermarks {
            _ if self.capacity == 0 => Err(PoolError::NoBytes),
            _ if self.ladder.is_empty() => Err(PoolError::NoTiers),
            Some((low, high)) if low > high => Err(PoolError::Watermarks { low, high }),
            _ => Ok(()),
        }
    }

    /// Makes the memory, and populates it unless regions do.
    fn build_on(&self, backing: Backing) -> Result<Core, PoolError> {
        let page_size = backing.page_size();
        let bytes = super::whole_folios(self.capacity, page_size)?;
        limits::check(&self.root, backing, bytes)?;
        let memory =
            PoolMemory::new(backing, bytes, &self.recipe()).map_err(|error| match error {
                // Another process may have taken them since they were counted.
                PoolError::NotMapped { .. } if backing.is_reserved() => {
                    limits::check_huge_pages(&self.root, page_size, bytes).err().unwrap_or(error)
                }
                other => other,
            })?;
        let core = self.core(memory, bytes)?;
        self.populate_holes(&core)?;
        Ok(core)
    }

    fn populate_holes(&self, core: &Core) -> Result<(), PoolError> {
        if self.populate_on_allocation {
            return Ok(());
        }
        core.populate_all(self.threads, self.progress)
    }

    fn core(&self, memory: PoolMemory, bytes: usize) -> Result<Core, PoolError> {
        let page_size = memory.page_size();
        Core::new(memory, self.root.clone(), bytes / page_size, self.orders(page_size))
            .map_err(|errno| PoolError::NotMapped { bytes: page_size, source: errno.into() })
    }

    fn recipe(&self) -> Recipe {
        Recipe {
            name: memfd::name(&self.name),
            nodes: self.nodes.clone(),
            in_core_dumps: self.in_core_dumps,
        }
    }

    fn orders(&self, page_size: usize) -> Orders {
        let (low, high) = self.watermarks.unwrap_or((usize::MAX, usize::MAX));
        Orders {
            stop: false,
            paused: false,
            urgent: self.watermarks.is_some(),
            low: low.div_ceil(page_size),
            high: high.div_ceil(page_size),
            filling: false,
        }
    }

    fn report(&self, core: &Core, fallbacks: Vec<Fallback>) -> BackingReport {
        let backing = core.memory.backing();
        let report = BackingReport {
            backing,
            asked: match self.source {
                MemorySource::Own => self.ladder[0],
                MemorySource::Given(_) | MemorySource::Broker(_) => backing,
            },
            fallbacks,
            capacity: core.memory.capacity(),
            asked_capacity: self.capacity,
            by_collapse: core.memory.by_collapse(),
        };
        report.log(&self.name);
        report
    }

    fn finish(&self, core: Core, fallbacks: Vec<Fallback>) -> Pool {
        let report = self.report(&core, fallbacks);
        let core = Arc::new(core);
        let scrubber = Scrubber::start(&core, self.scrub_threads);
        let (threads, clearing) = (self.threads, self.clearing);
        Pool(Arc::new(PoolInner { _scrubber: scrubber, core, report, threads, clearing }))
    }
}
