//! How long threads wait for what the kernel refuses.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Refusals since the slot that is waited for longest was refused first. Slots are told by a number of their own,
/// not 0. Async-signal-safe.
#[derive(Debug, Default)]
pub(super) struct Patience {
    slot: AtomicUsize,
    refusals: AtomicU32,
}

/// So many refusals are borne: about a second of them.
const MOST: u32 = 10_000;

impl Patience {
    /// The kernel refused what a slot takes; whether it is to be asked again. Others' refusals count too, so that no
    /// slot is waited for for ever, however many are.
    pub(super) fn bears_refusal_of(&self, slot: usize) -> bool {
        let first = self.slot.compare_exchange(0, slot, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_ok() {
            self.refusals.store(0, Ordering::Relaxed);
        }
        self.refusals.fetch_add(1, Ordering::Relaxed) < MOST
    }

    /// Forgets the refusals, if this slot is the one that is waited for longest: it was served.
    pub(super) fn reset(&self, slot: usize) {
        let _ = self.slot.compare_exchange(slot, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(patience: &Patience, slot: usize, times: u32) -> bool {
        (0..times).all(|_| patience.bears_refusal_of(slot))
    }

    #[test]
    fn patience_with_one_always_refused_ends() {
        let patience = Patience::default();
        assert!(refuse(&patience, 1, MOST - 10));
        assert!(refuse(&patience, 2, 9));
        patience.reset(2);
        assert!(patience.bears_refusal_of(3));
        assert!(!patience.bears_refusal_of(1));
    }

    #[test]
    fn patience_after_the_first_was_served_begins_anew() {
        let patience = Patience::default();
        for _ in 0..3 {
            assert!(refuse(&patience, 1, MOST));
            patience.reset(1);
        }
    }
}
