//! Operations that learn which routine is fastest: whatever does the work, the bytes are right, and programs see what was
//! learned and switch it off.
//!
//! One process learns, so the tests that change what it does take turns.
#![allow(unsafe_code)]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use hugekit::{ClearOptions, CopyOptions, HUGE_PAGE_BYTES, Reuse, Threads};
use hugekit_bulk::learning::{self, ChosenBy, Learned};
use hugekit_bulk::profile::CacheState;
use hugekit_testing::trials::skipped;

/// So much settles a class of slices.
const LONG: usize = 32 * HUGE_PAGE_BYTES;

fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    learning::set_enabled(true);
    learning::forget();
    turn
}

fn source(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect()
}

fn learned(operation: &str, state: CacheState, from: usize) -> Option<Learned> {
    let all = learning::learned();
    all.into_iter()
        .find(|class| (class.operation, class.state, class.from) == (operation, state, from))
}

/// Machines whose architecture has libc's routines only have nothing to learn.
fn can_learn() -> bool {
    learning::is_enabled()
}

#[test]
fn copies_of_every_length_and_alignment_are_right_while_they_learn() {
    let _turn = in_turn();
    let len = 5 * HUGE_PAGE_BYTES + 12_345;
    let from = source(len + 64);
    let mut to = vec![0xee_u8; len + 64];
    let lens = [16 << 10, (1 << 20) - 1, HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES + 1, len];
    for reuse in [Reuse::Unknown, Reuse::None, Reuse::Target, Reuse::All] {
        for (turn, &len) in (0..60).flat_map(|turn| lens.iter().map(move |len| (turn, len))) {
            let (skew, other) = (turn * 7 % 64, turn * 13 % 64);
            to[..len + 64].fill(0xee);
            let how = CopyOptions::new().reuse(reuse);
            how.run(&mut to[skew..skew + len], &from[other..other + len]).unwrap();
            assert!(to[skew..skew + len] == from[other..other + len], "{reuse:?} {len} {turn}");
            let around = to[..skew].iter().chain(&to[skew + len..len + 64]);
            assert!(around.copied().all(|byte| byte == 0xee), "{reuse:?} {len} {turn}");
        }
    }
}

#[test]
fn clears_by_several_threads_at_once_are_right_while_they_learn() {
    let _turn = in_turn();
    thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                let mut bytes = vec![0_u8; LONG / 2];
                for turn in 0..12 {
                    bytes.fill(number + 1);
                    let threads = if turn % 2 == 0 { Threads::One } else { Threads::Exactly(2) };
                    let how = ClearOptions::new().reuse(Reuse::None).threads(threads);
                    how.run(&mut bytes[1..]).unwrap();
                    assert!(bytes[1..].iter().all(|&byte| byte == 0));
                    assert_eq!(bytes[0], number + 1);
                }
            });
        }
    });
}

#[test]
fn long_operation_settles_its_class_and_the_report_says_so() {
    let _turn = in_turn();
    if !can_learn() {
        return skipped("this CPU offers one routine, or no clock");
    }
    let (mut to, from) = (vec![0_u8; LONG], source(LONG));
    let how = CopyOptions::new().reuse(Reuse::None);
    assert_eq!(how.chosen_for(LONG).by, ChosenBy::Profile);
    let used = how.run(&mut to, &from).unwrap().used.unwrap();
    let class = learned("copy", CacheState::Cold, HUGE_PAGE_BYTES).unwrap();
    assert!(class.is_settled && class.trials > 2, "{class:?}");
    assert_eq!((used.routine, used.by), (class.routine, ChosenBy::Learned));
    // Short cold copies go by it, before they are settled.
    assert_eq!(how.chosen_for(64 << 10), used);
    assert_eq!(learned("copy", CacheState::Warm, 32 << 20), None, "warm ones are another class");
    assert_eq!(learned("clear", CacheState::Cold, HUGE_PAGE_BYTES), None, "and so are clears");
}

#[test]
fn huge_pages_one_by_one_settle_their_class_too() {
    let _turn = in_turn();
    if !can_learn() {
        return skipped("this CPU offers one routine, or no clock");
    }
    let mut folio = vec![1_u8; HUGE_PAGE_BYTES];
    for _ in 0..40 {
        ClearOptions::new().reuse(Reuse::None).run(&mut folio).unwrap();
    }
    assert!(learned("clear", CacheState::Cold, HUGE_PAGE_BYTES).unwrap().is_settled);
}

#[test]
fn operations_with_learning_off_go_by_the_built_in_profile() {
    let _turn = in_turn();
    learning::set_enabled(false);
    let mut bytes = vec![1_u8; LONG];
    let how = ClearOptions::new().reuse(Reuse::None);
    let used = how.run(&mut bytes).unwrap().used.unwrap();
    let built_in = hugekit::Profile::builtin_here().clear.cold.routine_for(LONG).name();
    assert_eq!((used.routine, used.by), (built_in, ChosenBy::Profile));
    assert_eq!(learning::learned(), []);
    assert!(!learning::is_enabled());
}

#[test]
fn operations_told_a_routine_or_a_profile_teach_nothing() {
    let _turn = in_turn();
    let mut bytes = vec![1_u8; LONG];
    let memset = &hugekit_bulk::arch::clear_routines()[0];
    let asked = ClearOptions::new().reuse(Reuse::None).routine(memset).run(&mut bytes).unwrap();
    assert_eq!(asked.used.map(|used| (used.routine, used.by)), Some(("memset", ChosenBy::Caller)));
    let profile = hugekit::Profile::builtin_here();
    let given = ClearOptions::new().reuse(Reuse::None).profile(&profile).run(&mut bytes).unwrap();
    assert_eq!(given.used.unwrap().by, ChosenBy::Profile);
    assert_eq!(learning::learned(), []);
}

#[test]
fn forget_begins_anew() {
    let _turn = in_turn();
    let mut bytes = vec![1_u8; LONG];
    ClearOptions::new().reuse(Reuse::None).run(&mut bytes).unwrap();
    assert_eq!(learning::learned().is_empty(), !can_learn());
    learning::forget();
    assert_eq!(learning::learned(), []);
    assert_eq!(ClearOptions::new().reuse(Reuse::None).chosen_for(LONG).by, ChosenBy::Profile);
}

#[test]
fn short_operations_are_libcs_and_say_so() {
    let _turn = in_turn();
    let used = |len| CopyOptions::new().chosen_for(len).routine;
    assert_eq!(used(1 << 10), "memcpy");
    let report = CopyOptions::new().run(&mut [0; 100], &[1; 100]).unwrap();
    assert_eq!(report.used.unwrap().routine, "memcpy");
}
