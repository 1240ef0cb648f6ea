//! The engine copies: whatever it is told, the bytes arrive and none outside is touched.

mod common;

use hugekit::{CopyError, CopyOptions, HintError, Profile, copy};
use hugekit_bulk::arch::copy_routines;
use proptest::prelude::*;
use proptest::sample::select;

use common::{REUSES, hints, len};

fn source(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect()
}

const GUARD: u8 = 0xa5;

/// A destination of `len` bytes between guards, and what it is to hold afterwards.
fn guarded(before: usize, source: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let actual = vec![GUARD; before + source.len() + 100];
    let mut expected = actual.clone();
    expected[before..][..source.len()].copy_from_slice(source);
    (actual, expected)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn copy_of_any_range_writes_exactly_its_bytes(
        before in 0_usize..200,
        skew in 0_usize..70,
        len in len(),
        hints in hints(),
        source_reuse in select(&REUSES[..]),
    ) {
        let source = source(skew + len);
        let (mut actual, expected) = guarded(before, &source[skew..]);
        let copy = hints.operation(len, copy_routines()).source_reuse(source_reuse);
        copy.run(&mut actual[before..][..len], &source[skew..]).unwrap();
        prop_assert!(actual == expected);
    }

    #[test]
    fn free_function_of_any_range_writes_exactly_its_bytes(before in 0_usize..200, len in 0_usize..200_000) {
        let source = source(len);
        let (mut actual, expected) = guarded(before, &source);
        copy(&mut actual[before..][..len], &source).unwrap();
        prop_assert!(actual == expected);
    }
}

#[test]
fn copy_of_differing_lengths_is_an_error_and_writes_nothing() {
    let mut dst = [GUARD; 100];
    let error = copy(&mut dst, &[0; 99]).unwrap_err();
    assert_eq!(error, CopyError::LengthsDiffer { dst: 100, src: 99 });
    assert!(error.to_string().contains("cannot copy 99 bytes into 100"));
    assert_eq!(
        CopyOptions::new().run(&mut dst, &[0; 101]).unwrap_err().to_string().find("101"),
        Some(12)
    );
    assert_eq!(dst, [GUARD; 100]);
}

#[test]
fn copy_with_a_target_outside_is_an_error_and_writes_nothing() {
    let mut dst = [GUARD; 100];
    let error = CopyOptions::new().target(100).run(&mut dst, &[0; 100]).unwrap_err();
    assert_eq!(error, CopyError::Hint(HintError::TargetOutside { target: 100, len: 100 }));
    assert_eq!(dst, [GUARD; 100]);
}

#[test]
#[allow(unsafe_code)]
fn copy_of_overlapping_pointers_is_an_error_and_writes_nothing() {
    let mut bytes = source(8192);
    let start = bytes.as_mut_ptr();
    for (dst, src, len) in [(0, 0, 1), (0, 4095, 4096), (4095, 0, 4096), (1, 0, 8191)] {
        // SAFETY: both ranges lie within the 8192 bytes, which no other thread accesses.
        let copied = unsafe { CopyOptions::new().run_raw(start.add(dst), start.add(src), len) };
        assert!(matches!(copied, Err(CopyError::Overlap { .. })), "{dst} {src} {len}");
    }
    // SAFETY: both ranges lie within the 8192 bytes, which no other thread accesses.
    let neighbours = unsafe { CopyOptions::new().run_raw(start, start.add(4096), 4096) };
    assert_eq!(neighbours.unwrap().bytes, 4096);
    assert!(bytes[..4096] == bytes[4096..]);
}

#[test]
fn this_machines_bands_ascend_from_zero_and_are_available() {
    let profile = Profile::current();
    for bands in [&profile.copy.warm, &profile.copy.cold] {
        assert_eq!(bands.as_slice()[0].from, 0);
        assert!(bands.as_slice().is_sorted_by(|a, b| a.from < b.from));
        assert!(bands.as_slice().iter().all(|band| band.routine.is_available()));
    }
}
