//! One save of a guest that runs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::workloads::micro_vm::failed;
use hugekit_guests::{Firecracker, Snapshot};
use hugekit_vm::checkpoint::{CheckpointOptions, CheckpointReport, RunningVm, checkpoint};
use tempfile::TempDir;

use super::guest::{Guest, GuestPages, GuestSnapshots, GuestWrites};
use super::series;
use super::ways::{Save, SaveWay, Storage};

/// The time for which a guest writes that is not saved.
const IDLE: Duration = Duration::from_millis(300);

/// The times and bytes of a save.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SaveCost {
    pub(super) paused: Duration,
    /// Until the files are on their disk.
    pub(super) complete: Duration,
    /// Bytes that the files take.
    pub(super) bytes: u64,
}

/// Files of one save, and of the save before it. They end with this value.
pub(super) struct Files {
    folder: TempDir,
}

impl Files {
    pub(super) fn at(place: Storage, snapshots: &GuestSnapshots) -> Result<Self, LabError> {
        let tmpfs = snapshots.folders.tmpfs.as_ref().filter(|_| place == Storage::Tmpfs);
        let within = tmpfs.map_or(snapshots.folders.any(), TempDir::path);
        Ok(Self { folder: tempfile::tempdir_in(within).map_err(LabError::Saved)? })
    }

    fn previous(&self) -> PathBuf {
        self.folder.path().join("previous")
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn saved(&self) -> PathBuf {
        self.folder.path().join("saved")
    }

    /// Saves the guest while it writes, and ends its writes. What a save follows on is saved first,
    /// and the guest changes its share since.
    pub(super) fn save(
        &self,
        way: &SaveWay,
        guest: &mut Guest<'_>,
    ) -> Result<(SaveCost, GuestWrites), LabError> {
        let (previous, saved) = (self.previous(), self.saved());
        let saved = match way.save {
            Save::InSeries => return series::save(self, way.share, guest),
            Save::Idle => {
                guest.write(way.share)?;
                std::thread::sleep(IDLE);
                SaveCost::default()
            }
            Save::Full => {
                guest.write(way.share)?;
                stock(guest, "Full", &saved)?
            }
            Save::Diff => {
                stock(guest, "Diff", &previous)?;
                guest.write_once(way.share)?;
                guest.write(way.share)?;
                stock(guest, "Diff", &saved)?
            }
            Save::Checkpoint => {
                guest.write(way.share)?;
                ours(guest, saved, Vec::new())?
            }
            Save::Delta => {
                ours(guest, previous.clone(), Vec::new())?;
                guest.write_once(way.share)?;
                guest.write(way.share)?;
                ours(guest, saved, vec![previous])?
            }
        };
        Ok((saved, guest.end()?))
    }
}

/// A checkpoint syncs its files, so stock files are synced here.
fn stock(guest: &Guest<'_>, kind: &str, to: &Path) -> Result<SaveCost, LabError> {
    fs::create_dir(to).map_err(LabError::Saved)?;
    let files = Snapshot::in_folder(to);
    guest.vm.watched(|vmm| {
        let since = Instant::now();
        stock_in_pause(vmm, kind, &files).map_err(failed)?;
        let paused = since.elapsed();
        sync(&[&files.state, &files.memory]).map_err(LabError::Saved)?;
        Ok(SaveCost { paused, complete: since.elapsed(), bytes: bytes_in(to)? })
    })
}

pub(super) fn stock_in_pause(vmm: &Firecracker, kind: &str, files: &Snapshot) -> io::Result<()> {
    vmm.pause()?;
    vmm.create(kind, files)?;
    vmm.resume()
}

fn sync(files: &[&Path]) -> io::Result<()> {
    files.iter().try_for_each(|file| File::open(file)?.sync_all())
}

fn ours(guest: &Guest<'_>, output: PathBuf, previous: Vec<PathBuf>) -> Result<SaveCost, LabError> {
    let collapse = guest.kind != GuestPages::Base;
    guest.vm.watched(|vmm| {
        let to = output.clone();
        let vm = RunningVm { collapse, ..RunningVm::new(vmm.api().to_owned()) };
        let report = checkpoint(&CheckpointOptions { vm, output, previous })?;
        Ok(of_report(&report, bytes_in(&to)?))
    })
}

pub(super) fn of_report(report: &CheckpointReport, bytes: u64) -> SaveCost {
    let [paused, complete] =
        [report.paused_ms, report.complete_ms].map(|time| Duration::from_secs_f64(time / 1e3));
    SaveCost { paused, complete, bytes }
}

/// Without holes.
pub(super) fn bytes_in(folder: &Path) -> Result<u64, LabError> {
    let blocks = |entry: io::Result<fs::DirEntry>| Ok(entry?.metadata()?.blocks());
    let files = fs::read_dir(folder).map_err(LabError::Saved)?;
    let sum: io::Result<u64> = files.map(blocks).sum();
    Ok(sum.map_err(LabError::Saved)? * 512)
}
