//! Children have no part of a snapshot, and change nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::snapshot::Granule;
use hugekit::{HUGE_PAGE_BYTES as HUGE, SnapshotError};
use hugekit_testing::racing::Stops;

use crate::child::in_a_child;
use crate::fixture::{Check, PAGE, copied, loaded, of, of_all, words};
use crate::memory::Memory;

fn snapshot_in_a_forked_child_is_refused(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    let snapshot = Mutex::new(Some(of_all(fault_mode, &memory)));
    memory.words()[0].store(8, Ordering::Relaxed);
    let code = in_a_child(|| {
        // All of it is the child's to write, and no other process sees any of that.
        memory.words().iter().for_each(|word| word.store(1, Ordering::Relaxed));
        let snapshot = snapshot.lock().unwrap().take().unwrap();
        let refused = snapshot.read_at(0, &mut [0; 8]).unwrap_err();
        let stays_out = matches!(refused, SnapshotError::Forked)
            && matches!(snapshot.prepare_write(0..HUGE), Err(SnapshotError::Forked));
        drop(snapshot);
        let own = of_all(fault_mode, &memory);
        memory.words()[HUGE / 8].store(2, Ordering::Relaxed);
        let is_right = words(&copied(own)).all(|word| word == 1);
        i32::from(!(stays_out && is_right))
    });
    assert_eq!(code, 0);
    memory.words()[HUGE / 8].store(8, Ordering::Relaxed);
    let snapshot = snapshot.into_inner().unwrap().unwrap();
    assert_eq!(snapshot.stats().copied_by_writers, 2);
    assert!(words(&copied(snapshot)).all(|word| word == 7));
}

/// Children that are forked while writers run, and end at once.
fn snapshot_beside_forked_children_holds_what_was(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = Stops(&stop);
        scope.spawn(|| {
            for number in 1.. {
                for word in memory.words().iter().step_by(PAGE / 8) {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    word.store(number, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..10 {
            let before = loaded(&memory);
            let snapshot = of(fault_mode, memory.range(), Granule::Small).unwrap();
            let after = loaded(&memory);
            assert_eq!(in_a_child(|| 0), 0);
            for (index, word) in words(&copied(snapshot)).enumerate() {
                assert!((before[index]..=after[index]).contains(&word), "{index}");
            }
        }
    });
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    snapshot_in_a_forked_child_is_refused,
    snapshot_beside_forked_children_holds_what_was,
];
