//! Wishes for a snapshot.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::anonymous::Anonymous;
use super::background::Background;
use super::edges::{self, Guard};
use super::granules::Behind;
use super::interval::{Interval, inner_of};
use super::reserve::Reserve;
use super::source::Source;
use super::state::SnapshotState;
use super::taken::Taken;
use super::tracker::{NotAdded, Way, WriteTracker};
use super::write_protector::WriteProtector;
use super::{Snapshot, SnapshotError, Unsuitable, limit, survey};
use hugekit_machine::Root;
use hugekit_machine::mappings::{self, MappedRange};
use hugekit_regions::fault::{FaultMode, Serving};
use hugekit_regions::pool::FaultError;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::headroom;
use hugekit_sys::pagemap::PageMap;

const SMALL: usize = 64 << 10;

/// Looks for a moment in which the page of an edge is not written, and the time between them.
const MOMENTS: u32 = 50;
const MOMENT: Duration = Duration::from_millis(1);

/// What one write makes its thread copy, and what protection is lifted of together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Granule {
    /// 2 MiB where some of the memory is on transparent huge pages, else 64 KiB.
    #[default]
    Auto,
    /// 2 MiB: huge pages stay whole.
    Huge,
    /// 64 KiB: a write waits less long. Huge pages are split, which costs later: writers meet more faults,
    /// and more misses of the TLB until the kernel puts the pages together again.
    Small,
}

/// Wishes for a snapshot. [`Snapshot::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until of_anonymous"]
pub struct Builder {
    pub(super) fault_mode: FaultMode,
    granule: Granule,
    pub(super) cap: Option<usize>,
    /// Bytes that are taken at the same time, as far as they are more than the range.
    pub(super) together: usize,
    pub(super) populated: usize,
    reserve: Option<Reserve>,
    background: bool,
}

impl Builder {
    /// Who copies what is written: [`FaultMode::Auto`] unless said, which is threaded where this process may
    /// serve the faults of system calls, else in place. Snapshots of the same memory must agree; the first of
    /// several says how many threads there are.
    pub fn fault_mode(mut self, fault_mode: FaultMode) -> Self {
        self.fault_mode = fault_mode;
        self
    }

    /// How much one write copies.
    pub fn granule(mut self, granule: Granule) -> Self {
        self.granule = granule;
        self
    }

    /// The most bytes of copies that the snapshot holds at a time, in whole granules. If writers need more, the
    /// snapshot is lost ([`SnapshotError::CowLimitExceeded`]) and the writers go on.
    ///
    /// By default all of the memory, so that writers never need more. If less than that is available when the
    /// snapshot is taken, on the machine or in the control group, the limit is what is available, but at least 64 MiB.
    /// The bytes of a [`reserve`](Self::reserve) may be held in any case, even if this limit is lower.
    ///
    /// Copies take memory when they are made. What was read is given up, and its memory is used for the next copies.
    pub fn max_cow_bytes(mut self, bytes: usize) -> Self {
        self.cap = Some(bytes);
        self
    }

    /// Populates memory for so many bytes of the copies that may be retained, before the snapshot
    /// is taken; none unless said. A write need not wait then until the kernel has cleared a page
    /// for its copy. It takes the calling thread 0.1 to 0.2 seconds a gigabyte, while writers still
    /// run freely.
    pub fn populate_copies(mut self, bytes: usize) -> Self {
        self.populated = bytes;
        self
    }

    /// The bytes of all memory of which snapshots are taken at the same time, by several calls: they share the memory
    /// that is available for copies, if no [`max_cow_bytes`](Self::max_cow_bytes) is set. By default the range alone;
    /// [`take_many`](Self::take_many) counts its own ranges.
    pub fn together(mut self, bytes: usize) -> Self {
        self.together = bytes;
        self
    }

    /// Memory that is there already: granules are put there first. What this snapshot uses of it is its alone until
    /// it is dropped. If other snapshots use all of it, memory is taken as without
    /// ([`Stats::reserved`](super::Stats::reserved)). At least as many bytes as the reserve has may be held
    /// ([`max_cow_bytes`](Self::max_cow_bytes)).
    pub fn reserve(mut self, reserve: &Reserve) -> Self {
        self.reserve = Some(reserve.clone());
        self
    }

    /// Has a thread of low priority preserve granules as well, from the end on, until half of what may be held
    /// is: writers meet fewer faults then, at the price of copies that might not have been needed. Not unless said.
    pub fn in_background(mut self, copy: bool) -> Self {
        self.background = copy;
        self
    }

    /// Takes a snapshot of private anonymous memory of this process, whatever mapped it, on huge pages or not, in
    /// one mapping or several. Of pages that hold other data too, at both ends, the bytes are copied at once.
    ///
    /// # Errors
    /// [`SnapshotError`], naming the mapping where one is in the way. Nothing is changed then.
    ///
    /// # Safety
    /// Until the snapshot is dropped:
    /// - no thread that has SIGBUS blocked writes to the memory, none has its stack, its alternate signal stack
    ///   or its thread-local variables there (those of the C library's own threads are refused, as far as they
    ///   can be found out), and no other handler takes SIGBUS from hugekit's without passing on what is not its own;
    /// - no system call writes to it but after [`Snapshot::prepare_write`], unless the program can
    ///   bear EFAULT;
    /// - no other code has the kernel serve its faults (`userfaultfd`), in other processes too (ptrace, CRIU).
    ///
    /// The memory may be written, unmapped, remapped, protected, discarded and forked meanwhile: what that takes
    /// from the snapshot is an error when it is read.
    pub unsafe fn of_anonymous(self, memory: *const [u8]) -> Result<Snapshot, SnapshotError> {
        let mut made = self.protect(range_of(memory)?, Kind::Once)?;
        if self.background {
            let half = made.cap / 2;
            made.background = Some(Background::start(&made.snapshot, made.tracker, half)?);
        }
        Ok(Snapshot { source: Source::Anonymous(made) })
    }

    /// Protects a range, once or for epochs.
    pub(super) fn protect(
        &self,
        range: Range<usize>,
        kind: Kind<'_>,
    ) -> Result<Anonymous, SnapshotError> {
        headroom::check()?;
        // Before the survey: what we map from now on stays away, whatever the owner unmaps.
        let taken = Taken::new(range.clone()).map_err(SnapshotError::kernel("mmap"))?;
        let mappings = survey::mappings_of(&range)?;
        let granule = match kind {
            Kind::Epoch { before: Some(before) } => before.interval().granule_bytes(),
            _ => self.granule_bytes(&range)?,
        };
        let len = range.len();
        let by_default = || limit::by_default(&Root::default(), len, self.together.max(len));
        let cap = self.cap.unwrap_or_else(by_default).max(self.reserved());
        let (populated, reserve) = (self.populated, self.reserve.as_ref());
        let plan =
            Plan { range: &range, mappings: &mappings, granule, kind, cap, populated, reserve };
        plan.protected(self.fault_mode, taken)
    }

    /// Bytes of the reserve.
    pub(super) fn reserved(&self) -> usize {
        self.reserve.as_ref().map_or(0, Reserve::len)
    }

    pub(super) fn granule_bytes(&self, range: &Range<usize>) -> Result<usize, SnapshotError> {
        match self.granule {
            Granule::Huge => Ok(HUGE_PAGE_BYTES),
            Granule::Small => Ok(SMALL),
            Granule::Auto => {
                let whole = inner_of(range, HUGE_PAGE_BYTES);
                let has_huge = !whole.is_empty() && has_huge(&whole)?;
                Ok(if has_huge { HUGE_PAGE_BYTES } else { SMALL })
            }
        }
    }
}

/// The addresses of memory that can be snapshotted, as far as these say.
pub(super) fn range_of(memory: *const [u8]) -> Result<Range<usize>, SnapshotError> {
    let (start, len) = (memory.cast::<u8>().expose_provenance(), memory.len());
    match start.checked_add(len) {
        Some(end) if len > 0 => Ok(start..end),
        _ => Err(SnapshotError::Empty { start, len }),
    }
}

/// What a snapshot is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    /// To be read.
    Once,
    /// To be read as far as it has changed since the one before, or all of it, and to know then what changes.
    Epoch { before: Option<&'a SnapshotState> },
}

/// Whether some of the range is on huge pages; where the page map cannot be scanned, whether some of its mappings is.
fn has_huge(range: &Range<usize>) -> Result<bool, SnapshotError> {
    let map = PageMap::open().map_err(SnapshotError::kernel("/proc/self/pagemap"))?;
    match map.scanned() {
        Some(scanned) => scanned.has_huge(range).map_err(SnapshotError::kernel("PAGEMAP_SCAN")),
        None => Ok(mappings::have_huge_pages(&Root::default(), range)?),
    }
}

/// What is to be made.
struct Plan<'a> {
    range: &'a Range<usize>,
    mappings: &'a [MappedRange],
    granule: usize,
    kind: Kind<'a>,
    cap: usize,
    populated: usize,
    reserve: Option<&'a Reserve>,
}

/// A snapshot, who is told of its writes, and how these are served.
type Watched = (Arc<SnapshotState>, &'static WriteTracker, Option<Serving>);

impl Plan<'_> {
    fn snapshot(&self, protector: Arc<WriteProtector>) -> Result<SnapshotState, SnapshotError> {
        let behind = match self.kind {
            Kind::Once => Behind::Nothing,
            Kind::Epoch { .. } => Behind::Watched,
        };
        let snapshot = SnapshotState::new(
            Interval::new(self.range.clone(), self.granule),
            behind,
            self.cap,
            self.reserve,
            protector,
        )
        .map_err(|errno| SnapshotError::NoRoom {
            bytes: self.cap.min(self.range.len()),
            source: errno.into(),
        })?;
        snapshot.arena().populate(self.populated);
        Ok(snapshot)
    }

    fn protected(&self, fault_mode: FaultMode, taken: Taken) -> Result<Anonymous, SnapshotError> {
        let (snapshot, tracker, serving) = match fault_mode {
            FaultMode::InPlace => self.in_place(None),
            FaultMode::Threaded { threads } => self.by(Way::Threaded, threads, None),
            _auto => match self.by(Way::Threaded, 1, None) {
                Err(SnapshotError::Fault(fallback)) => {
                    hugekit_sys::events::info!("writes are served in place: {fallback}");
                    self.in_place(Some(fallback))
                }
                threaded => threaded,
            },
        }?;
        Ok(Anonymous { snapshot, tracker, cap: self.cap, serving, background: None, _taken: taken })
    }

    fn in_place(&self, fallback: Option<FaultError>) -> Result<Watched, SnapshotError> {
        survey::no_thread_blocks_sigbus()?;
        self.by(Way::InPlace, 0, fallback)
    }

    fn by(
        &self,
        way: Way,
        threads: usize,
        fallback: Option<FaultError>,
    ) -> Result<Watched, SnapshotError> {
        let tracker = |way| WriteTracker::current(way).map_err(SnapshotError::kernel("mmap"));
        let other = tracker(way.other())?;
        if let Some(mapping) =
            self.mappings.iter().find(|mapping| other.has_part_of(&self.part_of(mapping)))
        {
            let reason = Unsuitable::OtherFaultMode;
            return Err(SnapshotError::Unsuitable { mapping: mapping.clone(), reason });
        }
        let tracker = tracker(way)?;
        let snapshot = self.add_to(tracker, threads)?;
        let fault_mode = match way {
            Way::InPlace => FaultMode::InPlace,
            Way::Threaded => FaultMode::Threaded { threads: tracker.threads() },
        };
        let serving =
            (!snapshot.interval().inner().is_empty()).then(|| Serving::new(fault_mode, fallback));
        Ok((snapshot, tracker, serving))
    }

    /// Where the page of an edge is written all the time, with writers stopped for the copy, if this process may do
    /// that; else in a moment when they rest.
    fn add_to(
        &self,
        tracker: &'static WriteTracker,
        threads: usize,
    ) -> Result<Arc<SnapshotState>, SnapshotError> {
        let before = match self.kind {
            Kind::Once => None,
            Kind::Epoch { before } => before,
        };
        let make = |protector| self.snapshot(protector);
        let add = |how| tracker.add(threads, self.mappings, how, before, make);
        if self.edge_pages().next().is_some() && !tracker.notes_writes() {
            return self.add_unwatched(add);
        }
        let mut added = add(Guard::Watched);
        if matches!(added, Err(NotAdded::Unquiet(_))) && self.may_be_stopped()? {
            match add(Guard::Stopped) {
                Err(NotAdded::Unstopped(_, reason)) => {
                    hugekit_sys::events::debug!("writers cannot be stopped: {reason}");
                }
                stopped => added = stopped,
            }
        }
        for _ in 0..MOMENTS {
            let Err(NotAdded::Unquiet(_)) = added else { break };
            std::thread::sleep(MOMENT);
            added = add(Guard::Watched);
        }
        added.map_err(error_of)
    }

    /// Without a kernel that notes writes, no copy of an edge is known to be of one moment but one that was made while
    /// its page's writers were stopped.
    fn add_unwatched(
        &self,
        add: impl Fn(Guard) -> Result<Arc<SnapshotState>, NotAdded>,
    ) -> Result<Arc<SnapshotState>, SnapshotError> {
        let page = self.edge_pages().next().map_or(self.range.start, |page| page.start);
        if !self.may_be_stopped()? {
            return Err(SnapshotError::Unwatched { page });
        }
        add(Guard::Stopped).map_err(error_of)
    }

    fn edge_pages(&self) -> impl Iterator<Item = Range<usize>> {
        edges::pages_of(self.range).into_iter().flatten()
    }

    fn may_be_stopped(&self) -> Result<bool, SnapshotError> {
        for page in self.edge_pages() {
            if !survey::may_be_stopped(page.start)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn part_of(&self, mapping: &MappedRange) -> Range<usize> {
        let Range { start, end } = mapping.addresses;
        start.max(self.range.start)..end.min(self.range.end)
    }
}

fn error_of(reason: NotAdded) -> SnapshotError {
    match reason {
        NotAdded::Unquiet(page) => SnapshotError::Unquiet { page },
        NotAdded::Unstopped(page, reason) => {
            hugekit_sys::events::debug!("writers cannot be stopped: {reason}");
            SnapshotError::Unwatched { page }
        }
        NotAdded::Error(error) => error,
    }
}
