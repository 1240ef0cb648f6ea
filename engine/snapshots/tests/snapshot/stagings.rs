//! Stagings: what their memory gets is what the ranges held, however the owner writes meanwhile, and no byte is copied twice.

use std::ops::Range;
use std::ptr::slice_from_raw_parts;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hugekit::HUGE_PAGE_BYTES as HUGE;
use hugekit::fault::FaultMode;
use hugekit::snapshot::{Granule, KeptMemory, Staging};
use hugekit::{Cancel, Snapshot, SnapshotError};

use crate::fixture::{Check, PAGE, assert_is_plain, of, words};
use crate::memory::Memory;

fn stage(
    fault_mode: FaultMode,
    granule: Granule,
    ranges: &[*const [u8]],
) -> Result<Vec<Staging>, SnapshotError> {
    let builder = Snapshot::builder().fault_mode(fault_mode).granule(granule);
    // SAFETY: no system call writes there, and no thread has its stack there.
    unsafe { builder.stage_many(ranges, &KeptMemory::default()) }
}

fn part(memory: &Memory, bytes: Range<usize>) -> *const [u8] {
    slice_from_raw_parts(memory.start().wrapping_add(bytes.start), bytes.len())
}

/// Copies all stagings. Returns the bytes of each range, in the order of the call.
fn staged(stagings: Vec<Staging>, ranges: usize) -> Vec<Vec<u8>> {
    let mut found = vec![Vec::new(); ranges];
    for staging in stagings {
        let (memory, parts) = (staging.memory(), staging.parts().to_vec());
        staging.copy(None).unwrap();
        for (number, bytes) in parts {
            let start = memory.start().wrapping_add(bytes.start);
            // SAFETY: the memory has the bytes of the range, and nobody writes to them any more.
            found[number] = unsafe { std::slice::from_raw_parts(start, bytes.len()) }.to_vec();
        }
    }
    found
}

fn store_all(memory: &Memory, value: u64) {
    memory.words().iter().for_each(|word| word.store(value, Ordering::Relaxed));
}

/// Everything is rewritten before a byte is read: forwards, backwards, and by several threads.
fn staging_of_memory_that_is_all_rewritten_has_what_was(fault_mode: FaultMode) {
    for (huge, granule) in [(true, Granule::Auto), (false, Granule::Auto), (true, Granule::Small)] {
        for way in 0..3 {
            let memory = Memory::filled(9 * HUGE, huge, 7);
            // Both ends share their page with other bytes.
            let range = part(&memory, 100..9 * HUGE - 52);
            let stagings = stage(fault_mode, granule, &[range]).unwrap();
            match way {
                0 => store_all(&memory, 8),
                1 => memory.words().iter().rev().for_each(|word| word.store(8, Ordering::Relaxed)),
                _ => thread::scope(|scope| {
                    for words in memory.words().chunks(memory.words().len() / 3) {
                        scope.spawn(move || {
                            words.iter().for_each(|word| word.store(8, Ordering::Relaxed));
                        });
                    }
                }),
            }
            let found = &staged(stagings, 1)[0];
            assert_eq!(found.len(), range.len());
            assert!(words(&found[4..found.len() - 4]).all(|word| word == 7));
            assert_is_plain(&memory);
        }
    }
}

/// A copy has one byte for each byte of the memory, and a few granules.
fn staging_needs_no_memory_for_copies_of_writers(fault_mode: FaultMode) {
    let memory = Memory::filled(64 * HUGE, false, 7);
    let mut stagings = stage(fault_mode, Granule::Auto, &[memory.range()]).unwrap();
    let is_done = AtomicBool::new(false);
    let stats = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                store_all(&memory, 8);
            }
        });
        let stats = stagings.pop().unwrap().copy(None);
        is_done.store(true, Ordering::Relaxed);
        stats.unwrap()
    });
    assert!(stats.most_retained <= 4 * HUGE && stats.cap <= 4 * HUGE, "{stats:?}");
}

/// Ranges that an allocator mapped side by side are one staging, others have their own.
fn stagings_of_several_ranges_have_each_its_bytes(fault_mode: FaultMode) {
    let memory = Memory::filled(12 * HUGE, false, 0);
    memory.words().iter().zip(0..).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    let cuts = [
        6 * HUGE + 24..7 * HUGE,
        0..2 * HUGE,
        2 * HUGE..2 * HUGE + 3 * PAGE,
        8 * HUGE..8 * HUGE + 40,
        10 * HUGE..12 * HUGE,
    ];
    let ranges: Vec<_> = cuts.iter().map(|cut| part(&memory, cut.clone())).collect();
    let stagings = stage(fault_mode, Granule::Auto, &ranges).unwrap();
    assert_eq!(stagings.len(), 4);
    store_all(&memory, 0);
    for (cut, found) in cuts.iter().zip(staged(stagings, cuts.len())) {
        assert_eq!(found.len(), cut.len());
        let expected = (cut.start / 8) as u64..(cut.end / 8) as u64;
        assert!(words(&found).eq(expected), "{cut:?}");
    }
}

/// Memory that was used before gets the bytes of the next staging, from its beginning on.
fn staging_uses_kept_memory_again(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, false, 0);
    let kept = KeptMemory::default();
    let mut starts = Vec::new();
    for value in 1..5 {
        store_all(&memory, value);
        let builder = Snapshot::builder().fault_mode(fault_mode);
        // SAFETY: no system call writes there, and no thread has its stack there.
        let stagings = unsafe { builder.stage_many(&[memory.range()], &kept) }.unwrap();
        starts.push(stagings[0].memory().start());
        store_all(&memory, 0);
        assert!(words(&staged(stagings, 1)[0]).all(|word| word == value));
    }
    assert!(starts[1..].iter().all(|start| *start == starts[0]), "{starts:?}");
}

/// The rest is not copied, and the owner writes without a fault.
fn staging_that_is_dropped_or_cancelled_leaves_memory_plain(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, false, 7);
    drop(stage(fault_mode, Granule::Auto, &[memory.range()]).unwrap());
    assert_is_plain(&memory);
    let mut stagings = stage(fault_mode, Granule::Auto, &[memory.range()]).unwrap();
    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = stagings.pop().unwrap().copy(Some(&cancel)).unwrap_err();
    assert!(matches!(cancelled, SnapshotError::Cancelled { bytes: 0, .. }), "{cancelled:?}");
    assert_is_plain(&memory);
    store_all(&memory, 8);
}

/// A thread that serves writes writes there meanwhile, and must not wait for itself.
fn memory_of_a_staging_is_snapshotted_only_when_it_is_complete(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    let mut stagings = stage(fault_mode, Granule::Auto, &[memory.range()]).unwrap();
    let staging = stagings.pop().unwrap();
    let staged = staging.memory();
    let range = slice_from_raw_parts(staged.start().cast_const(), memory.len());
    let refused = of(fault_mode, range, Granule::Auto).unwrap_err();
    assert!(matches!(refused, SnapshotError::Unsuitable { .. }), "{refused:?}");
    store_all(&memory, 8);
    staging.copy(None).unwrap();
    of(fault_mode, range, Granule::Auto).unwrap();
}

/// Memory that its owner discards cannot be staged any more, and that is an error.
fn staging_of_discarded_memory_is_an_error(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, false, 7);
    let mut stagings = stage(fault_mode, Granule::Auto, &[memory.range()]).unwrap();
    let middle = memory.start().wrapping_add(HUGE).cast();
    // SAFETY: the words are atomics, and zeroes are valid ones.
    unsafe { rustix::mm::madvise(middle, HUGE, rustix::mm::Advice::LinuxDontNeed) }.unwrap();
    let lost = stagings.pop().unwrap().copy(None).unwrap_err();
    assert!(matches!(lost, SnapshotError::Changed { .. }), "{lost:?}");
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    staging_of_memory_that_is_all_rewritten_has_what_was,
    staging_needs_no_memory_for_copies_of_writers,
    stagings_of_several_ranges_have_each_its_bytes,
    staging_uses_kept_memory_again,
    staging_that_is_dropped_or_cancelled_leaves_memory_plain,
    staging_of_discarded_memory_is_an_error,
    memory_of_a_staging_is_snapshotted_only_when_it_is_complete,
];
