//! Every row of the table of routines against a naive oracle.
//!
//! A harness of its own, because which rows can run is known only at run time: a routine that this
//! CPU lacks is listed as ignored, with what it needs, instead of passing unseen.
#![allow(unsafe_code)]

use hugekit::arch::{ClearRoutine, Kind, clear_routines};
use libtest_mimic::{Arguments, Failed, Trial};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// What memory holds before: no byte of it is zero, and neighbours differ.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 255) as u8 + 1).collect()
}

/// Guard bytes on either side: more than the widest block any routine writes.
const GUARD: usize = 256;

/// Clears `len` bytes at `offset` behind the guard, and compares all of it with the oracle.
fn check(routine: &ClearRoutine, offset: usize, len: usize) -> Result<(), Failed> {
    let mut actual = pattern(GUARD + offset + len + GUARD);
    let mut expected = actual.clone();
    for byte in &mut expected[GUARD + offset..][..len] {
        *byte = 0;
    }
    let dst = actual[GUARD + offset..].as_mut_ptr();
    // SAFETY: len bytes follow within `actual`; only available routines become tests.
    unsafe { routine.run(dst, len) }.publish();
    match actual.iter().zip(&expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(format!(
            "offset {offset}, length {len}: byte {} relative to the start is {:#x}, not {:#x}",
            at as isize - (GUARD + offset) as isize,
            actual[at],
            expected[at],
        )
        .into()),
    }
}

fn short_lengths_at_every_offset(routine: &ClearRoutine) -> Result<(), Failed> {
    (0..=GUARD).try_for_each(|offset| {
        (0..=2 * GUARD).step_by(1 + offset % 3).try_for_each(|len| check(routine, offset, len))
    })
}

fn lengths_around_pages(routine: &ClearRoutine) -> Result<(), Failed> {
    for pages in [1_usize, 2, 3, 16] {
        for len in (pages * 4096 - 70)..=(pages * 4096 + 70) {
            check(routine, len % 67, len)?;
        }
    }
    Ok(())
}

fn large_lengths(routine: &ClearRoutine) -> Result<(), Failed> {
    for (offset, len) in [(0, 2 << 20), (1, (2 << 20) - 1), (63, (4 << 20) + 65)] {
        check(routine, offset, len)?;
    }
    Ok(())
}

fn random_lengths(routine: &'static ClearRoutine) -> Result<(), Failed> {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&(0_usize..4096, 0_usize..100_000), |(offset, len)| {
            check(routine, offset, len).map_err(|failed| {
                TestCaseError::fail(failed.message().unwrap_or("failed").to_owned())
            })
        })
        .map_err(Failed::from)
}

fn token_matches_kind(routine: &ClearRoutine) -> Result<(), Failed> {
    let mut byte = [1_u8];
    // SAFETY: one byte of an array; only available routines become tests.
    let token = unsafe { routine.run(byte.as_mut_ptr(), 1) };
    if token.is_pending() == (routine.kind() == Kind::Streaming) {
        Ok(())
    } else {
        Err("a streaming routine, and no other, must hand back an unfenced token".into())
    }
}

type Check = fn(&'static ClearRoutine) -> Result<(), Failed>;

const CHECKS: [(&str, Check); 5] = [
    ("short_lengths_at_every_offset", |routine| short_lengths_at_every_offset(routine)),
    ("lengths_around_pages", |routine| lengths_around_pages(routine)),
    ("large_lengths", |routine| large_lengths(routine)),
    ("random_lengths", random_lengths),
    ("token_matches_kind", |routine| token_matches_kind(routine)),
];

fn trials() -> Vec<Trial> {
    clear_routines()
        .iter()
        .flat_map(|routine| CHECKS.map(|(name, check)| trial(routine, name, check)))
        .collect()
}

fn trial(routine: &'static ClearRoutine, name: &str, check: Check) -> Trial {
    let trial = Trial::test(format!("{}::{name}", routine.name()), move || check(routine));
    if routine.is_available() {
        trial
    } else {
        trial
            .with_kind(format!("skipped: this CPU lacks {}", routine.needs()))
            .with_ignored_flag(true)
    }
}

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit();
}
