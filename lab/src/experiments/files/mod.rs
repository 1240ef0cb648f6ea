//! Files to measure on: folders for them, on a disk and in memory, and the state of their page cache.

pub(super) mod cached;
pub(super) mod xfs;

use std::io;
use std::path::{Path, PathBuf};

use crate::measure::LabError;
use procfs::process::Process;
use tempfile::TempDir;

/// File systems whose files are only memory.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// Folders of this run.
#[derive(Debug)]
pub(super) struct Folders {
    /// For sockets, whose paths must be short.
    pub(super) sockets: TempDir,
    /// On a disk, with the name of its file system.
    pub(super) disk: Option<(TempDir, String)>,
    pub(super) tmpfs: Option<TempDir>,
}

impl Folders {
    /// Makes them where this user may.
    pub(super) fn find() -> Result<Self, LabError> {
        let own = [Some(std::env::temp_dir()), std::env::current_dir().ok(), std::env::home_dir()];
        let usual = ["/var/tmp", "/dev/shm"].map(|path| Some(PathBuf::from(path)));
        let candidates: Vec<PathBuf> = own.into_iter().chain(usual).flatten().collect();
        let make = |in_memory: bool| {
            let fitting = candidates.iter().filter_map(|path| {
                let system = file_system_of(path)?;
                (IN_MEMORY.contains(&&*system) == in_memory).then_some((path, system))
            });
            fitting.into_iter().find_map(|(path, system)| Some((folder(path).ok()?, system)))
        };
        Ok(Self {
            sockets: tempfile::tempdir().map_err(LabError::Saved)?,
            disk: make(false),
            tmpfs: make(true).map(|(folder, _)| folder),
        })
    }

    /// The file system of the disk, as in IDs.
    pub(super) fn disk_name(&self) -> &str {
        self.disk.as_ref().map_or("disk", |(_, system)| system)
    }

    /// A folder for the files that every way needs.
    pub(super) fn any(&self) -> &Path {
        let disk = self.disk.as_ref().map(|(folder, _)| folder);
        disk.or(self.tmpfs.as_ref()).unwrap_or(&self.sockets).path()
    }
}

fn folder(within: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("hugekit-lab-").tempdir_in(within)
}

/// Bytes that this user may still write to the disk of a folder.
pub(super) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(folder)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// The kind of file system that a path is on, such as `ext4`.
fn file_system_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = Process::myself().and_then(|process| process.mountinfo()).ok()?;
    let holding = mounts.0.into_iter().filter(|mount| path.starts_with(&mount.mount_point));
    // Of mounts at one place, the last one hides the others.
    let nearest = holding.max_by_key(|mount| mount.mount_point.components().count())?;
    Some(nearest.fs_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_told_by_the_nearest_mount() {
        assert_eq!(file_system_of(Path::new("/proc/self")).as_deref(), Some("proc"));
        assert_eq!(file_system_of(Path::new("/no such folder")), None);
    }
}
