//! Late signals: a thread writes to protected memory, and before its handler runs, the snapshot has
//! lifted the protection and was removed. The range is unknown then, and the access only has to be
//! repeated.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};

use crate::pool::FaultError;
use hugekit_sys::pagemap::PageMap;
use hugekit_sys::peek;

/// The number of successive repetitions at one address before its signal counts as foreign.
const TRIES: usize = 1000;

/// Like [`TRIES`], if the page is protected at this moment: by the guard of a snapshot's edge, at
/// which no access fails, or by a userfaultfd of other code, whose handler should not wait long.
const TRIES_PROTECTED: usize = 16;

/// The time after which a repetition does not count as successive: a page that is written all the
/// time may have thousands of snapshots.
const LATER: Duration = Duration::from_millis(10);

/// The record that distinguishes a late signal from a foreign one. Empty before any program asks for it.
#[derive(Debug)]
pub(super) struct Late {
    pagemap: OnceLock<PageMap>,
    last: AtomicUsize,
    /// The time of the last repetition, in nanoseconds of the monotonic clock.
    tried: AtomicU64,
    tries: AtomicUsize,
}

impl Late {
    pub(super) const fn new() -> Self {
        let (last, tries) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { pagemap: OnceLock::new(), last, tried: AtomicU64::new(0), tries }
    }

    /// Records that there are ranges now whose signals may be late.
    pub(super) fn begin(&self) -> Result<(), FaultError> {
        if self.pagemap.get().is_none() {
            let opened = PageMap::open().map_err(|errno| FaultError::Kernel {
                call: "open(/proc/self/pagemap)",
                source: errno.into(),
            })?;
            let _ = self.pagemap.set(opened);
        }
        Ok(())
    }

    /// Returns true if the address, which is in no range, is memory that the kernel has no lasting
    /// reason to refuse: it can be read and belongs to no file. Bounded, because the kernel may
    /// have a reason all the same. Async-signal-safe.
    pub(super) fn may_be_tried_again(&self, address: usize) -> bool {
        let Some(pagemap) = self.pagemap.get() else { return false };
        let page = address - address % page_size();
        let page = page..page + page_size();
        if !peek::is_readable(address) || pagemap.probe_file(&page) != Ok(false) {
            return false;
        }
        match pagemap.probe_protected(&page) {
            Ok(false) => self.bears_another_try(address),
            Ok(true) => !self.is_worn_out(address, TRIES_PROTECTED),
            Err(_) => false,
        }
    }

    /// Returns true if the access may be tried again where nothing keeps it from passing.
    /// Async-signal-safe.
    pub(super) fn bears_another_try(&self, address: usize) -> bool {
        !self.is_worn_out(address, TRIES)
    }

    fn is_worn_out(&self, address: usize, most: usize) -> bool {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_nanos() as u64;
        let is_later =
            now - self.tried.swap(now, Ordering::Relaxed).min(now) > LATER.as_nanos() as u64;
        if self.last.swap(address, Ordering::Relaxed) != address || is_later {
            self.tries.store(0, Ordering::Relaxed);
        }
        self.tries.fetch_add(1, Ordering::Relaxed) >= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_in_a_row_are_bounded_and_others_do_not_count() {
        let late = Late::new();
        let worn_out = |tries: usize| (0..tries).filter(|_| late.is_worn_out(4096, 20)).count();
        assert!(worn_out(10_000) > 0);
        std::thread::sleep(2 * LATER);
        assert!(!late.is_worn_out(4096, 20));
        assert!(!late.is_worn_out(8192, 1) && !late.is_worn_out(4096, 1));
    }
}
