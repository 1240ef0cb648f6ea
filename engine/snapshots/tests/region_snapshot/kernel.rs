//! System calls that write to a region, and pages that the kernel holds.

use std::io::{self, Read, Write};

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{Region, SnapshotError};

use crate::backings::Check;
use crate::fixture::{copied, each, is_painted, painted};

fn system_call_into_a_snapshots_memory_writes_where_it_may(backing: Backing) {
    each(backing, 2, |_, mut region, take, granule| {
        let snapshot = take(&region);
        let range = granule + 10..granule + 110;
        let write = |region: &mut Region| {
            let (mut source, mut sink) = io::pipe().unwrap();
            sink.write_all(&[3; 100]).unwrap();
            source.read(&mut region[range.clone()])
        };
        let in_place = snapshot.serving().unwrap().fault_mode == FaultMode::InPlace;
        if in_place {
            assert_eq!(write(&mut region).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        }
        snapshot.prepare_write(range.clone()).unwrap();
        assert_eq!(write(&mut region).unwrap(), 100);
        assert_eq!(snapshot.stats().copied_by_others, 1);
        assert_eq!(snapshot.stats().copied_by_writers, 0);
        snapshot.prepare_write(range.clone()).unwrap();
        assert_eq!(snapshot.stats().copied_by_others, 1);
        assert!(is_painted(&copied(snapshot)));
        assert!(region[range.clone()].iter().all(|&byte| byte == 3));
        let beyond = take(&region).prepare_write(region.len()..region.len() + 1);
        assert!(matches!(beyond, Err(SnapshotError::OutOfRange { .. })));
    });
}

fn snapshot_of_pinned_pages_copies_them_at_once(backing: Backing) {
    each(backing, 2, |_, region, _, granule| {
        let region = region.share();
        let pin = region.pin(granule..granule + 1).unwrap();
        let snapshot =
            hugekit::Snapshot::of_region(region.fork_builder().granule(granule)).unwrap();
        assert_eq!(snapshot.stats().copied_by_others, 1);
        region.write_at(granule, &[!painted(granule)]).unwrap();
        let stats = snapshot.stats();
        assert_eq!((stats.copied_by_writers, stats.retained), (0, granule));
        assert!(is_painted(&copied(snapshot)));
        drop(pin);
    });
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    system_call_into_a_snapshots_memory_writes_where_it_may,
    snapshot_of_pinned_pages_copies_them_at_once,
];
