//! x86-64: CPUID.

use hugekit_sys::sync::First;
use raw_cpuid::{CacheType, CpuId, CpuIdReaderNative};

use super::{CpuModel, Vendor};

/// Reads CPUID once, because a hypervisor traps the instruction, which costs 1 to 10 µs.
fn cpuid() -> &'static CpuId<CpuIdReaderNative> {
    static CPUID: First<CpuId<CpuIdReaderNative>> = First::new();
    CPUID.get_or_make(CpuId::new)
}

pub(super) fn cpu_model() -> CpuModel {
    let cpuid = cpuid();
    let vendor = match cpuid.get_vendor_info().as_ref().map(raw_cpuid::VendorInfo::as_str) {
        Some("GenuineIntel") => Vendor::Intel,
        Some("AuthenticAMD" | "HygonGenuine") => Vendor::Amd,
        _ => Vendor::Other,
    };
    let (family, model) = cpuid
        .get_feature_info()
        .map_or((0, 0), |info| (info.family_id().into(), info.model_id().into()));
    CpuModel { vendor, family, model }
}

pub(super) fn is_guest() -> bool {
    cpuid().get_feature_info().is_some_and(|features| features.has_hypervisor())
}

pub(super) fn has_avx512f() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
}

pub(super) fn has_movdir64b() -> bool {
    static ANSWER: First<bool> = First::new();
    *ANSWER.get_or_make(|| {
        const LEAF: u32 = 7;
        const MOVDIR64B: u32 = 1 << 28;
        raw_cpuid::cpuid!(0).eax >= LEAF && raw_cpuid::cpuid!(LEAF, 0).ecx & MOVDIR64B != 0
    })
}

pub(super) fn has_clzero() -> bool {
    static ANSWER: First<bool> = First::new();
    *ANSWER.get_or_make(|| {
        let features = cpuid().get_processor_capacity_feature_info();
        features.is_some_and(|features| features.has_cl_zero())
    })
}

pub(super) fn data_caches() -> impl Iterator<Item = (u32, usize)> {
    let caches = cpuid().get_cache_parameters().into_iter().flatten();
    caches.filter(|cache| matches!(cache.cache_type(), CacheType::Data | CacheType::Unified)).map(
        |cache| {
            let ways = cache.associativity() * cache.physical_line_partitions();
            (cache.level().into(), ways * cache.coherency_line_size() * cache.sets())
        },
    )
}
