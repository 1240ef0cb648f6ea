//! Our handler is replaced, taken back or blocked.

use std::ptr;
use std::sync::atomic::Ordering;

use hugekit::PoolError;
use hugekit::fault::FaultMode;
use hugekit::pool::{Clearing, FaultError};

use crate::fixture::{
    CALLS, Case, access_nothing, in_place, install, install_counting, is_zero, page_size, pool,
    still_serves,
};
use crate::permitted;
use crate::served::at_fault;

fn build_after_our_handler_was_replaced_is_refused() {
    let pool = pool();
    let mut region = in_place(&pool);
    still_serves(&mut region);
    drop(region);
    install_counting();
    let build = || {
        pool.region_builder(page_size())
            .clearing(Clearing::OnFault)
            .fault_mode(FaultMode::InPlace)
            .build()
    };
    let error = build().unwrap_err();
    assert!(matches!(error, PoolError::Fault(FaultError::HandlerReplaced)), "{error}");
    assert!(error.remedy().is_some());
    let stats = pool.stats().unwrap();
    assert_eq!((stats.in_use, CALLS.load(Ordering::SeqCst)), (0, 0));
    // Threaded, and at allocation, all is as it was.
    if permitted::lacking_for_threads().is_none() {
        drop(at_fault(&pool, page_size(), FaultMode::Threaded { threads: 1 }));
    }
    assert!(is_zero(&pool.region(page_size()).unwrap()));
    // The other handler has gone, and no handler can call us in a circle.
    install(libc::SIG_DFL, 0);
    let mut region = build().unwrap();
    still_serves(&mut region);
}

fn take_back_after_a_replacement_serves_and_passes_on_to_the_first() {
    // Not installed yet: there is nothing to take back.
    hugekit::fault::take_back_signals().unwrap();
    let pool = pool();
    let mut region = in_place(&pool);
    still_serves(&mut region);
    install_counting();
    hugekit::fault::take_back_signals().unwrap();
    hugekit::fault::take_back_signals().unwrap();
    still_serves(&mut region);
    drop(region);
    let mut another = in_place(&pool);
    still_serves(&mut another);
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    access_nothing();
}

fn build_in_a_thread_that_blocks_sigbus_is_refused() {
    let pool = pool();
    // SAFETY: sets are initialised before they are read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
    let build =
        pool.region_builder(1).clearing(Clearing::OnFault).fault_mode(FaultMode::InPlace).build();
    assert!(matches!(build, Err(PoolError::Fault(FaultError::Blocked))));
    if permitted::lacking_for_threads().is_none() {
        let threaded = at_fault(&pool, 1, FaultMode::Threaded { threads: 1 });
        assert_eq!(threaded[0], 0);
    }
}

/// Blocked where it is needed, the kernel ends the process: documented, and seen to.
fn fault_with_sigbus_blocked_kills() {
    let region = in_place(&pool());
    // SAFETY: the signal set is initialised by `sigfillset`; another mask of signals changes no memory.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
    assert_eq!(std::hint::black_box(&region)[0], 0);
}

pub(crate) const CASES: &[Case] = &[
    (
        "take_back_after_a_replacement_serves_and_passes_on_to_the_first",
        take_back_after_a_replacement_serves_and_passes_on_to_the_first,
        Some(libc::SIGBUS),
    ),
    (
        "build_after_our_handler_was_replaced_is_refused",
        build_after_our_handler_was_replaced_is_refused,
        None,
    ),
    (
        "build_in_a_thread_that_blocks_sigbus_is_refused",
        build_in_a_thread_that_blocks_sigbus_is_refused,
        None,
    ),
    ("fault_with_sigbus_blocked_kills", fault_with_sigbus_blocked_kills, Some(libc::SIGBUS)),
];
