//! Snapshots of anonymous memory, in place and threaded: what they hold is what the memory held, whichever thread
//! writes it meanwhile and whatever its owner does.
#![allow(unsafe_code)]

mod child;
mod memory;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread;

use child::in_a_child;
use hugekit::fault::FaultMode;
use hugekit::snapshot::{Granule, Reserve, Unsuitable, View, collapse};
use hugekit::{Cancel, HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};
use libtest_mimic::{Arguments, Trial};
use memory::Memory;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const SMALL: usize = 64 << 10;
const PAGE: usize = 4096;

const FAULT_MODES: [FaultMode; 3] =
    [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }, FaultMode::Threaded { threads: 2 }];

/// The test that comes first has it, so that some of the snapshots retain there and in memory of their own.
static RESERVE: LazyLock<Reserve> = LazyLock::new(|| Reserve::new(2 * HUGE).unwrap());

/// A snapshot that may retain everything.
fn of(
    fault_mode: FaultMode,
    range: *const [u8],
    granule: Granule,
) -> Result<Snapshot, SnapshotError> {
    let builder = Snapshot::builder()
        .fault_mode(fault_mode)
        .granule(granule)
        .reserve(&RESERVE)
        .max_cow_bytes(range.len().saturating_add(HUGE));
    // SAFETY: no test blocks SIGBUS or has the kernel write there but where it says so.
    unsafe { builder.of_anonymous(range) }
}

fn of_all(fault_mode: FaultMode, memory: &Memory) -> Snapshot {
    of(fault_mode, memory.range(), Granule::Auto).unwrap()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
}

fn loaded(memory: &Memory) -> Vec<u64> {
    memory.words().iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

fn copied(snapshot: Snapshot) -> Vec<u8> {
    let mut copy = vec![0; snapshot.len()];
    snapshot.copy_to(&mut copy).unwrap();
    copy
}

fn what_is_written_afterwards_is_not_in_it(fault_mode: FaultMode) {
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

/// Writers number the words at both ends of each block, the first one first: in the snapshot the second may be
/// behind by one, never ahead, and neither is older than what was there before, or newer than afterwards.
fn racing_writers_are_seen_in_order(fault_mode: FaultMode) {
    for granule in [Granule::Huge, Granule::Small] {
        let memory = Memory::filled(8 * HUGE, true, 0);
        let blocks = memory.len() / SMALL;
        let ends = |block: usize| (block * SMALL / 8, (block + 1) * SMALL / 8 - 1);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for writer in 0..2_usize {
                let (memory, stop) = (&memory, &stop);
                scope.spawn(move || {
                    for number in 1.. {
                        for block in (writer..blocks).step_by(2) {
                            if stop.load(Ordering::Relaxed) {
                                return;
                            }
                            let (first, last) = ends(block);
                            memory.words()[first].store(number, Ordering::SeqCst);
                            memory.words()[last].store(number, Ordering::SeqCst);
                        }
                    }
                });
            }
            for _ in 0..12 {
                let before = loaded(&memory);
                let snapshot = of(fault_mode, memory.range(), granule).unwrap();
                let after = loaded(&memory);
                let copy: Vec<u64> = words(&copied(snapshot)).collect();
                for block in 0..blocks {
                    let (first, last) = ends(block);
                    let seen = (copy[first], copy[last]);
                    assert!(seen.1 <= seen.0 && seen.0 <= seen.1 + 1, "{block}: {seen:?}");
                    for at in [first, last] {
                        assert!((before[at]..=after[at]).contains(&copy[at]), "{at}");
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// Snapshots of overlapping ranges, made and dropped by several threads while others write: no thread hangs or
/// dies, and each holds what was there.
fn they_come_and_go_under_writers(fault_mode: FaultMode) {
    let memory = Memory::filled(8 * HUGE, true, 0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
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
        stop.store(true, Ordering::Relaxed);
    });
    assert_is_plain(&memory);
}

/// No thread serves it any more: the kernel may have all of it written by a system call.
fn assert_is_plain(memory: &Memory) {
    let mut zeroes = File::open("/dev/zero").unwrap();
    // SAFETY: no other thread uses the memory now.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.start(), memory.len()) };
    zeroes.read_exact(bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, len: usize, byte: u8 },
    Take { at: usize, len: usize, granule: Granule },
    Read { which: usize, at: usize, len: usize },
    Free { which: usize, at: usize, len: usize },
    View { which: usize, at: usize, len: usize },
    CopyOut { which: usize },
    WriteOut { which: usize },
    Forget { which: usize },
}

const MODELLED: usize = 5 * HUGE + 3 * PAGE;

fn step() -> impl Strategy<Value = Step> {
    let (at, len, which) = (0..MODELLED, 1..2 * HUGE, any::<usize>());
    let granule = prop_oneof![Just(Granule::Huge), Just(Granule::Small), Just(Granule::Auto)];
    prop_oneof![
        6 => (at.clone(), len.clone(), any::<u8>())
            .prop_map(|(at, len, byte)| Step::Write { at, len, byte }),
        3 => (at.clone(), 1..MODELLED, granule)
            .prop_map(|(at, len, granule)| Step::Take { at, len, granule }),
        2 => (which, at.clone(), len.clone())
            .prop_map(|(which, at, len)| Step::Read { which, at, len }),
        1 => (which, at.clone(), len.clone())
            .prop_map(|(which, at, len)| Step::Free { which, at, len }),
        1 => (which, at, len).prop_map(|(which, at, len)| Step::View { which, at, len }),
        1 => which.prop_map(|which| Step::CopyOut { which }),
        1 => which.prop_map(|which| Step::WriteOut { which }),
        1 => which.prop_map(|which| Step::Forget { which }),
    ]
}

/// Any steps, against plain copies.
fn steps_follow_the_model(fault_mode: FaultMode) {
    let mut runner =
        TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let steps = prop::collection::vec(step(), 1..40);
    runner
        .run(&(steps, any::<bool>()), |(steps, huge)| {
            run_steps(fault_mode, &steps, huge);
            Ok(())
        })
        .unwrap();
}

fn run_steps(fault_mode: FaultMode, steps: &[Step], huge: bool) {
    let memory = Memory::untouched(MODELLED, huge);
    split(&memory, 2 * HUGE + PAGE, HUGE);
    let mut model = vec![0_u8; MODELLED];
    let mut taken: Vec<(Snapshot, Vec<u8>)> = Vec::new();
    for step in steps {
        match *step {
            Step::Write { at, len, byte } => {
                let len = len.min(MODELLED - at);
                model[at..at + len].fill(byte);
                // SAFETY: within the memory, which only this thread uses.
                unsafe { memory.start().add(at).write_bytes(byte, len) };
            }
            Step::Take { at, len, granule } => {
                let len = len.min(MODELLED - at);
                let range = ptr::slice_from_raw_parts(memory.start().wrapping_add(at), len);
                let snapshot = of(fault_mode, range, granule).unwrap();
                taken.push((snapshot, model[at..at + len].to_vec()));
            }
            _ if taken.is_empty() => {}
            Step::Read { which, at, len } => {
                let (snapshot, held) = &taken[which % taken.len()];
                let (at, len) = within(at, len, held.len());
                let mut read = vec![0; len];
                snapshot.read_at(at, &mut read).unwrap();
                assert!(read == held[at..at + len]);
            }
            Step::Free { which, at, len } => {
                let (snapshot, held) = &taken[which % taken.len()];
                let (at, len) = within(at, len, held.len());
                snapshot.prepare_write(at..at + len).unwrap();
            }
            Step::View { which, at, len } => {
                let (snapshot, held) = &taken[which % taken.len()];
                let (at, len) = within(at, len, held.len());
                let view = snapshot.view().unwrap();
                let first = view.bytes(at..at + len).unwrap();
                assert!(view.bytes(0..held.len()).unwrap() == held);
                assert!(first == &held[at..at + len]);
            }
            Step::CopyOut { which } => {
                let (snapshot, held) = taken.swap_remove(which % taken.len());
                assert!(copied(snapshot) == held);
            }
            Step::WriteOut { which } => {
                let (snapshot, held) = taken.swap_remove(which % taken.len());
                let mut written = Vec::new();
                snapshot.write_to(&mut written).unwrap();
                assert!(written == held);
            }
            Step::Forget { which } => drop(taken.swap_remove(which % taken.len())),
        }
    }
    // SAFETY: only this thread uses it.
    assert!(unsafe { std::slice::from_raw_parts(memory.start(), MODELLED) } == model);
    for (snapshot, held) in taken {
        assert!(copied(snapshot) == held);
    }
}

fn within(at: usize, len: usize, of: usize) -> (usize, usize) {
    let at = at % of;
    (at, len.min(of - at))
}

/// Makes a part a mapping of its own.
fn split(memory: &Memory, at: usize, len: usize) {
    // SAFETY: changes no byte.
    let advised = unsafe { libc::madvise(memory.start().add(at).cast(), len, libc::MADV_DONTDUMP) };
    assert_eq!(advised, 0);
}

fn untouched_memory_is_zeroes(fault_mode: FaultMode) {
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
fn bystanders_are_left_alone(fault_mode: FaultMode) {
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

/// A writer that outruns the reader loses the snapshot and nothing else.
fn writers_that_outrun_it_go_on(fault_mode: FaultMode) {
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
        |error| matches!(error, SnapshotError::CowLimitExceeded { cap } if cap == 3 * HUGE);
    assert!(is_outrun(snapshot.read_at(6 * HUGE, &mut [0; 8]).unwrap_err()));
    assert_eq!(snapshot.stats().copied_by_writers, 3);
    assert!(is_outrun(snapshot.copy_to(&mut vec![0; memory.len()]).unwrap_err()));
    assert!(memory.words().iter().all(|word| word.load(Ordering::Relaxed) == 4));
    assert_is_plain(&memory);
}

fn system_calls_write_where_they_may(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 5);
    let snapshot = of_all(fault_mode, &memory);
    let in_place = snapshot.serving().unwrap().fault_mode == FaultMode::InPlace;
    assert_eq!(in_place, fault_mode == FaultMode::InPlace);
    let (mut read, mut write) = io::pipe().unwrap();
    write.write_all(&[6; PAGE]).unwrap();
    // SAFETY: only this thread uses the memory.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.start(), memory.len()) };
    match read.read(&mut bytes[HUGE..HUGE + PAGE]) {
        Ok(count) => assert!(!in_place && count == PAGE),
        Err(error) => {
            assert!(in_place);
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
            snapshot.prepare_write(HUGE..HUGE + PAGE).unwrap();
            assert_eq!(read.read(&mut bytes[HUGE..HUGE + PAGE]).unwrap(), PAGE);
        }
    }
    assert_eq!(bytes[HUGE], 6);
    // The memory that it is read from needs no handler.
    assert_eq!(write.write(&bytes[3 * HUGE..][..PAGE]).unwrap(), PAGE);
    assert!(words(&copied(snapshot)).all(|word| word == 5));
}

/// The destination may be what other snapshots, or this one, protect.
fn it_is_copied_into_protected_memory(fault_mode: FaultMode) {
    let (memory, other) = (Memory::filled(4 * HUGE, true, 5), Memory::filled(4 * HUGE, true, 6));
    let (snapshot, of_other) = (of_all(fault_mode, &memory), of_all(fault_mode, &other));
    // SAFETY: only this thread uses the two.
    let (bytes, others) = unsafe {
        (
            std::slice::from_raw_parts_mut(memory.start(), memory.len()),
            std::slice::from_raw_parts_mut(other.start(), other.len()),
        )
    };
    snapshot.read_at(0, others).unwrap();
    of_other.read_at(HUGE, &mut bytes[..HUGE]).unwrap();
    assert!(words(others).all(|word| word == 5) && words(&bytes[..HUGE]).all(|word| word == 6));
    snapshot.read_at(HUGE / 2, &mut bytes[HUGE..3 * HUGE]).unwrap();
    assert!(words(&bytes[HUGE..]).all(|word| word == 5));
    assert!(words(&copied(of_other)).all(|word| word == 6));
    snapshot.copy_to(bytes).unwrap();
    assert!(words(bytes).all(|word| word == 5));
}

/// Does something to so many bytes; 0 if it worked.
type Deed = unsafe fn(*mut libc::c_void, usize) -> libc::c_int;

/// Each with whether a snapshot stands it.
const DEEDS: [(&str, bool, Deed); 8] = [
    ("unmap", false, unmap),
    ("discard", false, discard),
    ("move", false, move_away),
    ("replace", false, replace),
    ("forbid", false, forbid),
    ("protect", true, protect),
    ("keep from children", true, keep_from_children),
    ("page out", true, page_out),
];

// What these are given is the test's own memory, which no thread uses afterwards but as the deed allows.

unsafe fn unmap(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: as above, and so below.
    unsafe { libc::munmap(at, len) }
}

unsafe fn discard(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: as above.
    unsafe { libc::madvise(at, len, libc::MADV_DONTNEED) }
}

unsafe fn move_away(at: *mut libc::c_void, len: usize) -> libc::c_int {
    let (flags, anywhere) =
        (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, ptr::null_mut::<libc::c_void>());
    // SAFETY: as above.
    unsafe { libc::munmap(libc::mremap(at, len, len, flags, anywhere), len) }
}

unsafe fn replace(at: *mut libc::c_void, len: usize) -> libc::c_int {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: as above.
    i32::from(unsafe { libc::mmap(at, len, prot, flags, -1, 0) } != at)
}

unsafe fn forbid(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: as above.
    unsafe { libc::mprotect(at, len, libc::PROT_NONE) }
}

unsafe fn protect(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: as above.
    unsafe { libc::mprotect(at, len, libc::PROT_READ) }
}

unsafe fn keep_from_children(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: as above.
    unsafe { libc::madvise(at, len, libc::MADV_DONTFORK) }
}

unsafe fn page_out(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: as above.
    unsafe { libc::madvise(at, len, libc::MADV_PAGEOUT) }
}

/// What its owner does to memory, and whether the snapshot of it can still be had.
fn owners_do_as_they_like(fault_mode: FaultMode) {
    for (name, is_harmless, deed) in DEEDS {
        for huge in [true, false] {
            let memory = Memory::filled(6 * HUGE, huge, 7);
            let (snapshot, second) = (of_all(fault_mode, &memory), of_all(fault_mode, &memory));
            let at = 2 * HUGE + 5 * PAGE;
            // SAFETY: the test's own memory, which no thread uses afterwards but as the deed allows.
            let done = unsafe { deed(memory.start().wrapping_add(at).cast(), 3 * PAGE) };
            assert_eq!(done, 0, "{name}");
            // Writers go on everywhere else, in the same granule too.
            let elsewhere = [0, 2 * HUGE, 2 * HUGE + 16 * PAGE, 5 * HUGE];
            elsewhere.into_iter().for_each(|at| memory.words()[at / 8].store(8, Ordering::Relaxed));
            let mut copy = vec![0; memory.len()];
            match snapshot.copy_to(&mut copy) {
                Ok(_) => {
                    assert!(is_harmless, "{name}");
                    assert!(words(&copy).all(|word| word == 7), "{name}");
                }
                Err(SnapshotError::Changed { address }) => {
                    assert!(!is_harmless, "{name}");
                    assert!((address - memory.start().addr()) / HUGE == 2, "{name}");
                }
                Err(other) => panic!("{name}: {other}"),
            }
            assert_eq!(second.copy_to(&mut copy).is_ok(), is_harmless, "{name}");
            elsewhere.into_iter().for_each(|at| memory.words()[at / 8].store(9, Ordering::Relaxed));
        }
    }
}

unsafe fn replace_by_nothing(at: *mut libc::c_void, len: usize) -> libc::c_int {
    let file = tempfile::tempfile().unwrap();
    let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_FIXED);
    // SAFETY: as above.
    i32::from(unsafe { libc::mmap(at, len, prot, flags, file.as_raw_fd(), 0) } != at)
}

/// What its owner does while the memory is copied: by loads that stream, which end where there is nothing to load.
fn owners_do_as_they_like_while_it_is_read(fault_mode: FaultMode) {
    let mut lost = 0;
    for round in 0..60 {
        let deed = [unmap, forbid, replace, replace_by_nothing, discard][round % 5];
        let memory = Memory::filled(8 * HUGE, round % 2 == 0, 7);
        let snapshot = of_all(fault_mode, &memory);
        let begun = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            let copier = scope.spawn(|| {
                let mut copy = vec![0; memory.len()];
                let tell = |_: usize, _: usize| begun.store(true, Ordering::Relaxed);
                snapshot.copy_to_with(&mut copy, Some(&tell), None).map(|_| copy)
            });
            while !begun.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            let at = (1 + round % 6) * HUGE + round % 3 * PAGE;
            // SAFETY: the test's own memory, which no code uses any more but the snapshot.
            assert_eq!(unsafe { deed(memory.start().add(at).cast(), HUGE / 2) }, 0);
            copier.join().unwrap()
        });
        match &result {
            Ok(copy) => assert!(words(copy).all(|word| word == 7)),
            Err(SnapshotError::Changed { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        lost += usize::from(result.is_err());
    }
    // Most of it was still to be read.
    assert!(lost > 0);
}

/// Dropped, it stops the thread that looks.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writers put what they change where all of it is being copied, and do not once the copy has ended, however it
/// did: by then the memory may be any owner's.
fn nothing_is_delivered_late(fault_mode: FaultMode) {
    for granule in [Granule::Huge, Granule::Small] {
        let memory = Memory::filled(8 * HUGE, true, 7);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for writer in 0..2_usize {
                let (memory, stop) = (&memory, &stop);
                scope.spawn(move || {
                    let mut at = writer;
                    while !stop.load(Ordering::Relaxed) {
                        // From the end on: the copy comes from the beginning.
                        let words = memory.words();
                        words[words.len() - 1 - at % words.len()].store(7, Ordering::Relaxed);
                        at += 4099;
                    }
                });
            }
            // Also if this fails: the scope waits for the writers.
            let _stops = Stops(&stop);
            let mut copy = vec![0; memory.len()];
            for round in 0..30 {
                copy.fill(0);
                let snapshot = of(fault_mode, memory.range(), granule).unwrap();
                let cancel = Cancel::new();
                let tell = |done: usize, _: usize| match round % 3 {
                    0 if done >= 3 * HUGE => cancel.cancel(),
                    1 if done >= 3 * HUGE => panic!("as this test wants it"),
                    _ => {}
                };
                let copied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    snapshot.copy_to_with(&mut copy, Some(&tell), Some(&cancel))
                }));
                match (round % 3, copied) {
                    (0, Ok(Err(SnapshotError::Cancelled { .. }))) | (1, Err(_)) => {
                        assert!(words(&copy[..3 * HUGE]).all(|word| word == 7));
                    }
                    (2, Ok(Ok(stats))) => {
                        assert!(words(&copy).all(|word| word == 7));
                        assert_eq!(stats.retained, 0);
                    }
                    (_, other) => panic!("{other:?}"),
                }
                copy.fill(9);
                thread::yield_now();
                assert!(copy.iter().all(|&byte| byte == 9));
            }
        });
    }
}

/// What was written before it was discarded is known all the same.
fn what_was_put_aside_survives_its_owner(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    let snapshot = of_all(fault_mode, &memory);
    snapshot.prepare_write(HUGE..2 * HUGE).unwrap();
    // SAFETY: the test's own memory, which no other thread uses.
    let discarded =
        unsafe { libc::madvise(memory.start().add(HUGE).cast(), HUGE, libc::MADV_DONTNEED) };
    assert_eq!(discarded, 0);
    assert!(words(&copied(snapshot)).all(|word| word == 7));
}

/// A snapshot made after the discard must not make an older one believe that nothing happened.
fn a_later_snapshot_hides_no_discard(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    let older = of_all(fault_mode, &memory);
    // SAFETY: as above.
    let discarded =
        unsafe { libc::madvise(memory.start().add(HUGE).cast(), PAGE, libc::MADV_DONTNEED) };
    assert_eq!(discarded, 0);
    let later = of_all(fault_mode, &memory);
    let copy = copied(later);
    assert!(copy[HUGE..HUGE + PAGE].iter().all(|&byte| byte == 0));
    let lost = older
        .read_at(0, &mut [0; 8])
        .and_then(|()| older.copy_to(&mut vec![0; memory.len()]).map(drop));
    assert!(matches!(lost, Err(SnapshotError::Changed { .. })));
}

fn a_forked_child_has_no_part_of_it(fault_mode: FaultMode) {
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
fn forks_meanwhile_change_nothing(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
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
        stop.store(true, Ordering::Relaxed);
    });
}

struct Fails {
    after: usize,
    taken: usize,
}

impl Write for Fails {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.taken >= self.after {
            return Err(io::Error::other("as this test wants it"));
        }
        self.taken += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn writers_that_fail_are_told_of(fault_mode: FaultMode) {
    let memory = Memory::filled(6 * HUGE, true, 7);
    let write = |writer: &mut dyn Write| {
        let failed = of_all(fault_mode, &memory).write_to(writer).unwrap_err();
        memory.words().iter().step_by(PAGE / 8).for_each(|word| word.store(7, Ordering::Relaxed));
        match failed {
            SnapshotError::Write { written, source } => (written, source),
            other => panic!("{other}"),
        }
    };
    let (written, source) = write(&mut Fails { after: 3 * HUGE, taken: 0 });
    assert_eq!((written, source.kind()), (3 * HUGE, io::ErrorKind::Other));
    let (written, source) = write(&mut File::options().write(true).open("/dev/full").unwrap());
    assert_eq!((written, source.kind()), (0, io::ErrorKind::StorageFull));
    let (read, mut pipe) = io::pipe().unwrap();
    drop(read);
    let (written, source) = write(&mut pipe);
    assert_eq!((written, source.kind()), (0, io::ErrorKind::BrokenPipe));
    assert_is_plain(&memory);
}

/// A file that may not grow beyond 3 MiB: `SIGXFSZ` is ignored in the child that this is tried in.
fn a_file_that_is_full_keeps_the_first_part(fault_mode: FaultMode) {
    let code = in_a_child(|| {
        let memory = Memory::filled(4 * HUGE, true, 7);
        let limit = libc::rlimit { rlim_cur: 3 << 20, rlim_max: 3 << 20 };
        // SAFETY: one limit is read; ignoring a signal needs no handler.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        }
        let mut file = tempfile::tempfile().unwrap();
        let failed = of_all(fault_mode, &memory).write_to(&mut file).unwrap_err();
        let SnapshotError::Write { written, source } = failed else { return 1 };
        assert_eq!((written, source.kind()), (HUGE, io::ErrorKind::FileTooLarge));
        let mut kept = Vec::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_end(&mut kept).unwrap();
        i32::from(kept.len() != 3 << 20 || !words(&kept).all(|word| word == 7))
    });
    assert_eq!(code, 0);
}

fn progress_is_told_and_cancelling_heard(fault_mode: FaultMode) {
    let memory = Memory::filled(6 * HUGE, true, 7);
    let (told, cancel) = (Mutex::new(Vec::new()), Cancel::new());
    let progress = |done: usize, len: usize| {
        assert_eq!(len, memory.len());
        told.lock().unwrap().push(done);
        if done == 4 * HUGE {
            cancel.cancel();
        }
    };
    let mut copy = vec![0; memory.len()];
    let snapshot = of_all(fault_mode, &memory);
    let stopped = snapshot.copy_to_with(&mut copy, Some(&progress), Some(&cancel)).unwrap_err();
    assert!(matches!(stopped, SnapshotError::Cancelled { bytes, .. } if bytes == 4 * HUGE));
    assert_eq!(told.into_inner().unwrap(), [HUGE, 2 * HUGE, 3 * HUGE, 4 * HUGE]);
    assert!(words(&copy[..4 * HUGE]).all(|word| word == 7));
    let differ = of_all(fault_mode, &memory).copy_to(&mut copy[1..]).unwrap_err();
    assert!(matches!(differ, SnapshotError::LengthsDiffer { .. }));
    let outside = of_all(fault_mode, &memory).read_at(usize::MAX, &mut [0; 2]).unwrap_err();
    assert!(matches!(outside, SnapshotError::OutOfRange { .. }));
}

/// A list whose links are pointers, walked in the view while its owner breaks it.
fn pointers_are_walked_in_a_view(fault_mode: FaultMode) {
    const LEN: usize = 1000;
    let memory = Memory::filled(4 * HUGE, true, 0);
    let link = |index: usize| &memory.words()[index * 7919 % (memory.words().len() - 1)];
    for index in 0..LEN {
        link(index).store(ptr::from_ref(link(index + 1)).addr() as u64, Ordering::Relaxed);
    }
    link(LEN).store(0, Ordering::Relaxed);
    let snapshot = of_all(fault_mode, &memory);
    (0..=LEN).for_each(|index| link(index).store(1, Ordering::Relaxed));
    let view = View::of(Arc::new(snapshot)).unwrap();
    let (mut at, mut count) = (ptr::from_ref(link(0)).cast::<u64>(), 0);
    loop {
        // SAFETY: the view has an aligned word there, for as long as it lives.
        let next = unsafe { view.rebase(at).unwrap().read() };
        if next == 0 {
            break;
        }
        at = ptr::with_exposed_provenance(next as usize);
        count += 1;
    }
    assert_eq!((count, view.len()), (LEN, memory.len()));
    let last = memory.start().wrapping_add(memory.len() - 4).cast::<u64>();
    assert!(matches!(view.rebase(last), Err(SnapshotError::OutOfRange { .. })));
    let before = memory.start().wrapping_sub(8).cast::<u64>();
    assert!(matches!(view.rebase(before), Err(SnapshotError::OutOfRange { .. })));
}

/// Pieces are snapshots: read in any order, one by one, while a writer runs, and each for itself.
fn pieces_are_read_apart(fault_mode: FaultMode) {
    let memory = Memory::filled(8 * HUGE, true, 7);
    let cuts = [
        100..HUGE + 5,
        HUGE + 5..3 * HUGE,
        3 * HUGE + PAGE..3 * HUGE + 2 * PAGE,
        4 * HUGE..8 * HUGE,
    ];
    for granule in [Granule::Huge, Granule::Small] {
        // Less than a page at both ends is in no granule, but is cut as well.
        let range = ptr::slice_from_raw_parts(memory.start().wrapping_add(50), memory.len() - 100);
        let mut pieces = of(fault_mode, range, granule).unwrap().split(&cuts[..3]).unwrap();
        assert!(pieces.iter().map(Snapshot::len).eq(cuts[..3].iter().map(ExactSizeIterator::len)));
        memory.words().iter().for_each(|word| word.store(8, Ordering::Relaxed));
        let mut read = [0; 16];
        pieces[2].read_at(PAGE - 16, &mut read).unwrap();
        assert!(pieces[2].read_at(PAGE - 15, &mut read).is_err());
        let cost = pieces[0].stats();
        assert_eq!(
            (cost.granules, cost.copied_by_writers),
            (memory.len() / cost.granule_bytes, cost.granules as u64)
        );
        assert!(pieces[1].view().unwrap().bytes(3..11).unwrap().iter().all(|&byte| byte % 7 == 0));
        // A snapshot that shares a granule with another one leaves it to that.
        for at in [2, 0, 0] {
            let piece = pieces.remove(at);
            let len = piece.len();
            let mut written = Vec::new();
            piece.write_to(&mut written).unwrap();
            assert!(
                written.len() == len
                    && written.iter().filter(|&&byte| byte != 0).all(|&byte| byte == 7)
            );
        }
        assert_is_plain(&memory);
        memory.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
    }
    // What a piece has alone is let go with it, what it shares is not. In memory that is still on huge pages.
    let memory = Memory::filled(8 * HUGE, true, 7);
    let mut pieces = of_all(fault_mode, &memory)
        .split(&[0..3 * HUGE + PAGE, 3 * HUGE + PAGE..8 * HUGE])
        .unwrap();
    drop(pieces.remove(0));
    memory.words().iter().for_each(|word| word.store(8, Ordering::Relaxed));
    assert_eq!(pieces[0].stats().copied_by_writers, 5);
    assert!(words(&copied(pieces.remove(0))[PAGE..]).all(|word| word == 7));
    let wrong = [[0..9, 8..10], [3..5, 5..5], [0..1, 1..memory.len() + 1], [9..10, 0..1]];
    for wrong in &wrong {
        let refused = of_all(fault_mode, &memory).split(wrong).unwrap_err();
        assert!(matches!(refused, SnapshotError::OutOfRange { .. }));
    }
    assert!(of_all(fault_mode, &memory).split(&[]).unwrap().is_empty());
    assert_is_plain(&memory);
}

/// Ranges that lie side by side share a snapshot, unless other bytes lie between them, or what lies there would
/// have to be served in place.
fn neighbours_are_taken_at_once(fault_mode: FaultMode) {
    let memory = Memory::filled(12 * HUGE, true, 7);
    let bytes = |start: usize, end: usize| {
        ptr::slice_from_raw_parts(memory.start().wrapping_add(start).cast_const(), end - start)
    };
    let padded = 5 * HUGE + 80..5 * HUGE + 80 + 3000;
    // SAFETY: within the memory, which only this thread uses.
    unsafe { memory.start().add(padded.start).write_bytes(0, padded.len() - 16) };
    let ranges = [
        bytes(padded.end, 8 * HUGE + 100),
        bytes(100, 3 * HUGE + 5),
        bytes(3 * HUGE + 5, padded.start),
        // Another object's words lie before it.
        bytes(8 * HUGE + 150, 10 * HUGE),
        // A whole page, whatever it holds.
        bytes(10 * HUGE + 2 * PAGE, 12 * HUGE),
        bytes(11 * HUGE, 12 * HUGE),
    ];
    let expected: Vec<Vec<u8>> = ranges
        .iter()
        // SAFETY: within the memory, which only this thread uses.
        .map(|range| unsafe { (**range).to_vec() })
        .collect();
    let builder = Snapshot::builder().fault_mode(fault_mode).max_cow_bytes(usize::MAX);
    // SAFETY: no system call writes there.
    let taken = unsafe { builder.take_many(&ranges) }.unwrap();
    let share = |one: usize, other: usize| taken[one].shares_cost_with(&taken[other]);
    assert_eq!((share(1, 2), share(2, 0)), (true, fault_mode != FaultMode::InPlace));
    assert!(!share(0, 3) && !share(3, 4) && !share(4, 5) && share(5, 5));
    let cap = if share(2, 0) { 8 * HUGE } else { padded.start - 100 };
    assert_eq!(taken[1].stats().cap, cap);
    memory.words().iter().for_each(|word| word.store(8, Ordering::Relaxed));
    for (snapshot, expected) in taken.into_iter().zip(expected) {
        assert!(copied(snapshot) == expected);
    }
    assert_is_plain(&memory);
    // One that cannot be taken takes the others with it.
    // SAFETY: reads a number.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    let vdso = ptr::slice_from_raw_parts(ptr::with_exposed_provenance(vdso), 64);
    let builder = Snapshot::builder().fault_mode(fault_mode);
    // SAFETY: as above.
    let refused =
        unsafe { builder.clone().take_many(&[bytes(0, HUGE), bytes(HUGE, 4 * HUGE), vdso]) };
    assert!(matches!(refused, Err(SnapshotError::Unsuitable { reason: Unsuitable::Kernels, .. })));
    assert_is_plain(&memory);
    // SAFETY: as above.
    let refused = unsafe { builder.clone().take_many(&[bytes(0, HUGE), bytes(HUGE, HUGE)]) };
    assert!(matches!(refused, Err(SnapshotError::Empty { .. })));
    // SAFETY: as above.
    assert!(unsafe { builder.take_many(&[]) }.unwrap().is_empty());
}

fn all_is_put_aside_in_the_background(fault_mode: FaultMode) {
    let memory = Memory::filled(6 * HUGE, true, 7);
    let builder = Snapshot::builder().fault_mode(fault_mode).in_background(true);
    let builder = builder.max_cow_bytes(14 * HUGE).populate_copies(2 * HUGE);
    // SAFETY: no system call writes there.
    let snapshot = unsafe { builder.of_anonymous(memory.range()) }.unwrap();
    let all =
        |stats: hugekit::snapshot::Stats| stats.copied_by_others + stats.copied_by_writers == 6;
    while !all(snapshot.stats()) {
        thread::yield_now();
    }
    assert_is_plain(&memory);
    assert!(words(&copied(snapshot)).all(|word| word == 7));
    // Dropped while it copies, or waits for room.
    for _ in 0..20 {
        let builder =
            Snapshot::builder().fault_mode(fault_mode).in_background(true).max_cow_bytes(4 * HUGE);
        // SAFETY: as above.
        drop(unsafe { builder.of_anonymous(memory.range()) }.unwrap());
    }
    assert_is_plain(&memory);
}

fn a_reserve_is_one_snapshots_at_a_time(fault_mode: FaultMode) {
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
fn thousands_leave_nothing_behind(fault_mode: FaultMode) {
    let code = in_a_child(|| {
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

fn split_pages_are_put_together_again(fault_mode: FaultMode) {
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
    // SAFETY: as above.
    assert_eq!(unsafe { collapse(short) }.huge, 0);
}

fn unsuitable(fault_mode: FaultMode, range: *const [u8]) -> Unsuitable {
    match of(fault_mode, range, Granule::Auto) {
        Err(SnapshotError::Unsuitable { mapping, reason }) => {
            let start = range.cast::<u8>().addr();
            assert!(mapping.addresses.start < start + range.len() && start < mapping.addresses.end);
            reason
        }
        other => panic!("{other:?}"),
    }
}

fn what_cannot_be_is_refused_and_named(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    let part =
        |at: usize, len: usize| ptr::slice_from_raw_parts(memory.start().wrapping_add(at), len);
    assert!(matches!(of(fault_mode, part(0, 0), Granule::Auto), Err(SnapshotError::Empty { .. })));
    let endless = ptr::slice_from_raw_parts(memory.start(), usize::MAX);
    assert!(matches!(of(fault_mode, endless, Granule::Auto), Err(SnapshotError::Empty { .. })));
    let stack = [0_u8; PAGE];
    let refused = unsuitable(fault_mode, &raw const stack);
    assert!(matches!(refused, Unsuitable::Stack { .. }), "{refused}");
    thread_local!(static OWN: AtomicU64 = const { AtomicU64::new(0) });
    OWN.with(|own| {
        let range = ptr::slice_from_raw_parts(ptr::from_ref(own).cast::<u8>(), 8);
        assert!(matches!(unsuitable(fault_mode, range), Unsuitable::Stack { .. }));
    });
    // SAFETY: of the test's own memory, which no thread uses, all of it.
    unsafe {
        assert_eq!(libc::munmap(part(HUGE, 0).cast_mut().cast(), PAGE), 0);
        match of(fault_mode, part(0, 2 * HUGE), Granule::Auto) {
            Err(SnapshotError::Unmapped { hole }) => {
                let start = memory.start().addr() + HUGE;
                assert_eq!(hole, start..start + PAGE);
            }
            other => panic!("{other:?}"),
        }
        let at = part(3 * HUGE, PAGE);
        let place = |prot, flags, file| {
            let flags = flags | libc::MAP_FIXED;
            assert!(libc::mmap(at.cast_mut().cast(), PAGE, prot, flags, file, 0).addr() > 0);
        };
        let (read_write, anonymous) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS);
        place(read_write, libc::MAP_SHARED | anonymous, -1);
        assert_eq!(unsuitable(fault_mode, part(2 * HUGE, 2 * HUGE)), Unsuitable::Shared);
        let file = File::open("/proc/self/exe").unwrap();
        place(libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd());
        assert_eq!(unsuitable(fault_mode, at), Unsuitable::File);
        place(libc::PROT_NONE, libc::MAP_PRIVATE | anonymous, -1);
        assert_eq!(unsuitable(fault_mode, at), Unsuitable::Unreadable);
        place(read_write, libc::MAP_PRIVATE | anonymous, -1);
        if libc::madvise(at.cast_mut().cast(), PAGE, libc::MADV_MERGEABLE) == 0 {
            assert_eq!(unsuitable(fault_mode, at), Unsuitable::Mergeable);
        }
        let vdso = ptr::with_exposed_provenance(libc::getauxval(libc::AT_SYSINFO_EHDR) as usize);
        let vdso = ptr::slice_from_raw_parts(vdso, 64);
        assert_eq!(unsuitable(fault_mode, vdso), Unsuitable::Kernels);
    }
}

fn others_faults_are_left_to_them(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    // SAFETY: system calls with what they ask for; the memory is the test's own.
    let other = unsafe {
        let opened = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1);
        assert!(opened >= 0);
        let other = OwnedFd::from_raw_fd(i32::try_from(opened).unwrap());
        let mut api = [0xaa_u64, 0, 0];
        assert_eq!(libc::ioctl(other.as_raw_fd(), 0xc018_aa3f, &raw mut api), 0);
        let mut register = [memory.start().addr() as u64 + 2 * HUGE as u64, HUGE as u64, 1, 0];
        assert_eq!(libc::ioctl(other.as_raw_fd(), 0xc020_aa00, &raw mut register), 0);
        other
    };
    assert_eq!(unsuitable(fault_mode, memory.range()), Unsuitable::OtherUserfaultfd);
    memory.words()[0].store(8, Ordering::Relaxed);
    drop(other);
    let snapshot = of_all(fault_mode, &memory);
    let another = if fault_mode == FaultMode::InPlace {
        FaultMode::Threaded { threads: 1 }
    } else {
        FaultMode::InPlace
    };
    assert_eq!(unsuitable(another, memory.range()), Unsuitable::OtherFaultMode);
    memory.words()[0].store(9, Ordering::Relaxed);
    assert!(words(&copied(snapshot)).eq((0..memory.words().len()).map(|at| if at == 0 {
        8
    } else {
        7
    })));
}

/// Pages that the kernel merges meanwhile are noticed, or were not merged.
fn merging_meanwhile_is_no_secret(fault_mode: FaultMode) {
    let memory = Memory::filled(2 * HUGE, false, 7);
    let snapshot = of_all(fault_mode, &memory);
    // SAFETY: changes no byte. Refused by a kernel without.
    let merged =
        unsafe { libc::madvise(memory.start().cast(), memory.len(), libc::MADV_MERGEABLE) };
    memory.words()[5].store(8, Ordering::Relaxed);
    let mut copy = vec![0; memory.len()];
    match snapshot.copy_to(&mut copy) {
        Ok(_) => assert!(words(&copy).all(|word| word == 7)),
        Err(error) => assert!(merged == 0 && matches!(error, SnapshotError::Changed { .. })),
    }
    memory.words()[5].store(9, Ordering::Relaxed);
}

/// In a process of its own: others refuse while it lasts.
fn a_thread_that_blocks_sigbus_is_named(fault_mode: FaultMode) {
    let code = in_a_child(|| {
        let memory = Memory::filled(2 * HUGE, true, 7);
        let (ready, done) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: a set of one signal, blocked in this thread alone.
                unsafe {
                    let mut set = std::mem::zeroed();
                    libc::sigemptyset(&raw mut set);
                    libc::sigaddset(&raw mut set, libc::SIGBUS);
                    libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
                }
                ready.wait();
                done.wait();
            });
            ready.wait();
            let made = of(fault_mode, memory.range(), Granule::Auto);
            done.wait();
            match made {
                Err(SnapshotError::Blocked { thread }) => {
                    i32::from(fault_mode != FaultMode::InPlace || thread == std::process::id())
                }
                made => i32::from(made.is_err() || fault_mode == FaultMode::InPlace),
            }
        })
    });
    assert_eq!(code, 0);
}

type Check = (&'static str, fn(FaultMode));

const CHECKS: &[Check] = &[
    ("what_is_written_afterwards_is_not_in_it", what_is_written_afterwards_is_not_in_it),
    ("racing_writers_are_seen_in_order", racing_writers_are_seen_in_order),
    ("they_come_and_go_under_writers", they_come_and_go_under_writers),
    ("steps_follow_the_model", steps_follow_the_model),
    ("untouched_memory_is_zeroes", untouched_memory_is_zeroes),
    ("bystanders_are_left_alone", bystanders_are_left_alone),
    ("writers_that_outrun_it_go_on", writers_that_outrun_it_go_on),
    ("system_calls_write_where_they_may", system_calls_write_where_they_may),
    ("it_is_copied_into_protected_memory", it_is_copied_into_protected_memory),
    ("owners_do_as_they_like", owners_do_as_they_like),
    ("owners_do_as_they_like_while_it_is_read", owners_do_as_they_like_while_it_is_read),
    ("nothing_is_delivered_late", nothing_is_delivered_late),
    ("what_was_put_aside_survives_its_owner", what_was_put_aside_survives_its_owner),
    ("a_later_snapshot_hides_no_discard", a_later_snapshot_hides_no_discard),
    ("a_forked_child_has_no_part_of_it", a_forked_child_has_no_part_of_it),
    ("forks_meanwhile_change_nothing", forks_meanwhile_change_nothing),
    ("writers_that_fail_are_told_of", writers_that_fail_are_told_of),
    ("a_file_that_is_full_keeps_the_first_part", a_file_that_is_full_keeps_the_first_part),
    ("progress_is_told_and_cancelling_heard", progress_is_told_and_cancelling_heard),
    ("pointers_are_walked_in_a_view", pointers_are_walked_in_a_view),
    ("pieces_are_read_apart", pieces_are_read_apart),
    ("neighbours_are_taken_at_once", neighbours_are_taken_at_once),
    ("all_is_put_aside_in_the_background", all_is_put_aside_in_the_background),
    ("a_reserve_is_one_snapshots_at_a_time", a_reserve_is_one_snapshots_at_a_time),
    ("thousands_leave_nothing_behind", thousands_leave_nothing_behind),
    ("split_pages_are_put_together_again", split_pages_are_put_together_again),
    ("what_cannot_be_is_refused_and_named", what_cannot_be_is_refused_and_named),
    ("others_faults_are_left_to_them", others_faults_are_left_to_them),
    ("merging_meanwhile_is_no_secret", merging_meanwhile_is_no_secret),
    ("a_thread_that_blocks_sigbus_is_named", a_thread_that_blocks_sigbus_is_named),
];

fn trials(fault_mode: FaultMode) -> Vec<Trial> {
    let memory = Memory::filled(2 * HUGE, true, 0);
    let lacking =
        of(fault_mode, memory.range(), Granule::Auto).err().map(|error| error.to_string());
    let label = match fault_mode {
        FaultMode::Threaded { threads } => format!("threaded{threads}"),
        _ => "in_place".to_owned(),
    };
    let trial = |&(name, check): &Check| {
        let run = move || {
            check(fault_mode);
            Ok(())
        };
        let trial = Trial::test(format!("{label}::{name}"), run);
        match &lacking {
            None => trial,
            Some(reason) => trial.with_kind(format!("skipped: {reason}")).with_ignored_flag(true),
        }
    };
    CHECKS.iter().map(trial).collect()
}

fn main() {
    // Not while a child is forked, which would wait for it.
    LazyLock::force(&RESERVE);
    let trials = FAULT_MODES.into_iter().flat_map(trials).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
