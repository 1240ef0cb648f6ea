//! Snapshots while writers run: each store is in it or not, and writers go on.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::snapshot::Granule;
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};
use hugekit_testing::racing;
use hugekit_testing::racing::Stops;

use crate::fixture::{Check, PAGE, SMALL, assert_is_plain, of};
use crate::memory::Memory;

fn snapshot_under_racing_writers_keeps_their_order(fault_mode: FaultMode) {
    for granule in [Granule::Huge, Granule::Small] {
        let memory = Memory::filled(8 * HUGE, true, 0);
        let take = || of(fault_mode, memory.range(), granule).unwrap();
        racing::snapshots_keep_order(memory.words(), SMALL, 12, take);
    }
}

/// Snapshots of overlapping ranges, made and dropped by several threads while others write: no thread hangs or
/// dies, and each holds what was there.
fn snapshots_that_come_and_go_under_writers_hold_what_was(fault_mode: FaultMode) {
    let memory = Memory::filled(8 * HUGE, true, 0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = Stops(&stop);
        for writer in 0..2_usize {
            let (memory, stop) = (&memory, &stop);
            scope.spawn(move || {
                let mut at = writer;
                while !stop.load(Ordering::Relaxed) {
                    memory.words()[at % memory.words().len()].fetch_add(1, Ordering::SeqCst);
                    at += 8191;
                }
            });
        }
        let makers: Vec<_> = (0..3_usize)
            .map(|maker| {
                let memory = &memory;
                scope.spawn(move || {
                    for round in 0..40 {
                        let first = (maker + round) % 4 * HUGE + round % 3 * PAGE;
                        let len = memory.len() - first - round % 5 * 1000;
                        let start = memory.start().wrapping_add(first);
                        let granule = if round % 2 == 0 { Granule::Huge } else { Granule::Small };
                        let at = len / 16 * 8;
                        let word = &memory.words()[(first + at) / 8];
                        let before = word.load(Ordering::SeqCst);
                        let range = ptr::slice_from_raw_parts(start, len);
                        let snapshot = of(fault_mode, range, granule).unwrap();
                        let after = word.load(Ordering::SeqCst);
                        let mut seen = [0; 8];
                        for _ in 0..2 {
                            snapshot.read_at(at, &mut seen).unwrap();
                            let seen = u64::from_ne_bytes(seen);
                            assert!((before..=after).contains(&seen));
                        }
                    }
                })
            })
            .collect();
        makers.into_iter().for_each(|maker| maker.join().unwrap());
    });
    assert_is_plain(&memory);
}

/// A writer that outruns the reader loses the snapshot and nothing else.
fn snapshot_beyond_its_cow_limit_is_lost_and_writers_go_on(fault_mode: FaultMode) {
    let memory = Memory::filled(8 * HUGE, true, 3);
    let builder = Snapshot::builder().fault_mode(fault_mode).max_cow_bytes(3 * HUGE);
    // SAFETY: no system call writes there.
    let snapshot = unsafe { builder.of_anonymous(memory.range()) }.unwrap();
    memory
        .words()
        .iter()
        .step_by(HUGE / 8)
        .take(3)
        .for_each(|word| word.store(4, Ordering::Relaxed));
    snapshot.read_at(0, &mut [0; 8]).unwrap();
    memory.words().iter().for_each(|word| word.store(4, Ordering::Relaxed));
    let is_outrun =
        |error| matches!(error, SnapshotError::CowLimitExceeded { cap, .. } if cap == 3 * HUGE);
    assert!(is_outrun(snapshot.read_at(6 * HUGE, &mut [0; 8]).unwrap_err()));
    assert_eq!(snapshot.stats().copied_by_writers, 3);
    assert!(is_outrun(snapshot.copy_to(&mut vec![0; memory.len()]).unwrap_err()));
    assert!(memory.words().iter().all(|word| word.load(Ordering::Relaxed) == 4));
    assert_is_plain(&memory);
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    "[nightly: threads must meet] " snapshot_under_racing_writers_keeps_their_order,
    "[nightly: threads must meet] " snapshots_that_come_and_go_under_writers_hold_what_was,
    snapshot_beyond_its_cow_limit_is_lost_and_writers_go_on,
];
