//! Snapshots of anonymous memory: what they hold is what the memory held, whoever writes it meanwhile and
//! whatever its owner does.
#![allow(unsafe_code)]

mod child;
mod memory;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hugekit::Snapshot;
use hugekit::snapshot::Granule;
use memory::Memory;

const HUGE: usize = 2 << 20;

/// A snapshot of all of it.
fn of(memory: &Memory) -> Snapshot {
    // SAFETY: nobody blocks SIGBUS, and no system call writes there.
    unsafe { Snapshot::of_anonymous(memory.range()) }.unwrap()
}

fn with_granule(memory: &Memory, granule: Granule) -> Snapshot {
    let builder = Snapshot::builder().granule(granule).hold_at_most(memory.len());
    // SAFETY: as above.
    unsafe { builder.of_anonymous(memory.range()) }.unwrap()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
}

#[test]
fn what_is_written_afterwards_is_not_in_it() {
    for huge in [true, false] {
        let memory = Memory::filled(16 * HUGE, huge, 7);
        let snapshot = of(&memory);
        memory
            .words()
            .iter()
            .step_by(HUGE / 8 / 2 + 1)
            .for_each(|word| word.store(8, Ordering::Relaxed));
        let stats = snapshot.stats();
        assert_eq!(stats.granule_bytes, if huge { HUGE } else { 64 << 10 });
        assert!(stats.copied_by_writers >= 16, "{stats:?}");
        assert_eq!(stats.held as u64, stats.copied_by_writers * stats.granule_bytes as u64);
        let mut some = [0; 100];
        snapshot.read_at(HUGE - 50, &mut some).unwrap();
        assert!(
            some.iter().zip([7, 0, 0, 0, 0, 0, 0, 0].iter().cycle().skip(6)).all(|(a, b)| a == b)
        );
        let mut copy = Vec::new();
        let stats = snapshot.write_to(&mut copy).unwrap();
        assert_eq!(stats.held, 0);
        assert_eq!(copy.len(), memory.len());
        assert!(words(&copy).all(|word| word == 7));
        let changed = |word: &&AtomicU64| word.load(Ordering::Relaxed) == 8;
        assert_eq!(memory.words().iter().filter(changed).count(), 32);
    }
}

#[test]
fn writers_race_with_the_reader() {
    for granule in [Granule::Huge, Granule::Small] {
        let memory = Memory::filled(32 * HUGE, true, 0);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for writer in 0..2 {
                let (memory, stop) = (&memory, &stop);
                scope.spawn(move || {
                    let mut state = writer + 1_u64;
                    while !stop.load(Ordering::Relaxed) {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let word = (state >> 33) as usize % memory.words().len();
                        memory.words()[word].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..10 {
                let before: Vec<u64> =
                    memory.words().iter().map(|word| word.load(Ordering::Relaxed)).collect();
                let snapshot = with_granule(&memory, granule);
                let after: Vec<u64> =
                    memory.words().iter().map(|word| word.load(Ordering::Relaxed)).collect();
                let mut copy = vec![0; memory.len()];
                snapshot.copy_to(&mut copy).unwrap();
                for (index, word) in words(&copy).enumerate() {
                    assert!((before[index]..=after[index]).contains(&word), "{index}");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
