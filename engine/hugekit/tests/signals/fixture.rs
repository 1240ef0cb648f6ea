//! What the cases have in common: regions that are served in place, handlers that count, and signals.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{Pool, Region};

use crate::served::{at_fault, soiled};

/// A case, and the signal that ends its process if one does.
pub(crate) type Case = (&'static str, fn(), Option<c_int>);

pub(crate) fn signal_stack() -> libc::stack_t {
    // SAFETY: one structure is written; zeroed, it is a valid one.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(ptr::null(), &raw mut stack);
        stack
    }
}

pub(crate) use rustix::param::page_size;

pub(crate) const FOLIOS: usize = 128;

pub(crate) fn width() -> usize {
    FOLIOS * page_size()
}

pub(crate) fn pool() -> Pool {
    soiled(Backing::Base, FOLIOS)
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

pub(crate) fn in_place(pool: &Pool) -> Region {
    at_fault(pool, pool.capacity(), FaultMode::InPlace)
}

/// Touches something that was not touched before.
pub(crate) fn still_serves(region: &mut Region) {
    region.release(0..region.len()).unwrap();
    assert!(is_zero(region));
    region.fill(3);
}

pub(crate) static CALLS: AtomicUsize = AtomicUsize::new(0);
pub(crate) static CODE: AtomicI32 = AtomicI32::new(0);
pub(crate) static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// A handler of the program's own: counts, and puts a page where there was none.
pub(crate) extern "C" fn counts(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: what the kernel gave us.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr()) };
    CODE.store(code, Ordering::SeqCst);
    if code == libc::BUS_ADRERR {
        ADDRESS.store(address, Ordering::SeqCst);
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        );
        let page = address.map_addr(|address| address & !(page_size() - 1));
        // SAFETY: replaces the test's own page beyond the end of a file.
        unsafe { libc::mmap(page, page_size(), prot, flags, -1, 0) };
    }
}

pub(crate) extern "C" fn counts_plainly(_: c_int) {
    CALLS.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn install(handler: usize, flags: c_int) {
    // SAFETY: the handlers above are async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()), 0);
    }
}

pub(crate) fn install_counting() {
    install(counts as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
}

pub(crate) fn send() {
    // SAFETY: what the signal does is the subject of the test.
    unsafe { libc::raise(libc::SIGBUS) };
}

/// An access beyond the end of a file: a SIGBUS of the kernel's that is not ours.
pub(crate) fn access_nothing() -> *mut c_void {
    // SAFETY: a new mapping of an empty file, accessed to be told that nothing is there.
    unsafe {
        let file = libc::memfd_create(c"empty".as_ptr(), 0);
        let at =
            libc::mmap(ptr::null_mut(), page_size(), libc::PROT_READ, libc::MAP_SHARED, file, 0);
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.byte_add(123);
        at.cast::<u8>().read_volatile();
        at
    }
}
