//! Guests that a pager has restored and left, and their writes.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::measure::workloads::forking::on_base_pages;
use crate::measure::workloads::micro_vm::{MicroVm, failed};
use crate::measure::workloads::pager_thread::PagerThread;
use crate::measure::{LabError, Observer};
use hugekit_guests::{Firecracker, Request, Snapshot};
use hugekit_vm::pager::PagerOptions;
use serde_json::json;

use super::share::Share;
use crate::experiments::files::Folders;
use crate::experiments::restore::saved_guest::save_guests;

/// The number of counts of the guest's TSC, and the time of each.
const COUNTS: usize = 3;
const COUNTED: Duration = Duration::from_millis(200);

/// The pages of a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestPages {
    /// Transparent huge pages, which the pager has made.
    Thp,
    /// The same. Stock snapshots read all of its memory: pages of zeroes are there afterwards, and
    /// checkpoints would copy them.
    Stock,
    /// The same, while KVM logs writes for stock snapshots of changes.
    Logged,
    Base,
    Hugetlb,
}

/// The snapshots that guests are restored from.
pub(super) struct GuestSnapshots {
    pub(super) folders: Folders,
    bytes: usize,
    snapshot: Snapshot,
    /// A snapshot of a guest on hugetlb pages, if there are enough.
    huge: Option<Snapshot>,
}

impl GuestSnapshots {
    pub(super) fn make(
        folders: Folders,
        bytes: usize,
        has_pages: bool,
        observer: &dyn Observer,
    ) -> Result<Self, LabError> {
        let (snapshot, huge) = save_guests(&folders, bytes, has_pages, observer)?;
        Ok(Self { folders, bytes, snapshot, huge })
    }

    /// Bytes that each guest has written.
    pub(super) fn len(&self) -> usize {
        self.bytes / 2
    }

    pub(super) fn kinds(&self) -> Vec<GuestPages> {
        let hugetlb = self.huge.as_ref().map(|_| GuestPages::Hugetlb);
        [GuestPages::Thp, GuestPages::Stock, GuestPages::Logged, GuestPages::Base]
            .into_iter()
            .chain(hugetlb)
            .collect()
    }

    fn part(&self, share: Share) -> (u64, u64, u64) {
        share.of(self.bytes as u64 / 4, self.len() as u64)
    }

    fn snapshot(&self, kind: GuestPages) -> &Snapshot {
        let huge = (kind == GuestPages::Hugetlb).then_some(self.huge.as_ref()).flatten();
        huge.unwrap_or(&self.snapshot)
    }
}

/// The guest's own view of the time in which it was saved.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestWrites {
    /// Between two writes, in microseconds.
    pub(super) longest: f64,
    pub(super) writes_per_second: f64,
}

/// A guest that runs, or is paused while it is not needed: it always uses all of a CPU.
pub(super) struct Guest<'a> {
    pub(super) kind: GuestPages,
    pub(super) vm: MicroVm<'a>,
    snapshots: &'a GuestSnapshots,
    ticks_per_second: f64,
}

impl<'a> Guest<'a> {
    /// Starts a guest, which is paused.
    pub(super) fn start(
        kind: GuestPages,
        snapshots: &'a GuestSnapshots,
        observer: &'a dyn Observer,
    ) -> Result<Self, LabError> {
        let folder = snapshots.folders.sockets.path();
        let name = format!("{kind:?}").to_lowercase();
        let vm = match kind {
            GuestPages::Base => MicroVm::start_prepared(folder, &name, observer, on_base_pages),
            _ => MicroVm::start(folder, &name, observer),
        }?;
        let options = PagerOptions { record: Duration::ZERO, ..PagerOptions::default() };
        let socket = folder.join(format!("{name}.pager"));
        let pager = PagerThread::start(socket, options, &snapshots.snapshot(kind).memory)?;
        let socket = pager.socket();
        vm.watched(|vmm| load(vmm, snapshots.snapshot(kind), socket, kind))?;
        pager.until_complete(observer)?;
        drop(pager);
        let mut guest = Self { kind, vm, snapshots, ticks_per_second: 0.0 };
        guest.count_ticks()?;
        guest.vm.pause()?;
        Ok(guest)
    }

    /// Has it write to this share of its data, until [`end`](Self::end).
    pub(super) fn write(&mut self, share: Share) -> Result<(), LabError> {
        let (start, len, every) = self.snapshots.part(share);
        self.vm.ask(Request::WriteUntilAsked { start, len, every }).map(drop)
    }

    /// Has it write to all of this share once.
    pub(super) fn write_once(&mut self, share: Share) -> Result<(), LabError> {
        let (start, len, every) = self.snapshots.part(share);
        self.vm.ask(Request::Dirty { start, len, every }).map(drop)
    }

    /// Ends its writes.
    pub(super) fn end(&mut self) -> Result<GuestWrites, LabError> {
        let [longest, writes, ticks] = self.end_counted()?.map(|count| count as f64);
        let per_second = self.ticks_per_second;
        let writes_per_second = writes / ticks * per_second;
        Ok(GuestWrites { longest: longest / per_second * 1e6, writes_per_second })
    }

    /// Ticks of the longest time between two writes; writes; ticks of all.
    fn end_counted(&mut self) -> Result<[u64; 3], LabError> {
        let [longest, writes, ticks] = Request::writes().map(|request| self.vm.ask(request));
        Ok([longest?, writes?, ticks?])
    }

    /// The time in this process is always longer than that in the guest, so the largest rate is
    /// nearest to the truth.
    fn count_ticks(&mut self) -> Result<(), LabError> {
        for _ in 0..COUNTS {
            let since = Instant::now();
            self.write(Share::Clusters(100))?;
            sleep(COUNTED);
            self.vm.ask(Request::Reply)?;
            let time = since.elapsed().as_secs_f64();
            let [.., ticks] = self.end_counted()?;
            self.ticks_per_second = self.ticks_per_second.max(ticks as f64 / time);
        }
        Ok(())
    }
}

fn load(
    vmm: &Firecracker,
    from: &Snapshot,
    pager: &Path,
    kind: GuestPages,
) -> Result<(), LabError> {
    let memory = json!({"backend_type": "Uffd", "backend_path": pager});
    let request = json!({
        "snapshot_path": from.state, "mem_backend": memory, "resume_vm": true,
        "track_dirty_pages": kind == GuestPages::Logged,
    });
    vmm.put("/snapshot/load", &request).map_err(failed)
}
