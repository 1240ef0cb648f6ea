//! What memory is made of.

use std::fmt;

use crate::HUGE_PAGE_BYTES;
use crate::memfd::FilePages;

/// The kind of pages that a pool uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backing {
    /// Reserved huge pages of 1 GiB. Used only on request, because nothing smaller than 1 GiB can
    /// be mapped, protected or released there.
    Hugetlb1G,
    /// Reserved huge pages of 2 MiB.
    Hugetlb2M,
    /// Shared memory on transparent huge pages.
    Thp,
    /// Shared memory on base pages. Every machine has these; mapping them is slowest.
    Base,
}

impl Backing {
    /// Every backing, the largest pages first.
    pub const ALL: &'static [Self] = &[Self::Hugetlb1G, Self::Hugetlb2M, Self::Thp, Self::Base];

    /// Bytes of a folio, which is populated, mapped and cleared as a whole.
    #[must_use]
    pub fn page_size(self) -> usize {
        match self {
            Self::Hugetlb1G => 1 << 30,
            Self::Hugetlb2M | Self::Thp => HUGE_PAGE_BYTES,
            Self::Base => rustix::param::page_size(),
        }
    }

    /// Returns whether the kernel reserves these pages for the pool, so no other process can take them.
    #[must_use]
    pub fn is_reserved(self) -> bool {
        matches!(self, Self::Hugetlb1G | Self::Hugetlb2M)
    }

    #[doc(hidden)]
    pub fn pages(self) -> FilePages {
        match self {
            Self::Hugetlb1G => FilePages::Hugetlb1G,
            Self::Hugetlb2M => FilePages::Hugetlb2M,
            Self::Thp | Self::Base => FilePages::Shmem,
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
