//! An architecture on which a CPU does not describe itself.

use super::{CpuModel, Vendor};

pub(super) fn cpu_model() -> CpuModel {
    CpuModel { vendor: Vendor::Other, family: 0, model: 0 }
}

pub(super) fn is_guest() -> bool {
    false
}

pub(super) fn has_avx512f() -> bool {
    false
}

pub(super) fn data_caches() -> impl Iterator<Item = (u32, usize)> {
    std::iter::empty()
}
