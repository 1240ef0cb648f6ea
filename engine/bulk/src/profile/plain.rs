//! Below which length an operation of which nothing is asked is libc's, whatever the profile in force says of longer
//! ones: one number, which short operations look at and at nothing else.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Choice, Profile};

/// Before there is a profile, and at least: a shorter operation is over before one was read.
const LEAST: usize = 4 << 10;

/// At most: longer ones learn (`learning/candidates.rs`).
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

    /// For bytes of which nothing is known.
    #[inline(always)]
    pub(crate) fn warm(&self) -> usize {
        self.warm.load(Ordering::Relaxed)
    }

    /// For bytes that need not be in the cache.
    #[inline(always)]
    pub(crate) fn cold(&self) -> usize {
        self.cold.load(Ordering::Relaxed)
    }

    fn set<F>(&self, choice: &Choice<F>) {
        self.warm.store(choice.warm.libc_below(WARM_MOST).max(LEAST), Ordering::Relaxed);
        self.cold.store(choice.cold.libc_below(COLD_MOST).max(LEAST), Ordering::Relaxed);
    }
}

/// Has operations go by the numbers of this profile, which comes into force.
pub(super) fn set(profile: &Profile) {
    CLEAR_PLAIN_BELOW.set(&profile.clear);
    COPY_PLAIN_BELOW.set(&profile.copy);
}
