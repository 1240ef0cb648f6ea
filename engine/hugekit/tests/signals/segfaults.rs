//! SIGSEGV, which a snapshot takes where it reads memory that may have gone, and a fork where rights hold back its
//! parent's writes.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, FaultError};
use hugekit::region::ForkError;
use hugekit::{HUGE_PAGE_BYTES, Pool, Region, Snapshot, SnapshotError};

use crate::fixture::{CALLS, Case, page_size};
use crate::served::soiled;

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
        let page = (*info).si_addr().map_addr(|address| address & !(page_size() - 1));
        libc::mprotect(page, page_size(), libc::PROT_READ);
    }
}

fn read_what_is_forbidden() {
    let (prot, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, accessed to be told that it may not be.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), page_size(), prot, flags, -1, 0);
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

/// On huge pages of shared memory, rights hold the writes of a fork's parent back.
fn forked(pool: &Pool) -> (Region, Region) {
    let mut region = pool.region(2 * HUGE_PAGE_BYTES).unwrap();
    region.fill(1);
    let fork = fork(&region).unwrap();
    (region, fork)
}

fn fork(region: &Region) -> Result<Region, ForkError> {
    region.fork_builder().fault_mode(FaultMode::InPlace).build()
}

/// The first byte of each granule.
fn first_bytes(region: &Region) -> [u8; 2] {
    [region[0], region[HUGE_PAGE_BYTES]]
}

fn set_sigsegv(how: c_int) {
    // SAFETY: one set is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGSEGV);
        libc::pthread_sigmask(how, &raw const set, ptr::null_mut());
    }
}

fn fork_in_a_thread_that_blocks_sigsegv_is_refused_or_needs_none() {
    let pool = soiled(Backing::Thp, 8);
    set_sigsegv(libc::SIG_BLOCK);
    // Its group is founded by this thread: nothing is held back by rights.
    let (mut region, first) = forked(&pool);
    region[0] = 2;
    assert_eq!((first_bytes(&region), first_bytes(&first)), ([2, 1], [1, 1]));
    set_sigsegv(libc::SIG_UNBLOCK);
    drop((region, first));
    let (region, _first) = forked(&pool);
    set_sigsegv(libc::SIG_BLOCK);
    let refused = fork(&region);
    assert!(matches!(refused, Err(ForkError::Fault(FaultError::Blocked))), "{refused:?}");
}

fn fork_after_the_handler_of_sigsegv_was_replaced_is_refused_until_it_is_back() {
    let pool = soiled(Backing::Thp, 8);
    let (mut region, first) = forked(&pool);
    region[0] = 2;
    // SAFETY: the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = counts_and_allows as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()), 0);
    }
    let refused = fork(&region);
    assert!(matches!(refused, Err(ForkError::Fault(FaultError::HandlerReplaced))), "{refused:?}");
    hugekit::fault::take_back_signals().unwrap();
    region[HUGE_PAGE_BYTES] = 3;
    let second = fork(&region).unwrap();
    region[0] = 4;
    assert_eq!(first_bytes(&region), [4, 3]);
    assert_eq!((first_bytes(&first), first_bytes(&second)), ([1, 1], [2, 3]));
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
}

/// Tried again for a while, because another thread's write may have been served meanwhile; not for ever.
fn write_that_the_program_forbids_itself_kills_it() {
    let pool = soiled(Backing::Thp, 8);
    let (mut region, _fork) = forked(&pool);
    region[0] = 2;
    let at = region.as_mut_ptr();
    // SAFETY: the region's own addresses, whose bytes stay.
    assert_eq!(unsafe { libc::mprotect(at.cast(), HUGE_PAGE_BYTES, libc::PROT_READ) }, 0);
    // SAFETY: written to be told that it may not be.
    unsafe { at.write_volatile(3) };
}

/// Why this machine has none of the memory that [`ON_HUGE_PAGES`] is about.
pub(crate) fn lacking() -> Option<String> {
    let pool = Pool::builder(8 * HUGE_PAGE_BYTES).backing(Backing::Thp).strict(true);
    pool.build().err().map(|error| error.to_string())
}

/// Where rights hold writes back: on shared transparent huge pages.
pub(crate) const ON_HUGE_PAGES: &[Case] = &[
    (
        "fork_in_a_thread_that_blocks_sigsegv_is_refused_or_needs_none",
        fork_in_a_thread_that_blocks_sigsegv_is_refused_or_needs_none,
        None,
    ),
    (
        "fork_after_the_handler_of_sigsegv_was_replaced_is_refused_until_it_is_back",
        fork_after_the_handler_of_sigsegv_was_replaced_is_refused_until_it_is_back,
        None,
    ),
    (
        "write_that_the_program_forbids_itself_kills_it",
        write_that_the_program_forbids_itself_kills_it,
        Some(libc::SIGSEGV),
    ),
];

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
