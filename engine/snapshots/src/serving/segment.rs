//! The ranges of all snapshots of a process, cut into segments. All addresses of a segment have the same snapshots.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::lifecycle::{LossCause, Phase};
use super::state::{Preserver, SnapshotState};
use super::write_protector::{ProtectionRefused, WriteProtector};
use hugekit_bulk::populate::PopulateError;
use hugekit_regions::fault::{Access, Faults};
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::thread::SignalsBlocked;

/// If no live snapshot has the address of a write, protection is lifted in this many bytes around it, so a huge page
/// stays whole.
const BLOCK_BYTES: usize = HUGE_PAGE_BYTES;

/// Addresses that these snapshots, and no others, have in common.
#[derive(Debug)]
pub(crate) struct Segment {
    addresses: Range<usize>,
    snapshots: Vec<Arc<SnapshotState>>,
    protector: Arc<WriteProtector>,
}

/// The reason why a write cannot be let through now.
#[derive(Debug)]
pub(crate) enum Hindrance {
    /// Memory is being protected at this moment. The caller must try again.
    Arming,
    /// The kernel refuses every way to let it through.
    Refused,
}

impl Segment {
    /// Returns the segments of these snapshots, ascending.
    pub(crate) fn all_of(
        snapshots: &[Arc<SnapshotState>],
        protector: &Arc<WriteProtector>,
    ) -> Vec<Self> {
        // A snapshot without protected pages has no segment: its ends may lie within a page.
        let protected = snapshots
            .iter()
            .map(|snapshot| snapshot.interval().inner())
            .filter(|inner| !inner.is_empty());
        let mut bounds: Vec<usize> = protected.flat_map(|inner| [inner.start, inner.end]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let between = bounds.windows(2).map(|pair| pair[0]..pair[1]);
        let segment = |addresses: Range<usize>| {
            let holds = |snapshot: &&Arc<SnapshotState>| {
                snapshot.interval().inner().contains(&addresses.start)
            };
            let snapshots = snapshots.iter().filter(holds).cloned().collect();
            Self { addresses, snapshots, protector: Arc::clone(protector) }
        };
        between.map(segment).filter(|segment| !segment.snapshots.is_empty()).collect()
    }

    pub(crate) fn addresses(&self) -> &Range<usize> {
        &self.addresses
    }

    /// Returns true if the segment has no other snapshot.
    pub(crate) fn is_only(&self, snapshot: &Arc<SnapshotState>) -> bool {
        self.snapshots.iter().all(|other| Arc::ptr_eq(other, snapshot))
    }

    /// Preserves the granule of each snapshot at the address, and lets the write through. Async-signal-safe.
    pub(crate) fn let_write(
        &self,
        address: usize,
        blocked: &SignalsBlocked,
    ) -> Result<(), Hindrance> {
        let began = Instant::now();
        let block = address - address % BLOCK_BYTES;
        let mut free = clip(&(block..block + BLOCK_BYTES), &self.addresses);
        if self.protector.holds(&free) {
            return Err(Hindrance::Arming);
        }
        for snapshot in &self.snapshots {
            match snapshot.phase() {
                Phase::Forming | Phase::Ended => {}
                Phase::Arming => return Err(Hindrance::Arming),
                Phase::Live => {
                    let (index, granule) = snapshot.interval().granule_at(address);
                    let end = if self.snapshots.len() == 1 {
                        snapshot.preserve_run(index, address, &free, blocked)
                    } else {
                        snapshot.preserve(index, Preserver::Writer(address), blocked);
                        granule.end
                    };
                    free = clip(&free, &(granule.start..end));
                }
            }
        }
        self.lift(&free)?;
        let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.snapshots.iter().for_each(|snapshot| snapshot.count_wait(nanos));
        Ok(())
    }

    /// Lifts the protection of those granules in `range` that no snapshot needs any more. `range` lies within the
    /// segment. Async-signal-safe.
    pub(crate) fn lift_unneeded(&self, range: &Range<usize>) -> Result<(), Hindrance> {
        let is_arming = |snapshot: &Arc<SnapshotState>| snapshot.phase() == Phase::Arming;
        if self.snapshots.iter().any(is_arming) || self.protector.holds(range) {
            return Err(Hindrance::Arming);
        }
        let live = || self.snapshots.iter().filter(|snapshot| snapshot.phase() == Phase::Live);
        let Some(step) = live().map(|snapshot| snapshot.interval().granule_bytes()).min() else {
            return self.lift(range);
        };
        let is_free = |address: usize| !live().any(|snapshot| snapshot.needs(address));
        let mut next = range.start;
        while next < range.end {
            let until = |next: usize| (next - next % step + step).min(range.end);
            let first = next;
            while next < range.end && is_free(next) {
                next = until(next);
            }
            if first < next {
                self.lift(&(first..next))?;
            } else {
                next = until(next);
            }
        }
        Ok(())
    }

    /// Lets writes to a range through. If the kernel refuses, the snapshots are lost, and all writes are let through.
    fn lift(&self, range: &Range<usize>) -> Result<(), Hindrance> {
        let lose = |ProtectionRefused| {
            self.fail(LossCause::Refused);
            self.protector.abandon()
        };
        self.protector.lift(range).or_else(lose).map_err(|ProtectionRefused| Hindrance::Refused)
    }

    fn fail(&self, failure: LossCause) {
        self.snapshots.iter().for_each(|snapshot| {
            snapshot.fail(failure);
        });
    }
}

impl Faults for Segment {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.protector.descriptor()
    }

    fn serve(
        &self,
        address: usize,
        _write: Access,
        blocked: &SignalsBlocked,
    ) -> Result<(), PopulateError> {
        match self.let_write(address, blocked) {
            Ok(()) => Ok(()),
            // The access is tried again and faults again. While a maker waits for readers of the table, no reader may
            // wait for the maker. `wait_for_maker` sleeps only after that.
            Err(Hindrance::Arming) => {
                self.protector.wait_for_maker();
                Ok(())
            }
            Err(Hindrance::Refused) => Err(PopulateError::Kernel(ErrorKind::PermissionDenied)),
        }
    }

    fn leave(&self, address: usize, _: &SignalsBlocked) -> rustix::io::Result<()> {
        self.protector.wake(address).map_err(|_| rustix::io::Errno::PERM)
    }

    /// Lets all writes through. The snapshots are lost.
    fn give_up(&self, _: &SignalsBlocked) -> rustix::io::Result<()> {
        self.fail(LossCause::Unserved);
        let left = self.protector.unregister(&self.addresses);
        let _ = left.or_else(|ProtectionRefused| self.protector.abandon());
        Ok(())
    }

    /// Does nothing: a reader finds failed memory by itself.
    fn break_(&self, _: usize, _: &SignalsBlocked) {}
}

fn clip(range: &Range<usize>, to: &Range<usize>) -> Range<usize> {
    range.start.max(to.start)..range.end.min(to.end)
}

#[cfg(test)]
mod tests {
    use rustix::param::page_size;

    use super::*;
    use crate::serving::granules::AfterRead;
    use crate::serving::interval::Interval;
    use hugekit_regions::fault::open;

    #[test]
    fn segments_of_any_snapshots_have_the_same_images_throughout() {
        let Ok(descriptor) = open::for_private_writes(open::for_serving_in_place) else { return };
        let Ok(protector) = WriteProtector::new(descriptor) else { return };
        let protector = Arc::new(protector);
        let snapshot = |range: Range<usize>| {
            Arc::new(
                SnapshotState::new(
                    Interval::new(range, page_size()),
                    AfterRead::Nothing,
                    0,
                    None,
                    None,
                    Arc::clone(&protector),
                )
                .unwrap(),
            )
        };
        let page = |range: Range<usize>| range.start * page_size()..range.end * page_size();
        // Of the last one nothing is protected, wherever it ends.
        let within_a_page = 12 * page_size() + 1..12 * page_size() + 9;
        let snapshots = [
            snapshot(page(10..20)),
            snapshot(page(15..30)),
            snapshot(page(40..50)),
            snapshot(page(15..20)),
            snapshot(within_a_page),
        ];
        let found: Vec<_> = Segment::all_of(&snapshots, &protector)
            .iter()
            .map(|segment| (segment.addresses().clone(), segment.snapshots.len()))
            .collect();
        let expected = [(page(10..15), 1), (page(15..20), 3), (page(20..30), 1), (page(40..50), 1)];
        assert_eq!(found, expected);
        assert!(Segment::all_of(&[], &protector).is_empty());
    }
}
