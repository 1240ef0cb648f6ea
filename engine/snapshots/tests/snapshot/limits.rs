//! How many bytes of copies a snapshot may hold: by default, with a reserve, and as the remedy of a lost one says.
//! Nothing is read before every byte was rewritten, which is what needs most copies.

use std::io::Write;
use std::ptr::slice_from_raw_parts;
use std::sync::atomic::Ordering;

use hugekit::fault::FaultMode;
use hugekit::snapshot::{Builder, Reserve};
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};
use hugekit_machine::{Memory as MachineMemory, Root};
use hugekit_testing::trials::skipped;

use crate::fixture::{Check, words};
use crate::memory::Memory;

const MIB: usize = 1 << 20;

/// Sizes of states.
fn sizes() -> impl Iterator<Item = usize> {
    let fits = |len: &usize| {
        let machine = MachineMemory::read(&Root::default()).unwrap();
        let fits = machine.available > 4 * *len as u64;
        if !fits {
            let available = machine.available >> 20;
            skipped(format_args!("{} MiB, while {available} MiB are available", len / MIB));
        }
        fits
    };
    [64, 256, 1024].into_iter().map(|mib| mib * MIB).filter(fits)
}

fn rewrite(memory: &Memory) {
    memory.words().iter().for_each(|word| word.store(8, Ordering::Relaxed));
}

fn take(builder: Builder, memory: &Memory) -> Snapshot {
    // SAFETY: no system call writes there.
    unsafe { builder.of_anonymous(memory.range()) }.unwrap()
}

fn assert_holds_what_was(snapshot: Snapshot) {
    let written = snapshot.reader().write_to(Sevens);
    written.unwrap();
}

/// A file to which only sevens are written.
struct Sevens;

impl Write for Sevens {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        assert!(words(bytes).all(|word| word == 7));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn snapshot_of_memory_that_is_all_rewritten_holds_what_was(fault_mode: FaultMode) {
    for len in sizes() {
        let memory = Memory::filled(len, true, 7);
        let snapshot = take(Snapshot::builder().fault_mode(fault_mode), &memory);
        rewrite(&memory);
        assert_eq!((snapshot.stats().cap, snapshot.stats().retained), (len, len));
        assert_holds_what_was(snapshot);
    }
}

fn snapshots_of_several_ranges_that_are_all_rewritten_hold_what_was(fault_mode: FaultMode) {
    let memories = [70, 3, 90].map(|mib| Memory::filled(mib * MIB, true, 7));
    let ranges: Vec<_> = memories.iter().map(Memory::range).collect();
    let reserve = Reserve::new(200 * MIB).unwrap();
    let builder = Snapshot::builder().fault_mode(fault_mode).reserve(&reserve);
    // SAFETY: no system call writes there.
    let taken = unsafe { builder.take_many(&ranges) }.unwrap();
    memories.iter().for_each(rewrite);
    for (snapshot, range) in taken.into_iter().zip(ranges) {
        // All of them had their part of the reserve.
        assert!(snapshot.stats().reserved >= range.len(), "{:?}", snapshot.stats());
        assert_holds_what_was(snapshot);
    }
}

fn reserve_beyond_the_limit_is_held_all_the_same(fault_mode: FaultMode) {
    let memory = Memory::filled(8 * HUGE, true, 7);
    let builder = Snapshot::builder().fault_mode(fault_mode).max_cow_bytes(HUGE);
    let all = Reserve::new(8 * HUGE).unwrap();
    // Also while another snapshot has the reserve.
    let [first, second] = [(); 2].map(|()| take(builder.clone().reserve(&all), &memory));
    let some = Reserve::new(3 * HUGE).unwrap();
    let third = take(builder.reserve(&some), &memory);
    assert_eq!([&first, &second, &third].map(|snapshot| snapshot.stats().cap / HUGE), [8, 8, 3]);
    let starts = memory.words().iter().step_by(HUGE / 8);
    starts.take(3).for_each(|word| word.store(8, Ordering::Relaxed));
    assert_eq!(third.stats().retained, 3 * HUGE);
    third.read_at(7 * HUGE, &mut [0; 8]).unwrap();
    rewrite(&memory);
    assert!(matches!(third.read_at(0, &mut [0; 8]), Err(SnapshotError::CowLimitExceeded { .. })));
    assert_holds_what_was(first);
    assert_holds_what_was(second);
}

/// The number in the remedy, given to `max_cow_bytes`, is one with which no snapshot of the memory is lost.
fn lost_snapshot_names_a_limit_that_works(fault_mode: FaultMode) {
    let memory = Memory::filled(8 * HUGE + 4096, true, 7);
    let builder = || Snapshot::builder().fault_mode(fault_mode);
    let snapshot = take(builder().max_cow_bytes(HUGE), &memory);
    rewrite(&memory);
    let lost = snapshot.copy_to(&mut vec![0; memory.len()]).unwrap_err();
    let remedy = lost.remedy().unwrap();
    let (_, number) = remedy.split_once("set max_cow_bytes to ").unwrap();
    let (number, _) = number.split_once(',').unwrap();
    memory.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
    let snapshot = take(builder().max_cow_bytes(number.parse().unwrap()), &memory);
    rewrite(&memory);
    assert_holds_what_was(snapshot);
    // Of a part, too, that was cut from it.
    let snapshot = take(builder().max_cow_bytes(HUGE), &memory);
    let parts = snapshot.split(&[0..HUGE, HUGE..memory.len()]).unwrap();
    rewrite(&memory);
    let lost = parts[0].read_at(0, &mut [0; 8]).unwrap_err();
    assert!(lost.remedy().unwrap().contains(&format!("to {number},")), "{lost:?}");
}

/// Also of the parts of epochs that are taken one after the other.
fn epochs_of_memory_that_is_all_rewritten_are_saved(fault_mode: FaultMode) {
    let memory = Memory::filled(160 * MIB, true, 7);
    let builder = Snapshot::builder().fault_mode(fault_mode);
    // SAFETY: no system call writes there, and the memory outlives the epochs.
    let first = unsafe { builder.clone().first_epoch(memory.range()) }.unwrap();
    rewrite(&memory);
    let sevens = |_, bytes: &[u8]| Sevens.write_all(bytes);
    let epoch = first.deliver(sevens).unwrap();
    memory.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
    // SAFETY: no system call writes there, and the memory outlives the epochs.
    let changes = unsafe { builder.since(epoch) }.unwrap();
    rewrite(&memory);
    changes.deliver(sevens).unwrap();
}

/// A limit beyond what the process may map is an error that says so, and the one by default is as much as it may map.
fn copies_without_addresses_are_an_error_with_a_remedy(fault_mode: FaultMode) {
    let memory = Memory::filled(256 * MIB, true, 7);
    let code = crate::child::in_a_child(|| {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let mapped = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
        let limit = libc::rlimit { rlim_cur: mapped + (128 << 20), rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a structure that outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        let builder = Snapshot::builder().fault_mode(fault_mode);
        let range = slice_from_raw_parts(memory.start().cast_const(), memory.len());
        // SAFETY: no system call writes there.
        let refused = unsafe { builder.clone().max_cow_bytes(256 * MIB).of_anonymous(range) };
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), hugekit::ErrorKind::NoMemory);
        let remedy = refused.remedy().unwrap();
        assert!(remedy.contains("max_cow_bytes to less than 268435456"), "{remedy}");
        assert!(remedy.contains("RLIMIT_AS (ulimit -v), which leaves 13"), "{remedy}");
        let smaller = take(builder.clone(), &memory);
        let cap = smaller.stats().cap;
        assert!((32 * MIB..=64 * MIB).contains(&cap), "{cap}");
        drop(smaller);
        take(builder.max_cow_bytes(8 * HUGE), &memory).read_at(0, &mut [0; 8]).unwrap();
        0
    });
    assert_eq!(code, 0);
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    "[nightly: it copies up to 1 GiB] " snapshot_of_memory_that_is_all_rewritten_holds_what_was,
    snapshots_of_several_ranges_that_are_all_rewritten_hold_what_was,
    reserve_beyond_the_limit_is_held_all_the_same,
    lost_snapshot_names_a_limit_that_works,
    epochs_of_memory_that_is_all_rewritten_are_saved,
    copies_without_addresses_are_an_error_with_a_remedy,
];
