//! What a pool's memory is made of, and how it came to be that.

use std::fmt;

use super::PoolError;
use crate::HUGE_PAGE_BYTES;
use crate::sys::memfd::Pages;

/// What a pool's memory is made of: the tiers of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backing {
    /// The kernel's reserved pages of 1 GiB. Only on request, because nothing smaller than 1 GiB
    /// can be mapped, protected or released there.
    Hugetlb1G,
    /// The kernel's reserved pages of 2 MiB.
    Hugetlb2M,
    /// Shared memory on transparent huge pages.
    Thp,
    /// Shared memory on base pages: always possible, and the slowest to map.
    Base,
}

impl Backing {
    /// Every tier, the highest first.
    pub const ALL: [Self; 4] = [Self::Hugetlb1G, Self::Hugetlb2M, Self::Thp, Self::Base];

    /// Bytes of a folio: what is populated, mapped and cleaned as a whole.
    #[must_use]
    pub fn page_size(self) -> usize {
        match self {
            Self::Hugetlb1G => 1 << 30,
            Self::Hugetlb2M | Self::Thp => HUGE_PAGE_BYTES,
            Self::Base => rustix::param::page_size(),
        }
    }

    /// Whether the kernel sets these pages apart, so that no other process can take them.
    #[must_use]
    pub fn is_reserved(self) -> bool {
        matches!(self, Self::Hugetlb1G | Self::Hugetlb2M)
    }

    pub(super) fn pages(self) -> Pages {
        match self {
            Self::Hugetlb1G => Pages::Hugetlb1G,
            Self::Hugetlb2M => Pages::Hugetlb2M,
            Self::Thp | Self::Base => Pages::Shmem,
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hugetlb1G => "hugetlb pages of 1 GiB",
            Self::Hugetlb2M => "hugetlb pages of 2 MiB",
            Self::Thp => "shared memory on transparent huge pages",
            Self::Base => "shared memory on base pages",
        })
    }
}

/// A tier that was asked for and could not be taken.
#[derive(Debug)]
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
            tracing::warn!(name, "pool not on {}: {}", fallback.backing, fallback.reason);
        }
        tracing::info!(name, %backing, %asked, capacity, by_collapse = self.by_collapse, "pool made");
    }
}
