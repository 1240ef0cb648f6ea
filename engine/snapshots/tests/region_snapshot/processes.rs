//! A child has no part of a snapshot, and a process keeps nothing of those that it has dropped.

use hugekit::SnapshotError;
use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::region::{ForkError, Region};

use crate::backings::{Check, FOLIOS, builder};
use crate::child::in_a_child;
use crate::fixture::{copied, each, fault_modes, granules, is_painted, painted};

fn snapshot_in_a_forked_child_is_refused(backing: Backing) {
    each(backing, 2, |_, mut region, take, granule| {
        let snapshot = take(&region);
        let code = in_a_child(|| {
            let read = snapshot.read_at(0, &mut [0]);
            if !matches!(read, Err(SnapshotError::Forked)) {
                return 1;
            }
            if !matches!(snapshot.prepare_write(0..1), Err(SnapshotError::Forked)) {
                return 2;
            }
            match hugekit::Snapshot::of_region(&region) {
                Err(SnapshotError::Fork(ForkError::Forked)) => 0,
                _ => 3,
            }
        });
        assert_eq!(code, 0);
        region[granule] = !painted(granule);
        assert!(is_painted(&copied(snapshot)));
    });
}

fn snapshots_by_the_thousand_leave_nothing_behind(backing: Backing) {
    let possessions = |region: &mut Region| {
        // What is held back by rights is a mapping of its own.
        region.prepare_write(0..region.len()).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        (maps, std::fs::read_dir("/proc/self/fd").unwrap().count())
    };
    let take = |fault_mode: FaultMode| {
        let granule = granules(backing)[0];
        let pool = builder(backing, 2 * FOLIOS).scrub_threads(0).build().unwrap();
        let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
        let mut before = None;
        for round in 0..2000_usize {
            let snapshot = hugekit::Snapshot::of_region(
                region.fork_builder().granule(granule).fault_mode(fault_mode),
            );
            let snapshot = snapshot.unwrap();
            let at = round * 4099 % region.len();
            let seen = region[at];
            region[at] = seen.wrapping_add(1);
            let mut byte = [0];
            snapshot.read_at(at, &mut byte).unwrap();
            assert_eq!(byte[0], seen);
            drop(snapshot);
            if round == 100 {
                before = Some(possessions(&mut region));
            }
        }
        let (before, after) = (before.unwrap(), possessions(&mut region));
        // A helper that was started late has a stack.
        assert!(after.0 < before.0 + 10 && after.1 == before.1, "{before:?}, then {after:?}");
        assert_eq!(pool.stats().unwrap().in_use, FOLIOS);
        0
    };
    for fault_mode in fault_modes() {
        // Where no other test has mappings and descriptors come and go.
        assert_eq!(in_a_child(|| take(fault_mode)), 0);
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    snapshot_in_a_forked_child_is_refused,
    snapshots_by_the_thousand_leave_nothing_behind,
];
