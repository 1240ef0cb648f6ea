//! The folder of a checkpoint. It is complete or absent.
//!
//! Both files are written into a folder of another name beside it, synced, and moved to their place
//! together by one rename(2). All of this uses descriptors, because the folder above may belong to
//! another user.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hugekit_sys::input;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::sink::Sink;
use crate::vmm::hidden::{Hidden, LeftOver, Planned, above, is_free, name_of};

pub(crate) const STATE: &str = "vmstate";

/// The name of the folder of a series' checkpoint with a number, from 1 on.
pub(crate) fn series_folder(number: u64) -> String {
    format!("{number:06}")
}

/// The memory in the output: all of it, or the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputKind {
    Full,
    Delta,
}

impl OutputKind {
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Full => "memory",
            Self::Delta => "memory.delta",
        }
    }
}

/// A folder that will be made.
#[derive(Debug)]
pub(crate) struct PlannedOutput {
    place: PathBuf,
    /// The final name of the folder.
    name: CString,
    hidden: Planned,
    kind: OutputKind,
}

/// A folder that is not at its place yet. A drop removes the folder.
#[derive(Debug)]
pub(crate) struct Output {
    place: PathBuf,
    name: CString,
    folder: Hidden,
    memory: File,
}

impl PlannedOutput {
    /// Checks that the place is free.
    pub(crate) fn new(place: &Path, kind: OutputKind) -> Result<Self, CheckpointError> {
        let refused = |source| refused(place, source);
        let exists = || CheckpointError::Exists { path: place.to_owned() };
        let name = name_of(place).ok_or_else(exists)?.map_err(refused)?;
        let hidden = Planned::new(above(place), ".checkpoint", &[STATE, kind.file_name()]);
        let hidden = hidden.map_err(refused)?;
        if !is_free(hidden.parent(), &name).map_err(refused)? {
            return Err(exists());
        }
        Ok(Self { place: place.to_owned(), name, hidden, kind })
    }

    /// Returns the files that a guard removes if this process is killed.
    pub(crate) fn left_over(&self) -> io::Result<LeftOver> {
        self.hidden.left_over()
    }

    /// Makes the files. A full memory file has `bytes`, and the file system reserves room for its
    /// ranges `used`.
    pub(crate) fn create(self, bytes: u64, used: &[Range<u64>]) -> Result<Output, CheckpointError> {
        let Self { place, name, hidden, kind } = self;
        let make = || {
            let folder = hidden.make()?;
            let memory = folder.create(kind.file_name())?;
            if kind == OutputKind::Full {
                memory.set_len(bytes)?;
                used.iter().try_for_each(|range| reserve(&memory, range))?;
            }
            Ok((folder, memory))
        };
        match make() {
            Ok((folder, memory)) => Ok(Output { place, name, folder, memory }),
            Err(source) => Err(refused(&place, source)),
        }
    }
}

fn refused(place: &Path, source: io::Error) -> CheckpointError {
    CheckpointError::Output { path: place.to_owned(), source }
}

impl Output {
    /// Returns the file with the memory or the delta.
    pub(crate) fn memory(&self) -> &File {
        &self.memory
    }

    /// Returns a file without a name on the same file system.
    pub(crate) fn unnamed(&self) -> io::Result<File> {
        tempfile::tempfile_in(input::path_of(&self.folder))
    }

    /// Writes the state. When both files are on their disk, moves them to their place. The time of
    /// the state file is the moment of the pause: a disk with a later time was written afterwards.
    pub(crate) fn finish(&self, state: &[u8], moment: SystemTime) -> Result<(), CheckpointError> {
        let finish = || {
            let mut file = self.folder.create(STATE)?;
            file.write_all(state)?;
            file.set_modified(moment)?;
            file.sync_all()?;
            self.memory.sync_all()?;
            self.folder.rename(&self.name)
        };
        finish().map_err(|source| match source.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory => {
                CheckpointError::Exists { path: self.place.clone() }
            }
            _ => refused(&self.place, source),
        })
    }
}

impl Sink for Output {
    fn restart(&self) -> io::Result<()> {
        let length = self.memory.metadata()?.len();
        self.memory.set_len(0)?;
        self.memory.set_len(length)
    }

    /// Returns true if granules should be written as a whole. A VMM that maps the file then gets it
    /// by huge page tables from the page cache.
    fn wants_whole_granules(&self) -> bool {
        true
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, offset)
    }

    fn refused(&self, source: io::Error) -> CheckpointError {
        refused(&self.place, source)
    }
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
    use std::fs;

    use super::*;

    fn create(place: &Path, bytes: u64) -> Result<Output, CheckpointError> {
        PlannedOutput::new(place, OutputKind::Full)?.create(bytes, std::slice::from_ref(&(0..4096)))
    }

    #[test]
    fn output_is_absent_until_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("saved");
        let names = || fs::read_dir(folder.path()).unwrap().count();
        drop(create(&place, 8192).unwrap());
        assert_eq!(names(), 0);
        let output = create(&place, 8192).unwrap();
        assert!(!place.exists());
        output.finish(b"state", SystemTime::UNIX_EPOCH).unwrap();
        drop(output);
        assert_eq!(fs::read(place.join(STATE)).unwrap(), b"state");
        let state = fs::metadata(place.join(STATE)).unwrap();
        assert_eq!(state.modified().unwrap(), SystemTime::UNIX_EPOCH);
        assert_eq!(fs::read(place.join("memory")).unwrap(), [0; 8192]);
        assert_eq!(names(), 1);
    }

    #[test]
    fn folder_that_holds_anything_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("saved");
        let output = create(&place, 4096).unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(place.join("other"), "kept").unwrap();
        assert!(matches!(
            output.finish(b"state", SystemTime::UNIX_EPOCH),
            Err(CheckpointError::Exists { .. })
        ));
        drop(output);
        let again = create(&place, 4096);
        assert!(matches!(again, Err(CheckpointError::Exists { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(place.join("other")).unwrap(), "kept");
    }

    #[test]
    fn link_to_an_empty_folder_is_refused_before_anything_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let (empty, place) = (folder.path().join("empty"), folder.path().join("link"));
        fs::create_dir(&empty).unwrap();
        std::os::unix::fs::symlink(&empty, &place).unwrap();
        for place in [place.as_path(), "/".as_ref(), &folder.path().join("..")] {
            let refused = PlannedOutput::new(place, OutputKind::Full);
            assert!(matches!(refused, Err(CheckpointError::Exists { .. })), "{refused:?}");
        }
        assert!(PlannedOutput::new(&empty, OutputKind::Full).is_ok());
    }
}
