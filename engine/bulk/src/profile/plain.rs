//! The length below which a plain operation uses libc, whatever the profile chooses for longer
//! operations. Short operations read only this number.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Choice, Profile};

/// The limit before there is a profile, and the least limit. A shorter operation takes less time
/// than reading a profile.
const LEAST: usize = 4 << 10;

/// The highest limit: longer operations learn (`learning/candidates.rs`).
pub(crate) const WARM_MOST: usize = 256 << 10;
pub(crate) const COLD_MOST: usize = 16 << 10;

/// The limits of one method.
#[derive(Debug)]
pub(crate) struct PlainBelow {
    warm: AtomicUsize,
    cold: AtomicUsize,
}

pub(crate) static CLEAR_PLAIN_BELOW: PlainBelow = PlainBelow::at_least();
pub(crate) static COPY_PLAIN_BELOW: PlainBelow = PlainBelow::at_least();

impl PlainBelow {
    const fn at_least() -> Self {
        Self { warm: AtomicUsize::new(LEAST), cold: AtomicUsize::new(LEAST) }
    }

    /// Returns the limit for bytes of which nothing is known.
    #[inline(always)]
    pub(crate) fn warm(&self) -> usize {
        self.warm.load(Ordering::Relaxed)
    }

    /// Returns the limit for bytes that need not be in the cache.
    #[inline(always)]
    pub(crate) fn cold(&self) -> usize {
        self.cold.load(Ordering::Relaxed)
    }

    fn set<F>(&self, choice: &Choice<F>) {
        self.warm.store(choice.warm.libc_below(WARM_MOST).max(LEAST), Ordering::Relaxed);
        self.cold.store(choice.cold.libc_below(COLD_MOST).max(LEAST), Ordering::Relaxed);
    }
}

/// Sets the limits to those of this profile, which becomes current.
pub(super) fn set(profile: &Profile) {
    CLEAR_PLAIN_BELOW.set(&profile.clear);
    COPY_PLAIN_BELOW.set(&profile.copy);
}
