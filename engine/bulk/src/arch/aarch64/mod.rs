//! aarch64: `dc zva` and non-temporal pairs.

#[path = "../abandonable.rs"]
pub mod abandonable;
mod copy_instructions;
mod stnp;
mod syndrome;
mod valgrind;
mod zva;

pub use self::syndrome::is_write;
pub use self::valgrind::runs_on_valgrind;
use super::all::{MEMCPY, MEMSET};
use super::{ANY_CPU, ClearRoutine, Compared, CopyRoutine, Feature, Preset};

const DC_ZVA: Feature =
    Feature { name: "DC ZVA permitted (DCZID_EL0.DZP = 0)", is_available: zva::is_permitted };

pub(super) const CLEAR_ROUTINES: &[ClearRoutine] = &[
    MEMSET,
    ClearRoutine::cached("dc_zva", DC_ZVA, None, Compared::All, zva::clear_dc_zva),
    ClearRoutine::streaming("stnp", ANY_CPU, Some(Preset::Streaming), stnp::clear_stnp),
];

pub(super) const COPY_ROUTINES: &[CopyRoutine] = &[
    MEMCPY,
    COPY_ONCE,
    CopyRoutine::streaming("ldnp_stnp", ANY_CPU, Some(Preset::Streaming), stnp::copy_ldnp_stnp),
];

pub(super) const COPY_ONCE: CopyRoutine =
    CopyRoutine::cached("ldnp_stp", ANY_CPU, None, Compared::Held, stnp::copy_ldnp_stp);

/// Returns the virtual counter, which Linux permits programs to read.
#[inline]
pub(super) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: `isb` keeps the read from being done early; neither touches memory.
    unsafe {
        core::arch::asm!("isb", "mrs {0}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags));
    };
    ticks
}

pub(super) fn store_fence() {
    // SAFETY: a barrier touches no memory. `ishst` orders all earlier stores of this CPU, the
    // non-temporal ones included, before all later ones for every observer that shares memory.
    unsafe { core::arch::asm!("dmb ishst", options(nostack, preserves_flags)) };
}
