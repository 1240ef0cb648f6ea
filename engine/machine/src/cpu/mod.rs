//! The CPU's description of itself: maker, model, virtualization, caches.

#[cfg(not(target_arch = "x86_64"))]
#[path = "portable.rs"]
mod imp;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod imp;

/// The maker and the model of a CPU, as far as the choice of a routine depends on them.
///
/// `family` and `model` are the display values of CPUID on x86-64. On other architectures both
/// are 0 and the vendor is [`Vendor::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuModel {
    /// The maker.
    pub vendor: Vendor,
    /// The display family, extended family included.
    pub family: u32,
    /// The display model, extended model included.
    pub model: u32,
}

/// A maker of CPUs whose behaviour has been measured or published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Vendor {
    /// `GenuineIntel`.
    Intel,
    /// `AuthenticAMD`, and Hygon's licensed Zen.
    Amd,
    /// Every other CPU.
    Other,
}

/// Returns the CPU that the calling thread runs on.
#[must_use]
pub fn cpu_model() -> CpuModel {
    imp::cpu_model()
}

/// Returns true if the CPU reports a hypervisor. False if the architecture cannot report one.
pub fn is_guest() -> bool {
    imp::is_guest()
}

/// Returns true if the CPU and the kernel permit AVX-512F. False on other architectures than
/// x86-64.
#[must_use]
pub fn has_avx512f() -> bool {
    imp::has_avx512f()
}

/// Returns true if the CPU has `MOVDIR64B`, which writes a whole line.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn has_movdir64b() -> bool {
    imp::has_movdir64b()
}

/// Returns true if the CPU has `CLZERO`, which clears a whole line.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn has_clzero() -> bool {
    imp::has_clzero()
}

/// Returns the level and the bytes of each data cache that the calling thread's CPU reports. Empty
/// if it reports none, or if the architecture has no instruction for it.
pub fn data_caches() -> impl Iterator<Item = (u32, usize)> {
    imp::data_caches()
}
