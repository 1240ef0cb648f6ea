//! What cannot be taken or written out is an error, and nothing stays protected.

use std::io::{self, Write};

use hugekit::pool::Backing;
use hugekit::region::ForkError;
use hugekit::{Cancel, HUGE_PAGE_BYTES, Region, RegionError, SnapshotError};

use crate::backings::{Check, FOLIOS, builder};
use crate::fixture::{each, fault_modes, is_painted, painted};

/// Fails when it has taken so many bytes.
struct Fails(usize);

impl Write for Fails {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => self.0 = left,
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_that_fails_is_an_error_and_nothing_stays_protected(backing: Backing) {
    each(backing, 2, |pool, mut region, take, granule| {
        let after_all = |region: &mut Region| {
            assert_eq!(region.shared_bytes().unwrap(), 0);
            assert_eq!(pool.stats().unwrap().in_use, FOLIOS);
            region.chunks_mut(granule).enumerate().for_each(|(at, bytes)| {
                bytes[0] = painted(at * granule);
            });
        };
        let failed = take(&region).write_to(Fails(0)).unwrap_err();
        assert!(matches!(failed, SnapshotError::Write { written: 0, .. }), "{failed}");
        after_all(&mut region);
        let (cancel, all) = (Cancel::new(), region.len());
        let told = |done: usize, of: usize| {
            assert_eq!(of, all);
            assert!(done > 0);
            cancel.cancel();
        };
        let ended = take(&region).reader().progress(&told).cancel(&cancel).write_to(io::sink());
        match ended {
            // All of it may have been one piece.
            Ok(_) => assert!(all <= HUGE_PAGE_BYTES),
            Err(SnapshotError::Cancelled { bytes, len }) => assert!(bytes > 0 && len == all),
            Err(other) => panic!("{other}"),
        }
        after_all(&mut region);
        let mut short = vec![0; all - 1];
        let failed = take(&region).copy_to(&mut short).unwrap_err();
        assert!(matches!(failed, SnapshotError::LengthsDiffer { .. }));
        let beyond = take(&region).read_at(all - 1, &mut [0; 2]);
        assert!(matches!(beyond, Err(SnapshotError::OutOfRange { .. })));
        after_all(&mut region);
    });
}

fn snapshot_that_cannot_be_is_refused_and_changes_nothing(backing: Backing) {
    for fault_mode in fault_modes() {
        let pool = builder(backing, FOLIOS).scrub_threads(0).build().unwrap();
        let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
        region.iter_mut().enumerate().for_each(|(at, byte)| *byte = painted(at));
        let refused =
            hugekit::Snapshot::of_region(region.fork_builder().fault_mode(fault_mode)).unwrap_err();
        assert!(matches!(refused, SnapshotError::Fork(ForkError::Pool(_))), "{refused}");
        let odd = hugekit::Snapshot::of_region(region.fork_builder().granule(3 << 12)).unwrap_err();
        assert!(matches!(odd, SnapshotError::Fork(ForkError::Granule { .. })), "{odd}");
        assert!(is_painted(&region));
        region[0] = 1;
        drop(region);
        let region = pool.region(backing.page_size()).unwrap().share();
        // SAFETY: no thread uses it.
        let _ = unsafe { region.file() }.unwrap();
        let refused = hugekit::Snapshot::of_region(&region).unwrap_err();
        assert!(matches!(refused, SnapshotError::Fork(ForkError::FileGiven)), "{refused}");
        let other = pool.region(backing.page_size()).unwrap().share();
        let snapshot = hugekit::Snapshot::of_region(&other).unwrap();
        // SAFETY: no thread uses the file.
        let file = unsafe { other.file() }.map(|_| ());
        assert!(matches!(file, Err(RegionError::Forks)));
        drop(snapshot);
        assert_eq!(pool.stats().unwrap().in_use, 2);
    }
}

fn snapshot_of_a_gigantic_page_is_refused(backing: Backing) {
    let pool = builder(backing, 1).build().unwrap();
    let refused = hugekit::Snapshot::of_region(&pool.region(1).unwrap()).unwrap_err();
    assert!(matches!(refused, SnapshotError::Fork(ForkError::Gigantic)));
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    write_that_fails_is_an_error_and_nothing_stays_protected,
    snapshot_that_cannot_be_is_refused_and_changes_nothing,
];

pub(crate) const GIGANTIC: &[Check] =
    hugekit_testing::checks![snapshot_of_a_gigantic_page_is_refused];
