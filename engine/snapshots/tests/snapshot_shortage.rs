//! Snapshots in a process that has no mapping left, or few (`vm.max_map_count`): each operation works, or says that
//! memory is short. In children of their own.
#![allow(unsafe_code)]

use hugekit_testing::child;
use hugekit_testing::memory;
use hugekit_testing::permitted::usable;

use std::ptr;
use std::sync::atomic::Ordering;

use child::in_a_child;
use hugekit::fault::FaultMode;
use hugekit::snapshot::View;
use hugekit::snapshot::{Granule, Reserve};
use hugekit::{ErrorKind, HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};
use memory::Memory;

const PAGE: usize = 4096;

/// Maps pages until the kernel refuses, none like its neighbours so that each is a mapping, and unmaps some again.
struct Full {
    pages: *mut libc::c_void,
    len: usize,
}

impl Full {
    fn but(left: usize) -> Self {
        let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        let len = (limit.trim().parse::<usize>().unwrap() + 1) * 2 * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: pages of the test's own, which are never accessed.
        unsafe {
            let pages = libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let page = |index: usize| pages.cast::<u8>().add(index * PAGE).cast::<libc::c_void>();
            let readable = (0..len / PAGE).step_by(2);
            let split = |&index: &usize| libc::mprotect(page(index), PAGE, libc::PROT_READ) == 0;
            let count = readable.take_while(split).count();
            // Each that is like its neighbours again is two mappings less.
            for index in (0..left).map(|index| 2 * (count - 2 - 2 * index)) {
                assert_eq!(libc::mprotect(page(index), PAGE, libc::PROT_NONE), 0);
            }
            Self { pages, len }
        }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped.
        unsafe { libc::munmap(self.pages, self.len) };
    }
}

fn builder(fault_mode: FaultMode) -> hugekit::snapshot::Builder {
    Snapshot::builder()
        .fault_mode(fault_mode)
        .granule(Granule::Small)
        .max_cow_bytes(usize::MAX >> 6)
}

/// What worked, or that memory is short.
fn short<T>(result: Result<T, SnapshotError>) -> Option<T> {
    let is_short = |error: &SnapshotError| error.kind() == ErrorKind::NoMemory;
    result.inspect_err(|error| assert!(is_short(error), "{error:?}")).ok()
}

fn everything_works_or_says_what_is_short(fault_mode: FaultMode, left: usize, background: bool) {
    let memory = Memory::filled(4 * HUGE, false, 7);
    // As long as any of them, so that the test itself needs no memory later.
    let mut copy = vec![0; memory.len()];
    let range = ptr::slice_from_raw_parts(memory.start().wrapping_add(HUGE + 8), 2 * HUGE + 1000);
    // Not all: below it may lie a thread's stack, in the same mapping.
    let whole = ptr::slice_from_raw_parts(memory.start().wrapping_add(HUGE), 3 * HUGE);
    // SAFETY: no thread blocks SIGBUS, and no system call writes there.
    let make = || unsafe { builder(fault_mode).in_background(background).of_anonymous(range) };
    // SAFETY: no thread blocks SIGBUS, and no system call writes there.
    let several = || unsafe { builder(fault_mode).take_many(&[range, whole]) };
    let before = make().unwrap();
    let full = Full::but(left);
    let made = short(make());
    let others = short(several());
    memory.words().iter().step_by(PAGE / 8).for_each(|word| word.store(8, Ordering::Relaxed));
    short(View::of(&before).and_then(|view| view.bytes(0..100).map(drop)));
    short(before.read_at(HUGE, &mut copy[..100]));
    short(before.prepare_write(0..HUGE));
    for snapshot in made.into_iter().chain(others.into_iter().flatten().take(1)).chain([before]) {
        let copy = &mut copy[..snapshot.len()];
        if short(snapshot.copy_to(copy)).is_some() {
            assert!(copy.chunks_exact(8).all(|word| word == 7_u64.to_ne_bytes()));
        }
    }
    short(make().and_then(|snapshot| snapshot.write_to(std::io::sink())));
    short(Reserve::new(1));
    drop(full);
    make().unwrap().copy_to(&mut copy[..range.len()]).unwrap();
    assert!(copy[..range.len()].chunks_exact(8).all(|word| word[0] == 7 || word[0] == 8));
}

fn no_mappings(fault_mode: FaultMode) {
    for left in 0..9 {
        for background in [false, true] {
            let code = in_a_child(|| {
                everything_works_or_says_what_is_short(fault_mode, left, background);
                0
            });
            assert_eq!(code, 0, "{fault_mode:?}, {left} left");
        }
    }
}

#[test]
#[ignore = "nightly: it makes the most mappings that the kernel permits"]
fn snapshot_without_mappings_in_place_works_or_says_what_is_short() {
    usable(&[FaultMode::InPlace]).into_iter().for_each(no_mappings);
}

#[test]
#[ignore = "nightly: it makes the most mappings that the kernel permits"]
fn snapshot_without_mappings_threaded_works_or_says_what_is_short() {
    usable(&[FaultMode::Threaded { threads: 1 }]).into_iter().for_each(no_mappings);
}
