//! The folder of a checkpoint: complete or absent.
//!
//! Both files are written into a folder of another name beside it, synced, and moved to their place
//! together by one rename(2).

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tempfile::TempDir;

use crate::error::CheckpointError;

const STATE: &str = "vmstate";
const MEMORY: &str = "memory";

/// A folder that is not at its place yet.
#[derive(Debug)]
pub(crate) struct Output {
    place: PathBuf,
    folder: TempDir,
    memory: File,
}

impl Output {
    /// Makes the files and has the file system reserve room for `used`, ranges of the memory file.
    pub(crate) fn create(
        place: &Path,
        bytes: u64,
        used: &[Range<u64>],
    ) -> Result<Self, CheckpointError> {
        check_free(place)?;
        let make = || {
            let folder =
                tempfile::Builder::new().prefix(".checkpoint-").tempdir_in(beside(place))?;
            let memory = File::create_new(folder.path().join(MEMORY))?;
            memory.set_len(bytes)?;
            used.iter().try_for_each(|range| reserve(&memory, range))?;
            Ok(Self { place: place.to_owned(), folder, memory })
        };
        make().map_err(|source| CheckpointError::Output { path: place.to_owned(), source })
    }

    pub(crate) fn memory(&self) -> &File {
        &self.memory
    }

    /// What is to be removed if this process is killed: files, then their folder.
    pub(crate) fn left_overs(&self) -> io::Result<([CString; 2], CString)> {
        let name = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let folder = fs::canonicalize(self.folder.path())?;
        let (state, memory) = (name(&folder.join(STATE))?, name(&folder.join(MEMORY))?);
        Ok(([state, memory], name(&folder)?))
    }

    pub(crate) fn refused(&self, source: io::Error) -> CheckpointError {
        CheckpointError::Output { path: self.place.clone(), source }
    }

    /// Writes the state, and moves both files to their place when they are on their disk.
    pub(crate) fn finish(self, state: &[u8]) -> Result<(), CheckpointError> {
        let finish = || {
            let mut file = File::create_new(self.folder.path().join(STATE))?;
            file.write_all(state)?;
            file.sync_all()?;
            self.memory.sync_all()?;
            File::open(self.folder.path())?.sync_all()?;
            fs::rename(self.folder.path(), &self.place)?;
            File::open(beside(&self.place))?.sync_all()
        };
        finish().map_err(|source| match source.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory => {
                CheckpointError::Exists { path: self.place.clone() }
            }
            _ => self.refused(source),
        })
    }
}

/// An empty folder is as good as none: rename(2) replaces it.
fn check_free(place: &Path) -> Result<(), CheckpointError> {
    let is_free = match fs::read_dir(place) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if is_free { Ok(()) } else { Err(CheckpointError::Exists { path: place.to_owned() }) }
}

fn beside(place: &Path) -> &Path {
    place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file system that reserves nothing may be full later, which is an error then.
fn reserve(file: &File, range: &Range<u64>) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), range.start, range.end - range.start) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_absent_until_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("saved");
        let names = || fs::read_dir(folder.path()).unwrap().count();
        drop(Output::create(&place, 8192, &[0..4096]).unwrap());
        assert_eq!(names(), 0);
        let output = Output::create(&place, 8192, &[0..4096]).unwrap();
        assert!(!place.exists());
        output.finish(b"state").unwrap();
        assert_eq!(fs::read(place.join(STATE)).unwrap(), b"state");
        assert_eq!(fs::read(place.join(MEMORY)).unwrap(), [0; 8192]);
        assert_eq!(names(), 1);
    }

    #[test]
    fn folder_that_holds_anything_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("saved");
        let output = Output::create(&place, 4096, &[]).unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(place.join("other"), "kept").unwrap();
        assert!(matches!(output.finish(b"state"), Err(CheckpointError::Exists { .. })));
        let again = Output::create(&place, 4096, &[]);
        assert!(matches!(again, Err(CheckpointError::Exists { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(place.join("other")).unwrap(), "kept");
    }
}
