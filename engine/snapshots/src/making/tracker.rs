//! The list of all snapshots of a process. It passes writes to the snapshots of their memory, and
//! orders how snapshots begin and end. `README.md` draws the phases.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::edges::{EdgeError, Guard, Guarding};
use super::protect_helper::ProtectHelper;
use crate::error::{SnapshotError, Unsuitable};
use crate::serving::lifecycle::Phase;
use crate::serving::segment::{Hindrance, Segment};
use crate::serving::state::SnapshotState;
use crate::serving::write_protector::{ProtectionRefused, WriteProtector};
use hugekit_bulk::populate::PopulateError;
use hugekit_machine::mappings::MappedRange;
use hugekit_regions::fault::no_fault;
use hugekit_regions::fault::open::{self, Of};
use hugekit_regions::fault::{Access, Faults, Handlers, HeldTable, Ranges, Registry};
use hugekit_regions::pool::FaultError;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::fork_mark::ForkMark;
use hugekit_sys::sync::{OfProcess, PerProcess};
use hugekit_sys::thread::{SignalsBlocked, without_signals};

/// The way in which writes are handled. Snapshots with the same handling share a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handling {
    InPlace,
    Threaded,
}

impl Handling {
    pub(super) fn other(self) -> Self {
        match self {
            Self::InPlace => Self::Threaded,
            Self::Threaded => Self::InPlace,
        }
    }
}

/// The snapshots of a process that have the same handling. A forked child that makes snapshots has its own tracker.
#[derive(Debug)]
pub(crate) struct WriteTracker {
    mark: ForkMark,
    handling: Handling,
    table: Registry<Segment>,
    /// Locked by the thread that makes or ends a snapshot. Threads that handle a write never lock
    /// it.
    state: Mutex<TrackerState>,
}

#[derive(Debug, Default)]
struct TrackerState {
    snapshots: Vec<Arc<SnapshotState>>,
    /// `None` if there are no snapshots.
    protector: Option<Arc<WriteProtector>>,
    /// `None` if there are no snapshots, or if no threads handle their faults.
    handlers: Option<Handlers>,
    /// The starts of the segments that the handler of SIGBUS knows.
    known: Vec<usize>,
    /// The descriptors that guard edges. Each descriptor is opened when it is needed, and closed
    /// with the last snapshot.
    watched: Option<OwnedFd>,
    stopped: Option<OwnedFd>,
    /// The last helper, which was dismissed.
    helper: Option<ProtectHelper>,
}

impl TrackerState {
    /// Returns true if the protector was abandoned, so nothing is served any more.
    fn is_abandoned(&self) -> bool {
        self.protector.as_ref().is_some_and(|protector| protector.is_abandoned())
    }
}

/// A request for a snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddRequest<'a> {
    /// The number of threads that serve writes, if threads do.
    pub(super) threads: usize,
    /// The mappings that contain its memory.
    pub(super) mappings: &'a [MappedRange],
    /// The guard of its edges while they are copied.
    pub(super) guard: Guard,
    /// The previous snapshot of the same interval, for an epoch. It ends at this snapshot's moment, and its saved
    /// granules are saved in this one.
    pub(super) before: Option<&'a SnapshotState>,
}

/// A snapshot whose memory is about to be protected.
struct Arming<'s, 'a> {
    snapshot: &'s Arc<SnapshotState>,
    /// The parts of its memory, each with its mapping.
    parts: &'s [(Range<usize>, &'a MappedRange)],
    helper: Option<&'s ProtectHelper>,
    guard: Guard,
    before: Option<&'s SnapshotState>,
}

/// The registries that handlers read. While this value exists, no registry changes.
struct HeldRegistries<'a> {
    segments: HeldTable<'a, Segment>,
    ranges: Option<HeldTable<'a, dyn Faults>>,
}

impl HeldRegistries<'_> {
    /// Waits for handlers that have read the registries before.
    fn settle(&self) {
        self.segments.settle();
        self.ranges.iter().for_each(HeldTable::settle);
    }
}

/// The reason why no snapshot was added.
#[derive(Debug)]
pub(super) enum NotAdded {
    /// Other threads wrote to the page of an edge all the time.
    Unquiet(usize),
    /// The writers of the page of an edge cannot be stopped, because this process may not do that.
    Unstopped(usize, FaultError),
    Error(SnapshotError),
}

impl<E: Into<SnapshotError>> From<E> for NotAdded {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// The reason why memory could not be protected. It has no heap memory, because the heap may be protected.
enum Unarmed<'a> {
    Refused(Errno, &'a MappedRange),
    Edge(EdgeError),
}

static CURRENT: [PerProcess<WriteTracker>; 2] = [const { PerProcess::new() }; 2];

impl OfProcess for WriteTracker {
    fn mark(&self) -> &ForkMark {
        &self.mark
    }
}

impl WriteTracker {
    /// Returns the tracker of the calling process.
    pub(super) fn current(handling: Handling) -> rustix::io::Result<&'static Self> {
        CURRENT[handling as usize].get_or_make(|_parents| {
            let (mark, table) = (ForkMark::new(), Registry::new()?);
            Ok(Self { mark, handling, table, state: Mutex::default() })
        })
    }

    /// Returns true if the writer itself serves its fault.
    pub(crate) fn is_in_place(&self) -> bool {
        self.handling == Handling::InPlace
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.mark.is_ours()
    }

    /// Returns the number of threads that serve writes now.
    pub(super) fn threads(&self) -> usize {
        self.lock().handlers.as_ref().map_or(0, Handlers::count)
    }

    fn lock(&self) -> MutexGuard<'_, TrackerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the protector. Opens it if needed, and starts `threads` threads that serve it, if threads do.
    fn open(
        &'static self,
        state: &mut TrackerState,
        threads: usize,
    ) -> Result<Arc<WriteProtector>, SnapshotError> {
        if let Some(protector) = &state.protector {
            return if protector.is_abandoned() {
                Err(SnapshotError::Refused)
            } else {
                Ok(Arc::clone(protector))
            };
        }
        let protector = match self.handling {
            Handling::InPlace => open::for_private_writes(open::for_serving_in_place)?,
            Handling::Threaded => open::for_private_writes(open::for_handler_threads)?,
        };
        let protector = Arc::new(WriteProtector::new(protector)?);
        if self.handling == Handling::Threaded {
            let served = Arc::new(Threaded { tracker: self, protector: Arc::clone(&protector) });
            state.handlers = Some(Handlers::start(&(served as Arc<dyn Faults>), threads)?);
        }
        state.protector = Some(Arc::clone(&protector));
        Ok(protector)
    }

    /// Closes the descriptors if no snapshot needs them.
    fn close_if_idle(state: &mut TrackerState) {
        if state.snapshots.is_empty() {
            state.handlers.take().into_iter().for_each(Handlers::stop);
            (state.protector, state.watched, state.stopped) = (None, None, None);
            state.helper = None;
        }
    }

    /// Makes a snapshot with `make` and protects its memory. Its point in time is the moment when the last mapping is
    /// protected and the edges are copied.
    pub(super) fn add(
        &'static self,
        request: &AddRequest<'_>,
        make: impl FnOnce(Arc<WriteProtector>) -> Result<SnapshotState, SnapshotError>,
    ) -> Result<Arc<SnapshotState>, NotAdded> {
        let mut state = self.lock();
        let was_abandoned = state.is_abandoned();
        let mut added = self.add_locked(&mut state, request, make);
        if added.is_err() && !was_abandoned && state.is_abandoned() {
            // The error that was returned is only a consequence.
            added = Err(SnapshotError::kernel("userfaultfd")(Errno::PERM).into());
        }
        Self::close_if_idle(&mut state);
        added
    }

    fn add_locked(
        &'static self,
        state: &mut TrackerState,
        request: &AddRequest<'_>,
        make: impl FnOnce(Arc<WriteProtector>) -> Result<SnapshotState, SnapshotError>,
    ) -> Result<Arc<SnapshotState>, NotAdded> {
        let AddRequest { threads, mappings, guard, before } = *request;
        let ranges = match self.handling {
            Handling::InPlace => Some(Ranges::of_this_process()?),
            Handling::Threaded => None,
        };
        no_fault::prepare();
        let protector = self.open(state, threads)?;
        let snapshot = Arc::new(make(Arc::clone(&protector))?);
        if let Some(page) = snapshot.edges().pages().iter().flatten().next() {
            open_guard(state, guard, &protector, page)?;
        }
        let parts = parts_of(snapshot.interval().inner(), mappings);
        register(&protector, &parts, &state.snapshots)?;
        if let Err(refused) = fill(&protector, &parts) {
            unregister_unshared(&protector, parts.iter().map(|(part, _)| part), &state.snapshots);
            return Err(refused.into());
        }
        for other in &state.snapshots {
            // If discarded memory were protected again, it would look untouched.
            other.check_owner(&clip(other.interval().inner(), snapshot.interval().inner()));
        }
        let helper = start_helper(&protector, &snapshot, &parts);
        state.snapshots.push(Arc::clone(&snapshot));
        self.publish(state, ranges);
        // A signal handler in this thread that writes to the memory would wait for the code that it has interrupted.
        let armed = without_signals(|blocked| {
            let held = HeldRegistries {
                segments: self.table.hold(blocked),
                ranges: ranges.map(|ranges| ranges.hold(blocked)),
            };
            let helper = helper.as_ref();
            let arming = Arming { snapshot: &snapshot, parts: &parts, helper, guard, before };
            Self::arm(state, &arming, &held, blocked)
        });
        helper.iter().for_each(ProtectHelper::dismiss);
        state.helper = helper;
        let added = match armed {
            // The last handler thread may have ended before it could know this snapshot.
            Ok(()) if protector.is_abandoned() => Err(SnapshotError::Refused.into()),
            Ok(()) => return Ok(snapshot),
            Err(unarmed) => Err(not_added(unarmed, mappings)),
        };
        self.remove_locked(state, &snapshot, ranges);
        added
    }

    /// Protects the memory, and copies its edges. From `Arming` on, writers wait for the end of this function. So it
    /// must not write to memory that could be protected, except to the stack, or wait for a thread that does. A
    /// thread that changes a registry writes to the heap, so the caller holds the registries.
    fn arm<'a>(
        state: &TrackerState,
        arming: &Arming<'_, 'a>,
        held: &HeldRegistries<'_>,
        blocked: &SignalsBlocked,
    ) -> Result<(), Unarmed<'a>> {
        let Some(protector) = &state.protector else { return Ok(()) };
        let snapshot = arming.snapshot;
        let is_another = |other: &&Arc<SnapshotState>| !Arc::ptr_eq(other, snapshot);
        let others = |address: usize| {
            state
                .snapshots
                .iter()
                .filter(is_another)
                .any(|other| other.interval().inner().contains(&address))
        };
        let descriptor = match arming.guard {
            Guard::Watched => &state.watched,
            Guard::Stopped => &state.stopped,
        };
        let guarding = descriptor.as_ref().map(|descriptor| Guarding {
            how: arming.guard,
            descriptor: descriptor.as_fd(),
            others: &others,
        });
        protector.hold(&snapshot.edges().pages());
        snapshot.enter(Phase::Arming);
        // A handler that saw `Forming` may lift the protection of other snapshots until it has finished.
        held.settle();
        let paused = protector.pause_writers();
        let armed =
            protect(protector, arming.parts, arming.helper).and_then(|()| match &guarding {
                Some(guarding) => {
                    snapshot.edges().copy_all(protector, guarding).map_err(Unarmed::Edge)
                }
                None => Ok(()),
            });
        if let (Ok(()), Some(before)) = (&armed, arming.before) {
            snapshot.go_on_from(before, blocked);
        }
        snapshot.enter(if armed.is_ok() { Phase::Live } else { Phase::Ended });
        protector.hold(&[None, None]);
        drop(paused);
        armed
    }

    /// Ends a snapshot. Lifts the protection that no other snapshot needs.
    pub(crate) fn remove(&self, snapshot: &Arc<SnapshotState>) {
        let mut state = self.lock();
        let ranges = match self.handling {
            Handling::InPlace => Ranges::known().ok(),
            Handling::Threaded => None,
        };
        self.remove_locked(&mut state, snapshot, ranges);
        Self::close_if_idle(&mut state);
    }

    fn remove_locked(
        &self,
        state: &mut TrackerState,
        snapshot: &Arc<SnapshotState>,
        ranges: Option<Ranges>,
    ) {
        // From now on, writers only lift the protection that is in their way.
        snapshot.enter(Phase::Ended);
        let Some(protector) = state.protector.clone() else { return };
        state.snapshots.retain(|other| !Arc::ptr_eq(other, snapshot));
        for part in Segment::all_of(&joined_with(&state.snapshots, snapshot), &protector) {
            if part.is_only(snapshot) {
                let left = protector.unregister(part.addresses());
                let _ = left.or_else(|ProtectionRefused| protector.abandon());
            } else {
                self.lift_unneeded(part.addresses());
            }
        }
        self.publish(state, ranges);
    }

    /// Publishes the present snapshots to handlers.
    fn publish(&self, state: &mut TrackerState, ranges: Option<Ranges>) {
        let segments: Vec<Arc<Segment>> = state
            .protector
            .iter()
            .flat_map(|protector| Segment::all_of(&state.snapshots, protector))
            .map(Arc::new)
            .collect();
        let entry = |segment: &Arc<Segment>| (segment.addresses().clone(), Arc::clone(segment));
        self.table.change(|table| *table = segments.iter().map(entry).collect());
        let Some(ranges) = ranges else { return };
        let before = std::mem::take(&mut state.known);
        ranges.change(|table| {
            table.retain(|(addresses, _)| before.binary_search(&addresses.start).is_err());
            table.extend(segments.iter().map(|segment| {
                (segment.addresses().clone(), Arc::clone(segment) as Arc<dyn Faults>)
            }));
            table.sort_unstable_by_key(|(addresses, _)| addresses.start);
        });
        state.known = segments.iter().map(|segment| segment.addresses().start).collect();
    }

    /// Lifts the protection of granules in a range that no snapshot needs any more. The range lies within a snapshot.
    pub(crate) fn lift_unneeded(&self, range: &Range<usize>) {
        let mut next = range.start;
        while next < range.end {
            let lifted = self.table.with_shielded(next, |segment| {
                let part = clip(&(next..range.end), segment.addresses());
                segment.lift_unneeded(&part).map(|()| part.end)
            });
            match lifted {
                Some(Ok(end)) => next = end,
                Some(Err(Hindrance::Arming)) => rustix::thread::sched_yield(),
                Some(Err(Hindrance::Refused)) | None => return,
            }
        }
    }

    /// Returns true if the kernel records writes to a page. If so, the page need not be stopped
    /// while it is copied. Other errors are returned later, when the snapshot is made.
    pub(super) fn notes_writes(&self) -> bool {
        let mut state = self.lock();
        if state.watched.is_none() {
            match open::for_watching() {
                Ok(opened) => state.watched = Some(opened),
                Err(error) => return !matches!(error, FaultError::Lacking { .. }),
            }
        }
        true
    }

    /// Returns true if a snapshot contains a part of a range.
    pub(super) fn has_part_of(&self, range: &Range<usize>) -> bool {
        self.lock()
            .snapshots
            .iter()
            .any(|snapshot| !clip(snapshot.interval().inner(), range).is_empty())
    }
}

/// Returns true if no snapshot contains a part of a range, and nothing else whose faults this
/// process serves in place.
pub(crate) fn is_plain(range: &Range<usize>) -> bool {
    let has_none =
        |handling| WriteTracker::current(handling).is_ok_and(|tracker| !tracker.has_part_of(range));
    has_none(Handling::InPlace)
        && has_none(Handling::Threaded)
        && Ranges::known().is_ok_and(|ranges| !ranges.have_part_of(range))
}

/// The faults that handler threads serve.
#[derive(Debug)]
struct Threaded {
    tracker: &'static WriteTracker,
    protector: Arc<WriteProtector>,
}

impl Faults for Threaded {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.protector.descriptor()
    }

    fn serve(
        &self,
        address: usize,
        _write: Access,
        blocked: &SignalsBlocked,
    ) -> Result<(), PopulateError> {
        let let_write = |segment: &Segment| segment.let_write(address, blocked);
        loop {
            match self.tracker.table.with(address, blocked, let_write) {
                Some(Ok(())) => return Ok(()),
                Some(Err(Hindrance::Arming)) => self.protector.wait_for_maker(),
                Some(Err(Hindrance::Refused)) => {
                    return Err(PopulateError::Kernel(ErrorKind::PermissionDenied));
                }
                // The snapshot that protected the address has ended meanwhile.
                None => {
                    let refused = |_| PopulateError::Kernel(ErrorKind::PermissionDenied);
                    return self.leave(address, blocked).map_err(refused);
                }
            }
        }
    }

    fn leave(&self, address: usize, _: &SignalsBlocked) -> rustix::io::Result<()> {
        self.protector.wake(address).map_err(|_| rustix::io::Errno::PERM)
    }

    /// Abandons the protector first. A thread that is making a snapshot then either sees that, or its snapshot is
    /// found here.
    fn give_up(&self, blocked: &SignalsBlocked) -> rustix::io::Result<()> {
        let left = self.protector.abandon();
        self.tracker.table.for_each(blocked, |faults| {
            let _ = faults.give_up(blocked);
        });
        left.map_err(|_| rustix::io::Errno::PERM)
    }

    fn break_(&self, _: usize, _: &SignalsBlocked) {}
}

/// Starts a thread that helps to protect the parts. Not on huge pages, which need only one entry each.
fn start_helper(
    protector: &Arc<WriteProtector>,
    snapshot: &SnapshotState,
    parts: &[(Range<usize>, &MappedRange)],
) -> Option<ProtectHelper> {
    let is_small = snapshot.interval().granule_bytes() < HUGE_PAGE_BYTES;
    is_small.then(|| ProtectHelper::start(protector, parts.iter().map(|(part, _)| part))).flatten()
}

/// Protects all of the parts.
fn protect<'a>(
    protector: &WriteProtector,
    parts: &[(Range<usize>, &'a MappedRange)],
    helper: Option<&ProtectHelper>,
) -> Result<(), Unarmed<'a>> {
    if let Some(helper) = helper {
        let refused = |(errno, part): (_, usize)| Unarmed::Refused(errno, parts[part].1);
        return helper.protect(protector).map_err(refused);
    }
    parts.iter().try_for_each(|(part, mapping)| {
        protector.protect(part).map_err(|errno| Unarmed::Refused(errno, mapping))
    })
}

/// Opens the descriptor that guards edges, if it is not open. `page` is the page of one edge.
fn open_guard(
    state: &mut TrackerState,
    how: Guard,
    protector: &WriteProtector,
    page: &Range<usize>,
) -> Result<(), NotAdded> {
    match how {
        Guard::Watched if state.watched.is_none() => state.watched = Some(open::for_watching()?),
        Guard::Stopped if state.stopped.is_none() => {
            let writes = Of::PrivateWrites(protector.untouched());
            let opened = open::for_stopping(writes);
            state.stopped = Some(opened.map_err(|why| NotAdded::Unstopped(page.start, why))?);
        }
        Guard::Watched | Guard::Stopped => {}
    }
    Ok(())
}

fn not_added(unarmed: Unarmed<'_>, mappings: &[MappedRange]) -> NotAdded {
    match unarmed {
        Unarmed::Refused(errno, mapping) => refusal(errno, mapping, "UFFDIO_WRITEPROTECT").into(),
        Unarmed::Edge(EdgeError::Unquiet(page)) => NotAdded::Unquiet(page),
        Unarmed::Edge(EdgeError::Changed(address)) => SnapshotError::Changed { address }.into(),
        Unarmed::Edge(EdgeError::Kernel(call, errno, page)) => {
            let mapping = mappings.iter().find(|mapping| mapping.addresses.contains(&page));
            let kernel = || SnapshotError::kernel(call)(errno);
            mapping.map_or_else(kernel, |mapping| refusal(errno, mapping, call)).into()
        }
    }
}

fn joined_with(
    snapshots: &[Arc<SnapshotState>],
    snapshot: &Arc<SnapshotState>,
) -> Vec<Arc<SnapshotState>> {
    snapshots.iter().chain([snapshot]).cloned().collect()
}

/// Returns the parts of the mappings that lie in a range.
fn parts_of<'a>(
    range: &Range<usize>,
    mappings: &'a [MappedRange],
) -> Vec<(Range<usize>, &'a MappedRange)> {
    let part = |mapping: &'a MappedRange| (clip(&mapping.addresses, range), mapping);
    mappings.iter().map(part).filter(|(part, _)| !part.is_empty()).collect()
}

/// Makes sure that all of the parts can be protected.
fn fill(
    protector: &WriteProtector,
    parts: &[(Range<usize>, &MappedRange)],
) -> Result<(), SnapshotError> {
    parts.iter().try_for_each(|(part, mapping)| {
        let filled = protector.fill(protector.descriptor(), part);
        filled.map_err(|errno| refusal(errno, mapping, "UFFDIO_ZEROPAGE"))
    })
}

/// Unregisters parts of which nothing is protected yet, except those of which other snapshots contain something.
fn unregister_unshared<'a>(
    protector: &WriteProtector,
    parts: impl Iterator<Item = &'a Range<usize>>,
    others: &[Arc<SnapshotState>],
) {
    let is_new = |part: &&Range<usize>| {
        others.iter().all(|other| clip(other.interval().inner(), part).is_empty())
    };
    parts.filter(is_new).for_each(|part| {
        let _ = protector.unregister(part);
    });
}

/// Registers all of the parts. If one fails, unregisters those of which other snapshots contain nothing.
fn register(
    protector: &WriteProtector,
    parts: &[(Range<usize>, &MappedRange)],
    others: &[Arc<SnapshotState>],
) -> Result<(), SnapshotError> {
    for (count, (part, mapping)) in parts.iter().enumerate() {
        if let Err(errno) = protector.register(part) {
            unregister_unshared(protector, parts[..count].iter().map(|(part, _)| part), others);
            return Err(refusal(errno, mapping, "UFFDIO_REGISTER"));
        }
    }
    Ok(())
}

fn refusal(errno: Errno, mapping: &MappedRange, call: &'static str) -> SnapshotError {
    let reason = match errno {
        Errno::BUSY => Unsuitable::OtherUserfaultfd,
        Errno::INVAL | Errno::PERM => Unsuitable::Unprotectable,
        Errno::NOENT => return SnapshotError::Changed { address: mapping.addresses.start },
        errno => return SnapshotError::kernel(call)(errno),
    };
    SnapshotError::Unsuitable { mapping: mapping.clone(), reason }
}

fn clip(range: &Range<usize>, to: &Range<usize>) -> Range<usize> {
    let start = range.start.max(to.start);
    start..range.end.min(to.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Granule, Snapshot};
    use hugekit_regions::fault::FaultMode;
    use hugekit_sys::private_pages::PrivateBytes;

    #[test]
    #[allow(unsafe_code)]
    fn snapshot_whose_handler_thread_dies_is_lost_and_writers_go_on() {
        let len = 1 << 20;
        let memory = PrivateBytes::new(len, 1 << 16).unwrap();
        // SAFETY: so many bytes, which no other thread uses.
        unsafe { memory.start().write_bytes(7, len) };
        let builder = Snapshot::builder().granule(Granule::Small);
        let builder = builder.fault_mode(FaultMode::Threaded { threads: 1 });
        let range = std::ptr::slice_from_raw_parts(memory.start(), len);
        // SAFETY: the memory stays until the snapshot has gone.
        let snapshot = match unsafe { builder.of_anonymous(range) } {
            // Who may not serve faults of system calls has no such threads.
            Err(SnapshotError::Fault(_)) => return,
            made => made.unwrap(),
        };
        snapshot.read_at(5, &mut [0; 9]).unwrap();
        let tracker = WriteTracker::current(Handling::Threaded).unwrap();
        without_signals(|blocked| {
            tracker.table.for_each(blocked, |faults| {
                let _ = faults.give_up(blocked);
            });
        });
        // SAFETY: `len` bytes of the test's memory, which no other thread uses.
        unsafe { memory.start().write_bytes(8, len) };
        assert_eq!(snapshot.stats().copied_by_writers, 0);
        assert!(matches!(snapshot.read_at(5, &mut [0; 9]), Err(SnapshotError::Unserved)));
        assert!(matches!(snapshot.write_to(Vec::new()), Err(SnapshotError::Unserved)));
    }
}
