//! How many mappings forks may cost: a process has `vm.max_map_count` of them, for everything.
//!
//! A granule that is mapped apart splits a mapping in three, unless its neighbours are apart already. What
//! that costs is counted as it is expected, not as the kernel has it: half of the limit leaves room.

use std::sync::atomic::{AtomicIsize, Ordering};

use rustix::io;

use hugekit_machine::Root;
use hugekit_machine::limits::max_map_count;
use hugekit_sys::private_pages::Private;
use hugekit_sys::sync::First;

/// The kernel's default, if its setting cannot be read.
const USUAL: u64 = 65530;

/// Returns the cost of this process's forks, and of its parent's at the time of fork(2). Not in the
/// static itself: faults change it.
fn spent_by_all() -> io::Result<&'static AtomicIsize> {
    static SPENT: First<Private<AtomicIsize>> = First::new();
    if let Some(spent) = SPENT.get() {
        return Ok(spent);
    }
    let spent = Private::new(AtomicIsize::new(0))?;
    Ok(SPENT.get_or_make(|| spent))
}

/// The cost that one group may have, and has.
#[derive(Debug)]
pub(super) struct Budget {
    /// Changed before the first fork only, so that no handler writes it.
    most: AtomicIsize,
    spent: Private<AtomicIsize>,
    all: &'static AtomicIsize,
}

/// Half of the process's mappings.
pub(super) fn of_process() -> usize {
    static MOST: First<usize> = First::new();
    *MOST.get_or_make(|| (max_map_count(&Root::default()).unwrap_or(USUAL) / 2) as usize)
}

impl Budget {
    /// Looks at the limit, which no fault may.
    pub(super) fn new() -> io::Result<Self> {
        let most = AtomicIsize::new(of_process() as isize);
        Ok(Self { most, spent: Private::new(AtomicIsize::new(0))?, all: spent_by_all()? })
    }

    /// Lets the group cost no more than this, if there is a limit.
    pub(super) fn limit_to(&self, most: Option<usize>) {
        let most = most.unwrap_or(usize::MAX).min(of_process());
        self.most.store(most as isize, Ordering::Relaxed);
    }

    fn most(&self) -> isize {
        self.most.load(Ordering::Relaxed)
    }

    /// Spends this many mappings; whether there are as many. A negative number gives some back.
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

    /// Gives this many back. Async-signal-safe.
    pub(super) fn refund(&self, mappings: isize) {
        self.spent.fetch_sub(mappings, Ordering::Relaxed);
        self.all.fetch_sub(mappings, Ordering::Relaxed);
    }

    /// Returns how many mappings are left, and the most that there can be.
    pub(super) fn left(&self) -> (usize, usize) {
        let own = self.most() - self.spent.load(Ordering::Relaxed);
        let all = of_process() as isize - self.all.load(Ordering::Relaxed);
        (own.min(all).max(0) as usize, self.most() as usize)
    }
}
