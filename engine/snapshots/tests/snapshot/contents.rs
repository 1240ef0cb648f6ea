//! What is in a snapshot: what the memory held, and nothing of what lies beside it.

use std::fs::File;
use std::io::Read;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use hugekit::HUGE_PAGE_BYTES as HUGE;
use hugekit::fault::FaultMode;
use hugekit::snapshot::Granule;

use crate::fixture::{Check, PAGE, SMALL, copied, of, of_all, words};
use crate::memory::Memory;

fn snapshot_written_afterwards_holds_what_was(fault_mode: FaultMode) {
    for huge in [true, false] {
        let memory = Memory::filled(16 * HUGE, huge, 7);
        let snapshot = of_all(fault_mode, &memory);
        let step = HUGE / 8 / 2 + 1;
        memory.words().iter().step_by(step).for_each(|word| word.store(8, Ordering::Relaxed));
        let stats = snapshot.stats();
        assert_eq!(stats.granule_bytes, if huge { HUGE } else { SMALL });
        assert!(stats.copied_by_writers >= 16, "{stats:?}");
        assert_eq!(stats.retained as u64, stats.copied_by_writers * stats.granule_bytes as u64);
        assert!(!stats.longest_fault.is_zero());
        let mut some = [0; 100];
        snapshot.read_at(HUGE - 50, &mut some).unwrap();
        let pattern = [7, 0, 0, 0, 0, 0, 0, 0];
        assert!(some.iter().eq(pattern.iter().cycle().skip(6).take(100)));
        let mut copy = Vec::new();
        let stats = snapshot.write_to(&mut copy).unwrap();
        assert_eq!(stats.retained, 0);
        assert_eq!(copy.len(), memory.len());
        assert!(words(&copy).all(|word| word == 7));
        let changed = |word: &&AtomicU64| word.load(Ordering::Relaxed) == 8;
        assert_eq!(memory.words().iter().filter(changed).count(), 32);
    }
}

fn snapshot_of_untouched_memory_is_zeroes(fault_mode: FaultMode) {
    for huge in [true, false] {
        let memory = Memory::untouched(6 * HUGE, huge);
        let (first, second) = (of_all(fault_mode, &memory), of_all(fault_mode, &memory));
        memory.words().iter().step_by(PAGE / 8).for_each(|word| word.store(9, Ordering::Relaxed));
        let mut copy = Vec::new();
        first.write_to(&mut copy).unwrap();
        assert!(copy.iter().all(|&byte| byte == 0));
        assert!(copied(second).iter().all(|&byte| byte == 0));
        assert!(
            memory.words().iter().step_by(PAGE / 8).all(|word| word.load(Ordering::Relaxed) == 9)
        );
    }
}

/// What lies in the same page as an end of the range can be written without the library noticing, by system calls too;
/// and in the same granule.
fn snapshot_of_part_of_a_page_leaves_its_neighbours_alone(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 1);
    let range = ptr::slice_from_raw_parts(memory.start().wrapping_add(HUGE - 999), 2 * HUGE + 1234);
    let snapshot = of(fault_mode, range, Granule::Auto).unwrap();
    assert_eq!(snapshot.stats().granules, 2);
    let write = |at: usize| memory.words()[at / 8].store(2, Ordering::Relaxed);
    [0, HUGE - 1000, HUGE - 8, 3 * HUGE, 3 * HUGE + 240, 4 * HUGE - 8].into_iter().for_each(write);
    assert_eq!(snapshot.stats().copied_by_writers, 0);
    let copy = copied(snapshot);
    // The range begins with the last byte of a word.
    assert!(words(&copy[7..]).all(|word| word == 1));
    // Shorter than a granule, or a page: of that nothing is protected.
    let memory = Memory::filled(HUGE, true, 1);
    for (at, len, granules) in [(8, 100 << 10, 2), (3 * PAGE + 8, PAGE - 16, 0), (8, 0x1100, 0)] {
        let range = ptr::slice_from_raw_parts(memory.start().wrapping_add(at), len);
        let snapshot = of(fault_mode, range, Granule::Auto).unwrap();
        assert_eq!(
            (snapshot.stats().granules, snapshot.serving().is_none()),
            (granules, granules == 0)
        );
        let mut zeroes = File::open("/dev/zero").unwrap();
        for beside in [at - 8, at + len] {
            // SAFETY: within the memory, which only this thread uses.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.start().add(beside), 8) };
            zeroes.read_exact(bytes).unwrap();
        }
        assert_eq!(snapshot.stats().copied_by_writers, 0);
        memory.words()[(at + len) / 8 - 1].store(2, Ordering::Relaxed);
        assert!(words(&copied(snapshot)).all(|word| word == 1));
        memory.words().iter().for_each(|word| word.store(1, Ordering::Relaxed));
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    snapshot_written_afterwards_holds_what_was,
    snapshot_of_untouched_memory_is_zeroes,
    snapshot_of_part_of_a_page_leaves_its_neighbours_alone,
];
