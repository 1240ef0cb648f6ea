//! The profile of a machine that was not tuned: by CPU model and cache sizes.

use super::{Bands, Choice, Profile};
use crate::HUGE_PAGE_BYTES;
use crate::arch::{ClearFn, CopyFn, CpuModel, Vendor, clear_routines, copy_routines};
use crate::machine::CacheSizes;

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

/// Not measured here, where there are 2 CPUs: the published E7 cleared 2,550 MiB/s with each of up to
/// 8 threads and 1,420 with each of 16. One thread of a recent CPU already takes a fifth to all of
/// its machine's bandwidth, so that 8 are no fewer than needed today.
const THREAD_CAP: usize = 8;

impl Profile {
    /// The built-in profile for a CPU of this model with these caches.
    #[must_use]
    pub fn builtin(cpu: CpuModel, caches: CacheSizes) -> Self {
        let cpu = Microarchitecture::of(cpu);
        let (clear, copy) = (builtin_clear(cpu, caches), builtin_copy(cpu, caches));
        let near_bytes_all = match cpu {
            // Milan misses so cheaply that every byte cleared through the cache costs more.
            Microarchitecture::Zen3 => NEAR_BYTES,
            _ => caches.l2 / 2,
        };
        Self {
            clear,
            copy,
            near_bytes: NEAR_BYTES,
            near_bytes_all,
            parallel_from: PARALLEL_FROM,
            min_chunk: MIN_CHUNK,
            thread_cap: THREAD_CAP,
        }
    }
}

/// Assumed where the kernel does not say: small enough for every server since 2010, and a
/// last-level cache large enough that streaming starts late.
pub(super) const UNKNOWN_CACHES: CacheSizes =
    CacheSizes { l1d: 32 << 10, l2: 256 << 10, llc: 64 << 20, llc_shared_by: 1 };

/// CPUs whose stores have been measured, here or in the published work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Microarchitecture {
    /// Skylake-X and Cascade Lake: streaming stores never win.
    SkylakeX,
    /// Granite Rapids: streaming wins as soon as the bytes leave L2.
    GraniteRapids,
    /// Milan: AVX2 beats string stores while cached, CLZERO beats both in what neighbours leave of the
    /// last level, and other streaming stores by a little.
    Zen3,
    Unmeasured,
}

impl Microarchitecture {
    fn of(cpu: CpuModel) -> Self {
        match (cpu.vendor, cpu.family, cpu.model) {
            (Vendor::Intel, 6, 0x55) => Self::SkylakeX,
            (Vendor::Intel, 6, 0xad | 0xae) => Self::GraniteRapids,
            (Vendor::Amd, 0x19, 0x00..=0x0f) => Self::Zen3,
            _ => Self::Unmeasured,
        }
    }
}

/// AVX2 before AVX-512: both saturate the write-combining buffers, and 256-bit stores do not lower
/// the clock of older CPUs.
const STREAMING: &[&str] = &["avx2_streaming", "sse2_streaming", "stnp", "ldnp_stnp"];

fn builtin_clear(cpu: Microarchitecture, caches: CacheSizes) -> Choice<ClearFn> {
    let memset = || Bands::libc(clear_routines());
    let (warm, cold) = match cpu {
        Microarchitecture::SkylakeX => (memset(), memset()),
        Microarchitecture::GraniteRapids => {
            (memset().then(2 * caches.l2, STREAMING), memset().then(COLD_FROM, STREAMING))
        }
        Microarchitecture::Zen3 => {
            let cached = || memset().then(2 << 10, &["avx2_cached"]);
            (cached().then(caches.llc / 4, &["clzero"]), cached().then(4 << 10, &["clzero"]))
        }
        Microarchitecture::Unmeasured => {
            (memset().then(caches.llc, STREAMING), memset().then(COLD_FROM, STREAMING))
        }
    };
    Choice { warm, cold }
}

fn builtin_copy(cpu: Microarchitecture, caches: CacheSizes) -> Choice<CopyFn> {
    let memcpy = || Bands::libc(copy_routines());
    let (warm, cold) = match cpu {
        Microarchitecture::SkylakeX => (memcpy(), memcpy()),
        Microarchitecture::GraniteRapids => {
            let interleaved = &["avx2_interleaved"];
            (memcpy().then(caches.llc, interleaved), memcpy().then(COLD_FROM, interleaved))
        }
        Microarchitecture::Zen3 => {
            let cached = memcpy().then(4 << 10, &["avx2_cached"]);
            let cached = cached.then(caches.l2, &["memcpy"]);
            (cached.then(caches.llc / 16 * 5, STREAMING), memcpy().then(4 << 10, STREAMING))
        }
        Microarchitecture::Unmeasured => {
            (memcpy().then(caches.llc, STREAMING), memcpy().then(COLD_FROM, STREAMING))
        }
    };
    Choice { warm, cold }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Root, cache};
    use crate::parallel::Placement;

    const CPUS: [(Vendor, u32, u32); 6] = [
        (Vendor::Intel, 6, 0x55),
        (Vendor::Intel, 6, 0xad),
        (Vendor::Intel, 6, 0xcf),
        (Vendor::Amd, 0x19, 0x01),
        (Vendor::Amd, 0x19, 0x11),
        (Vendor::Other, 0, 0),
    ];

    /// What the profile decides of lengths, with every machine's caches and for every CPU that is told apart.
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

    #[test]
    fn placement_of_every_machine_has_each_of_its_cpus() {
        for machine in hugekit_machines::MACHINES {
            let files = machine.files().unwrap();
            let placement = Placement::read(&Root::at(files.path())).unwrap();
            assert_eq!(placement.threads() as u64, machine.cpus, "{}", machine.name);
        }
    }
}
