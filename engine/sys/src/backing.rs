//! Backings: the kinds of pages that memory consists of.
//!
//! The table below is the only list of backings. Each difference between backings is a column of
//! the table: names, numbers, and properties. So a new backing is one row. All interfaces read
//! [`Backing::ALL`].

use std::fmt;

use crate::HUGE_PAGE_BYTES;
use crate::memfd::FilePages;

/// A row of the table below.
struct BackingRow {
    pages: BackingPages,
    /// The name in messages to people.
    title: &'static str,
    /// The name in Python.
    word: &'static str,
    /// The name on the command line, in files of options and in the lab.
    option: &'static str,
    /// The number in C: the value in `hugekit_backing`. 0 is the default there.
    number: u32,
    /// The number in messages of the lease protocol.
    code: u64,
}

/// The source of the pages, with the bytes of each.
#[derive(Clone, Copy)]
enum BackingPages {
    /// Huge pages that the kernel reserves in a pool.
    Reserved(usize),
    /// Shared memory with a request for huge pages. The kernel may allocate base pages instead.
    Transparent(usize),
    /// Shared memory on base pages.
    Base,
}

macro_rules! backings {
    ($($(#[$doc:meta])* $kind:ident: $row:expr;)*) => {
        /// The backing of memory: the kind of pages that a pool uses.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Backing {
            $($(#[$doc])* $kind,)*
        }

        impl Backing {
            /// All backings, the largest pages first.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            const fn row(self) -> &'static BackingRow {
                match self {
                    $(Self::$kind => &const { $row },)*
                }
            }
        }
    };
}

// The largest pages first: a pool without pages of one row tries those of the next.
backings! {
    /// Reserved huge pages of 1 GiB. Pools use them only on request, because the kernel can only
    /// map, protect and release whole pages of 1 GiB.
    Hugetlb1G: BackingRow {
        pages: BackingPages::Reserved(1 << 30),
        title: "hugetlb pages of 1 GiB",
        word: "hugetlb 1G",
        option: "hugetlb-1g",
        number: 1,
        code: 2,
    };
    /// Reserved huge pages of 2 MiB.
    Hugetlb2M: BackingRow {
        pages: BackingPages::Reserved(HUGE_PAGE_BYTES),
        title: "hugetlb pages of 2 MiB",
        word: "hugetlb 2M",
        option: "hugetlb",
        number: 2,
        code: 1,
    };
    /// Shared memory on transparent huge pages.
    Thp: BackingRow {
        pages: BackingPages::Transparent(HUGE_PAGE_BYTES),
        title: "shared memory on transparent huge pages",
        word: "thp",
        option: "thp",
        number: 3,
        code: 3,
    };
    /// Shared memory on base pages. Every machine supports this backing; mapping it is slowest.
    Base: BackingRow {
        pages: BackingPages::Base,
        title: "shared memory on base pages",
        word: "base",
        option: "base",
        number: 4,
        code: 4,
    };
}

impl Backing {
    /// Returns the length of a folio in bytes. A folio is populated, mapped and cleared as a whole.
    #[must_use]
    pub fn page_size(self) -> usize {
        match self.row().pages {
            BackingPages::Reserved(bytes) | BackingPages::Transparent(bytes) => bytes,
            BackingPages::Base => rustix::param::page_size(),
        }
    }

    /// Returns true if the kernel reserves these pages for the pool, so no other process can use
    /// them.
    #[must_use]
    pub fn is_reserved(self) -> bool {
        matches!(self.row().pages, BackingPages::Reserved(_))
    }

    /// Returns true if hugekit must request these pages and the kernel may allocate base pages
    /// instead.
    #[doc(hidden)]
    #[must_use]
    pub fn is_transparent(self) -> bool {
        matches!(self.row().pages, BackingPages::Transparent(_))
    }

    /// Returns the pages of a file of this backing.
    #[doc(hidden)]
    #[must_use]
    pub fn pages(self) -> FilePages {
        match self.row().pages {
            BackingPages::Reserved(bytes) => FilePages::Hugetlb { bytes },
            BackingPages::Transparent(_) | BackingPages::Base => FilePages::Shmem,
        }
    }

    /// Returns the name of the backing in Python.
    #[doc(hidden)]
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.row().word
    }

    /// Returns the name of the backing on the command line, in files of options and in the lab.
    #[doc(hidden)]
    #[must_use]
    pub const fn option(self) -> &'static str {
        self.row().option
    }

    /// Returns the number of the backing in C.
    #[doc(hidden)]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.row().number
    }

    /// Returns the number of the backing in messages of the lease protocol.
    #[doc(hidden)]
    #[must_use]
    pub const fn code(self) -> u64 {
        self.row().code
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().title)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::Hash;

    use super::*;

    fn is_unique<T: Hash + Ord>(column: impl Fn(Backing) -> T) -> bool {
        let values: BTreeSet<T> = Backing::ALL.iter().map(|&backing| column(backing)).collect();
        values.len() == Backing::ALL.len()
    }

    #[test]
    fn rows_differ_in_each_name_and_number() {
        assert!(is_unique(|backing| backing.to_string()));
        assert!(is_unique(Backing::word) && is_unique(Backing::option));
        assert!(is_unique(Backing::number) && is_unique(Backing::code));
        assert!(Backing::ALL.iter().all(|backing| backing.number() > 0 && backing.code() > 0));
    }

    /// A pool without pages of one row tries those of the next. The last one is on every machine.
    #[test]
    fn rows_are_ordered_from_the_largest_pages_to_base_pages() {
        assert!(Backing::ALL.is_sorted_by_key(|backing| std::cmp::Reverse(backing.page_size())));
        assert_eq!(Backing::ALL.last(), Some(&Backing::Base));
        assert!(Backing::ALL.iter().all(|backing| backing.page_size().is_power_of_two()));
    }
}
