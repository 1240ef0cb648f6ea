//! The folder of a checkpoint: complete or absent.
//!
//! Both files are written into a folder of another name beside it, synced, and moved to their place
//! together by one rename(2).

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::guard::LeftOvers;
use crate::checkpoint::sink::Sink;

pub(crate) const STATE: &str = "vmstate";

/// The memory in the output: all of it, or the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Full,
    Delta,
}

impl Kind {
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Full => "memory",
            Self::Delta => "memory.delta",
        }
    }
}

/// The name of a folder that is to be made, known before it is made: a guard removes it if this
/// process is killed.
#[derive(Debug)]
pub(crate) struct Plan {
    place: PathBuf,
    folder: PathBuf,
    kind: Kind,
}

/// A folder that is not at its place yet. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Output {
    plan: Plan,
    memory: File,
}

impl Plan {
    /// Checks that the place is free.
    pub(crate) fn new(place: &Path, kind: Kind) -> Result<Self, CheckpointError> {
        check_free(place)?;
        let refused = |source| CheckpointError::Output { path: place.to_owned(), source };
        let folder = fs::canonicalize(beside(place)).map_err(refused)?;
        // One thread has one checkpoint at a time. Threads of other PID namespaces have other times.
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!(".checkpoint-{thread}-{}", now.as_nanos());
        Ok(Self { place: place.to_owned(), folder: folder.join(name), kind })
    }

    /// The names to remove if this process is killed.
    pub(crate) fn left_overs(&self) -> io::Result<LeftOvers> {
        LeftOvers::new(&[self.folder.join(STATE), self.memory()], &self.folder)
    }

    fn memory(&self) -> PathBuf {
        self.folder.join(self.kind.file_name())
    }

    fn refused(&self, source: io::Error) -> CheckpointError {
        CheckpointError::Output { path: self.place.clone(), source }
    }

    /// Makes the files. A full memory file has `bytes`, and the file system reserves room for `used`,
    /// ranges of it.
    pub(crate) fn create(self, bytes: u64, used: &[Range<u64>]) -> Result<Output, CheckpointError> {
        DirBuilder::new().mode(0o700).create(&self.folder).map_err(|e| self.refused(e))?;
        let memory = File::create_new(self.memory());
        let memory = memory.map_err(|source| {
            let _ = fs::remove_dir(&self.folder);
            self.refused(source)
        })?;
        let output = Output { plan: self, memory };
        let reserve = || {
            if output.plan.kind == Kind::Delta {
                return Ok(());
            }
            output.memory.set_len(bytes)?;
            used.iter().try_for_each(|range| reserve(&output.memory, range))
        };
        reserve().map_err(|source| output.plan.refused(source)).map(|()| output)
    }
}

impl Output {
    /// The file with the memory or the delta.
    pub(crate) fn memory(&self) -> &File {
        &self.memory
    }

    /// A file without a name on the same file system.
    pub(crate) fn unnamed(&self) -> io::Result<File> {
        tempfile::tempfile_in(&self.plan.folder)
    }

    /// Writes the state, and moves both files to their place when they are on their disk.
    pub(crate) fn finish(&self, state: &[u8]) -> Result<(), CheckpointError> {
        let Plan { place, folder, .. } = &self.plan;
        let finish = || {
            let mut file = File::create_new(folder.join(STATE))?;
            file.write_all(state)?;
            file.sync_all()?;
            self.memory.sync_all()?;
            File::open(folder)?.sync_all()?;
            fs::rename(folder, place)?;
            File::open(beside(place))?.sync_all()
        };
        finish().map_err(|source| match source.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory => {
                CheckpointError::Exists { path: place.clone() }
            }
            _ => self.plan.refused(source),
        })
    }
}

impl Sink for Output {
    fn restart(&self) -> io::Result<()> {
        let length = self.memory.metadata()?.len();
        self.memory.set_len(0)?;
        self.memory.set_len(length)
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, offset)
    }

    fn refused(&self, source: io::Error) -> CheckpointError {
        self.plan.refused(source)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let folder = &self.plan.folder;
        for path in [folder.join(STATE), self.plan.memory()] {
            let _ = fs::remove_file(path);
        }
        let _ = fs::remove_dir(folder);
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

    fn create(place: &Path, bytes: u64) -> Result<Output, CheckpointError> {
        Plan::new(place, Kind::Full)?.create(bytes, std::slice::from_ref(&(0..4096)))
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
        output.finish(b"state").unwrap();
        drop(output);
        assert_eq!(fs::read(place.join(STATE)).unwrap(), b"state");
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
        assert!(matches!(output.finish(b"state"), Err(CheckpointError::Exists { .. })));
        drop(output);
        let again = create(&place, 4096);
        assert!(matches!(again, Err(CheckpointError::Exists { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(place.join("other")).unwrap(), "kept");
    }
}
