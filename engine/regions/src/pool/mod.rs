//! Pools of zeroed memory: huge pages that are cleared before a program requests them.
//!
//! A [`Pool`] owns one file of memory. It allocates contiguous extents of the file, mapped, as
//! [`Region`](crate::Region)s. A dropped region leaves dirty memory, which a scrubber clears at low
//! priority. Memory that is still dirty at an allocation is cleared then, in parallel. No owner
//! ever receives a byte that another owner wrote. `README.md` beside this file draws the states and
//! the order of locks, and lists the races that were considered.
//!
//! Words: a *folio* is a page of the pool's backing. An *extent* is a run of consecutive folios. A
//! *hole* is a folio that the kernel has not populated yet. To *scrub* is to clear a dirty folio.

mod backing;
mod builder;
mod clearing;
mod core;
mod error;
mod extent;
mod fault_error;
mod folios;
mod inherited;
pub mod limits;
mod memory;
mod nodes;
mod runs;
mod scrubber;
mod stats;

use std::ops::Range;
use std::sync::Arc;

use self::core::Core;
pub(crate) use self::core::Reserved;
use self::scrubber::Scrubber;
use self::stats::Scrubbed;
use hugekit_bulk::ClearError;
use hugekit_bulk::parallel::{Progress, Threads};

pub use backing::{BackingReport, Fallback};
pub use builder::PoolBuilder;
pub use clearing::Clearing;
pub use error::PoolError;
pub(crate) use extent::{Content, Extent, InUse};
pub use fault_error::FaultError;
pub(crate) use hugekit_machine::size::Size;
pub use hugekit_sys::backing::Backing;
pub use inherited::InheritedMemory;
pub(crate) use memory::{Mapped, PoolMemory};
pub use nodes::NodePolicy;
pub use stats::PoolStats;

/// A pool of memory that is zeroed when a region is allocated. Clones are handles of the same pool.
///
/// A pool exists until its last handle and its last region are dropped. Children of `fork(2)` do
/// not inherit the pool's memory. In a child every call returns an error, and dropping a handle
/// does nothing.
///
/// ```
/// use hugekit::pool::{Backing, Pool};
///
/// // Base pages, which any machine has; without `backing`, huge pages are asked for first.
/// let pool = Pool::builder(16 << 20).backing(Backing::Base).build()?;
/// let mut region = pool.region(3 << 20)?;
/// assert!(region.iter().all(|&byte| byte == 0));
/// region[5] = 7;
/// drop(region); // Its folios are dirty now, and cleared before any region gets them.
/// assert!(pool.region(16 << 20)?.iter().all(|&byte| byte == 0));
/// # Ok::<(), hugekit::pool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pool(Arc<PoolInner>);

#[derive(Debug)]
struct PoolInner {
    /// Held only to be dropped.
    _scrubber: Scrubber,
    core: Arc<Core>,
    report: BackingReport,
    threads: Threads,
    clearing: Clearing,
}

impl Pool {
    /// Makes a builder for a pool of `capacity` bytes, rounded up to a multiple of the folio.
    pub fn builder<'a>(capacity: usize) -> PoolBuilder<'a> {
        PoolBuilder::new(capacity)
    }

    /// Returns the backing of the pool, the requested backing, and the reasons for a difference.
    #[must_use]
    pub fn backing_report(&self) -> &BackingReport {
        &self.0.report
    }

    /// Returns the backing of the pool.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.0.report.backing
    }

    /// Returns the capacity of the pool in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.report.capacity
    }

    /// Returns the length of a folio in bytes. Every region consists of whole folios.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.backing().page_size()
    }

    /// Returns the state of the pool at this moment.
    ///
    /// # Errors
    /// [`PoolError::Forked`] in a forked child.
    pub fn stats(&self) -> Result<PoolStats, PoolError> {
        self.0.core.check_ours()?;
        Ok(self.0.core.stats())
    }

    /// Clears all memory that is dirty now, with the number of threads in [`PoolBuilder::threads`].
    /// Returns the number of cleared bytes.
    ///
    /// # Errors
    /// [`PoolError::Forked`] in a forked child.
    pub fn scrub(&self) -> Result<u64, PoolError> {
        self.0.core.scrub_all(self.0.threads)
    }

    /// Stops the scrubber until [`resume_scrubbing`](Self::resume_scrubbing) is called. Returns
    /// when the scrubber has stopped.
    ///
    /// # Errors
    /// [`PoolError::Forked`] in a forked child.
    pub fn pause_scrubbing(&self) -> Result<(), PoolError> {
        self.0.core.check_ours()?;
        self.0.core.pause();
        Ok(())
    }

    /// Starts the scrubber again after [`pause_scrubbing`](Self::pause_scrubbing).
    ///
    /// # Errors
    /// [`PoolError::Forked`] in a forked child.
    pub fn resume_scrubbing(&self) -> Result<(), PoolError> {
        self.0.core.check_ours()?;
        self.0.core.resume();
        Ok(())
    }

    /// Maps `bytes` zeroed bytes, rounded up to whole folios.
    pub(crate) fn allocate(
        &self,
        bytes: usize,
        threads: Option<Threads>,
        progress: Option<&Progress<'_>>,
    ) -> Result<Mapped, PoolError> {
        let count = self.folios(bytes)?;
        self.0.core.allocate(count, threads.unwrap_or(self.0.threads), progress)
    }

    /// Like [`allocate`](Self::allocate), but folios that are not clean are left to the first
    /// access. Returns the content of each run of folios.
    ///
    /// # Safety
    /// No thread accesses an address of it before every access there waits until the folio is clean.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn hand_out_unready(
        &self,
        bytes: usize,
        threads: Option<Threads>,
        progress: Option<&Progress<'_>>,
    ) -> Result<(Mapped, Vec<(usize, Content)>), PoolError> {
        let (count, threads) = (self.folios(bytes)?, threads.unwrap_or(self.0.threads));
        // SAFETY: every access waits until its folio is clean.
        unsafe { self.0.core.hand_out_unready(count, threads, progress) }
    }

    /// Takes `bytes` bytes out of the pool, in whole folios, for a caller that writes all of a
    /// folio before a user sees it. Returns the content of each run; nothing is cleared. Dirty
    /// folios are taken first. The result is one piece if there is one, otherwise pieces of whole
    /// units of `unit` bytes.
    pub(crate) fn reserve(&self, bytes: usize, unit: usize) -> Result<Vec<Reserved>, PoolError> {
        let unit = unit.div_ceil(self.page_size());
        self.0.core.reserve(self.folios(bytes)?, unit, self.0.threads)
    }

    /// Takes back memory of [`reserve`](Self::reserve), or parts of memory that was mapped.
    ///
    /// # Safety
    /// The folios are not mapped any more, and the runs have these contents.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn give_back(&self, extent: Extent<InUse>, contents: &[(usize, Content)]) {
        // SAFETY: the folios are mapped nowhere any more, and the runs hold what they say.
        unsafe { self.0.core.give_back(extent, contents) }
    }

    /// Like [`give_back`](Self::give_back), but the folios go to the kernel.
    ///
    /// # Safety
    /// The folios are mapped nowhere any more.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn give_back_as_holes(&self, extent: Extent<InUse>) -> std::io::Result<()> {
        // SAFETY: the folios are mapped nowhere any more.
        unsafe { self.0.core.give_back_as_holes(extent) }
    }

    fn folios(&self, bytes: usize) -> Result<usize, PoolError> {
        if bytes == 0 {
            return Err(PoolError::NoBytes);
        }
        let page_size = self.page_size();
        Ok(whole_folios(bytes, page_size)? / page_size)
    }

    /// Takes back memory of [`allocate`](Self::allocate). Does nothing in a forked child, which
    /// does not have the memory.
    ///
    /// # Safety
    /// No thread uses the addresses any more.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn reclaim(&self, mapped: Mapped) {
        // SAFETY: no thread uses the addresses any more.
        unsafe { self.0.core.reclaim(mapped) }
    }

    /// Like [`reclaim`](Self::reclaim), if the content of each run of folios is known.
    ///
    /// # Safety
    /// No thread uses the addresses any more, and each run of folios holds what `contents` says.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn reclaim_as(&self, mapped: Mapped, contents: &[(usize, Content)]) {
        // SAFETY: no thread uses the addresses, and the runs hold what they say.
        unsafe { self.0.core.reclaim_as(mapped, contents) }
    }

    /// Like [`reclaim_as`](Self::reclaim_as), for all but the first `bytes`, rounded up to whole
    /// folios, of which there are more.
    ///
    /// # Safety
    /// No thread uses the addresses behind any more, each run of folios there holds what `contents` says, and this is
    /// the process that made the pool.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn take_tail(
        &self,
        mapped: &mut Mapped,
        bytes: usize,
        contents: &[(usize, Content)],
    ) -> std::io::Result<()> {
        let count = bytes.div_ceil(self.page_size());
        // SAFETY: no thread uses the addresses behind; the runs hold what they say; this process made the pool.
        unsafe { self.0.core.take_tail(mapped, count, contents) }
    }

    /// Like [`reclaim`](Self::reclaim), but the folios go back to the kernel.
    ///
    /// # Safety
    /// The conditions of [`reclaim`](Self::reclaim), of what this process can know; and it is the pool's.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn retire(&self, mapped: Mapped) -> std::io::Result<()> {
        // SAFETY: no thread uses the addresses, and this process made the pool.
        unsafe { self.0.core.retire(mapped) }
    }

    /// Clears bytes of an extent that stays in use.
    pub(crate) fn clear_in_use(
        &self,
        extent: &Extent<InUse>,
        bytes: Range<usize>,
    ) -> Result<(), ClearError> {
        self.0.core.clear_in_use(extent, bytes, self.0.threads)
    }

    pub(crate) fn memory(&self) -> &PoolMemory {
        &self.0.core.memory
    }

    pub(crate) fn clearing(&self) -> Clearing {
        self.0.clearing
    }

    pub(crate) fn threads(&self) -> Threads {
        self.0.threads
    }

    /// Counts bytes that a fault had cleared. Async-signal-safe.
    pub(crate) fn count_cleared_at_fault(&self, bytes: usize) {
        self.0.core.counters.scrubbed(Scrubbed::OnFault, bytes);
    }

    pub(crate) fn count_cleared_at_release(&self, bytes: usize) {
        self.0.core.counters.scrubbed(Scrubbed::AtRelease, bytes);
    }

    /// Counts bytes that a fault had populated. Async-signal-safe.
    pub(crate) fn count_populated_at_fault(&self, bytes: usize) {
        self.0.core.counters.populated(bytes);
    }
}

/// Returns the number of folios for `bytes`, if the process can have as many addresses.
fn whole_folios(bytes: usize, page_size: usize) -> Result<usize, PoolError> {
    let whole =
        bytes.checked_next_multiple_of(page_size).filter(|&whole| whole <= isize::MAX as usize);
    whole.ok_or(PoolError::TooLarge { bytes, page_size })
}
