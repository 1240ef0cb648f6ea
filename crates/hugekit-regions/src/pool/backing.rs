//! How a pool came to what it is made of.

use super::PoolError;
use hugekit_sys::backing::Backing;

/// A tier that was asked for and could not be taken.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fallback {
    /// The tier.
    pub backing: Backing,
    /// Why not.
    pub reason: PoolError,
}

/// How a pool came to what it is made of.
#[derive(Debug)]
#[non_exhaustive]
pub struct BackingReport {
    /// The tier taken.
    pub backing: Backing,
    /// The tier asked for first.
    pub asked: Backing,
    /// Why each tier above the one taken was not; empty if it is the one asked for.
    pub fallbacks: Vec<Fallback>,
    /// Bytes of the pool: those asked for, rounded up to whole folios.
    pub capacity: usize,
    /// Bytes asked for.
    pub asked_capacity: usize,
    /// Whether huge pages are made by collapsing base pages, because the kernel's setting for
    /// shared memory forbids allocating them: the first population of a folio costs more then.
    pub by_collapse: bool,
}

impl BackingReport {
    /// Says once, in the log, what was taken and why.
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
