//! The share of its memory that a guest writes while it is saved.

use hugekit_guests::CLUSTER;

/// A word of each page of a share is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// This share in percent, in clusters at equal distances.
    Clusters(u64),
    /// 1 % in one range.
    Together,
}

impl Share {
    pub(super) const ALL: [Self; 4] =
        [Self::Clusters(1), Self::Together, Self::USUAL, Self::Clusters(100)];

    /// The share of cases without a share in their names.
    pub(super) const USUAL: Self = Self::Clusters(10);

    /// The share of `len` bytes at `start`: where it begins, how long it is, and the distance of
    /// clusters, as a guest is asked.
    pub(super) fn of(self, start: u64, len: u64) -> (u64, u64, u64) {
        match self {
            Self::Clusters(percent) => (start, len, CLUSTER * 100 / percent),
            Self::Together => (start, len / 100 / CLUSTER * CLUSTER, CLUSTER),
        }
    }

    /// The name of a case with this share, as in IDs.
    pub(super) fn case(self, what: &str) -> String {
        match self {
            Self::USUAL => what.to_owned(),
            Self::Clusters(percent) => format!("{what}-written-{percent}%"),
            Self::Together => format!("{what}-written-1%-together"),
        }
    }
}
