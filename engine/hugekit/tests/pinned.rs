//! Memory that a device holds by its pages, as CUDA holds registered memory and VFIO that of a guest. The device is a
//! ring with registered buffers, for which the kernel pins pages in the same way (`pin_user_pages`).
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Seek, Write};
use std::os::fd::AsFd;
use std::ptr::{slice_from_raw_parts_mut, without_provenance_mut};

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{HUGE_PAGE_BYTES as HUGE, Pool, SharedRegion, Snapshot};
use hugekit_testing::alias::alias_of;
use hugekit_testing::aligned::aligned;
use hugekit_testing::backings::{Check, builder, is_zero, trials_on, unless_lacking, usual};
use hugekit_testing::permitted::lacking_for_threads;
use hugekit_testing::served::{at_fault, soiled};
use hugekit_testing::uring::Ring;
use libtest_mimic::{Arguments, Trial};

const LEN: usize = 4 * HUGE;
const PAGE: usize = 4096;
/// Where the device writes, in the third piece and not at its beginning.
const AT: usize = 2 * HUGE + 5 * PAGE;

const FAULT_MODES: [FaultMode; 2] = [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }];

/// A region full of ones, in a pool with room for this many.
fn filled(backing: Backing, regions: usize) -> (Pool, SharedRegion) {
    let pool = builder(backing, regions * LEN / backing.page_size()).build().unwrap();
    let region = pool.region(LEN).unwrap().share();
    region.write_at(0, &[1; LEN]).unwrap();
    (pool, region)
}

/// Holds the pages of a region from now on, registered in pieces of 2 MiB.
struct Device {
    ring: Ring,
    start: *mut u8,
    pipe: (PipeReader, PipeWriter),
}

impl Device {
    fn of(region: &SharedRegion) -> Self {
        let (ring, start) = (Ring::new().unwrap(), region.as_ptr());
        let piece = |at: usize| slice_from_raw_parts_mut(start.wrapping_add(at), HUGE);
        ring.register(&[0, HUGE, 2 * HUGE, 3 * HUGE].map(piece)).unwrap();
        Self { ring, start, pipe: std::io::pipe().unwrap() }
    }

    /// Writes a page.
    fn store(&mut self, at: usize, value: u8) {
        self.pipe.1.write_all(&[value; PAGE]).unwrap();
        let (pipe, number) = (self.pipe.0.as_fd(), (at / HUGE) as u16);
        let read = self.ring.read_fixed(pipe, number, self.start.wrapping_add(at), PAGE);
        assert_eq!(read, PAGE as i32);
    }

    /// Reads a page.
    fn load(&mut self, at: usize) -> [u8; PAGE] {
        let (pipe, number) = (self.pipe.1.as_fd(), (at / HUGE) as u16);
        let written = self.ring.write_fixed(pipe, number, self.start.wrapping_add(at), PAGE);
        assert_eq!(written, PAGE as i32);
        let mut page = [0; PAGE];
        self.pipe.0.read_exact(&mut page).unwrap();
        page
    }

    /// Reads a file, piece by piece.
    fn load_file(&mut self, file: &File) {
        for piece in 0..LEN / HUGE {
            let start = self.start.wrapping_add(piece * HUGE);
            let read = self.ring.read_fixed(file.as_fd(), piece as u16, start, HUGE);
            assert_eq!(read, HUGE as i32);
        }
    }
}

fn bytes_at(region: &SharedRegion, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read_at(at, &mut bytes).unwrap();
    bytes
}

fn is_all(bytes: &[u8], value: u8) -> bool {
    bytes.iter().all(|&byte| byte == value)
}

fn region_that_is_registered_in_pieces_gets_the_bytes_of_a_file(backing: Backing) {
    let (_pool, region) = filled(backing, 1);
    let mut device = Device::of(&region);
    let bytes: Vec<u8> = (0..LEN).map(|at| (at / 7 + at / PAGE) as u8).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    file.rewind().unwrap();
    device.load_file(&file);
    assert!(bytes_at(&region, 0, LEN) == bytes);
}

/// Each side goes on as if the other were not there: the fork has a copy from the beginning, and the device's page stays
/// the parent's, whichever side writes.
fn fork_of_a_pinned_region_is_not_heard_by_the_device(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let (_pool, region) = filled(backing, 3);
        let _pinned = region.pin(0..LEN).unwrap();
        let mut device = Device::of(&region);
        let mut fork = region.fork_builder().fault_mode(fault_mode).build().unwrap();
        assert_eq!(fork.shared_bytes().unwrap(), 0);
        device.store(AT, 2);
        assert!(is_all(&bytes_at(&region, AT, PAGE), 2));
        assert!(is_all(&fork, 1));
        region.write_at(AT, &[3; PAGE]).unwrap();
        assert!(is_all(&device.load(AT), 3));
        fork[AT..AT + PAGE].fill(4);
        assert!(is_all(&device.load(AT), 3));
        drop(fork);
        device.store(AT, 5);
        assert!(is_all(&bytes_at(&region, AT, PAGE), 5));
    }
}

/// Memory that no thread has touched: in place, the kernel could not touch it either, before it is pinned.
fn region_that_is_cleared_at_the_first_touch_can_be_registered_once_it_is_pinned(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let pool = soiled(backing, LEN / backing.page_size());
        let region = at_fault(&pool, LEN, fault_mode).share();
        let _pinned = region.pin(0..LEN).unwrap();
        let mut device = Device::of(&region);
        assert!(is_zero(&device.load(AT)));
        device.store(AT, 2);
        assert!(is_all(&bytes_at(&region, AT, PAGE), 2));
        assert!(is_zero(&bytes_at(&region, 0, AT)));
    }
}

/// Which is why a region must be pinned before a device gets it.
fn fork_of_a_region_that_is_not_pinned_shows_what_the_device_writes(backing: Backing) {
    let (_pool, region) = filled(backing, 2);
    let mut device = Device::of(&region);
    let fork = region.fork().unwrap();
    device.store(AT, 2);
    assert!(is_all(&fork[AT..AT + PAGE], 2));
}

fn snapshot_of_a_pinned_region_has_nothing_that_the_device_writes_later(backing: Backing) {
    let (_pool, region) = filled(backing, 2);
    let _pinned = region.pin(0..LEN).unwrap();
    let mut device = Device::of(&region);
    device.store(AT, 2);
    let snapshot = Snapshot::of_region(&region).unwrap();
    device.store(AT, 3);
    let mut found = Vec::new();
    snapshot.write_to(&mut found).unwrap();
    let (before, rest) = found.split_at(AT);
    assert!(is_all(before, 1) && is_all(&rest[..PAGE], 2) && is_all(&rest[PAGE..LEN - AT], 1));
    assert!(is_all(&device.load(AT), 3));
}

/// By the region's addresses, and by those with which the pool itself collapses pages when it populates them. Without the
/// device, the kernel would copy base pages to a huge page; it refuses while they are held.
fn collapse_of_a_registered_region_leaves_the_device_its_pages(backing: Backing) {
    let pool = builder(backing, LEN / backing.page_size()).build().unwrap();
    let make = || pool.region(LEN).unwrap();
    let region = aligned(LEN, make, |region| region.as_ptr().addr()).share();
    region.write_at(0, &[1; LEN]).unwrap();
    let mut device = Device::of(&region);
    let start = region.as_ptr();
    for start in [start, without_provenance_mut(alias_of(start.addr(), LEN))] {
        // SAFETY: changes no byte.
        let was_done = unsafe { libc::madvise(start.cast(), LEN, libc::MADV_COLLAPSE) } == 0;
        assert!(backing != Backing::Base || !was_done, "base pages were moved");
        device.store(AT, 2);
        assert!(is_all(&bytes_at(&region, AT, PAGE), 2));
        region.write_at(AT, &[3; PAGE]).unwrap();
        assert!(is_all(&device.load(AT), 3));
    }
}

/// Of memory that is cleared at its first touch, too, from which a release would take the pages away.
fn release_of_a_pinned_region_leaves_the_device_its_pages(backing: Backing) {
    let pool = soiled(backing, LEN / backing.page_size());
    let plain = || pool.region(LEN).unwrap();
    let untouched = |fault_mode| at_fault(&pool, LEN, fault_mode);
    for fault_mode in [None, Some(FAULT_MODES[0]), Some(FAULT_MODES[1])] {
        let region = fault_mode.map_or_else(plain, untouched).share();
        region.write_at(0, &[1; LEN]).unwrap();
        let _pinned = region.pin(0..LEN).unwrap();
        let mut device = Device::of(&region);
        region.release(0..LEN).unwrap();
        assert!(is_zero(&device.load(AT)));
        device.store(AT, 2);
        assert!(is_all(&bytes_at(&region, AT, PAGE), 2));
        device.ring.unregister().unwrap();
    }
}

/// The next owner gets the same pages, as the pool has no others, and the device has none of them any more.
fn region_that_was_unregistered_belongs_to_the_next_owner(backing: Backing) {
    let (pool, region) = filled(backing, 1);
    let mut device = Device::of(&region);
    device.store(AT, 2);
    device.ring.unregister().unwrap();
    drop(region);
    let next = pool.region(LEN).unwrap();
    let refused = device.ring.write_fixed(device.pipe.1.as_fd(), 0, device.start, PAGE);
    assert_eq!(refused, -libc::EFAULT);
    assert!(is_zero(&next));
}

/// Which is why registrations must end before the region does, or the region must be retired.
fn region_that_ends_while_it_is_registered_is_still_the_devices(backing: Backing) {
    for retires in [false, true] {
        let (pool, region) = filled(backing, 1);
        let mut device = Device::of(&region);
        if retires {
            region.retire_when_dropped();
        }
        drop(region);
        let next = pool.region(LEN).unwrap();
        device.store(AT, 2);
        assert_eq!(is_zero(&next), retires);
        assert!(is_all(&device.load(AT), 2));
    }
}

const CHECKS: &[Check] = hugekit_testing::checks![
    region_that_is_registered_in_pieces_gets_the_bytes_of_a_file,
    region_that_is_cleared_at_the_first_touch_can_be_registered_once_it_is_pinned,
    fork_of_a_pinned_region_is_not_heard_by_the_device,
    fork_of_a_region_that_is_not_pinned_shows_what_the_device_writes,
    snapshot_of_a_pinned_region_has_nothing_that_the_device_writes_later,
    collapse_of_a_registered_region_leaves_the_device_its_pages,
    release_of_a_pinned_region_leaves_the_device_its_pages,
    region_that_was_unregistered_belongs_to_the_next_owner,
    region_that_ends_while_it_is_registered_is_still_the_devices,
];

/// Rings at the same time: some more than tests, because the kernel ends a ring after its descriptor is closed.
const RINGS: usize = 8;
const THREADS: usize = 4;

/// Why this process can register no buffers of a region's length on several rings. The kernel counts those of a user.
fn lacking() -> Option<String> {
    let mut bytes = vec![0; LEN];
    let buffer = &raw mut *bytes;
    let register = |_| Ring::new().and_then(|ring| ring.register(&[buffer]).map(|()| ring));
    let rings: Result<Vec<Ring>, _> = (0..RINGS).map(register).collect();
    let remedy = "remedy: run it as root, or with ulimit -l unlimited";
    rings.err().map(|error| format!("io_uring registers no buffers: {error} ({remedy})"))
}

fn main() {
    let lacking = lacking_for_threads().or_else(lacking);
    let mut trials: Vec<Trial> = Vec::new();
    for backing in usual() {
        let on_backing = trials_on(backing, 3 * LEN / backing.page_size(), CHECKS);
        trials
            .extend(on_backing.into_iter().map(|trial| unless_lacking(trial, lacking.as_deref())));
    }
    let arguments = Arguments::from_args();
    let threads = arguments.test_threads.unwrap_or(THREADS).min(THREADS);
    libtest_mimic::run(&Arguments { test_threads: Some(threads), ..arguments }, trials).exit();
}
