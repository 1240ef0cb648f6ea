//! The profile of a machine that was not tuned, from the CPU model and the cache sizes.

use super::{Bands, Choice, Profile};
use crate::arch::{ClearFn, CopyFn, Preset, clear_routines, copy_routines};
use hugekit_machine::CacheSizes;
use hugekit_machine::cpu::{CpuModel, Vendor, has_avx512f};
use hugekit_sys::HUGE_PAGE_BYTES;

/// The shortest length that streams if the bytes are known to be cold: a few pages. From this
/// length on, the cost of the fence and of partly filled write-combining buffers does not show.
const COLD_FROM: usize = 16 << 10;

/// The bytes that are kept near the target. The window is long enough for a burst of accesses
/// around the fault, and so short that clearing it through the cache costs little compared with a 2
/// MiB folio.
const NEAR_BYTES: usize = 32 << 10;

/// The length from which a second thread is worth its wake-up: the thread needs 30–45 µs to start,
/// and the wake-up costs the caller 10 µs. Gain of two threads against one on a 2-CPU Milan VM:
/// populate 0.5–0.9 at 4 MiB, 0.8–1.4 at 8 MiB and 1.2–1.5 at 16 MiB. Clear has 0.9–1.05 at 16 MiB
/// if one thread alone has all of the host's bandwidth, which is the worst case.
const PARALLEL_FROM: usize = 16 << 20;

/// A huge page, so that two threads never fault on the same huge page. Minimum chunks of 1, 2 and 4
/// MiB measure the same (clear of 16 MiB 1.05, 1.05, 1.05; populate of 64 MiB 1.63, 1.63, 1.71).
const MIN_CHUNK: usize = HUGE_PAGE_BYTES;

/// The highest number of threads. It was not measured here, because the machines have 2 CPUs. It is
/// the largest number in the published table of 2017, where this many threads cleared 24 to 57 %
/// faster than half as many on each machine. A test of the lab compares it with that table. Other
/// jobs do not starve, because all jobs share this number of threads per node.
const THREAD_CAP: usize = 16;

/// Returns the profile of [`Profile::builtin`].
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

/// The cache sizes if the kernel does not report them: small enough for every server since 2010,
/// with a last-level cache so large that streaming starts late.
pub(super) const UNKNOWN_CACHES: CacheSizes =
    CacheSizes { l1d: 32 << 10, l2: 256 << 10, llc: 64 << 20, llc_shared_by: 1 };

/// The part of the last-level cache that each CPU of a virtual machine can expect. The cache
/// belongs to the host, and neighbours use it, too. Of 480 MiB, two CPUs always held 8 MiB, and
/// held 16 MiB in every second measurement. AMD's cache is that of one complex of eight cores, of
/// which two CPUs held 8 to 10 of 32 MiB (decisions 2, 4 and 19).
const GUEST_LLC: usize = 8 << 20;
const GUEST_LLC_AMD: usize = 4 << 20;

/// Returns the caches that a virtual machine with this many CPUs can expect.
pub(super) fn in_guest(cpu: CpuModel, caches: CacheSizes, cpus: usize) -> CacheSizes {
    let each = if cpu.vendor == Vendor::Amd { GUEST_LLC_AMD } else { GUEST_LLC };
    CacheSizes { llc: caches.llc.min(each.saturating_mul(cpus.max(1))), ..caches }
}

/// Kinds of CPUs with similar stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Microarchitecture {
    /// Skylake-X and Cascade Lake: streaming stores never win (published).
    SkylakeX,
    /// Intel's servers since Ice Lake. Cached stores win while a cache holds the bytes; then
    /// streaming stores win by a factor of two. Streaming copies gain by interleaving. Measured:
    /// Emerald Rapids, and a CPU that reports model 167. Not measured: Ice Lake (published: string
    /// stores of 2 MiB and more reach 12 GiB/s; nothing about streaming), Sapphire Rapids, Granite
    /// Rapids, and newer CPUs with AVX-512.
    IntelServer,
    /// Rome. With a last-level cache of 16 MiB, streaming loses at 16 MiB and wins at 128 MiB
    /// (published).
    Zen2,
    /// Milan (measured). AVX2 beats string stores in the cache. CLZERO beats both in the part of
    /// the last-level cache that neighbours leave; other streaming stores win by a little.
    Zen3,
    /// Genoa (measured), Bergamo (not measured). String stores to bytes that no cache holds stream
    /// by themselves, so libc loses a tenth at most. Short cold clears use libc.
    Zen4,
    /// Turin (measured). Like Zen 4, but AVX2 clears bytes in L2 1.1 times as fast as libc.
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
    use hugekit_invented_machines::{Of, Rates, rates};

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

    /// Tries the profile's lengths with the caches of every machine, and for every CPU that the
    /// profile distinguishes.
    #[test]
    fn profile_of_every_machine_can_be_used() {
        for machine in hugekit_invented_machines::MACHINES {
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

    /// Checks that the profile of some CPU chooses each row with a purpose. Rows that another row
    /// of the same purpose replaces on this CPU are left out.
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

    /// On each of the machines published in 2020, the profile chooses streaming exactly at the
    /// lengths at which streaming won.
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

    /// Before anything is learned, the choice loses no more against libc than medians differ by. If
    /// a gain of a quarter is possible, the choice has a part of it.
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
        for machine in hugekit_invented_machines::MACHINES {
            let files = machine.files().unwrap();
            let placement = Placement::read(&Root::at(files.path())).unwrap();
            assert_eq!(placement.threads() as u64, machine.cpus, "{}", machine.name);
        }
    }
}
