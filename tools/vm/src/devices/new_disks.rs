//! Files for disks of clones and children. Either all of them are filled, or no file is left.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hugekit_sys::data_runs;
use rustix::fs::{SeekFrom, ioctl_ficlone, seek};

use crate::devices::{Device, DeviceError, Host, OwnDevices};

/// Bytes of one copy.
const PIECE: usize = 1 << 20;

/// New files. A drop removes the files unless they are kept.
#[derive(Debug, Default)]
pub(crate) struct NewDisks(Vec<NewDisk>);

#[derive(Debug)]
struct NewDisk {
    /// The number of the child, beginning with 1.
    child: usize,
    id: String,
    path: PathBuf,
    file: File,
}

impl NewDisks {
    /// Makes empty files before any process is started. An existing file of the same name is an
    /// error.
    pub(crate) fn make<'a>(all: impl Iterator<Item = &'a OwnDevices>) -> Result<Self, DeviceError> {
        let mut made = Self::default();
        for (own, child) in all.zip(1..) {
            for (id, path) in &own.disks {
                let refused = |source| DeviceError::Disk { path: path.clone(), source };
                // A VMM has perhaps another folder.
                let path = std::path::absolute(path).map_err(refused)?;
                let mut options = File::options();
                let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
                let file = file.map_err(refused)?;
                made.0.push(NewDisk { child, id: id.clone(), path, file });
            }
        }
        Ok(made)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the paths of the files. A guard removes the files if this process is killed.
    pub(crate) fn paths(&self) -> impl Iterator<Item = PathBuf> + use<'_> {
        self.0.iter().map(|disk| disk.path.clone())
    }

    fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.0.iter().map(|disk| disk.id.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Opens the disks of a VM that will be copied.
    pub(crate) fn of_vm<'a>(
        &'a self,
        devices: &'a [Device],
        open: impl Fn(&Device) -> Result<File, DeviceError>,
    ) -> Result<DisksInPause<'a>, DeviceError> {
        let named = |device: &'a Device| match device {
            Device::Disk { id, .. } if self.0.iter().any(|disk| disk.id == *id) => {
                Some(open(device).map(|file| (id.as_str(), file)))
            }
            _ => None,
        };
        let sources = devices.iter().filter_map(named).collect::<Result<_, _>>()?;
        Ok(DisksInPause { disks: self, sources })
    }

    /// Fills the first file of a disk.
    fn fill_first(&self, id: &str, source: &File) -> Result<(), DeviceError> {
        let first = self.0.iter().find(|disk| disk.id == id);
        first.map_or(Ok(()), |disk| disk.fill(source))
    }

    /// Fills the other files of each disk from the first file.
    pub(crate) fn fill_others(&self) -> Result<(), DeviceError> {
        for name in self.names() {
            let mut same = self.0.iter().filter(|disk| disk.id == name);
            let Some(first) = same.next() else { continue };
            same.try_for_each(|disk| disk.fill(&first.file))?;
        }
        Ok(())
    }

    /// Gives the files of a child to the user of its VMM, and returns the paths at which the VMM
    /// opens them.
    pub(crate) fn of(&self, child: usize, vmm: &Host) -> Result<Vec<(&str, &Path)>, DeviceError> {
        let own = self.0.iter().filter(|disk| disk.child == child);
        let give = |disk: &NewDisk| {
            vmm.check_sees(&disk.path, &disk.file)?;
            vmm.owner()?.give(&disk.file)
        };
        own.map(|disk| disk.refuse(give(disk)).map(|()| (&*disk.id, &*disk.path))).collect()
    }

    /// Keeps the files.
    pub(crate) fn keep(mut self) {
        self.0.clear();
    }
}

/// Disks of a running VM, which are copied while the VM is paused.
#[derive(Debug)]
pub(crate) struct DisksInPause<'a> {
    disks: &'a NewDisks,
    sources: Vec<(&'a str, File)>,
}

impl DisksInPause<'_> {
    pub(crate) fn copy(&self) -> Result<(), DeviceError> {
        self.sources.iter().try_for_each(|(id, source)| self.disks.fill_first(id, source))
    }
}

impl Drop for NewDisks {
    fn drop(&mut self) {
        for NewDisk { path, .. } in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

impl NewDisk {
    fn fill(&self, source: &File) -> Result<(), DeviceError> {
        self.refuse(copy(source, &self.file))
    }

    fn refuse(&self, done: io::Result<()>) -> Result<(), DeviceError> {
        done.map_err(|source| DeviceError::Disk { path: self.path.clone(), source })
    }
}

/// Copies a file or a block device to an empty file. The files share blocks if the file system
/// supports this; otherwise the copy has no blocks for holes.
fn copy(from: &File, to: &File) -> io::Result<()> {
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    // The length of a block device is where its end is.
    let len = seek(from, SeekFrom::End(0))?;
    to.set_len(len)?;
    let (mut left, mut buffer) = (0..len, vec![0; PIECE]);
    while let Some(run) = data_runs::next(from, &left)? {
        left.start = run.end;
        for start in run.clone().step_by(PIECE) {
            let bytes = &mut buffer[..PIECE.min((run.end - start) as usize)];
            from.read_exact_at(bytes, start)?;
            to.write_all_at(bytes, start)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn own(path: &Path) -> OwnDevices {
        OwnDevices { disks: [("data".to_owned(), path.to_owned())].into(), ..OwnDevices::default() }
    }

    #[test]
    fn disks_are_filled_with_holes_and_removed_unless_they_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let source = tempfile::tempfile_in(folder.path()).unwrap();
        source.set_len(10 << 20).unwrap();
        source.write_all_at(b"some", (5 << 20) - 2).unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        let all = paths.clone().map(|path| own(&path));
        let make = || NewDisks::make(all.iter()).unwrap();
        let fill = |disks: &NewDisks| {
            disks.fill_first("data", &source).unwrap();
            disks.fill_others().unwrap();
        };
        let disks = make();
        fill(&disks);
        assert_eq!(disks.names(), ["data"]);
        drop(disks);
        assert!(paths.iter().all(|path| !path.exists()));
        let disks = make();
        fill(&disks);
        disks.keep();
        for path in &paths {
            let bytes = fs::read(path).unwrap();
            assert_eq!(
                (bytes.len(), &bytes[(5 << 20) - 2..(5 << 20) + 2]),
                (10 << 20, &b"some"[..])
            );
            assert!(fs::metadata(path).unwrap().blocks() < 10_000, "holes are filled");
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn file_that_exists_is_refused_and_those_before_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        fs::write(&paths[1], "kept").unwrap();
        let all = paths.clone().map(|path| own(&path));
        let refused = NewDisks::make(all.iter()).unwrap_err();
        assert!(
            matches!(&refused, DeviceError::Disk { path, .. } if *path == paths[1]),
            "{refused}"
        );
        assert!(refused.remedy().is_some());
        assert!(!paths[0].exists());
        assert_eq!(fs::read_to_string(&paths[1]).unwrap(), "kept");
    }
}
