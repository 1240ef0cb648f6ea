//! Faults served by us, on every backing, in place and threaded: what is shown is clean, whichever thread comes
//! first and whatever happens meanwhile. What becomes of signals is in `signals/`.
#![allow(unsafe_code)]

use hugekit::PopulateOptions;
use hugekit_testing::backings;
use hugekit_testing::child;
use hugekit_testing::permitted;
use hugekit_testing::racing::Stops;
use hugekit_testing::served;

use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use backings::{Check, FOLIOS, builder, is_zero, trials, trials_on_gigantic, unscrubbed};
use child::in_a_child;
use hugekit::ErrorKind;
use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing, FaultError};
use hugekit::{Pool, PoolError, Region, RegionError, SharedRegion, Threads};
use hugekit_regions::fault::MOST_THREADS;
use libtest_mimic::Arguments;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use served::{at_fault, soiled};

const FAULT_MODES: [FaultMode; 3] =
    [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }, FaultMode::Threaded { threads: 3 }];

/// Those that this process may use.
fn fault_modes() -> Vec<FaultMode> {
    permitted::those_of(FAULT_MODES)
}

/// Calls `check` with a region over all of a dirty pool, for every way to serve it.
fn each(backing: Backing, check: impl Fn(&Pool, Region)) {
    for fault_mode in fault_modes() {
        let pool = soiled(backing, FOLIOS);
        let region = at_fault(&pool, FOLIOS * backing.page_size(), fault_mode);
        check(&pool, region);
        assert_eq!(pool.stats().unwrap().in_use, 0);
    }
}

/// As [`each`], with handles of the region that several threads may have.
fn each_shared(backing: Backing, check: impl Fn(&SharedRegion)) {
    each(backing, |_, region| check(&region.share()));
}

fn fault_on_dirty_memory_reads_zero(backing: Backing) {
    each(backing, |pool, region| {
        assert_eq!(pool.stats().unwrap().scrubbed_at_fault, 0);
        assert!(is_zero(&region));
        let stats = pool.stats().unwrap();
        assert_eq!(stats.scrubbed_at_fault, region.len() as u64);
        assert_eq!(stats.scrubbed_at_allocation, 0);
    });
}

fn fault_on_one_granule_clears_it_alone(backing: Backing) {
    each(backing, |pool, mut region| {
        region[3 * backing.page_size() + 5] = 1;
        let cleared = pool.stats().unwrap().scrubbed_at_fault;
        let folio = backing.page_size() as u64;
        assert!(cleared == folio || (backing == Backing::Base && cleared <= 65536), "{cleared}");
    });
}

fn fault_by_a_write_keeps_what_is_written(backing: Backing) {
    each(backing, |_, mut region| {
        let (len, step) = (region.len(), backing.page_size() / 4 + 1);
        // From the last byte backwards, so that no folio is touched at its start first.
        for at in (0..len).rev().step_by(step) {
            region[at] = at as u8 | 1;
        }
        for (at, &byte) in region.iter().enumerate() {
            let written = (len - 1 - at).is_multiple_of(step);
            assert_eq!(byte, if written { at as u8 | 1 } else { 0 }, "{at}");
        }
    });
}

/// Memory that is clean when it is allocated needs no handler, and the pool can say what its regions do.
fn region_of_clean_memory_is_not_served(backing: Backing) {
    let pool = builder(backing, FOLIOS)
        .clearing(Clearing::OnFault)
        .populate_on_allocation(false)
        .build()
        .unwrap();
    let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
    assert!(region.serving().is_none());
    region.fill(7);
    drop(region);
    pool.pause_scrubbing().unwrap();
    let dirty = pool.stats().unwrap().dirty;
    let region = pool.region(FOLIOS * backing.page_size()).unwrap();
    assert_eq!(region.serving().is_some(), dirty > 0);
    assert!(is_zero(&region));
    let asked = pool.region_builder(1).clearing(Clearing::OnAllocation);
    drop(region);
    assert!(asked.build().unwrap().serving().is_none());
}

/// Nothing is behind a hole of reserved pages before it is touched; elsewhere no kernel promises that
/// memory is left then, so it is populated at allocation.
fn region_of_reserved_holes_populates_at_the_fault(backing: Backing) {
    for fault_mode in fault_modes() {
        let (pool, page) = (unscrubbed(backing), backing.page_size());
        let build =
            pool.region_builder(FOLIOS * page).clearing(Clearing::OnFault).fault_mode(fault_mode);
        let mut region = build.build().unwrap();
        let stats = pool.stats().unwrap();
        if !backing.is_reserved() {
            assert_eq!((stats.holes, stats.populated), (0, (FOLIOS * page) as u64));
            assert!(region.serving().is_none());
            continue;
        }
        assert_eq!(stats.populated, 0);
        region[2 * page + 9] = 7;
        region[5 * page] = 7;
        assert_eq!(pool.stats().unwrap().populated, 2 * page as u64);
        assert_eq!(region.iter().filter(|&&byte| byte != 0).count(), 2);
        drop(region);
        assert_eq!(pool.stats().unwrap().dirty, FOLIOS);
        let fresh = unscrubbed(backing);
        let untouched = fresh.region_builder(FOLIOS * page).clearing(Clearing::OnFault);
        let mut untouched = untouched.fault_mode(fault_mode).build().unwrap();
        untouched[page] = 1;
        drop(untouched);
        let stats = fresh.stats().unwrap();
        assert_eq!((stats.holes, stats.dirty), (FOLIOS - 1, 1));
    }
}

fn release_of_served_memory_reads_zero_again(backing: Backing) {
    each(backing, |pool, mut region| {
        let page = backing.page_size();
        for round in 1..4 {
            region.fill(round);
            region.release(page..3 * page).unwrap();
            region.release(5 * page..FOLIOS * page).unwrap();
            assert!(is_zero(&region[page..3 * page]) && is_zero(&region[5 * page..]));
            assert!(region[..page].iter().chain(&region[3 * page..5 * page]).all(|&b| b == round));
        }
        region.release(0..FOLIOS * page).unwrap();
        region.release(0..FOLIOS * page).unwrap();
        assert!(is_zero(&region));
        assert_eq!(pool.stats().unwrap().in_use, FOLIOS);
        let part = region.release(1..page);
        assert!(matches!(part, Err(RegionError::NotWholeFolios { .. })));
    });
}

fn truncate_or_retire_of_served_memory_gives_it_to_others(backing: Backing) {
    each(backing, |pool, mut region| {
        let page = backing.page_size();
        region[page + 1] = 9;
        region.truncate(3 * page - 1).unwrap();
        assert_eq!(pool.stats().unwrap().dirty, FOLIOS - 3);
        let others = pool.region((FOLIOS - 3) * page).unwrap();
        assert!(is_zero(&others));
        assert_eq!(region[page + 1], 9);
        assert_eq!(region.iter().filter(|&&byte| byte != 0).count(), 1);
        drop(others);
        region.retire().unwrap();
        assert_eq!(pool.stats().unwrap().holes, 3);
        assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
    });
}

/// A system call into memory that is not ready fails in place and harms nothing; threaded, it waits.
fn prepare_write_of_served_memory_lets_system_calls_write(backing: Backing) {
    each(backing, |_, mut region| {
        let page = backing.page_size();
        let in_place = region.serving().unwrap().fault_mode == FaultMode::InPlace;
        let (mut read, mut write) = std::io::pipe().unwrap();
        write.write_all(&[5; 4096]).unwrap();
        let early = read.read(&mut region[page..page + 4096]);
        match early {
            Err(error) => {
                assert!(in_place);
                assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
            }
            Ok(count) => {
                assert!(!in_place);
                assert_eq!(count, 4096);
                write.write_all(&[5; 4096]).unwrap();
            }
        }
        // The bytes are still in the pipe, and the memory is as it was.
        region.prepare_write(2 * page..FOLIOS * page).unwrap();
        assert_eq!(read.read(&mut region[FOLIOS * page - 4096..]).unwrap(), 4096);
        assert!(region[FOLIOS * page - 4096..].iter().all(|&byte| byte == 5));
        assert!(is_zero(&region[2 * page..FOLIOS * page - 4096]));
        assert_eq!(write.write(&region[3 * page..3 * page + 100]).unwrap(), 100);
        let first = region[page];
        assert_eq!(first, if in_place { 0 } else { 5 });
    });
}

/// The kernel may unmap what it likes at any time (to compact memory, to join pages): so one time of several counts.
fn populate_of_served_memory_leaves_no_fault(backing: Backing) {
    for fault_mode in fault_modes() {
        let left: Vec<i64> = (0..5).map(|_| faults_after_populate(backing, fault_mode)).collect();
        assert!(left.contains(&0), "{fault_mode:?}: {left:?}");
    }
}

fn faults_after_populate(backing: Backing, fault_mode: FaultMode) -> i64 {
    let pool = soiled(backing, FOLIOS);
    let len = FOLIOS * backing.page_size();
    let mut region = at_fault(&pool, len, fault_mode);
    let outside = region.prepare_write(0..len + 1);
    assert!(matches!(outside, Err(RegionError::OutOfRange { .. })));
    let report =
        region.populate_with(0..len, &PopulateOptions::new().threads(Threads::Exactly(2))).unwrap();
    assert_eq!(report.bytes, len);
    let before = faults();
    region.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    assert_eq!(pool.stats().unwrap().scrubbed_at_fault, len as u64);
    faults() - before
}

/// Faults of the calling thread that needed no disk.
fn faults() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: one structure is written, and a zeroed one is valid.
    unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()), 0);
        usage.assume_init().ru_minflt
    }
}

/// A holder of the file sees no other owner's bytes, and what is released is gone there too.
fn file_of_a_served_region_shows_no_earlier_owners_bytes(backing: Backing) {
    each_shared(backing, |region| {
        let page = backing.page_size();
        region.write_at(page + 3, b"mine").unwrap();
        // SAFETY: only the region's own part of the file is mapped, while it exists.
        let (file, offset) = unsafe { region.file() }.unwrap();
        let (prot, len) = (ProtFlags::READ | ProtFlags::WRITE, FOLIOS * page);
        // SAFETY: a new mapping; unmapped below, and its addresses are not used afterwards.
        unsafe {
            let other = mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, offset);
            let other = other.unwrap().cast::<u8>();
            let seen = std::slice::from_raw_parts(other, len);
            assert_eq!(&seen[page + 3..page + 7], b"mine");
            assert!(is_zero(&seen[..page]) && is_zero(&seen[2 * page..]));
            region.release(page..2 * page).unwrap();
            assert!(is_zero(&seen[page..2 * page]));
            munmap(other.cast(), len).unwrap();
        }
    });
}

/// Threads meet on the same folios: one clears, the others wait, and no store is lost.
fn fault_by_many_threads_on_one_folio_is_served_once(backing: Backing) {
    const THREADS: usize = 6;
    each_shared(backing, |region| {
        let page = backing.page_size();
        for _ in 0..20 {
            let start = Barrier::new(THREADS);
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (region, start) = (region.clone(), &start);
                    scope.spawn(move || {
                        start.wait();
                        for folio in 0..FOLIOS {
                            let words = &region.words()[folio * page / 8..(folio + 1) * page / 8];
                            assert_eq!(words[thread].swap(thread as u64 + 1, Ordering::Relaxed), 0);
                            assert_eq!(words[words.len() - 1].load(Ordering::Relaxed), 0);
                        }
                    });
                }
            });
            for folio in 0..FOLIOS {
                for thread in 0..THREADS {
                    let word = &region.words()[folio * page / 8 + thread];
                    assert_eq!(word.load(Ordering::Relaxed), thread as u64 + 1);
                }
            }
            region.release(0..FOLIOS * page).unwrap();
        }
    });
}

/// Folios are released while others write them: a word is zero or what was written since, never what was
/// there before it was allocated, and nothing older comes back once the writers have stopped.
fn release_beside_faults_reads_zero_or_what_was_written(backing: Backing) {
    each_shared(backing, |region| {
        let page = backing.page_size();
        let stop = AtomicBool::new(false);
        let number = AtomicU64::new(1);
        thread::scope(|scope| {
            let _end = Stops(&stop);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        for word in region.words().iter().step_by(page / 8 / 2) {
                            let seen = word.load(Ordering::Relaxed);
                            assert!(seen < number.load(Ordering::Relaxed), "{seen:#x}");
                            word.store(number.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                        }
                    }
                });
            }
            for round in 0..200 {
                let first = round % FOLIOS;
                region.release(first * page..FOLIOS * page).unwrap();
                region.prepare_write(first * page..(first + 1) * page).unwrap();
            }
        });
        region.release(0..FOLIOS * page).unwrap();
        assert!(region.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
    });
}

/// Regions come and go in several threads, each filled with a byte of its own: none is ever seen in
/// another, and none of those that go stands in the way of faults in those that stay.
fn regions_that_come_and_go_read_zero(backing: Backing) {
    let pool = builder(backing, FOLIOS).build().unwrap();
    let page = backing.page_size();
    let fault_modes = fault_modes();
    thread::scope(|scope| {
        for thread in 0..3_usize {
            let (pool, fault_modes) = (&pool, &fault_modes);
            scope.spawn(move || {
                for round in 0..60 {
                    let fault_mode = fault_modes[(thread + round) % fault_modes.len()];
                    let builder = pool.region_builder((1 + round % 2) * page);
                    let builder = builder.clearing(Clearing::OnFault).fault_mode(fault_mode);
                    let mut region = builder.build().unwrap();
                    if round % 3 == 0 {
                        assert_eq!(region[page - 1], 0);
                    } else {
                        assert!(is_zero(&region));
                    }
                    region.fill(thread as u8 + 1);
                    if round % 5 == 0 {
                        region.release(0..page).unwrap();
                        assert_eq!(region[page / 2], 0);
                    }
                }
            });
        }
    });
    assert_eq!(pool.stats().unwrap().in_use, 0);
    assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
}

/// In a child nothing of a served region is there, dropping it changes nothing for the parent, and the
/// child serves regions of its own.
fn region_in_a_forked_child_is_refused(backing: Backing) {
    each(backing, |pool, mut region| {
        let page = backing.page_size();
        region[0] = 9;
        let region = Mutex::new(Some(region));
        let code = in_a_child(|| {
            let mut region = region.lock().unwrap().take().unwrap();
            let refused = [region.prepare_write(0..page), region.release(0..page)];
            if refused.iter().any(|refused| *refused != Err(RegionError::Forked)) {
                return 1;
            }
            drop(region);
            let pool = soiled(Backing::Base, FOLIOS);
            for fault_mode in fault_modes() {
                let own = at_fault(&pool, FOLIOS * 4096, fault_mode);
                if !is_zero(&own) {
                    return 2;
                }
            }
            0
        });
        assert_eq!(code, 0);
        let region = region.into_inner().unwrap().unwrap();
        assert_eq!(region[0], 9);
        assert!(is_zero(&region[1..]));
        assert_eq!(pool.stats().unwrap().in_use, FOLIOS);
    });
}

/// Another program is started while folios are untouched, ready and being cleared.
fn exec_beside_faults_changes_nothing(backing: Backing) {
    each_shared(backing, |region| {
        let page = backing.page_size();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50 {
                    for word in region.words().iter().step_by(page / 8) {
                        assert_eq!(word.load(Ordering::Relaxed), 0);
                    }
                    region.release(0..FOLIOS * page).unwrap();
                }
            });
            for _ in 0..5 {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
    });
}

/// The kernel reads through /proc/self/mem what a debugger would: zeroes or nothing, never what is dirty.
fn proc_mem_of_a_served_region_shows_no_earlier_owners_bytes(backing: Backing) {
    use std::os::unix::fs::FileExt;
    each(backing, |_, region| {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut bytes = [1; 64];
        let address = region.as_ptr().addr() + backing.page_size() + 100;
        if memory.read_exact_at(&mut bytes, address as u64).is_ok() {
            assert!(is_zero(&bytes));
        } else {
            assert_eq!(bytes, [1; 64]);
        }
    });
}

fn build_on_nonsense_terms_is_refused(backing: Backing) {
    permitted::need(FaultMode::Threaded { threads: 1 });
    let pool = soiled(backing, FOLIOS);
    let none = FaultMode::Threaded { threads: 0 };
    let refused = pool.region_builder(1).clearing(Clearing::OnFault).fault_mode(none).build();
    assert!(matches!(refused, Err(PoolError::Fault(FaultError::NoThreads))));
    let many = FaultMode::Threaded { threads: MOST_THREADS + 1 };
    let refused = pool.region_builder(1).clearing(Clearing::OnFault).fault_mode(many).build();
    let Err(PoolError::Fault(error @ FaultError::TooManyThreads { .. })) = refused else {
        panic!()
    };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let stats = pool.stats().unwrap();
    assert_eq!((stats.in_use, stats.dirty), (0, FOLIOS));
}

const CHECKS: &[Check] = hugekit_testing::checks![
    fault_on_dirty_memory_reads_zero,
    fault_on_one_granule_clears_it_alone,
    fault_by_a_write_keeps_what_is_written,
    region_of_clean_memory_is_not_served,
    region_of_reserved_holes_populates_at_the_fault,
    release_of_served_memory_reads_zero_again,
    truncate_or_retire_of_served_memory_gives_it_to_others,
    prepare_write_of_served_memory_lets_system_calls_write,
    populate_of_served_memory_leaves_no_fault,
    file_of_a_served_region_shows_no_earlier_owners_bytes,
    fault_by_many_threads_on_one_folio_is_served_once,
    release_beside_faults_reads_zero_or_what_was_written,
    regions_that_come_and_go_read_zero,
    region_in_a_forked_child_is_refused,
    exec_beside_faults_changes_nothing,
    proc_mem_of_a_served_region_shows_no_earlier_owners_bytes,
    build_on_nonsense_terms_is_refused,
];

/// Too long for a handler that is alone: cleared at allocation in place, by threads otherwise.
fn region_of_a_gigantic_page_is_cleared_by_threads_or_before(backing: Backing) {
    let pool = builder(backing, 1).scrub_threads(0).build().unwrap();
    let ask = |fault_mode| {
        pool.region_builder(1).clearing(Clearing::OnFault).fault_mode(fault_mode).build().unwrap()
    };
    pool.region(1).unwrap()[0] = 7;
    let mut in_place = ask(FaultMode::InPlace);
    assert!(in_place.serving().is_none());
    assert!(is_zero(&in_place));
    in_place[0] = 7;
    drop(in_place);
    permitted::need(FaultMode::Threaded { threads: 1 });
    let threaded = ask(FaultMode::Threaded { threads: 1 });
    assert!(threaded.serving().is_some());
    assert!(is_zero(&threaded));
    assert_eq!(pool.stats().unwrap().scrubbed_at_fault, backing.page_size() as u64);
}

fn main() {
    let mut trials = trials(CHECKS);
    let gigantic: &[Check] =
        hugekit_testing::checks![region_of_a_gigantic_page_is_cleared_by_threads_or_before,];
    trials.extend(trials_on_gigantic(gigantic));
    libtest_mimic::run(&Arguments::from_args(), permitted::or_skipped(trials)).exit();
}
