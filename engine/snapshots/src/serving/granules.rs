//! The place of each granule's bytes: still with their owner, in a slot, or nowhere any more.
//!
//! The state of a granule is one word in a table of [claims](Claims), in memory that no snapshot protects. A granule
//! leaves `Owner` once and never comes back, and its protection is lifted only after it has left. So a reader first
//! copies the owner's bytes and then looks at the state. If the state is `Owner` and not claimed, the reader has the
//! bytes of the snapshot. It takes no lock.

use std::sync::atomic::{Ordering, fence};

use rustix::io;

use hugekit_sys::sync::{Claim, ClaimState, Claims};
use hugekit_sys::thread::SignalsBlocked;

/// The place of a granule's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GranulePlace {
    /// In the owner's protected memory.
    Owner,
    /// In this slot of the arena.
    Slot(u32),
    /// Nowhere: the bytes were read, and no reader wants them any more.
    Gone,
    /// Nowhere: the snapshot was lost before they were copied.
    Lost,
    /// In the owner's protected memory. They were read, and only a change is still recorded.
    Saved,
}

/// The next state of a granule that was read from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterRead {
    /// The granule may be written, and no thread records that.
    Nothing,
    /// The granule stays protected, and the first write to it is recorded.
    Watched,
}

/// The number of states that are not a slot.
const SLOTS: u32 = 4;

impl ClaimState for GranulePlace {
    fn bits(self) -> u32 {
        match self {
            Self::Owner => 0,
            Self::Gone => 1,
            Self::Lost => 2,
            Self::Saved => 3,
            Self::Slot(slot) => slot + SLOTS,
        }
    }

    fn of(bits: u32) -> Self {
        match bits {
            0 => Self::Owner,
            1 => Self::Gone,
            2 => Self::Lost,
            3 => Self::Saved,
            slot => Self::Slot(slot - SLOTS),
        }
    }
}

/// The granules of one snapshot. All functions except `new` are async-signal-safe.
#[derive(Debug)]
pub(crate) struct Granules(Claims<GranulePlace>);

impl Granules {
    /// Makes this many granules. All of them are with their owner.
    pub(super) fn new(count: usize) -> io::Result<Self> {
        Claims::new(count).map(Self)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Waits until no thread is copying the granule, and returns its place.
    pub(super) fn settled(&self, index: usize) -> GranulePlace {
        self.0.settled(index).state
    }

    /// Returns true if the bytes are with their owner and no thread is copying them. If so, the
    /// caller's earlier loads happened while that was true.
    pub(super) fn is_still_with_owner(&self, index: usize) -> bool {
        fence(Ordering::Acquire);
        let seen = self.0.look(index);
        seen.state == GranulePlace::Owner && !seen.is_busy
    }

    /// Returns true if a write must be recorded or preserved first.
    pub(super) fn needs_protection(&self, index: usize) -> bool {
        matches!(self.0.look(index).state, GranulePlace::Owner | GranulePlace::Saved)
    }

    /// Claims the right to preserve the granule, or to record that it changes, if it is still with its owner. Waits
    /// for another thread that has the right. Stores of that thread are visible afterwards.
    pub(super) fn claim<'a>(
        &'a self,
        index: usize,
        blocked: &'a SignalsBlocked,
    ) -> Option<Claim<'a, GranulePlace>> {
        let with_owner = |place| matches!(place, GranulePlace::Owner | GranulePlace::Saved);
        let claim = self.0.claim_if(index, with_owner, blocked);
        fence(Ordering::SeqCst);
        claim
    }

    /// Lets a granule go: no reader wants it any more. Waits until no thread is copying it. Returns its earlier
    /// place.
    pub(super) fn let_go(
        &self,
        index: usize,
        after_read: AfterRead,
        blocked: &SignalsBlocked,
    ) -> GranulePlace {
        let claim = self.0.claim(index, blocked);
        let then = match (claim.state(), after_read) {
            (GranulePlace::Owner | GranulePlace::Saved, AfterRead::Watched) => GranulePlace::Saved,
            _ => GranulePlace::Gone,
        };
        claim.finish(then)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;
    use hugekit_sys::thread::without_signals;

    #[test]
    fn granule_of_one_owner_leaves_it_once() {
        let granules = Granules::new(64).unwrap();
        let copied: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    without_signals(|blocked| {
                        for (index, copied) in copied.iter().enumerate() {
                            if let Some(busy) = granules.claim(index, blocked) {
                                thread::yield_now();
                                copied.fetch_add(1, Ordering::Relaxed);
                                busy.finish(GranulePlace::Slot(index as u32));
                            }
                            assert_eq!(granules.settled(index), GranulePlace::Slot(index as u32));
                            assert!(!granules.needs_protection(index));
                            assert_eq!(copied.load(Ordering::Relaxed), 1);
                        }
                    });
                });
            }
        });
    }

    #[test]
    fn granule_given_up_stays_where_it_was() {
        without_signals(|blocked| {
            let granules = Granules::new(2).unwrap();
            let claim = granules.claim(0, blocked).unwrap();
            assert!(granules.needs_protection(0) && !granules.is_still_with_owner(0));
            drop(claim);
            assert!(granules.is_still_with_owner(0));
            assert_eq!(granules.settled(0), GranulePlace::Owner);
            granules.claim(0, blocked).unwrap().finish(GranulePlace::Lost);
            assert!(granules.claim(0, blocked).is_none());
            assert_eq!(granules.let_go(1, AfterRead::Nothing, blocked), GranulePlace::Owner);
            assert_eq!((granules.settled(1), granules.len()), (GranulePlace::Gone, 2));
            assert!(granules.claim(1, blocked).is_none());
        });
    }

    #[test]
    fn granule_that_is_watched_is_saved_until_it_is_claimed_again() {
        without_signals(|blocked| {
            let granules = Granules::new(2).unwrap();
            assert_eq!(granules.let_go(0, AfterRead::Watched, blocked), GranulePlace::Owner);
            assert_eq!(granules.settled(0), GranulePlace::Saved);
            assert!(granules.needs_protection(0) && !granules.is_still_with_owner(0));
            let claim = granules.claim(0, blocked).unwrap();
            assert_eq!(claim.finish(GranulePlace::Gone), GranulePlace::Saved);
            assert!(granules.claim(0, blocked).is_none() && !granules.needs_protection(0));
            granules.claim(1, blocked).unwrap().finish(GranulePlace::Slot(0));
            assert_eq!(granules.let_go(1, AfterRead::Watched, blocked), GranulePlace::Slot(0));
            assert_eq!(granules.settled(1), GranulePlace::Gone, "it has changed meanwhile");
        });
    }
}
