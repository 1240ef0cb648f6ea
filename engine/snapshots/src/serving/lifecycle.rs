//! The phase of a snapshot, and the reason for its loss.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// The phase of a snapshot decides what a write to its memory must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Nothing: no memory of the snapshot is protected yet.
    Forming,
    /// Wait: the memory is being protected at this moment.
    Arming,
    /// Preserve the granule before it changes.
    Live,
    /// Nothing: no thread reads the snapshot any more.
    Ended,
}

/// The reason for the loss of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossCause {
    CowLimitExceeded,
    Changed(usize),
    /// The thread that served writes died.
    Unserved,
    /// The kernel refuses a call that it permitted before.
    Refused,
}

/// The phase and the cause of a loss, as atomic words for handlers.
#[derive(Debug)]
pub(super) struct Lifecycle {
    phase: AtomicU8,
    /// 0 without a loss. 1, 3 or 5, or the address of a page with bit 1 set.
    failure: AtomicUsize,
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self { phase: AtomicU8::new(Phase::Forming as u8), failure: AtomicUsize::new(0) }
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Forming,
            1 => Phase::Arming,
            2 => Phase::Live,
            _ => Phase::Ended,
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    /// Marks the snapshot as lost. Returns the first cause.
    pub(super) fn fail(&self, failure: LossCause) -> LossCause {
        let word = match failure {
            LossCause::CowLimitExceeded => 1,
            LossCause::Unserved => 3,
            LossCause::Refused => 5,
            LossCause::Changed(address) => address & !3 | 2,
        };
        let _ = self.failure.compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst);
        self.failure().unwrap_or(failure)
    }

    pub(super) fn failure(&self) -> Option<LossCause> {
        match self.failure.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(LossCause::CowLimitExceeded),
            3 => Some(LossCause::Unserved),
            5 => Some(LossCause::Refused),
            word => Some(LossCause::Changed(word & !3)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fail_keeps_the_first_cause_whichever_it_is() {
        let causes = [
            LossCause::CowLimitExceeded,
            LossCause::Unserved,
            LossCause::Refused,
            LossCause::Changed(0x7000),
        ];
        for first in causes {
            let lifecycle = Lifecycle::new();
            assert_eq!((lifecycle.phase(), lifecycle.failure()), (Phase::Forming, None));
            assert_eq!(lifecycle.fail(first), first);
            for later in causes {
                assert_eq!(lifecycle.fail(later), first);
            }
            assert_eq!(lifecycle.failure(), Some(first));
        }
    }
}
