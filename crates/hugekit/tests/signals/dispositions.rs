//! What the program said about SIGBUS before us holds for each that is not ours.

use std::sync::atomic::Ordering;

use crate::fixture::{
    ADDRESS, CALLS, CODE, Case, access_nothing, counts, counts_plainly, in_place, install,
    install_counting, pool, send, still_serves,
};

fn a_handler_with_information_is_called_once_for_each() {
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

fn a_plain_handler_is_called_once_for_each() {
    install(counts_plainly as *const () as usize, 0);
    let pool = pool();
    let mut region = in_place(&pool);
    for calls in 1..5 {
        send();
        assert_eq!(CALLS.load(Ordering::SeqCst), calls);
        still_serves(&mut region);
    }
}

fn a_handler_for_once_is_called_once_and_then_the_default_kills() {
    install(counts as *const () as usize, libc::SA_SIGINFO | libc::SA_RESETHAND);
    let _region = in_place(&pool());
    send();
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);
    send();
}

fn what_is_ignored_stays_so() {
    install(libc::SIG_IGN, 0);
    let pool = pool();
    let mut region = in_place(&pool);
    send();
    still_serves(&mut region);
    access_nothing(); // No program can ignore that.
}

fn the_default_kills_who_is_sent_it() {
    install(libc::SIG_DFL, 0);
    let mut region = in_place(&pool());
    still_serves(&mut region);
    send();
}

fn the_default_kills_who_accesses_nothing() {
    install(libc::SIG_DFL, 0);
    let mut region = in_place(&pool());
    still_serves(&mut region);
    access_nothing();
}

fn rusts_own_handler_lets_it_die() {
    let mut region = in_place(&pool());
    still_serves(&mut region);
    access_nothing();
}

pub(crate) const CASES: &[Case] = &[
    (
        "a_handler_with_information_is_called_once_for_each",
        a_handler_with_information_is_called_once_for_each,
        None,
    ),
    ("a_plain_handler_is_called_once_for_each", a_plain_handler_is_called_once_for_each, None),
    (
        "a_handler_for_once_is_called_once_and_then_the_default_kills",
        a_handler_for_once_is_called_once_and_then_the_default_kills,
        Some(libc::SIGBUS),
    ),
    ("what_is_ignored_stays_so", what_is_ignored_stays_so, Some(libc::SIGBUS)),
    ("the_default_kills_who_is_sent_it", the_default_kills_who_is_sent_it, Some(libc::SIGBUS)),
    (
        "the_default_kills_who_accesses_nothing",
        the_default_kills_who_accesses_nothing,
        Some(libc::SIGBUS),
    ),
    ("rusts_own_handler_lets_it_die", rusts_own_handler_lets_it_die, Some(libc::SIGBUS)),
];
