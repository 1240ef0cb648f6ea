//! What its owner does to memory while there is a snapshot of it: that is known, or an error.

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::{HUGE_PAGE_BYTES as HUGE, SnapshotError};

use crate::fixture::{Check, PAGE, copied, of_all, words};
use crate::memory::Memory;

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
    // SAFETY: the test's own memory, which no thread uses afterwards.
    unsafe { libc::munmap(at, len) }
}

unsafe fn discard(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: the test's own memory; no reference to its bytes exists.
    unsafe { libc::madvise(at, len, libc::MADV_DONTNEED) }
}

unsafe fn move_away(at: *mut libc::c_void, len: usize) -> libc::c_int {
    let (flags, anywhere) =
        (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, ptr::null_mut::<libc::c_void>());
    // SAFETY: the test's own memory, of which no thread uses these pages afterwards.
    unsafe { libc::munmap(libc::mremap(at, len, len, flags, anywhere), len) }
}

unsafe fn replace(at: *mut libc::c_void, len: usize) -> libc::c_int {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the test's own memory is replaced by fresh memory of the same length; no reference to its bytes exists.
    i32::from(unsafe { libc::mmap(at, len, prot, flags, -1, 0) } != at)
}

unsafe fn forbid(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: the test's own memory, of which no thread uses these pages afterwards.
    unsafe { libc::mprotect(at, len, libc::PROT_NONE) }
}

unsafe fn protect(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: the test's own memory, of which no thread writes these pages afterwards.
    unsafe { libc::mprotect(at, len, libc::PROT_READ) }
}

unsafe fn keep_from_children(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: changes no byte.
    unsafe { libc::madvise(at, len, libc::MADV_DONTFORK) }
}

unsafe fn page_out(at: *mut libc::c_void, len: usize) -> libc::c_int {
    // SAFETY: changes no byte.
    unsafe { libc::madvise(at, len, libc::MADV_PAGEOUT) }
}

/// What its owner does to memory, and whether the snapshot of it can still be had.
fn snapshot_after_what_owners_do_is_whole_or_an_error(fault_mode: FaultMode) {
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
    // SAFETY: the test's own memory is replaced by a mapping of the same length, of which no thread uses a page
    // afterwards.
    i32::from(unsafe { libc::mmap(at, len, prot, flags, file.as_raw_fd(), 0) } != at)
}

/// What its owner does while the memory is copied: by loads that stream, which end where there is nothing to load.
fn copy_beside_what_owners_do_is_whole_or_an_error(fault_mode: FaultMode) {
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
                snapshot.reader().progress(&tell).copy_to(&mut copy).map(|_| copy)
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

/// What was written before it was discarded is known all the same.
fn snapshot_of_discarded_memory_holds_what_was_retained(fault_mode: FaultMode) {
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
fn snapshot_beside_a_later_one_notices_a_discard(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    let older = of_all(fault_mode, &memory);
    // SAFETY: the test's own memory, which no other thread uses.
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

/// Pages that the kernel merges meanwhile are noticed, or were not merged.
fn snapshot_of_merged_pages_is_whole_or_an_error(fault_mode: FaultMode) {
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

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    snapshot_after_what_owners_do_is_whole_or_an_error,
    "[nightly: threads must meet] " copy_beside_what_owners_do_is_whole_or_an_error,
    snapshot_of_discarded_memory_holds_what_was_retained,
    snapshot_beside_a_later_one_notices_a_discard,
    snapshot_of_merged_pages_is_whole_or_an_error,
];
