//! An architecture without routines of its own.

use super::all::MEMSET;
use super::{ClearRoutine, CpuModel, Vendor};

pub(super) const CLEAR_ROUTINES: &[ClearRoutine] = &[MEMSET];

/// The CPU the calling thread runs on.
#[must_use]
pub fn cpu_model() -> CpuModel {
    CpuModel { vendor: Vendor::Other, family: 0, model: 0 }
}

/// The hypervisor, where the CPU itself names it.
pub(crate) fn hypervisor() -> Option<&'static str> {
    None
}

pub(super) fn store_fence() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
