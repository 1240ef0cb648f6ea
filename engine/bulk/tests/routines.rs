//! Every row of the tables of routines against a naive oracle.
//!
//! A harness of its own, because which rows can run is known only at run time: a routine that this
//! CPU lacks is listed as ignored, with what it needs, instead of passing unseen.
#![allow(unsafe_code)]

use std::sync::LazyLock;

use hugekit_bulk::arch::{
    ClearRoutine, CopyRoutine, Kind, Unfenced, clear_routines, copy_routines,
};
use hugekit_testing::trials::unless_lacking;
use libtest_mimic::{Arguments, Failed, Trial};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// A row of either table.
#[derive(Clone, Copy)]
enum Row {
    Clear(&'static ClearRoutine),
    Copy(&'static CopyRoutine),
}

impl Row {
    fn name(self) -> String {
        match self {
            Self::Clear(routine) => format!("clear::{}", routine.name()),
            Self::Copy(routine) => format!("copy::{}", routine.name()),
        }
    }

    fn needs(self) -> &'static str {
        match self {
            Self::Clear(routine) => routine.needs(),
            Self::Copy(routine) => routine.needs(),
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Clear(routine) => routine.kind(),
            Self::Copy(routine) => routine.kind(),
        }
    }

    fn is_available(self) -> bool {
        match self {
            Self::Clear(routine) => routine.is_available(),
            Self::Copy(routine) => routine.is_available(),
        }
    }

    /// Clears `dst`, or copies `src` to it.
    fn run(self, dst: &mut [u8], src: &[u8]) -> Unfenced {
        assert_eq!(dst.len(), src.len());
        // SAFETY: two slices of the same length, one of them borrowed mutably; only available
        // routines become tests that run.
        unsafe {
            match self {
                Self::Clear(routine) => routine.run(dst.as_mut_ptr(), dst.len()),
                Self::Copy(routine) => routine.run(dst.as_mut_ptr(), src.as_ptr(), dst.len()),
            }
        }
    }

    /// What a byte becomes where the source holds `byte`.
    fn oracle(self, byte: u8) -> u8 {
        match self {
            Self::Clear(_) => 0,
            Self::Copy(_) => byte,
        }
    }
}

/// More bytes than any check uses.
const MOST: usize = 5 << 20;

/// The memory before a routine runs: no byte of it is zero, and neighbours differ.
static PATTERN: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..MOST).map(|at| (at % 255) as u8 + 1).collect());

/// The source of copies: differs from the pattern at every byte, and from page to page.
static SOURCE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    (0..MOST).map(|at| ((at % 255) as u8 + 1) ^ 0x80 ^ ((at >> 12) % 64) as u8).collect()
});

/// Guard bytes on either side: more than the widest block any routine writes.
const GUARD: usize = 256;

/// Runs on `len` bytes at `offset` behind the guard, the source at another alignment, and compares
/// all of it with the oracle.
fn check(row: Row, offset: usize, len: usize) -> Result<(), Failed> {
    let mut actual = PATTERN[..GUARD + offset + len + GUARD].to_vec();
    let mut expected = actual.clone();
    let skew = offset * 7 % 67;
    let source = &SOURCE[skew..][..len];
    for (byte, &from) in expected[GUARD + offset..].iter_mut().zip(source) {
        *byte = row.oracle(from);
    }
    row.run(&mut actual[GUARD + offset..][..len], source).publish();
    if actual == expected {
        return Ok(());
    }
    let at = actual.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or_default();
    Err(format!(
        "offset {offset}, length {len}: byte {} relative to the start is {:#x}, not {:#x}",
        at as isize - (GUARD + offset) as isize,
        actual[at],
        expected[at],
    )
    .into())
}

fn short_lengths_at_every_offset(row: Row) -> Result<(), Failed> {
    (0..=GUARD).try_for_each(|offset| {
        (0..=2 * GUARD).step_by(1 + offset % 3).try_for_each(|len| check(row, offset, len))
    })
}

fn lengths_around_pages(row: Row) -> Result<(), Failed> {
    for pages in [1_usize, 2, 3, 16] {
        for len in (pages * 4096 - 70)..=(pages * 4096 + 70) {
            check(row, len % 67, len)?;
        }
    }
    Ok(())
}

fn large_lengths(row: Row) -> Result<(), Failed> {
    for (offset, len) in [(0, 2 << 20), (1, (2 << 20) - 1), (63, (4 << 20) + 65)] {
        check(row, offset, len)?;
    }
    Ok(())
}

fn random_lengths(row: Row) -> Result<(), Failed> {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&(0_usize..4096, 0_usize..100_000), |(offset, len)| {
            check(row, offset, len).map_err(|failed| {
                TestCaseError::fail(failed.message().unwrap_or("failed").to_owned())
            })
        })
        .map_err(Failed::from)
}

fn token_matches_kind(row: Row) -> Result<(), Failed> {
    let token = row.run(&mut [1], &[2]);
    if token.is_pending() == (row.kind() == Kind::Streaming) {
        Ok(())
    } else {
        Err("a streaming routine, and no other, must hand back an unfenced token".into())
    }
}

type Check = fn(Row) -> Result<(), Failed>;

const CHECKS: [(&str, Check); 5] = [
    ("short_lengths_at_every_offset", short_lengths_at_every_offset),
    ("lengths_around_pages", lengths_around_pages),
    ("large_lengths", large_lengths),
    ("random_lengths", random_lengths),
    ("token_matches_kind", token_matches_kind),
];

fn trials() -> Vec<Trial> {
    let clears = clear_routines().iter().map(Row::Clear);
    let copies = copy_routines().iter().map(Row::Copy);
    clears
        .chain(copies)
        .flat_map(|row| CHECKS.map(|(name, check)| trial(row, name, check)))
        .collect()
}

fn trial(row: Row, name: &str, check: Check) -> Trial {
    let trial = Trial::test(format!("{}::{name}", row.name()), move || check(row));
    let lacking = (!row.is_available()).then(|| format!("this CPU lacks {}", row.needs()));
    unless_lacking(trial, lacking.as_deref())
}

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials()).exit();
}
