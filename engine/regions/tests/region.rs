//! Regions on every backing: slices, shared access, what is behind them, and what is given back.
#![allow(unsafe_code)]

use hugekit::PopulateOptions;
use hugekit_testing::backings;

use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use backings::{Check, FOLIOS, is_zero, trials, trials_on_gigantic, unscrubbed};
use hugekit::pool::Backing;
use hugekit::{Pool, Region, RegionError, SharedRegion, Threads};
use libtest_mimic::Arguments;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Faults of the calling thread that needed no disk.
fn faults() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: one structure is written, and a zeroed one is valid.
    unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()), 0);
        usage.assume_init().ru_minflt
    }
}

/// Writes the first byte of every folio; how many faults that took.
fn faults_to_touch(bytes: &mut [u8], page: usize) -> i64 {
    let before = faults();
    for byte in bytes.iter_mut().step_by(page) {
        *byte = 1;
    }
    faults() - before
}

/// A kernel that moves pages between nodes unmaps some now and then, to see who touches them.
fn assert_no_fault_to_touch(bytes: &mut [u8], page: usize) {
    let faults = faults_to_touch(bytes, page);
    let balances = std::fs::read_to_string("/proc/sys/kernel/numa_balancing");
    assert!(faults == 0 || balances.is_ok_and(|said| said.trim() != "0"), "{faults} faults");
}

fn populate_of_a_region_leaves_no_fault(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let mut region = pool.region(FOLIOS * page).unwrap();
    assert!(faults_to_touch(&mut region[..page], page) > 0);
    // From the last byte of one folio to the first one of another: both, and those between.
    let report = region.populate(2 * page - 1..6 * page + 1).unwrap();
    assert_eq!(report.bytes, 6 * page);
    assert_no_fault_to_touch(&mut region[page..7 * page], page);
}

fn populate_by_threads_is_shared_and_watched(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let mut region = pool.region(FOLIOS * page).unwrap();
    let told = Mutex::new(0);
    let progress = |done, _| *told.lock().unwrap() = done;
    region
        .populate_with(
            0..FOLIOS * page,
            &PopulateOptions::new().threads(Threads::Exactly(2)).progress(&progress),
        )
        .unwrap();
    assert_eq!(told.into_inner().unwrap(), FOLIOS * page);
    assert_no_fault_to_touch(&mut region, page);
    assert_eq!(region.populate(0..0).unwrap().bytes, 0);
    assert!(matches!(
        region.populate_with(0..page, &PopulateOptions::new().threads(Threads::Exactly(0))),
        Err(RegionError::Populate(_))
    ));
}

fn release_of_folios_reads_zero_and_keeps_them(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let mut region = pool.region(4 * page - 10).unwrap();
    region.fill(7);
    region.release(page..2 * page).unwrap();
    assert!(is_zero(&region[page..2 * page]));
    assert!(region[..page].iter().chain(&region[2 * page..]).all(|&byte| byte == 7));
    region.release(3 * page..4 * page - 10).unwrap();
    assert!(is_zero(&region[3 * page..]));
    assert!(region[2 * page..3 * page].iter().all(|&byte| byte == 7));
    assert_no_fault_to_touch(&mut region, page);
    assert_eq!(pool.stats().unwrap().scrubbed_at_release, 2 * page as u64);
    assert_eq!(pool.stats().unwrap().in_use, 4);
    region.release(0..0).unwrap();
}

fn range_outside_a_region_is_refused_and_changes_nothing(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let mut region = pool.region(2 * page).unwrap();
    region.fill(7);
    for range in [0..2 * page + 1, 3 * page..4 * page, page..0, 0..usize::MAX] {
        let outside = Err(RegionError::OutOfRange { range: range.clone(), len: 2 * page });
        assert_eq!(region.release(range.clone()), outside);
        assert_eq!(region.populate(range), outside.map(|()| unreachable!()));
    }
    for range in [0..1, 1..page, page..2 * page - 1, page - 1..2 * page] {
        assert!(matches!(region.release(range), Err(RegionError::NotWholeFolios { .. })));
    }
    assert!(matches!(region.truncate(2 * page + 1), Err(RegionError::OutOfRange { .. })));
    assert_eq!(region.truncate(0), Err(RegionError::NoBytes));
    assert!(region.iter().all(|&byte| byte == 7));
}

fn truncate_of_a_region_gives_the_rest_to_others(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let mut region = pool.region(FOLIOS * page).unwrap();
    region.fill(7);
    region.truncate(2 * page + 1).unwrap();
    assert_eq!((region.len(), region.mapped_len()), (2 * page + 1, 3 * page));
    assert_eq!(pool.stats().unwrap().dirty, FOLIOS - 3);
    assert!(is_zero(&pool.region((FOLIOS - 3) * page).unwrap()));
    region.truncate(2 * page + 1).unwrap();
    assert!(region.iter().all(|&byte| byte == 7));
    drop(region);
    assert_eq!(pool.stats().unwrap().in_use, 0);
}

fn retire_of_a_region_gives_back_holes(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let mut region = pool.region(2 * page).unwrap();
    region.fill(7);
    region.retire().unwrap();
    assert_eq!(pool.stats().unwrap().holes, FOLIOS);
    assert!(is_zero(&pool.region(FOLIOS * page).unwrap()));
}

/// What a pipe still holds of a region that was retired stays what it was, and an owner that gets the
/// folios next is not heard in it.
fn retire_beside_a_pipe_leaves_it_the_bytes(backing: Backing) {
    a_pipe_keeps_the_bytes(backing, |region| region.retire().unwrap());
}

/// The same where the last of several handles goes.
fn retire_when_dropped_beside_a_pipe_leaves_it_the_bytes(backing: Backing) {
    a_pipe_keeps_the_bytes(backing, |region| {
        let region = region.share();
        let device = region.clone();
        region.retire_when_dropped();
        drop(region);
        assert_eq!(device.word_at(0).unwrap().load(Ordering::Relaxed), u64::from_ne_bytes([7; 8]));
        drop(device);
    });
}

fn a_pipe_keeps_the_bytes(backing: Backing, retire: impl FnOnce(Region)) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let mut region = pool.region(page).unwrap();
    region[..4096].fill(7);
    let (mut read, write) = std::io::pipe().unwrap();
    let bytes = libc::iovec { iov_base: region.as_mut_ptr().cast(), iov_len: 4096 };
    // SAFETY: the kernel takes references to pages of the region and writes nothing.
    let gifted = unsafe { libc::vmsplice(write.as_raw_fd(), &raw const bytes, 1, 0) };
    assert_eq!(gifted, 4096);
    retire(region);
    assert_eq!(pool.stats().unwrap().holes, FOLIOS);
    pool.region(FOLIOS * page).unwrap().fill(9);
    let mut kept = [0; 4096];
    read.read_exact(&mut kept).unwrap();
    assert!(kept.iter().all(|&byte| byte == 7));
}

/// The same bytes by another mapping of the file, as a device or a second process has it.
fn file_of_a_region_shows_the_same_bytes(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let before = pool.region(3 * page).unwrap();
    let region = pool.region(2 * page).unwrap().share();
    // SAFETY: only the region's own part of the file is mapped, while it exists.
    let (file, offset) = unsafe { region.file() }.unwrap();
    assert_eq!(offset, 3 * page as u64);
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping; unmapped below, and its addresses are not used afterwards.
    unsafe {
        let other = mmap(std::ptr::null_mut(), 2 * page, prot, MapFlags::SHARED, file, offset);
        let other = other.unwrap().cast::<u8>();
        region.write_at(page + 3, b"here").unwrap();
        assert_eq!(std::slice::from_raw_parts(other.add(page + 3), 4), b"here");
        other.add(9).write_volatile(5);
        let mut byte = [0];
        region.read_at(9, &mut byte).unwrap();
        assert_eq!(byte, [5]);
        region.release(0..2 * page).unwrap();
        assert!(is_zero(std::slice::from_raw_parts(other, 2 * page)));
        munmap(other.cast(), 2 * page).unwrap();
    }
    drop(before);
}

fn read_at_and_write_at_of_any_range_are_those_of_a_slice(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let len = page + 13;
    let region = pool.region(len).unwrap().share();
    let mut model = vec![0; len];
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let around = page - 40..len;
    let write = (around.clone(), 0_usize..60, any::<u8>());
    let model = Mutex::new(&mut model);
    TestRunner::new(config)
        .run(&write, |(offset, count, byte)| {
            let mut model = model.lock().unwrap();
            let bytes: Vec<u8> = (0..count).map(|at| byte.wrapping_add(at as u8)).collect();
            let mut read = vec![0xee; count];
            let fits = offset + count <= len;
            prop_assert_eq!(region.write_at(offset, &bytes).is_ok(), fits);
            prop_assert_eq!(region.read_at(offset, &mut read).is_ok(), fits);
            if fits {
                model[offset..offset + count].copy_from_slice(&bytes);
                prop_assert_eq!(read, bytes);
            }
            let mut all = vec![0; len];
            region.read_at(0, &mut all).unwrap();
            prop_assert!(all == **model);
            Ok(())
        })
        .unwrap();
}

fn words_of_a_shared_region_are_its_bytes(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let region = pool.region(page - 4).unwrap().share();
    assert_eq!(region.words().len(), page / 8);
    region.word_at(16).unwrap().store(u64::from_ne_bytes(*b"atomical"), Ordering::Relaxed);
    let mut bytes = [0; 10];
    region.read_at(15, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0atomical\0");
    assert_eq!(region.word_at(3).unwrap_err(), RegionError::Unaligned { offset: 3, align: 8 });
    for outside in [page - 8, page, usize::MAX] {
        assert!(matches!(region.word_at(outside), Err(RegionError::OutOfRange { .. })));
    }
}

/// Threads write neighbouring bytes of the same words: none of their stores may be lost.
fn write_at_by_neighbours_overwrites_no_other_byte(backing: Backing) {
    let pool = unscrubbed(backing);
    let region = pool.region(1024).unwrap().share();
    let write = |region: SharedRegion, from: usize| {
        for round in 1..=50_u8 {
            for at in (from..1024).step_by(3) {
                region.write_at(at, &[round]).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        for from in 0..3 {
            let region = region.clone();
            scope.spawn(move || write(region, from));
        }
    });
    let mut bytes = [0; 1024];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [50; 1024]);
}

fn drop_of_the_last_handle_gives_the_region_back(backing: Backing) {
    let (pool, page) = (unscrubbed(backing), backing.page_size());
    let region = pool.region(page).unwrap().share();
    let other = region.clone();
    // SAFETY: no other thread uses the address or the file.
    let region = unsafe { region.into_exclusive() }.unwrap_err();
    drop(other);
    assert_eq!(pool.stats().unwrap().in_use, 1);
    // SAFETY: no pointer or reference to its bytes is used afterwards.
    let mut exclusive = unsafe { region.into_exclusive() }.unwrap();
    exclusive.fill(7);
    drop(exclusive);
    assert_eq!(pool.stats().unwrap().dirty, 1);
}

fn region_of_a_dropped_pool_lives_on(backing: Backing) {
    let pool = Pool::builder(1).backing(backing).strict(true).build().unwrap();
    let mut region = pool.region(1).unwrap();
    drop(pool);
    region[0] = 7;
    let pool = region.pool().clone();
    drop(region);
    assert_eq!(pool.region(1).unwrap()[0], 0);
}

const CHECKS: &[Check] = hugekit_testing::checks![
    populate_of_a_region_leaves_no_fault,
    populate_by_threads_is_shared_and_watched,
    release_of_folios_reads_zero_and_keeps_them,
    range_outside_a_region_is_refused_and_changes_nothing,
    truncate_of_a_region_gives_the_rest_to_others,
    retire_of_a_region_gives_back_holes,
    retire_beside_a_pipe_leaves_it_the_bytes,
    retire_when_dropped_beside_a_pipe_leaves_it_the_bytes,
    file_of_a_region_shows_the_same_bytes,
    read_at_and_write_at_of_any_range_are_those_of_a_slice,
    words_of_a_shared_region_are_its_bytes,
    write_at_by_neighbours_overwrites_no_other_byte,
    drop_of_the_last_handle_gives_the_region_back,
    region_of_a_dropped_pool_lives_on,
];

fn region_of_a_gigantic_page_is_one_folio(backing: Backing) {
    let page = backing.page_size();
    let pool = Pool::builder(1).backing(backing).strict(true).build().unwrap();
    let mut region = pool.region(1).unwrap();
    assert_eq!((region.mapped_len(), region.as_ptr().addr() % page), (page, 0));
    region[0] = 7;
    drop(region);
    let mut region = pool.region(page).unwrap();
    assert!(is_zero(&region[..4096]) && is_zero(&region[page - 4096..]));
    assert_eq!(pool.stats().unwrap().dirty, 0);
    region[page - 1] = 7;
    let part = region.release(page / 2..page);
    assert!(matches!(part, Err(RegionError::NotWholeFolios { .. })));
    assert_eq!(region[page - 1], 7);
    region.release(0..page).unwrap();
    assert_eq!(region[page - 1], 0);
}

fn main() {
    let mut trials = trials(CHECKS);
    let gigantic: &[Check] = hugekit_testing::checks![region_of_a_gigantic_page_is_one_folio];
    trials.extend(trials_on_gigantic(gigantic));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
