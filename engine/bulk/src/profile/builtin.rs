//! The profile of a machine that was not tuned: by CPU model and cache sizes.

use super::{Bands, Choice, Profile};
use crate::arch::{ClearFn, CopyFn, Preset, clear_routines, copy_routines};
use hugekit_machine::CacheSizes;
use hugekit_machine::cpu::{CpuModel, Vendor, has_avx512f};
use hugekit_sys::HUGE_PAGE_BYTES;

/// Shortest length that streams when it is known to be cold: a few pages, so that the fence and
/// the partly filled write-combining buffers do not show.
const COLD_FROM: usize = 16 << 10;

/// Bytes kept near the target. Wide enough for a burst of accesses around the fault, narrow enough
/// that clearing them through the cache does not show beside a 2 MiB folio.
const NEAR_BYTES: usize = 32 << 10;

/// From here on a second thread pays for being woken: 30–45 µs until it is there, 10 of them the
/// caller's. On a 2-CPU Milan VM, two threads against one: populate 0.5–0.9 at 4 MiB, 0.8–1.4 at 8
/// and 1.2–1.5 at 16 MiB; clear 0.9–1.05 at 16 MiB where one thread alone has all of the host's
/// bandwidth, and that is the worst there is to lose.
const PARALLEL_FROM: usize = 16 << 20;

/// A huge page, so that no two threads fault on one. Sharing in chunks of at least 1, 2 or 4 MiB
/// measures the same (clear of 16 MiB 1.05, 1.05, 1.05; populate of 64 MiB 1.63, 1.63, 1.71).
const MIN_CHUNK: usize = HUGE_PAGE_BYTES;

/// Not measured here, where there are 2 CPUs: of the published table of 2017, the largest number of threads, which cleared
/// 24 to 57 % faster than half as many on each of its machines. A test of the lab holds it against that table. Other
/// jobs do not starve by it, because all of them share so many on a node's memory.
const THREAD_CAP: usize = 16;

/// [`Profile::builtin`].
pub(super) fn profile_of(cpu: CpuModel, caches: CacheSizes) -> Profile {
    let cpu = Microarchitecture::of(cpu);
    let (clear, copy) = (builtin_clear(cpu, caches), builtin_copy(cpu, caches));
    let near_bytes_all = match cpu {
        // Milan misses so cheaply that every byte cleared through the cache costs more.
        Microarchitecture::Zen3 => NEAR_BYTES,
        _ => caches.l2 / 2,
    };
    Profile {
        clear,
        copy,
        near_bytes: NEAR_BYTES,
        near_bytes_all,
        parallel_from: PARALLEL_FROM,
        min_chunk: MIN_CHUNK,
        thread_cap: THREAD_CAP,
    }
}

/// Assumed where the kernel does not say: small enough for every server since 2010, and a
/// last-level cache large enough that streaming starts late.
pub(super) const UNKNOWN_CACHES: CacheSizes =
    CacheSizes { l1d: 32 << 10, l2: 256 << 10, llc: 64 << 20, llc_shared_by: 1 };

/// The part of the last level that each CPU of a virtual machine can expect: the level is the host's, and
/// neighbours use it too. Of 480 MiB two CPUs held 8 MiB always and 16 MiB every other time; AMD's is that of one
/// complex of eight cores, of which two CPUs held 8 to 10 of 32 MiB (decisions 2, 4 and 19).
const GUEST_LLC: usize = 8 << 20;
const GUEST_LLC_AMD: usize = 4 << 20;

/// Returns the caches that a virtual machine with this many CPUs can expect.
pub(super) fn in_guest(cpu: CpuModel, caches: CacheSizes, cpus: usize) -> CacheSizes {
    let each = if cpu.vendor == Vendor::Amd { GUEST_LLC_AMD } else { GUEST_LLC };
    CacheSizes { llc: caches.llc.min(each.saturating_mul(cpus.max(1))), ..caches }
}

/// Kinds of CPUs that are alike in how they store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Microarchitecture {
    /// Skylake-X and Cascade Lake: streaming stores never win (published).
    SkylakeX,
    /// Intel's servers since Ice Lake: cached stores win as long as a cache holds them, then streaming ones by
    /// two; copies that stream gain by interleaving. Measured: Emerald Rapids, and one that calls itself model 167.
    /// Not measured: Ice Lake (published: string stores told 2 MiB and more reach 12 GiB/s; of streaming nothing),
    /// Sapphire Rapids, Granite Rapids, and what has AVX-512 and is newer.
    IntelServer,
    /// Rome: of a last level of 16 MiB, streaming loses at 16 MiB and wins at 128 (published).
    Zen2,
    /// Milan (measured): AVX2 beats string stores while cached, CLZERO beats both in what neighbours leave of the
    /// last level, and other streaming stores by a little.
    Zen3,
    /// Genoa (measured), Bergamo (not measured): string stores of what no cache holds stream by themselves, so that libc
    /// loses a tenth of it at most; short cold clears are libc's.
    Zen4,
    /// Turin (measured): the same, but AVX2 clears what L2 holds 1.1 times as fast as libc.
    Zen5,
    Unmeasured,
}

impl Microarchitecture {
    fn of(cpu: CpuModel) -> Self {
        match (cpu.vendor, cpu.family, cpu.model) {
            (Vendor::Intel, 6, 0x55) => Self::SkylakeX,
            (Vendor::Intel, 6, 0x6a | 0x6c | 0x8f | 0xad | 0xae | 0xcf) => Self::IntelServer,
            (Vendor::Intel, 6, _) if has_avx512f() => Self::IntelServer,
            (Vendor::Amd, 0x17, 0x30..) => Self::Zen2,
            (Vendor::Amd, 0x19, 0x00..=0x0f) => Self::Zen3,
            (Vendor::Amd, 0x19, _) => Self::Zen4,
            (Vendor::Amd, 0x1a, _) => Self::Zen5,
            _ => Self::Unmeasured,
        }
    }
}

const LIBC: &[Preset] = &[Preset::Libc];
const CACHED: &[Preset] = &[Preset::Cached];
const STREAMING: &[Preset] = &[Preset::Streaming];
const INTERLEAVED: &[Preset] = &[Preset::Interleaved];
const LINES: &[Preset] = &[Preset::Lines, Preset::Streaming];

fn builtin_clear(cpu: Microarchitecture, caches: CacheSizes) -> Choice<ClearFn> {
    let memset = || Bands::libc(clear_routines());
    let cached = || memset().then(2 << 10, CACHED);
    let (warm, cold) = match cpu {
        Microarchitecture::SkylakeX => (memset(), memset()),
        Microarchitecture::Zen2 => {
            (memset().then(2 * caches.llc, LINES), memset().then(COLD_FROM, LINES))
        }
        Microarchitecture::Zen3 => {
            (cached().then(caches.llc, LINES), cached().then(4 << 10, LINES))
        }
        Microarchitecture::Zen4 => (memset(), memset().then(COLD_FROM, LINES)),
        Microarchitecture::Zen5 => {
            (cached().then(caches.l2, LIBC), memset().then(COLD_FROM, LINES))
        }
        Microarchitecture::IntelServer | Microarchitecture::Unmeasured => {
            (memset().then(caches.llc, STREAMING), memset().then(COLD_FROM, STREAMING))
        }
    };
    Choice { warm, cold }
}

fn builtin_copy(cpu: Microarchitecture, caches: CacheSizes) -> Choice<CopyFn> {
    let memcpy = || Bands::libc(copy_routines());
    let (warm, cold) = match cpu {
        Microarchitecture::SkylakeX => (memcpy(), memcpy()),
        Microarchitecture::IntelServer => {
            (memcpy().then(caches.llc, INTERLEAVED), memcpy().then(COLD_FROM, INTERLEAVED))
        }
        Microarchitecture::Zen3 => {
            let cached = memcpy().then(4 << 10, CACHED);
            let cached = cached.then(caches.l2, LIBC);
            (cached.then(caches.llc / 4 * 5, STREAMING), memcpy().then(4 << 10, STREAMING))
        }
        Microarchitecture::Zen4 | Microarchitecture::Zen5 => {
            (memcpy().then(caches.llc, STREAMING), memcpy().then(4 << 10, STREAMING))
        }
        Microarchitecture::Zen2 | Microarchitecture::Unmeasured => {
            (memcpy().then(caches.llc, STREAMING), memcpy().then(COLD_FROM, STREAMING))
        }
    };
    Choice { warm, cold }
}

#[cfg(test)]
mod tests {
    use hugekit_machines::{Of, Rates, rates};

    use super::*;
    use crate::arch::{ClearRoutine, Kind, Routine, clear_routine};
    use crate::parallel::Placement;
    use hugekit_machine::{Root, cache};

    const CPUS: [(Vendor, u32, u32); 8] = [
        (Vendor::Intel, 6, 0x55),
        (Vendor::Intel, 6, 0xad),
        (Vendor::Intel, 6, 0xcf),
        (Vendor::Intel, 6, 0x6a),
        (Vendor::Amd, 0x17, 0x31),
        (Vendor::Amd, 0x19, 0x01),
        (Vendor::Amd, 0x19, 0x11),
        (Vendor::Other, 0, 0),
    ];

    /// Tries the profile's lengths with every machine's caches, and for every CPU that it distinguishes.
    #[test]
    fn profile_of_every_machine_can_be_used() {
        for machine in hugekit_machines::MACHINES {
            let files = machine.files().unwrap();
            let caches = cache::read(&Root::at(files.path()));
            assert_eq!(caches.is_ok(), machine.l1d > 0, "{}", machine.name);
            let caches = caches.unwrap_or(UNKNOWN_CACHES);
            for (vendor, family, model) in CPUS {
                let profile = Profile::builtin(CpuModel { vendor, family, model }, caches);
                assert!(
                    profile.near_bytes <= HUGE_PAGE_BYTES
                        && profile.near_bytes_all <= HUGE_PAGE_BYTES
                );
                for length in (0..=40).map(|shift| 1_usize << shift) {
                    assert!(profile.clear.warm.routine_for(length).is_available());
                    assert!(profile.clear.cold.routine_for(length).is_available());
                    assert!(profile.copy.warm.routine_for(length).is_available());
                    assert!(profile.copy.cold.routine_for(length).is_available());
                }
            }
        }
    }

    /// For each row with a purpose, the profile of some CPU chooses that row. Rows that another one of the same purpose
    /// replaces on this CPU are left out.
    fn chooses_presets<F>(table: &'static [Routine<F>], of: fn(Profile) -> Choice<F>) {
        let presets: Vec<_> = table.iter().map(Routine::preset).collect();
        assert!(presets[0] == Some(Preset::Libc) && !presets[1..].contains(&Some(Preset::Libc)));
        let caches = UNKNOWN_CACHES;
        let profiles = CPUS.map(|(vendor, family, model)| {
            of(Profile::builtin(CpuModel { vendor, family, model }, caches))
        });
        let bands = profiles.iter().flat_map(|choice| [&choice.warm, &choice.cold]);
        let chosen: Vec<_> =
            bands.flat_map(Bands::as_slice).map(|band| band.routine.name()).collect();
        let mut found = Vec::new();
        for row in table.iter().rev().filter(|row| row.is_available()) {
            let Some(preset) = row.preset().filter(|preset| !found.contains(preset)) else {
                continue;
            };
            found.push(preset);
            assert!(chosen.contains(&row.name()), "{}: {preset:?} is of no profile", row.name());
        }
    }

    #[test]
    fn row_with_a_purpose_is_chosen_by_the_profile_of_some_cpu() {
        chooses_presets(clear_routines(), |profile| profile.clear);
        chooses_presets(copy_routines(), |profile| profile.copy);
    }

    fn profile_of(rates: &Rates) -> Profile {
        let vendor = if rates.vendor == "AuthenticAMD" { Vendor::Amd } else { Vendor::Intel };
        let cpu = CpuModel { vendor, family: rates.family, model: rates.model };
        let (l2, llc) = (rates.l2_kib << 10, rates.llc_kib << 10);
        let caches = CacheSizes { l1d: 0, l2, llc, llc_shared_by: 0 };
        let caches = rates.guest_cpus.map_or(caches, |cpus| in_guest(cpu, caches, cpus));
        Profile::builtin(cpu, caches)
    }

    fn chosen(profile: &Profile, of: Of, len: usize) -> &'static str {
        match of {
            Of::ClearWarm => profile.clear.warm.routine_for(len).name(),
            Of::ClearCold => profile.clear.cold.routine_for(len).name(),
            Of::CopyWarm => profile.copy.warm.routine_for(len).name(),
            Of::CopyCold => profile.copy.cold.routine_for(len).name(),
        }
    }

    /// On each of the machines published in 2020, streaming is chosen exactly where it won.
    #[test]
    fn what_streams_is_chosen_where_it_won_as_published() {
        if clear_routine("avx2_streaming").is_none_or(|routine| !routine.is_available()) {
            return; // Another architecture, which has none of these machines' routines.
        }
        let mut judged = 0;
        for rates in rates().iter().filter(|rates| rates.machine.ends_with("as published")) {
            let profile = profile_of(rates);
            for row in &rates.rows {
                let kind =
                    clear_routine(chosen(&profile, row.of, row.kib << 10)).map(ClearRoutine::kind);
                let streams = kind == Some(Kind::Streaming);
                let won = row.others["movnti"] > row.libc.1;
                assert_eq!(streams, won, "{}: {} KiB", rates.machine, row.kib);
                judged += 1;
            }
        }
        assert_eq!(judged, 12);
    }

    /// Before anything is learned: no worse than libc by more than medians differ by, and, where a quarter is to be
    /// had, not all of it lost.
    #[test]
    fn built_in_choice_on_every_machine_known_is_near_the_best_there() {
        if clear_routine("avx2_streaming").is_none_or(|routine| !routine.is_available()) {
            return; // Another architecture, which has none of these machines' routines.
        }
        let mut judged = 0;
        for rates in &rates() {
            let profile = profile_of(rates);
            for row in &rates.rows {
                let name = chosen(&profile, row.of, row.kib << 10);
                let what = format!("{}: {:?} of {} KiB by {name}", rates.machine, row.of, row.kib);
                // The routine that this CPU has in its place may not have been measured there.
                let Some(rate) = row.rate(name) else { continue };
                judged += 1;
                assert!(rate >= 0.9 * row.libc.1, "{what}: {rate} against libc's {:?}", row.libc);
                assert!(rate >= 0.75 * row.best(), "{what}: {rate} of {row:?}");
            }
        }
        assert!(judged > 20, "{judged}");
    }

    #[test]
    fn guest_hopes_for_a_share_of_the_last_level_and_never_for_more_than_there_is() {
        let caches = CacheSizes { l1d: 0, l2: 0, llc: 480 << 20, llc_shared_by: 0 };
        let llc = |vendor, cpus| {
            in_guest(CpuModel { vendor, family: 0, model: 0 }, caches, cpus).llc >> 20
        };
        assert_eq!((llc(Vendor::Intel, 2), llc(Vendor::Amd, 2)), (16, 8));
        assert_eq!((llc(Vendor::Intel, 0), llc(Vendor::Intel, usize::MAX)), (8, 480));
    }

    #[test]
    fn placement_of_every_machine_has_each_of_its_cpus() {
        for machine in hugekit_machines::MACHINES {
            let files = machine.files().unwrap();
            let placement = Placement::read(&Root::at(files.path())).unwrap();
            assert_eq!(placement.threads() as u64, machine.cpus, "{}", machine.name);
        }
    }
}
