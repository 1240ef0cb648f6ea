//! The ways to save a running guest.

use super::guest::{GuestPages, GuestSnapshots};
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
pub(super) enum Storage {
    Disk,
    Tmpfs,
}

/// A way to save, with its name in IDs.
#[derive(Clone, Debug)]
pub(super) struct SaveWay {
    method: String,
    pub(super) kind: GuestPages,
    pub(super) save: Save,
    pub(super) place: Storage,
    pub(super) share: Share,
}

impl SaveWay {
    /// All that can be used here.
    pub(super) fn all(snapshots: &GuestSnapshots) -> Vec<Self> {
        let usual = Self::of_kinds().into_iter().chain([Self::on_disk(snapshots)]);
        let shares = Share::ALL.into_iter().flat_map(Self::of_shares);
        let all = usual.chain(shares).filter(|way| snapshots.kinds().contains(&way.kind));
        all.filter(|way| way.place == Storage::Disk || snapshots.folders.tmpfs.is_some()).collect()
    }

    fn new(method: &str, kind: GuestPages, save: Save, place: Storage) -> Self {
        Self { method: method.to_owned(), kind, save, place, share: Share::USUAL }
    }

    /// The ways that are measured with each share that the guest writes.
    fn of_shares(share: Share) -> impl Iterator<Item = Self> {
        let ways = [
            Self::new("idle", GuestPages::Thp, Save::Idle, Storage::Disk),
            Self::new("stock-full-tmpfs", GuestPages::Stock, Save::Full, Storage::Tmpfs),
            Self::new("checkpoint", GuestPages::Thp, Save::Checkpoint, Storage::Disk),
            Self::new("stock-diff", GuestPages::Logged, Save::Diff, Storage::Disk),
            Self::new("delta", GuestPages::Thp, Save::Delta, Storage::Disk),
            Self::new("delta-in-series", GuestPages::Thp, Save::InSeries, Storage::Disk),
        ];
        ways.into_iter().map(move |way| Self { share, ..way })
    }

    fn of_kinds() -> Vec<Self> {
        vec![
            Self::new("checkpoint-tmpfs", GuestPages::Thp, Save::Checkpoint, Storage::Tmpfs),
            Self::new("checkpoint-base", GuestPages::Base, Save::Checkpoint, Storage::Disk),
            Self::new("checkpoint-hugetlb", GuestPages::Hugetlb, Save::Checkpoint, Storage::Disk),
            Self::new("idle-logged", GuestPages::Logged, Save::Idle, Storage::Disk),
            Self::new("idle-base", GuestPages::Base, Save::Idle, Storage::Disk),
            Self::new("idle-hugetlb", GuestPages::Hugetlb, Save::Idle, Storage::Disk),
        ]
    }

    fn on_disk(snapshots: &GuestSnapshots) -> Self {
        Self::new(&stock_on_disk(snapshots), GuestPages::Stock, Save::Full, Storage::Disk)
    }

    /// The name of a case: `method/what`.
    pub(super) fn case(&self, what: &str) -> String {
        format!("{}/{}", self.method, self.share.case(what))
    }
}

/// The name of stock snapshots on the disk.
pub(super) fn stock_on_disk(snapshots: &GuestSnapshots) -> String {
    format!("stock-full-{}", snapshots.folders.disk_name())
}
