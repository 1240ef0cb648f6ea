//! SIGSEGV, which a snapshot takes where it reads memory that may have gone.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use hugekit::fault::FaultMode;
use hugekit::{Snapshot, SnapshotError};

use crate::fixture::{CALLS, Case, PAGE};

/// Memory of the test, and a snapshot of it that is handled in place.
fn snapshot() -> (*mut u8, Snapshot) {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, all of which is written.
    let memory = unsafe {
        let at = libc::mmap(ptr::null_mut(), SNAPSHOTTED, prot, flags, -1, 0).cast::<u8>();
        at.write_bytes(7, SNAPSHOTTED);
        at
    };
    let range = ptr::slice_from_raw_parts(memory, SNAPSHOTTED);
    // SAFETY: no thread blocks SIGBUS, and the memory stays, or what goes is the subject of the test.
    let snapshot =
        unsafe { Snapshot::builder().fault_mode(FaultMode::InPlace).of_anonymous(range) };
    (memory, snapshot.unwrap())
}

const SNAPSHOTTED: usize = 4 << 20;

/// Takes away what the snapshot has not read, and reads it.
fn is_lost(memory: *mut u8, snapshot: &Snapshot) -> bool {
    // SAFETY: the test's own mapping, which only the snapshot reads.
    assert_eq!(unsafe { libc::munmap(memory.cast(), SNAPSHOTTED) }, 0);
    let lost = snapshot.read_at(0, &mut vec![0; SNAPSHOTTED]);
    matches!(lost, Err(SnapshotError::Changed { .. }))
}

/// As [`counts`], of SIGSEGV: lets the access be carried out.
extern "C" fn counts_and_allows(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: what the kernel gave us; the page is the test's own.
    unsafe {
        let page = (*info).si_addr().map_addr(|address| address & !(PAGE - 1));
        libc::mprotect(page, PAGE, libc::PROT_READ);
    }
}

fn read_what_is_forbidden() {
    let (prot, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, accessed to be told that it may not be.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), PAGE, prot, flags, -1, 0);
        assert_eq!(at.cast::<u8>().read_volatile(), 0);
    }
}

fn segfault_of_the_programs_own_goes_to_its_handler() {
    // SAFETY: the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = counts_and_allows as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()), 0);
    }
    let (memory, snapshot) = snapshot();
    assert!(is_lost(memory, &snapshot));
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    for calls in 1..3 {
        read_what_is_forbidden();
        assert_eq!(CALLS.load(Ordering::SeqCst), calls);
    }
}

fn segfault_of_the_programs_own_kills_it() {
    let (memory, snapshot) = snapshot();
    assert!(is_lost(memory, &snapshot));
    read_what_is_forbidden();
}

/// Nothing is loaded then that may not be there.
fn snapshot_read_without_sigsegv_is_answered_all_the_same() {
    let (memory, blocked) = snapshot();
    // SAFETY: one set is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGSEGV);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        assert!(is_lost(memory, &blocked));
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
    }
    let (memory, replaced) = snapshot();
    // SAFETY: no handler is needed.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    assert!(is_lost(memory, &replaced));
}

pub(crate) const CASES: &[Case] = &[
    (
        "segfault_of_the_programs_own_goes_to_its_handler",
        segfault_of_the_programs_own_goes_to_its_handler,
        None,
    ),
    (
        "segfault_of_the_programs_own_kills_it",
        segfault_of_the_programs_own_kills_it,
        Some(libc::SIGSEGV),
    ),
    (
        "snapshot_read_without_sigsegv_is_answered_all_the_same",
        snapshot_read_without_sigsegv_is_answered_all_the_same,
        None,
    ),
];
