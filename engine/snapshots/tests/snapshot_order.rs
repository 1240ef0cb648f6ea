//! Writers whose stores have an order: a snapshot that holds a store holds every store that came before it, as a
//! child of fork(2) would, wherever in the range they are: in bytes that share a page with others' data too.
#![allow(unsafe_code)]

use hugekit_testing::memory;
use hugekit_testing::permitted;
use hugekit_testing::racing::Stops;
use hugekit_testing::rounds;

use std::fs::File;
use std::io::Read;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Pool};
use hugekit::snapshot::Granule;
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};
use hugekit_testing::trials::{Checks, skip, trials};
use libtest_mimic::Arguments;
use memory::Memory;
use rounds::rounds;

const PAGE: usize = 4096;
/// In each order of stores, of which each range has four.
const ROUNDS: usize = 40;
const MANY_ROUNDS: usize = 150;

const FAULT_MODES: [FaultMode; 2] = [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }];

fn can(fault_mode: FaultMode) -> bool {
    let memory = Memory::filled(2 * HUGE, false, 0);
    let builder = Snapshot::builder().fault_mode(fault_mode);
    // SAFETY: no thread blocks SIGBUS, and no system call writes there.
    unsafe { builder.of_anonymous(memory.range()) }.is_ok()
}

/// Words in the order in which a writer numbers them.
type Words<'a> = Vec<&'a AtomicU64>;

fn word_at(address: usize) -> &'static AtomicU64 {
    assert!(address.is_multiple_of(8));
    // SAFETY: a word of memory that outlives the test's threads.
    unsafe { &*ptr::with_exposed_provenance(address) }
}

/// Rounds in which a later store was seen without an earlier one, while a writer numbers the words again and again.
fn out_of_order(words: &Words<'_>, others: &Words<'_>, take: impl FnMut() -> Vec<u64>) -> usize {
    out_of_order_in(rounds(ROUNDS), words, others, take)
}

fn out_of_order_in(
    rounds: usize,
    words: &Words<'_>,
    others: &Words<'_>,
    mut take: impl FnMut() -> Vec<u64>,
) -> usize {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                for word in words {
                    word.store(number, Ordering::SeqCst);
                }
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        if !others.is_empty() {
            // Bytes beside the memory, in the same pages.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for word in others {
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let _stops = Stops(&stop);
        let is_out_of_order = |seen: &Vec<u64>| {
            let ascends = seen.is_sorted_by(|one, next| next <= one);
            !ascends || seen[0] - seen[seen.len() - 1] > 1
        };
        (0..rounds).map(|_| take()).filter(is_out_of_order).count()
    })
}

/// Takes a snapshot of the range and reads the words in it. Nothing of a snapshot that is refused because the pages of its
/// edges never rest: who may not serve faults of system calls may not make writers wait.
fn seen(
    fault_mode: FaultMode,
    granule: Granule,
    range: *const [u8],
    words: &Words<'_>,
) -> Vec<u64> {
    let builder = Snapshot::builder().fault_mode(fault_mode).granule(granule);
    // SAFETY: no thread blocks SIGBUS, and no system call writes there.
    match unsafe { builder.max_cow_bytes(usize::MAX >> 1).of_anonymous(range) } {
        Ok(snapshot) => read(&snapshot, range, words),
        Err(SnapshotError::Unquiet { .. }) if permitted::lacking_for_threads().is_some() => vec![0],
        Err(other) => panic!("{other}"),
    }
}

fn read(snapshot: &Snapshot, range: *const [u8], words: &Words<'_>) -> Vec<u64> {
    let start = range.cast::<u8>().addr();
    let offset = |word: &&&AtomicU64| ptr::from_ref(**word).addr() - start;
    let read = |offset| {
        let mut bytes = [0; 8];
        snapshot.read_at(offset, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    };
    words.iter().map(|word| read(offset(&word))).collect()
}

/// Both ends, the bytes beside them within the range, and one in the middle; forwards, backwards, inside out.
fn orders(start: usize, len: usize) -> Vec<Words<'static>> {
    let (first, last) = (start.next_multiple_of(8), (start + len - 8) & !7);
    let middle = (start + len / 2) & !7;
    let forwards = vec![first, middle, last];
    let inside_out = vec![middle, first, last];
    let (backwards, outside_in) = (vec![last, middle, first], vec![first, last, middle]);
    [forwards, backwards, inside_out, outside_in]
        .map(|words| words.into_iter().map(word_at).collect())
        .into()
}

/// Where ranges begin in their memory, how long they are, on huge pages or not.
const RANGES: [(usize, usize, bool); 8] = [
    (0, 4 * HUGE, true),
    (HUGE - 1000, 2 * HUGE + 3000, true),
    (PAGE, 2 * HUGE, true),
    (16, 4 * HUGE, false),
    (3 * PAGE + 24, 100 << 10, false),
    (PAGE - 64, 128, false),
    (PAGE + 64, 512, false),
    (2 * PAGE + 8, 3 * PAGE - 16, true),
];

fn every_range_is_of_one_moment(fault_mode: FaultMode, rounds: usize) {
    if !can(fault_mode) {
        skip(format!("{fault_mode:?} is not permitted"));
    }
    for (at, len, huge) in RANGES {
        let memory = Memory::filled(5 * HUGE, huge, 0);
        let start = memory.start().expose_provenance() + at;
        let range = ptr::slice_from_raw_parts(ptr::with_exposed_provenance(start), len);
        for words in orders(start, len) {
            let take = || seen(fault_mode, Granule::Auto, range, &words);
            let wrong = out_of_order_in(rounds, &words, &vec![], take);
            assert_eq!(wrong, 0, "{fault_mode:?} {at} {len}: of {rounds}");
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }
}

fn snapshot_of_any_range_in_place_is_one_moment() {
    every_range_is_of_one_moment(FAULT_MODES[0], 3);
}

fn snapshot_of_any_range_threaded_is_one_moment() {
    every_range_is_of_one_moment(FAULT_MODES[1], 3);
}

fn snapshot_of_any_range_many_times_in_place_is_one_moment() {
    every_range_is_of_one_moment(FAULT_MODES[0], rounds(MANY_ROUNDS));
}

fn snapshot_of_any_range_many_times_threaded_is_one_moment() {
    every_range_is_of_one_moment(FAULT_MODES[1], rounds(MANY_ROUNDS));
}

/// More base pages than one thread protects alone.
fn snapshot_of_much_memory_is_one_moment() {
    for fault_mode in FAULT_MODES.into_iter().filter(|&fault_mode| can(fault_mode)) {
        let memory = Memory::filled(130 * HUGE, false, 0);
        let start = memory.start().expose_provenance();
        // In the first piece of a thread, the last one, and one of those between.
        let words: Words<'_> =
            [129 * HUGE, 67 * HUGE, 5 * PAGE].iter().map(|at| word_at(start + at)).collect();
        let take = || seen(fault_mode, Granule::Small, memory.range(), &words);
        let wrong = out_of_order_in(rounds(20), &words, &vec![], take);
        assert_eq!(wrong, 0, "{fault_mode:?}");
    }
}

/// What lies beside the ends, in the same pages, is written all the time.
fn snapshot_beside_neighbours_that_never_rest_is_one_moment() {
    for fault_mode in FAULT_MODES {
        if !can(fault_mode) {
            continue;
        }
        let memory = Memory::filled(5 * HUGE, false, 0);
        let start = memory.start().expose_provenance() + HUGE + 1000;
        let (len, words) = (HUGE, &orders(start, HUGE)[3]);
        let range = ptr::slice_from_raw_parts(ptr::with_exposed_provenance(start), len);
        let others = vec![word_at(start - 8), word_at(start + len + 8)];
        let builder = Snapshot::builder().fault_mode(fault_mode);
        let mut unquiet = 0;
        let take = || {
            // SAFETY: no thread blocks SIGBUS, and no system call writes there.
            match unsafe { builder.clone().of_anonymous(range) } {
                Ok(snapshot) => read(&snapshot, range, words),
                // Who may not serve faults of system calls may not make writers wait.
                Err(SnapshotError::Unquiet { .. }) if fault_mode == FaultMode::InPlace => {
                    unquiet += 1;
                    vec![0]
                }
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(out_of_order(words, &others, take), 0, "{fault_mode:?}");
        assert!(unquiet == 0 || !can(FaultMode::Threaded { threads: 1 }));
        assert!(others.iter().all(|word| word.load(Ordering::Relaxed) > 0));
    }
}

/// System calls write what lies beside the ends, in the same pages, while snapshots are made: none fails.
fn system_call_beside_a_snapshots_ends_goes_on() {
    for fault_mode in FAULT_MODES {
        if !can(fault_mode) {
            continue;
        }
        let memory = Memory::filled(3 * HUGE, false, 0);
        let start = memory.start().expose_provenance() + HUGE + 1000;
        let range = ptr::slice_from_raw_parts(ptr::with_exposed_provenance(start), HUGE);
        let words = &orders(start, HUGE)[0];
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut zeroes = File::open("/dev/zero").unwrap();
                while !stop.load(Ordering::Relaxed) {
                    for beside in [start - 8, start + HUGE] {
                        // SAFETY: within the memory; only this thread uses these bytes.
                        let bytes = unsafe {
                            let first = ptr::with_exposed_provenance_mut::<u8>(beside);
                            std::slice::from_raw_parts_mut(first, 8)
                        };
                        zeroes.read_exact(bytes).unwrap();
                    }
                }
            });
            let _stops = Stops(&stop);
            for _ in 0..2 * rounds(ROUNDS) {
                let builder = Snapshot::builder().fault_mode(fault_mode);
                // SAFETY: no thread blocks SIGBUS, and no system call writes within the range.
                match unsafe { builder.of_anonymous(range) } {
                    Ok(snapshot) => drop(read(&snapshot, range, words)),
                    Err(error) => {
                        assert!(matches!(error, SnapshotError::Unquiet { .. }), "{error}");
                    }
                }
            }
        });
    }
}

/// Beside a snapshot of the memory around, whose pages are the other's edges.
fn snapshots_of_the_same_pages_hold_what_was() {
    for fault_mode in FAULT_MODES {
        if !can(fault_mode) {
            continue;
        }
        let memory = Memory::filled(5 * HUGE, true, 0);
        let start = memory.start().expose_provenance() + HUGE + 1000;
        let (len, words) = (HUGE / 2, &orders(start, HUGE / 2)[3]);
        let range = ptr::slice_from_raw_parts(ptr::with_exposed_provenance(start), len);
        let others = vec![word_at(start - 8), word_at(start + len + 8)];
        let mut round = 0_usize;
        let take = || {
            round += 1;
            let builder = Snapshot::builder().fault_mode(fault_mode).max_cow_bytes(usize::MAX >> 1);
            // SAFETY: no thread blocks SIGBUS, and no system call writes there.
            let around = unsafe { builder.of_anonymous(memory.range()) }.unwrap();
            if round.is_multiple_of(2) {
                around.prepare_write(HUGE..2 * HUGE).unwrap();
            }
            let seen = seen(fault_mode, Granule::Small, range, words);
            // Older than the other one, if that was taken, and complete.
            let whole = read(&around, memory.range(), words);
            let is_older = whole.iter().zip(&seen).all(|(older, newer)| older <= newer);
            assert!(is_older || seen.len() < words.len());
            assert!(whole.is_sorted_by(|one, next| next <= one));
            seen
        };
        assert_eq!(out_of_order(words, &others, take), 0, "{fault_mode:?}");
    }
}

/// As an allocator hands memory out: a few words behind the beginning of a page, side by side.
fn snapshot_of_what_an_allocator_gave_is_one_moment() {
    for fault_mode in FAULT_MODES {
        if !can(fault_mode) {
            continue;
        }
        for len in [1 << 10, 24 << 10, 100 << 10, 3 << 20] {
            let blocks: Vec<Vec<u64>> = (0..3).map(|_| vec![0_u64; len / 8 + 1]).collect();
            let block = &blocks[1];
            let start = block.as_ptr().expose_provenance();
            let range = ptr::slice_from_raw_parts(block.as_ptr().cast::<u8>(), block.len() * 8);
            let words = &orders(start, range.len())[3];
            let take = || seen(fault_mode, Granule::Auto, range, words);
            assert_eq!(out_of_order(words, &vec![], take), 0, "{fault_mode:?} {len}");
        }
    }
}

/// Several ranges that lie side by side are of one moment, each of them in any case.
fn of_several_under_writers_is_one_moment() {
    for fault_mode in FAULT_MODES {
        if !can(fault_mode) {
            continue;
        }
        let memory = Memory::filled(8 * HUGE, true, 0);
        let start = memory.start().expose_provenance();
        let cuts = [100, HUGE + 5 * PAGE + 80, 3 * HUGE + 88, 3 * HUGE + 200, 5 * HUGE + 808];
        let ranges: Vec<*const [u8]> = cuts
            .windows(2)
            .map(|cut| {
                let start = ptr::with_exposed_provenance(start + cut[0]);
                ptr::slice_from_raw_parts(start, cut[1] - cut[0])
            })
            .collect();
        // The last word of each, from the last to the first.
        let words: Words<'_> =
            cuts[1..].iter().rev().map(|cut| word_at((start + cut - 8) & !7)).collect();
        let take = || {
            let builder = Snapshot::builder().fault_mode(fault_mode).max_cow_bytes(usize::MAX >> 6);
            // SAFETY: no thread blocks SIGBUS, and no system call writes there.
            let taken = unsafe { builder.take_many(&ranges) }.unwrap();
            let each = taken.iter().zip(&ranges).rev().zip(&words);
            each.flat_map(|((snapshot, &range), &word)| read(snapshot, range, &vec![word]))
                .collect()
        };
        assert_eq!(out_of_order(&words, &vec![], take), 0, "{fault_mode:?}");
    }
}

/// Regions begin and end with a page, and are cut by granules alone.
fn snapshot_of_a_region_is_one_moment() {
    let pool = Pool::builder(32 << 20).backing(Backing::Base).build().unwrap();
    for len in [10_000, 100 << 10, 3 << 20] {
        let region = pool.region(len).unwrap().share();
        let start = region.as_ptr().expose_provenance();
        for words in orders(start, len) {
            let range = ptr::slice_from_raw_parts(region.as_ptr(), len);
            let take = || match Snapshot::of_region(&region) {
                Ok(snapshot) => read(&snapshot, range, &words),
                Err(_) => vec![0],
            };
            assert_eq!(out_of_order(&words, &vec![], take), 0, "{len}");
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }
}

const CHECKS: Checks = hugekit_testing::checks![
    snapshot_of_any_range_in_place_is_one_moment,
    snapshot_of_any_range_threaded_is_one_moment,
    "[nightly: it takes many snapshots under writers] " snapshot_of_any_range_many_times_in_place_is_one_moment,
    "[nightly: it takes many snapshots under writers] " snapshot_of_any_range_many_times_threaded_is_one_moment,
    snapshot_of_much_memory_is_one_moment,
    snapshot_beside_neighbours_that_never_rest_is_one_moment,
    system_call_beside_a_snapshots_ends_goes_on,
    snapshots_of_the_same_pages_hold_what_was,
    snapshot_of_what_an_allocator_gave_is_one_moment,
    of_several_under_writers_is_one_moment,
    snapshot_of_a_region_is_one_moment,
];

fn main() {
    let mut arguments = Arguments::from_args();
    // Each test has threads that write as fast as they can.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials(CHECKS, permitted::lacking())).exit();
}
