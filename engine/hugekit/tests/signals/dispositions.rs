//! What the program said about SIGBUS before us holds for each that is not ours.

use std::sync::atomic::Ordering;

use crate::fixture::{
    ADDRESS, CALLS, CODE, Case, access_nothing, counts, counts_plainly, in_place, install,
    install_counting, pool, send, still_serves,
};

fn sigbus_to_a_handler_with_information_calls_it_once_each() {
    install_counting();
    let pool = pool();
    let mut region = in_place(&pool);
    still_serves(&mut region);
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    send();
    assert_eq!((CALLS.load(Ordering::SeqCst), CODE.load(Ordering::SeqCst)), (1, libc::SI_TKILL));
    let at = access_nothing();
    assert_eq!((CALLS.load(Ordering::SeqCst), ADDRESS.load(Ordering::SeqCst)), (2, at));
    still_serves(&mut region);
    // Also when no region is left.
    drop(region);
    send();
    assert_eq!(CALLS.load(Ordering::SeqCst), 3);
}

fn sigbus_to_a_plain_handler_calls_it_once_each() {
    install(counts_plainly as *const () as usize, 0);
    let pool = pool();
    let mut region = in_place(&pool);
    for calls in 1..5 {
        send();
        assert_eq!(CALLS.load(Ordering::SeqCst), calls);
        still_serves(&mut region);
    }
}

fn sigbus_to_a_handler_for_once_calls_it_once_and_then_kills() {
    install(counts as *const () as usize, libc::SA_SIGINFO | libc::SA_RESETHAND);
    let _region = in_place(&pool());
    send();
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);
    send();
}

fn sigbus_that_is_ignored_stays_so() {
    install(libc::SIG_IGN, 0);
    let pool = pool();
    let mut region = in_place(&pool);
    send();
    still_serves(&mut region);
    access_nothing(); // No program can ignore that.
}

fn sigbus_sent_under_the_default_kills() {
    install(libc::SIG_DFL, 0);
    let mut region = in_place(&pool());
    still_serves(&mut region);
    send();
}

fn sigbus_of_an_access_under_the_default_kills() {
    install(libc::SIG_DFL, 0);
    let mut region = in_place(&pool());
    still_serves(&mut region);
    access_nothing();
}

fn sigbus_to_rusts_own_handler_kills() {
    let mut region = in_place(&pool());
    still_serves(&mut region);
    access_nothing();
}

pub(crate) const CASES: &[Case] = &[
    (
        "sigbus_to_a_handler_with_information_calls_it_once_each",
        sigbus_to_a_handler_with_information_calls_it_once_each,
        None,
    ),
    (
        "sigbus_to_a_plain_handler_calls_it_once_each",
        sigbus_to_a_plain_handler_calls_it_once_each,
        None,
    ),
    (
        "sigbus_to_a_handler_for_once_calls_it_once_and_then_kills",
        sigbus_to_a_handler_for_once_calls_it_once_and_then_kills,
        Some(libc::SIGBUS),
    ),
    ("sigbus_that_is_ignored_stays_so", sigbus_that_is_ignored_stays_so, Some(libc::SIGBUS)),
    (
        "sigbus_sent_under_the_default_kills",
        sigbus_sent_under_the_default_kills,
        Some(libc::SIGBUS),
    ),
    (
        "sigbus_of_an_access_under_the_default_kills",
        sigbus_of_an_access_under_the_default_kills,
        Some(libc::SIGBUS),
    ),
    ("sigbus_to_rusts_own_handler_kills", sigbus_to_rusts_own_handler_kills, Some(libc::SIGBUS)),
];
