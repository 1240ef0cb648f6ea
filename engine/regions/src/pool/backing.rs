//! The choice of a pool's backing.

use super::PoolError;
use hugekit_sys::backing::Backing;

/// A backing that was tried and could not be used.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fallback {
    /// The backing.
    pub backing: Backing,
    /// The reason why the backing could not be used.
    pub reason: PoolError,
}

/// The backing of a pool, and the reasons for it.
#[derive(Debug)]
#[non_exhaustive]
pub struct BackingReport {
    /// The backing that the pool uses.
    pub backing: Backing,
    /// The backing that was requested first.
    pub asked: Backing,
    /// The backings that were tried before, each with the reason why it was not used. Empty if the
    /// pool uses the requested backing.
    pub fallbacks: Vec<Fallback>,
    /// Bytes of the pool: the requested bytes, rounded up to a multiple of the folio.
    pub capacity: usize,
    /// Bytes that were requested.
    pub asked_capacity: usize,
    /// True if huge pages are made by collapsing base pages, because the kernel's setting for
    /// shared memory forbids allocating huge pages. The first population of a folio costs more
    /// then.
    pub by_collapse: bool,
}

impl BackingReport {
    /// Logs the chosen backing and the reasons, once.
    pub(super) fn log(&self, name: &str) {
        let Self { backing, asked, capacity, .. } = self;
        for fallback in &self.fallbacks {
            hugekit_sys::events::warn!(
                "{name} is not on {}: {}",
                fallback.backing,
                hugekit_sys::error_chain(&fallback.reason)
            );
        }
        let how = if self.by_collapse { ", collapsed" } else { "" };
        hugekit_sys::events::info!(
            "{name} has {capacity} bytes on {backing}{how}; {asked} was asked for"
        );
    }
}
