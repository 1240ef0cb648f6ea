//! How a pool is asked for.

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

/// Where the memory comes from.
#[derive(Clone)]
enum Source {
    /// A new file of this process's.
    Own,
    /// Somewhere else, already populated. One pool can be made of it, so that a clone of the builder has the same.
    Given(Arc<Mutex<Option<Given>>>),
    /// The broker that listens there.
    Broker(PathBuf),
}

/// A file that was given and not yet taken.
enum Given {
    Lease(Lease),
    File(OwnedFd),
}

/// A pool to be made: [`Pool::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until built"]
pub struct PoolBuilder<'a> {
    capacity: usize,
    ladder: Cow<'static, [Backing]>,
    strict: bool,
    nodes: NodePolicy,
    populate: bool,
    threads: Threads,
    progress: Option<&'a Progress<'a>>,
    watermarks: Option<(usize, usize)>,
    scrub_threads: usize,
    clearing: Clearing,
    in_core_dumps: bool,
    name: Cow<'static, str>,
    root: Root,
    source: Source,
}

impl Source {
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
            populate: false,
            threads: Threads::Auto,
            progress: None,
            watermarks: None,
            scrub_threads: 1,
            clearing: Clearing::default(),
            in_core_dumps: true,
            name: Cow::Borrowed("pool"),
            root: Root::default(),
            source: Source::Own,
        }
    }

    /// The backing to ask for first, and those below it: [`Backing::Hugetlb2M`] unless said.
    pub fn backing(self, backing: Backing) -> Self {
        let from = Backing::ALL.iter().copied().skip_while(|&tier| tier != backing);
        self.ladder(from)
    }

    /// The backings to try, one after the other.
    pub fn ladder(mut self, tiers: impl IntoIterator<Item = Backing>) -> Self {
        self.ladder = tiers.into_iter().collect();
        self
    }

    /// The first backing or none: without it, the next one is tried and the pool says why
    /// ([`Pool::backing_report`]).
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Which nodes the memory comes from.
    pub fn nodes(mut self, nodes: NodePolicy) -> Self {
        self.nodes = nodes;
        self
    }

    /// Has the kernel put all the memory there while the pool is made, instead of region by region.
    pub fn populate_now(mut self, now: bool) -> Self {
        self.populate = now;
        self
    }

    /// How many threads populate now and clear or populate for a region later: [`Threads::Auto`]
    /// unless said.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = threads;
        self
    }

    /// Whom to tell, chunk by chunk, how many bytes are populated while the pool is made.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// The scrubber begins when fewer than `low` bytes are clean and rests when `high` are, or none
    /// is dirty. Unless said, it cleans whatever is dirty, but slowly while regions come and go: what
    /// they leave is allocated again soon, and clearing it at the same time on another CPU costs more
    /// than clearing it then.
    pub fn watermarks(mut self, low: usize, high: usize) -> Self {
        self.watermarks = Some((low, high));
        self
    }

    /// How many threads of low priority scrub, one unless said. With 0 of them, everything is
    /// cleared when it is allocated, or by [`Pool::scrub`].
    pub fn scrub_threads(mut self, threads: usize) -> Self {
        self.scrub_threads = threads;
        self
    }

    /// When what is dirty is cleared for a region that says nothing about it:
    /// [`Clearing::OnAllocation`] unless said.
    pub fn clearing(mut self, clearing: Clearing) -> Self {
        self.clearing = clearing;
        self
    }

    /// Whether core dumps hold the regions' bytes; they do unless said. What no region holds is never
    /// in a dump.
    pub fn in_core_dumps(mut self, included: bool) -> Self {
        self.in_core_dumps = included;
        self
    }

    /// The name by which `/proc/self/maps` shows the pool and its regions, as `/memfd:hugekit:NAME`.
    /// Cut to what the kernel takes, at the first NUL too.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Cow::Owned(name.into());
        self
    }

    /// Another machine's huge pages, memory and limits to go by instead of this one's, for tests.
    #[doc(hidden)]
    pub fn machine(mut self, root: Root) -> Self {
        self.root = root;
        self
    }

    /// The memory of a lease instead of this process's own: as many bytes as the pool is to have. One pool can be
    /// made of it. Backings, nodes and machine are what the lease has.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.source = Source::given(Given::Lease(lease));
        self
    }

    /// The memory of a file that another process has made and populated, such as one inherited from `hugekit lease`,
    /// instead of this process's own: as many bytes as the pool is to have. That it is memory, of one length for
    /// good, of pages of a known size, is looked at by [`build`](Self::build). One pool can be made of it.
    ///
    /// # Safety
    /// All bytes of the file are zero, and as long as the pool or a region of it lives, no other process and nothing
    /// else in this one writes to the file, maps it for writing, or punches holes into it. A file from a broker of
    /// root's or of this process's user, to which no other descriptor or mapping exists any more, is such a file.
    #[allow(unsafe_code)]
    pub unsafe fn adopt(mut self, file: OwnedFd) -> Self {
        self.source = Source::given(Given::File(file));
        self
    }

    /// The memory of a lease that [`build`](Self::build) asks the broker for that listens at `socket`: the capacity
    /// is then the size of the broker's units. A unit that is not ready is waited for, no longer than
    /// [`DEFAULT_WAIT`]; [`Lease::ask`] and [`lease`](Self::lease) for more or less patience.
    pub fn broker(mut self, socket: impl Into<PathBuf>) -> Self {
        self.source = Source::Broker(socket.into());
        self
    }

    /// Makes the pool.
    ///
    /// # Errors
    /// [`PoolError`]: the capacity is 0 or more than there are addresses; the watermarks make no
    /// sense; or none of the backings can be had, or the first one if that is to be strict; or
    /// [`PoolError::Lease`]: the broker gives none, or what was given does not fit.
    ///
    /// # Panics
    /// If the progress callback does.
    pub fn build(&self) -> Result<Pool, PoolError> {
        self.check()?;
        match &self.source {
            Source::Own => self.build_own(),
            Source::Given(given) => {
                let given = given.lock().unwrap_or_else(PoisonError::into_inner).take();
                let memory = match given.ok_or(PoolError::Taken)? {
                    Given::Lease(lease) => lease.into_memory(),
                    Given::File(file) => MemoryFile::check(file)?,
                };
                self.build_of(memory)
            }
            Source::Broker(socket) => {
                let lease = Lease::ask(socket, self.capacity, DEFAULT_WAIT)?;
                self.build_of(lease.into_memory())
            }
        }
    }

    /// Makes memory that forked children keep, instead of a pool: as many bytes, populated, on the same backing as the
    /// pool would be. What is said of clearing and scrubbing is of no effect.
    ///
    /// # Errors
    /// As [`build`](Self::build); and [`PoolError::NotInherited`]: the memory is to come from a broker, or was made by
    /// another process.
    ///
    /// # Panics
    /// If the progress callback does.
    pub fn build_inherited(&self) -> Result<InheritedMemory, PoolError> {
        self.check()?;
        if !matches!(self.source, Source::Own) {
            return Err(PoolError::NotInherited);
        }
        let populated = Self { populate: true, ..self.clone() };
        let (core, fallbacks) = populated.core_of_own()?;
        InheritedMemory::new(&core, self.report(&core, fallbacks))
    }

    /// Of a file that is as it was promised to be.
    fn build_of(&self, file: MemoryFile) -> Result<Pool, PoolError> {
        let (backing, bytes) = (file.backing(), file.bytes());
        if bytes != super::whole_folios(self.capacity, backing.page_size())? {
            let unfit = Unfit::Other { bytes, wanted: self.capacity };
            return Err(LeaseError::Unfit(unfit).into());
        }
        let present = file.present()?;
        let memory = PoolMemory::adopt(file, &self.recipe())?;
        let core = self.core(memory, bytes)?;
        // Where a part is there, no call says which one; to populate what is there takes little time and changes nothing.
        if present >= bytes as u64 {
            // SAFETY: who gave the file promised that its bytes are zero.
            #[allow(unsafe_code)]
            unsafe {
                core.take_for_clean();
            }
        }
        Ok(self.finish(core, Vec::new()))
    }

    fn build_own(&self) -> Result<Pool, PoolError> {
        let (core, fallbacks) = self.core_of_own()?;
        Ok(self.finish(core, fallbacks))
    }

    /// On the first backing that can be had, and why those above it could not.
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

    /// Makes the memory, and populates it if it is to be populated now.
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
        if self.populate {
            core.populate_all(self.threads, self.progress)?;
        }
        Ok(core)
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
                Source::Own => self.ladder[0],
                Source::Given(_) | Source::Broker(_) => backing,
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
