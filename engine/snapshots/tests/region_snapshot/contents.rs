//! What is in a snapshot of a region: what the region held, for as long as the snapshot lives.

use std::io::{self, Write};
use std::thread;

use hugekit::pool::Backing;
use hugekit::{Region, SharedRegion, SnapshotError};

use crate::backings::Check;
use crate::fixture::{copied, each, is_painted, painted};

fn snapshot_written_afterwards_holds_what_was(backing: Backing) {
    each(backing, 2, |_, mut region, take, granule| {
        let snapshot = take(&region);
        assert_eq!(snapshot.len(), region.len());
        assert!(snapshot.serving().is_some());
        let written = region.len() / granule / 2;
        region.chunks_mut(granule).take(written).for_each(|bytes| bytes[5] ^= 0xff);
        let stats = snapshot.stats();
        assert_eq!((stats.granules, stats.granule_bytes), (region.len() / granule, granule));
        assert_eq!((stats.copied_by_writers, stats.copied_by_others), (written as u64, 0));
        assert_eq!((stats.retained, stats.cap), (written * granule, region.len()));
        // A thread counts after it has let the writer go on.
        while snapshot.stats().longest_fault.is_zero() {
            thread::yield_now();
        }
        let (at, mut some) = (granule - 50, [0; 100]);
        snapshot.read_at(at, &mut some).unwrap();
        assert!(some.iter().enumerate().all(|(i, &byte)| byte == painted(at + i)));
        let mut copy = Vec::new();
        assert_eq!(snapshot.write_to(&mut copy).unwrap().copied_by_writers, written as u64);
        assert!(is_painted(&copy));
        assert_eq!(region[5], !painted(5));
        assert_eq!(region[6], painted(6));
    });
}

/// Takes what it is given, and after each piece writes to the region where that came from.
struct Chases<'a> {
    region: &'a SharedRegion,
    granule: usize,
    taken: usize,
}

impl Write for Chases<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for (at, &byte) in bytes.iter().enumerate() {
            assert_eq!(byte, painted(self.taken + at));
        }
        let read = self.taken..self.taken + bytes.len();
        let shared = self.region.shared_bytes().unwrap();
        assert_eq!(shared, (self.region.len() - read.end).next_multiple_of(self.granule));
        for at in read.clone().step_by(self.granule) {
            self.region.write_at(at, &[!painted(at)]).unwrap();
        }
        self.taken = read.end;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_to_what_was_read_copies_nothing(backing: Backing) {
    each(backing, 2, |_, region, take, granule| {
        let snapshot = take(&region);
        let region = region.share();
        let chases = Chases { region: &region, granule, taken: 0 };
        let stats = snapshot.write_to(chases).unwrap();
        assert_eq!((stats.copied_by_writers, stats.retained), (0, 0));
        assert!(stats.longest_fault.is_zero(), "{stats:?}");
        let mut bytes = vec![0; region.len()];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes[1], painted(1));
        assert_eq!(bytes[granule], !painted(granule));
    });
}

fn snapshot_of_a_dropped_region_holds_what_was(backing: Backing) {
    each(backing, 5, |pool, mut region, take, granule| {
        let snapshots = [take(&region), take(&region), take(&region)];
        region[granule] = !painted(granule);
        let [dropped, retired, cut] = snapshots;
        let mut fork = region.fork().unwrap();
        drop(region);
        assert!(is_painted(&copied(dropped)));
        fork.truncate(granule).unwrap();
        assert!(is_painted(&copied(cut)));
        fork.retire().unwrap();
        assert!(is_painted(&copied(retired)));
        assert_eq!(pool.stats().unwrap().in_use, 0);
    });
}

/// Links are addresses in the region, found again in the view.
fn view_of_a_list_rebases_its_pointers(backing: Backing) {
    each(backing, 2, |_, mut region, take, granule| {
        let (len, step) = (region.len() / granule, granule + 8 * 3);
        let link = |region: &Region, index: usize| {
            region.as_ptr().wrapping_add(index * step % (region.len() - 8) / 8 * 8).cast::<u64>()
        };
        for index in 0..len {
            let (at, next) = (link(&region, index), link(&region, index + 1).addr() as u64);
            let next = if index + 1 == len { 0 } else { next };
            let offset = at.addr() - region.as_ptr().addr();
            region[offset..offset + 8].copy_from_slice(&next.to_ne_bytes());
        }
        let snapshot = take(&region);
        region.fill(1);
        let view = hugekit::snapshot::View::of(&snapshot).unwrap();
        let (mut at, mut count) = (link(&region, 0), 1);
        loop {
            // SAFETY: the view has an aligned word there, for as long as it lives.
            let next = unsafe { view.rebase(at).unwrap().read() };
            if next == 0 {
                break;
            }
            at = std::ptr::with_exposed_provenance(next as usize);
            count += 1;
        }
        assert_eq!(count, len);
        let last = region.as_ptr().wrapping_add(region.len() - 4).cast::<u64>();
        assert!(matches!(view.rebase(last), Err(SnapshotError::OutOfRange { .. })));
    });
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    snapshot_written_afterwards_holds_what_was,
    write_to_what_was_read_copies_nothing,
    snapshot_of_a_dropped_region_holds_what_was,
    view_of_a_list_rebases_its_pointers,
];
