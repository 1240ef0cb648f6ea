//! Snapshots while writers run, and while threads fork, retire and drop what they are of.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hugekit::Snapshot;
use hugekit::pool::Backing;
use hugekit_testing::racing;
use hugekit_testing::racing::Stops;

use crate::backings::{Check, FOLIOS, builder};
use crate::fixture::{copied, fault_modes, granules};

fn snapshot_under_racing_writers_keeps_their_order(backing: Backing) {
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            let pool = builder(backing, 3 * FOLIOS).scrub_threads(0).build().unwrap();
            let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
            let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
            let take = || Snapshot::of_region(fork.clone()).unwrap();
            racing::snapshots_keep_order(region.words(), granule, 20, take);
        }
    }
}

/// Snapshots and forks of one region, made, read and dropped by several threads while others write, and a region
/// that is retired while its snapshot is read.
fn snapshots_that_come_and_go_under_writers_hold_what_was(backing: Backing) {
    for fault_mode in fault_modes() {
        let granule = granules(backing)[0];
        let pool = builder(backing, 8 * FOLIOS).scrub_threads(0).build().unwrap();
        let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let _end = Stops(&stop);
            for writer in 0..2_usize {
                let (region, stop, written) = (&region, &stop, &written);
                scope.spawn(move || {
                    let mut at = writer;
                    while !stop.load(Ordering::Relaxed) {
                        region.words()[at % region.words().len()].fetch_add(1, Ordering::SeqCst);
                        written.fetch_add(1, Ordering::SeqCst);
                        at += 8191;
                    }
                });
            }
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for round in 0..30 {
                            let before = written.load(Ordering::SeqCst);
                            let builder = region.fork_builder();
                            let builder = builder.granule(granule).fault_mode(fault_mode);
                            let snapshot = Snapshot::of_region(builder.clone()).unwrap();
                            let after = written.load(Ordering::SeqCst);
                            let fork = builder.build().unwrap();
                            let of_fork = Snapshot::of_region(&fork).unwrap();
                            if round % 3 == 0 {
                                fork.retire().unwrap();
                            } else {
                                drop(fork);
                            }
                            let sum = |snapshot: Snapshot| {
                                let word =
                                    |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
                                copied(snapshot).chunks_exact(8).map(word).sum::<u64>()
                            };
                            // A writer counts after it has written.
                            assert!((before..=after + 2).contains(&sum(snapshot)));
                            assert!(sum(of_fork) >= before);
                        }
                    })
                })
                .collect();
            takers.into_iter().for_each(|taker| taker.join().unwrap());
        });
        assert_eq!(region.shared_bytes().unwrap(), 0);
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    "[nightly: threads must meet] " snapshot_under_racing_writers_keeps_their_order,
    "[nightly: threads must meet] " snapshots_that_come_and_go_under_writers_hold_what_was,
];
