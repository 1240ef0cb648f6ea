//! Limits the number of mappings that forks may cost. A process has `vm.max_map_count` mappings for everything.
//!
//! A granule that is mapped apart splits a mapping in three, unless a neighbour is mapped apart already. hugekit
//! counts the expected cost, and not the mappings that the kernel has. So it uses only half of the limit.

use std::sync::atomic::{AtomicIsize, Ordering};

use rustix::io;

use hugekit_machine::Root;
use hugekit_machine::limits::max_map_count;
use hugekit_sys::private_pages::Private;
use hugekit_sys::sync::First;

/// The kernel's default, if its setting cannot be read.
const USUAL: u64 = 65530;

/// Returns the cost of this process's forks, which includes the cost of its parent's forks at the time of fork(2).
/// The counter does not lie in the static, because faults change it.
fn spent_by_all() -> io::Result<&'static AtomicIsize> {
    static SPENT: First<Private<AtomicIsize>> = First::new();
    if let Some(spent) = SPENT.get() {
        return Ok(spent);
    }
    let spent = Private::new(AtomicIsize::new(0))?;
    Ok(SPENT.get_or_make(|| spent))
}

/// The cost of one group, and its limit.
#[derive(Debug)]
pub(super) struct Budget {
    /// Changed only before the first fork, so no handler writes it.
    most: AtomicIsize,
    spent: Private<AtomicIsize>,
    all: &'static AtomicIsize,
}

/// Returns half of the mappings that the process may have.
pub(super) fn of_process() -> usize {
    static MOST: First<usize> = First::new();
    *MOST.get_or_make(|| (max_map_count(&Root::default()).unwrap_or(USUAL) / 2) as usize)
}

impl Budget {
    /// Reads the limit of the process. Not in a fault.
    pub(super) fn new() -> io::Result<Self> {
        let most = AtomicIsize::new(of_process() as isize);
        Ok(Self { most, spent: Private::new(AtomicIsize::new(0))?, all: spent_by_all()? })
    }

    /// Limits the cost of the group, if `most` is a number.
    pub(super) fn limit_to(&self, most: Option<usize>) {
        let most = most.unwrap_or(usize::MAX).min(of_process());
        self.most.store(most as isize, Ordering::Relaxed);
    }

    fn most(&self) -> isize {
        self.most.load(Ordering::Relaxed)
    }

    /// Spends this many mappings. Returns false, and spends nothing, if fewer are left. A negative number refunds.
    /// Async-signal-safe.
    pub(super) fn spend(&self, mappings: isize) -> bool {
        let own = self.spent.fetch_add(mappings, Ordering::Relaxed) + mappings;
        let all = self.all.fetch_add(mappings, Ordering::Relaxed) + mappings;
        if mappings > 0 && (own > self.most() || all > of_process() as isize) {
            self.refund(mappings);
            return false;
        }
        true
    }

    /// Refunds this many mappings. Async-signal-safe.
    pub(super) fn refund(&self, mappings: isize) {
        self.spent.fetch_sub(mappings, Ordering::Relaxed);
        self.all.fetch_sub(mappings, Ordering::Relaxed);
    }

    /// Returns the number of mappings that are left, and the limit.
    pub(super) fn left(&self) -> (usize, usize) {
        let own = self.most() - self.spent.load(Ordering::Relaxed);
        let all = of_process() as isize - self.all.load(Ordering::Relaxed);
        (own.min(all).max(0) as usize, self.most() as usize)
    }
}
