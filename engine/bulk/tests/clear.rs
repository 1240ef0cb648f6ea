//! The engine: whatever it is told, every byte becomes zero and none outside is touched.

mod common;

use hugekit::{ClearError, ClearOptions, HintError, Profile, clear};
use hugekit_bulk::arch::clear_routines;
use hugekit_machine::CacheSizes;
use hugekit_machine::cpu::{CpuModel, Vendor};
use proptest::prelude::*;

use common::{REUSES, hints, len};

fn surrounded(before: usize, len: usize, after: usize) -> Vec<u8> {
    (0..before + len + after).map(|at| (at % 255) as u8 + 1).collect()
}

fn expected(before: usize, len: usize, after: usize) -> Vec<u8> {
    let mut bytes = surrounded(before, len, after);
    bytes[before..][..len].fill(0);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn clear_of_any_range_zeroes_exactly_its_bytes(
        before in 0_usize..200,
        len in len(),
        hints in hints(),
    ) {
        let mut bytes = surrounded(before, len, 100);
        hints.operation(len, clear_routines()).run(&mut bytes[before..][..len]).unwrap();
        prop_assert!(bytes == expected(before, len, 100));
    }

    #[test]
    fn free_function_of_any_range_zeroes_exactly_its_bytes(before in 0_usize..200, len in 0_usize..200_000) {
        let mut bytes = surrounded(before, len, 100);
        clear(&mut bytes[before..][..len]);
        prop_assert!(bytes == expected(before, len, 100));
    }
}

#[test]
fn clear_of_uninitialised_memory_gives_zeroes() {
    let mut memory = Box::<[u8]>::new_uninit_slice(100_000);
    let zeroes = ClearOptions::new().run_uninit(&mut memory).unwrap();
    assert_eq!(zeroes.len(), 100_000);
    assert!(zeroes.iter().all(|&byte| byte == 0));
}

#[test]
fn clear_with_a_target_outside_is_an_error_and_writes_nothing() {
    let mut bytes = surrounded(0, 8192, 0);
    let error = ClearOptions::new().target(8192).run(&mut bytes).unwrap_err();
    assert_eq!(error, ClearError::Hint(HintError::TargetOutside { target: 8192, len: 8192 }));
    assert_eq!(error.to_string(), "target offset 8192 lies outside the 8192 bytes of memory");
    assert_eq!(bytes, surrounded(0, 8192, 0));
}

#[test]
fn clear_with_a_target_in_nothing_is_an_error() {
    assert!(ClearOptions::new().target(0).run(&mut []).is_err());
    for reuse in REUSES {
        assert_eq!(ClearOptions::new().reuse(reuse).run(&mut []).unwrap().bytes, 0);
    }
}

#[test]
fn clear_by_a_routine_the_cpu_lacks_is_an_error_and_writes_nothing() {
    for routine in clear_routines().iter().filter(|routine| !routine.is_available()) {
        let mut bytes = surrounded(0, 100, 0);
        let error = ClearOptions::new().routine(routine).run(&mut bytes).unwrap_err();
        assert!(matches!(error, ClearError::Hint(HintError::RoutineUnavailable { .. })));
        assert!(error.to_string().contains(routine.needs()));
        assert_eq!(bytes, surrounded(0, 100, 0));
    }
}

#[test]
fn routine_names_are_unique_and_memset_comes_first() {
    let names: Vec<_> =
        clear_routines().iter().map(hugekit_bulk::arch::ClearRoutine::name).collect();
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
    assert_eq!(names[0], "memset");
}

fn cpu(vendor: Vendor, family: u32, model: u32) -> CpuModel {
    CpuModel { vendor, family, model }
}

#[test]
fn builtin_bands_ascend_from_zero_and_are_available() {
    let caches = CacheSizes { l1d: 48 << 10, l2: 2 << 20, llc: 480 << 20, llc_shared_by: 120 };
    let models = [
        cpu(Vendor::Intel, 6, 0x55),
        cpu(Vendor::Intel, 6, 0xad),
        cpu(Vendor::Amd, 0x19, 1),
        cpu(Vendor::Amd, 0x17, 0x31),
        cpu(Vendor::Other, 0, 0),
    ];
    for profile in models.map(|model| Profile::builtin(model, caches)) {
        for bands in [&profile.clear.warm, &profile.clear.cold] {
            assert_eq!(bands.as_slice()[0].from, 0);
            assert!(bands.as_slice().is_sorted_by(|a, b| a.from < b.from));
            assert!(bands.as_slice().iter().all(|band| band.routine.is_available()));
        }
    }
}

#[test]
fn skylake_never_streams_and_an_unmeasured_cpu_not_below_its_last_level_cache() {
    use hugekit_bulk::arch::Kind::Streaming;
    let caches = CacheSizes { l1d: 32 << 10, l2: 1 << 20, llc: 36 << 20, llc_shared_by: 52 };
    let skylake = Profile::builtin(cpu(Vendor::Intel, 6, 0x55), caches);
    assert_ne!(skylake.clear.warm.routine_for(4 << 30).kind(), Streaming);
    assert_ne!(skylake.clear.cold.routine_for(4 << 30).kind(), Streaming);
    let unmeasured = Profile::builtin(cpu(Vendor::Other, 0, 0), caches);
    assert_ne!(unmeasured.clear.warm.routine_for((36 << 20) - 1).kind(), Streaming);
}
