//! The ways to save a running guest.

use super::guest::{Kind, Origin};
use super::share::Share;

/// The way of saving a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Save {
    /// Nothing: it only writes.
    Idle,
    /// A stock snapshot of all memory.
    Full,
    /// A stock snapshot of the pages that were written since the one before.
    Diff,
    Checkpoint,
    /// A checkpoint of the blocks that differ from the one before.
    Delta,
    /// The same, in a series: memory that was written since is noted.
    InSeries,
}

/// The place of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Disk,
    Tmpfs,
}

/// A way to save, with its name in IDs.
#[derive(Clone, Debug)]
pub(super) struct Way {
    method: String,
    pub(super) kind: Kind,
    pub(super) save: Save,
    pub(super) place: Place,
    pub(super) share: Share,
}

impl Way {
    /// All that can be used here.
    pub(super) fn all(origin: &Origin) -> Vec<Self> {
        let usual = Self::of_kinds().into_iter().chain([Self::on_disk(origin)]);
        let shares = Share::ALL.into_iter().flat_map(Self::of_shares);
        let all = usual.chain(shares).filter(|way| origin.kinds().contains(&way.kind));
        all.filter(|way| way.place == Place::Disk || origin.folders.tmpfs.is_some()).collect()
    }

    fn new(method: &str, kind: Kind, save: Save, place: Place) -> Self {
        Self { method: method.to_owned(), kind, save, place, share: Share::USUAL }
    }

    /// The ways that are measured with each share that the guest writes.
    fn of_shares(share: Share) -> impl Iterator<Item = Self> {
        let ways = [
            Self::new("idle", Kind::Thp, Save::Idle, Place::Disk),
            Self::new("stock-full-tmpfs", Kind::Stock, Save::Full, Place::Tmpfs),
            Self::new("checkpoint", Kind::Thp, Save::Checkpoint, Place::Disk),
            Self::new("stock-diff", Kind::Logged, Save::Diff, Place::Disk),
            Self::new("delta", Kind::Thp, Save::Delta, Place::Disk),
            Self::new("delta-in-series", Kind::Thp, Save::InSeries, Place::Disk),
        ];
        ways.into_iter().map(move |way| Self { share, ..way })
    }

    fn of_kinds() -> Vec<Self> {
        vec![
            Self::new("checkpoint-tmpfs", Kind::Thp, Save::Checkpoint, Place::Tmpfs),
            Self::new("checkpoint-base", Kind::Base, Save::Checkpoint, Place::Disk),
            Self::new("checkpoint-hugetlb", Kind::Hugetlb, Save::Checkpoint, Place::Disk),
            Self::new("idle-logged", Kind::Logged, Save::Idle, Place::Disk),
            Self::new("idle-base", Kind::Base, Save::Idle, Place::Disk),
            Self::new("idle-hugetlb", Kind::Hugetlb, Save::Idle, Place::Disk),
        ]
    }

    fn on_disk(origin: &Origin) -> Self {
        Self::new(&stock_on_disk(origin), Kind::Stock, Save::Full, Place::Disk)
    }

    /// The name of a case: `method/what`.
    pub(super) fn case(&self, what: &str) -> String {
        format!("{}/{}", self.method, self.share.case(what))
    }
}

/// The name of stock snapshots on the disk.
pub(super) fn stock_on_disk(origin: &Origin) -> String {
    format!("stock-full-{}", origin.folders.disk_name())
}
