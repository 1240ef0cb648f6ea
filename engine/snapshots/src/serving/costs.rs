//! What a snapshot has cost the threads that write its memory.

use std::sync::atomic::{AtomicU64, Ordering};

use super::state::Preserver;

/// Granules that were preserved, and how long writers waited.
#[derive(Debug, Default)]
pub(super) struct Costs {
    by_writers: AtomicU64,
    by_others: AtomicU64,
    longest_nanos: AtomicU64,
}

/// The same, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CostCounts {
    pub(crate) by_writers: u64,
    pub(crate) by_others: u64,
    /// The longest wait of a write.
    pub(crate) longest_nanos: u64,
}

impl Costs {
    pub(super) fn count(&self, preserver: Preserver) {
        let counter = match preserver {
            Preserver::Writer(_) => &self.by_writers,
            Preserver::Other => &self.by_others,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A write waited so long.
    pub(super) fn count_wait(&self, nanos: u64) {
        self.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> CostCounts {
        CostCounts {
            by_writers: self.by_writers.load(Ordering::Relaxed),
            by_others: self.by_others.load(Ordering::Relaxed),
            longest_nanos: self.longest_nanos.load(Ordering::Relaxed),
        }
    }
}
