//! The plan of a snapshot of anonymous memory. It chooses how writes are handled, and repeats
//! attempts to copy edges.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::edges::{self, Guard};
use super::excluded::ExcludedRange;
use super::survey;
use super::tracker::{AddRequest, Handling, NotAdded, WriteTracker};
use crate::reading::anonymous::Anonymous;
use crate::serving::delivery::Destination;
use crate::serving::granules::AfterRead;
use crate::serving::interval::Interval;
use crate::serving::reserve::Reserve;
use crate::serving::state::SnapshotState;
use crate::serving::write_protector::WriteProtector;
use crate::{SnapshotError, Unsuitable};
use hugekit_machine::mappings::MappedRange;
use hugekit_regions::fault::{FaultMode, Serving};
use hugekit_regions::pool::FaultError;
use hugekit_sys::error_chain;

/// The highest number of attempts to copy an edge that other threads write to, and the time between
/// attempts.
const MOMENTS: u32 = 50;
const MOMENT: Duration = Duration::from_millis(1);

/// The purpose of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose<'a> {
    /// The snapshot is read once.
    Once,
    /// The bytes that changed since the previous epoch are read, or all bytes if there is no
    /// previous epoch. After that, changes are recorded.
    Epoch { before: Option<&'a SnapshotState> },
}

/// A snapshot to make.
pub(super) struct SnapshotPlan<'a> {
    pub(super) range: &'a Range<usize>,
    pub(super) mappings: &'a [MappedRange],
    pub(super) granule: usize,
    pub(super) purpose: Purpose<'a>,
    pub(super) cap: usize,
    pub(super) populated: usize,
    pub(super) reserve: Option<&'a Reserve>,
    /// The memory of a staging.
    pub(super) destination: Option<&'a Arc<Destination>>,
}

/// A snapshot whose memory is protected, its tracker, and the way in which writes are served.
struct Protected {
    snapshot: Arc<SnapshotState>,
    tracker: &'static WriteTracker,
    serving: Option<Serving>,
}

impl SnapshotPlan<'_> {
    fn make_state(&self, protector: Arc<WriteProtector>) -> Result<SnapshotState, SnapshotError> {
        let behind = match self.purpose {
            Purpose::Once => AfterRead::Nothing,
            Purpose::Epoch { .. } => AfterRead::Watched,
        };
        let snapshot = SnapshotState::new(
            Interval::new(self.range.clone(), self.granule),
            behind,
            self.cap,
            self.reserve,
            self.destination.cloned(),
            protector,
        )
        .map_err(|errno| SnapshotError::NoRoom {
            bytes: self.cap.min(self.range.len()),
            source: errno.into(),
        })?;
        snapshot.arena().populate(self.populated);
        Ok(snapshot)
    }

    pub(super) fn protect(
        &self,
        fault_mode: FaultMode,
        excluded: ExcludedRange,
    ) -> Result<Anonymous, SnapshotError> {
        let Protected { snapshot, tracker, serving } = match fault_mode {
            FaultMode::InPlace => self.protect_in_place(None),
            FaultMode::Threaded { threads } => self.protect_by(Handling::Threaded, threads, None),
            _auto => self.protect_as_permitted(),
        }?;
        Ok(Anonymous {
            snapshot,
            tracker,
            cap: self.cap,
            serving,
            background: None,
            _excluded: excluded,
        })
    }

    /// Serves writes by a thread. Serves them in place if this process may not do that, or if another snapshot of the
    /// memory is served in place.
    fn protect_as_permitted(&self) -> Result<Protected, SnapshotError> {
        let fallback = match self.protect_by(Handling::Threaded, 1, None) {
            Err(SnapshotError::Fault(fallback)) => fallback,
            Err(SnapshotError::Unsuitable { reason: Unsuitable::OtherFaultMode, .. }) => {
                FaultError::AnotherInPlace
            }
            threaded => return threaded,
        };
        hugekit_sys::events::info!("writes are served in place: {}", error_chain(&fallback));
        self.protect_in_place(Some(fallback))
    }

    fn protect_in_place(&self, fallback: Option<FaultError>) -> Result<Protected, SnapshotError> {
        survey::no_thread_blocks_sigbus()?;
        self.protect_by(Handling::InPlace, 0, fallback)
    }

    fn protect_by(
        &self,
        handling: Handling,
        threads: usize,
        fallback: Option<FaultError>,
    ) -> Result<Protected, SnapshotError> {
        let tracker =
            |handling| WriteTracker::current(handling).map_err(SnapshotError::kernel("mmap"));
        let other = tracker(handling.other())?;
        if let Some(mapping) =
            self.mappings.iter().find(|mapping| other.has_part_of(&self.part_of(mapping)))
        {
            let reason = Unsuitable::OtherFaultMode;
            return Err(SnapshotError::Unsuitable { mapping: mapping.clone(), reason });
        }
        let tracker = tracker(handling)?;
        let snapshot = self.add_to(tracker, threads)?;
        let fault_mode = match handling {
            Handling::InPlace => FaultMode::InPlace,
            Handling::Threaded => FaultMode::Threaded { threads: tracker.threads() },
        };
        let serving =
            (!snapshot.interval().inner().is_empty()).then(|| Serving::new(fault_mode, fallback));
        Ok(Protected { snapshot, tracker, serving })
    }

    /// Adds the snapshot to the tracker. If other threads write to the page of an edge all the time, stops them for
    /// the copy if this process may do that. Otherwise tries again later.
    fn add_to(
        &self,
        tracker: &'static WriteTracker,
        threads: usize,
    ) -> Result<Arc<SnapshotState>, SnapshotError> {
        let before = match self.purpose {
            Purpose::Once => None,
            Purpose::Epoch { before } => before,
        };
        let make = |protector| self.make_state(protector);
        let add = |guard| {
            tracker.add(&AddRequest { threads, mappings: self.mappings, guard, before }, make)
        };
        if self.edge_pages().next().is_some() && !tracker.notes_writes() {
            return self.add_unwatched(add);
        }
        let mut added = add(Guard::Watched);
        if matches!(added, Err(NotAdded::Unquiet(_))) && self.probe_edges_stoppable()? {
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

    /// Adds the snapshot on a kernel that does not record writes. An edge is then known to be from one moment only if
    /// writers of its page were stopped for the copy.
    fn add_unwatched(
        &self,
        add: impl Fn(Guard) -> Result<Arc<SnapshotState>, NotAdded>,
    ) -> Result<Arc<SnapshotState>, SnapshotError> {
        let page = self.edge_pages().next().map_or(self.range.start, |page| page.start);
        if !self.probe_edges_stoppable()? {
            return Err(SnapshotError::Unwatched { page });
        }
        add(Guard::Stopped).map_err(error_of)
    }

    fn edge_pages(&self) -> impl Iterator<Item = Range<usize>> {
        edges::pages_of(self.range).into_iter().flatten()
    }

    fn probe_edges_stoppable(&self) -> Result<bool, SnapshotError> {
        for page in self.edge_pages() {
            if !survey::probe_stoppable(page.start)? {
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
