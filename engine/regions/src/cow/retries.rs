//! Limits how often handler threads repeat calls that the kernel refuses.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Counts refusals. The counter starts anew when the slot that has waited longest is served. Each slot has a number,
/// which is not 0. Async-signal-safe.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// The slot that has waited longest, or 0.
    slot: AtomicUsize,
    refusals: AtomicU32,
}

/// The most refusals until a slot is served: they take about a second.
const MOST: u32 = 10_000;

impl Retries {
    /// Counts a refusal at a slot. Returns true if the caller may try again. Refusals at all slots
    /// count together, so no thread waits for ever, however many slots are refused.
    pub(super) fn may_retry(&self, slot: usize) -> bool {
        let first = self.slot.compare_exchange(0, slot, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok() {
            self.refusals.store(0, Ordering::Relaxed);
        }
        self.refusals.fetch_add(1, Ordering::Relaxed) < MOST
    }

    /// A slot was served. If it has waited longest, its refusals are forgotten.
    pub(super) fn reset(&self, slot: usize) {
        let _ = self.slot.compare_exchange(slot, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(retries: &Retries, slot: usize, times: u32) -> bool {
        (0..times).all(|_| retries.may_retry(slot))
    }

    #[test]
    fn retries_end_if_one_slot_is_always_refused() {
        let retries = Retries::default();
        assert!(refuse(&retries, 1, MOST - 10));
        assert!(refuse(&retries, 2, 9));
        retries.reset(2);
        assert!(retries.may_retry(3));
        assert!(!retries.may_retry(1));
    }

    #[test]
    fn retries_begin_anew_after_the_first_slot_was_served() {
        let retries = Retries::default();
        for _ in 0..3 {
            assert!(refuse(&retries, 1, MOST));
            retries.reset(1);
        }
    }
}
