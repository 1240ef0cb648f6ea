//! What snapshots cost: memory, reserves, descriptors, mappings and huge pages.

use std::ptr;
use std::sync::atomic::Ordering;
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::snapshot::{Granule, Reserve, collapse};
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot};

use crate::child::in_a_child;
use crate::fixture::{Check, PAGE, assert_is_plain, copied, loaded, of, of_all, words};
use crate::memory::Memory;

fn in_background_without_writers_retains_everything(fault_mode: FaultMode) {
    let memory = Memory::filled(6 * HUGE, true, 7);
    let builder = Snapshot::builder().fault_mode(fault_mode).in_background(true);
    let builder = builder.max_cow_bytes(14 * HUGE).populate_copies(2 * HUGE);
    // SAFETY: no system call writes there.
    let snapshot = unsafe { builder.of_anonymous(memory.range()) }.unwrap();
    let all = |stats: hugekit::snapshot::SnapshotStats| {
        stats.copied_by_others + stats.copied_by_writers == 6
    };
    while !all(snapshot.stats()) {
        thread::yield_now();
    }
    // The last one is counted before its protection is lifted, and in place no system call may meet that.
    snapshot.prepare_write(0..memory.len()).unwrap();
    assert!(all(snapshot.stats()));
    assert_is_plain(&memory);
    assert!(words(&copied(snapshot)).all(|word| word == 7));
    // Dropped while it copies, or waits for room.
    for _ in 0..20 {
        let builder =
            Snapshot::builder().fault_mode(fault_mode).in_background(true).max_cow_bytes(4 * HUGE);
        // SAFETY: no system call writes there.
        drop(unsafe { builder.of_anonymous(memory.range()) }.unwrap());
    }
    assert_is_plain(&memory);
}

fn reserve_of_two_snapshots_is_had_by_one(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    let reserve = Reserve::new(HUGE).unwrap();
    let with_reserve = || {
        let builder = Snapshot::builder().fault_mode(fault_mode).max_cow_bytes(3 * HUGE);
        // SAFETY: no system call writes there.
        unsafe { builder.reserve(&reserve).of_anonymous(memory.range()) }.unwrap()
    };
    for value in 8..11 {
        let before = loaded(&memory);
        let (first, second) = (with_reserve(), with_reserve());
        assert_eq!((first.stats().reserved, second.stats().reserved), (HUGE, 0));
        let changed = memory.words().iter().step_by(HUGE / 8).take(3);
        changed.for_each(|word| word.store(value, Ordering::Relaxed));
        assert_eq!(first.stats().retained, 3 * HUGE);
        drop(second);
        assert_eq!(with_reserve().stats().reserved, 0);
        assert!(words(&copied(first)).eq(before));
        let again = with_reserve();
        assert_eq!(again.stats().reserved, HUGE);
        let of_child = || i32::from(with_reserve().stats().reserved != 0);
        assert_eq!(in_a_child(of_child), 0);
    }
    assert_is_plain(&memory);
}

/// Everything that this process has at a moment.
fn possessions() -> (usize, usize, usize) {
    let count = |directory| std::fs::read_dir(directory).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    (count("/proc/self/fd"), count("/proc/self/task"), maps)
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
}

/// In a process of its own, where no other test comes and goes.
fn snapshots_by_the_thousand_leave_nothing_behind(fault_mode: FaultMode) {
    let code = in_a_child(|| {
        // Each snapshot has the kernel print all mappings: emulated, so many take longer than a child has.
        // SAFETY: no precondition.
        unsafe { libc::alarm(300) };
        let memory = Memory::filled(3 * HUGE, true, 7);
        let mut sum = 0;
        let mut round = |number: usize| {
            let snapshot = of_all(fault_mode, &memory);
            memory.words()[number % memory.words().len()].store(7, Ordering::Relaxed);
            let mut bytes = [0; 8];
            snapshot.read_at(number * 8 % memory.len(), &mut bytes).unwrap();
            sum += u64::from_ne_bytes(bytes);
        };
        (0..50).for_each(&mut round);
        let (before, resident_before) = (possessions(), resident());
        (50..2050).for_each(&mut round);
        assert_eq!(possessions(), before);
        assert!(resident() <= resident_before + HUGE, "{} {resident_before}", resident());
        assert_eq!(sum, 7 * 2050);
        0
    });
    assert_eq!(code, 0);
}

fn collapse_of_split_pages_puts_them_together_again(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    let snapshot = of(fault_mode, memory.range(), Granule::Small).unwrap();
    memory.words().iter().step_by(HUGE / 8).for_each(|word| word.store(8, Ordering::Relaxed));
    drop(snapshot);
    let range = ptr::slice_from_raw_parts(memory.start().wrapping_add(1), memory.len() - 1);
    // SAFETY: private memory.
    let collapsed = unsafe { collapse(range) };
    assert_eq!(collapsed.huge + collapsed.fragmented, 3 * HUGE);
    let expected = |index: usize| if index.is_multiple_of(HUGE / 8) { 8 } else { 7 };
    assert!(loaded(&memory).iter().enumerate().all(|(index, &word)| word == expected(index)));
    let short = ptr::slice_from_raw_parts(memory.start().wrapping_add(1), 7);
    // SAFETY: private memory.
    assert_eq!(unsafe { collapse(short) }.huge, 0);
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    in_background_without_writers_retains_everything,
    reserve_of_two_snapshots_is_had_by_one,
    "[nightly: it takes thousands of snapshots] " snapshots_by_the_thousand_leave_nothing_behind,
    collapse_of_split_pages_puts_them_together_again,
];
