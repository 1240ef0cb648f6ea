//! Signals that come late: a thread writes to protected memory, and before its handler runs, whoever had
//! protected it has lifted that and gone. The range is unknown then, but the access only wants to be tried
//! again.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::param::page_size;

use crate::pool::FaultError;
use crate::sys::{pagemap, peek};

/// So often in a row one address is tried again before its signal counts as somebody else's.
const TRIES: usize = 1000;

/// What tells a late signal from a foreign one. Empty before anybody asks for it.
#[derive(Debug)]
pub(super) struct Late {
    pagemap: OnceLock<OwnedFd>,
    last: AtomicUsize,
    tries: AtomicUsize,
}

impl Late {
    pub(super) const fn new() -> Self {
        Self { pagemap: OnceLock::new(), last: AtomicUsize::new(0), tries: AtomicUsize::new(0) }
    }

    /// From now on there are ranges whose signals may come late.
    pub(super) fn begin(&self) -> Result<(), FaultError> {
        if self.pagemap.get().is_none() {
            let opened = pagemap::open_own().map_err(|errno| FaultError::Kernel {
                call: "open(/proc/self/pagemap)",
                source: errno.into(),
            })?;
            let _ = self.pagemap.set(opened);
        }
        Ok(())
    }

    /// Whether the address, which is in no range, is memory that the kernel has no reason to refuse: it can be
    /// read, it belongs to no file, and nobody protects it. Bounded, because the kernel may have a reason all
    /// the same. Async-signal-safe.
    pub(super) fn may_be_tried_again(&self, address: usize) -> bool {
        let Some(pagemap) = self.pagemap.get() else { return false };
        let page = address - address % page_size();
        let (pagemap, page) = (pagemap.as_fd(), page..page + page_size());
        let is_plain = peek::is_readable(address)
            && pagemap::has_file(pagemap, &page) == Ok(false)
            && pagemap::is_protected(pagemap, &page) == Ok(false);
        is_plain && !self.is_worn_out(address)
    }

    fn is_worn_out(&self, address: usize) -> bool {
        if self.last.swap(address, Ordering::Relaxed) != address {
            self.tries.store(0, Ordering::Relaxed);
        }
        self.tries.fetch_add(1, Ordering::Relaxed) >= TRIES
    }
}
