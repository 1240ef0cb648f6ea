//! The memory file that VMs are restored from: read by `pread(2)`, so that a file that is cut off
//! meanwhile is an error and never a signal.
//!
//! Memory that is sealed, such as an image, cannot be cut off or written to. It is mapped, and
//! copied from there to VMs.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hugekit_sys::memfd;
use memmap2::Mmap;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::vmm::Arriving;

/// The reason why bytes of a memory file are not available.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be opened or looked at.
    #[error("memory file {path} cannot be opened", path = path.display())]
    Open {
        /// The path as the caller named it.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path names another file than the VM was restored from, or the file was written to.
    #[error(
        "memory file {path} is not the one that the VM was restored from",
        path = path.display()
    )]
    Replaced {
        /// The path that the file had.
        path: PathBuf,
    },
    /// It was cut off.
    #[error(
        "memory file {path} ends before byte {end}, which it had when it was opened",
        path = path.display()
    )]
    Cut {
        /// The file.
        path: PathBuf,
        /// The end of the bytes that were read.
        end: u64,
    },
    /// It cannot be read.
    #[error("memory file {path} cannot be read at byte {offset}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The offset in the file.
        offset: u64,
        /// The error of the system.
        source: io::Error,
    },
}

/// A file as it was when VMs were restored from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    device: u64,
    inode: u64,
    len: u64,
    /// Seconds and nanoseconds of the last change.
    modified: (i64, i64),
}

impl Part {
    fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            len: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

/// By which a later pager knows that it has the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    name: PathBuf,
    parts: Vec<Part>,
}

/// The memory that VMs are restored from, open.
#[derive(Debug)]
pub struct Source {
    bytes: Bytes,
    identity: Identity,
    len: u64,
}

#[derive(Debug)]
enum Bytes {
    /// A file, and all of it mapped if it is sealed.
    File(File, Option<Mmap>),
    Arriving(Arc<dyn Arriving>),
}

impl Source {
    /// Opens a raw memory file: the byte at an offset is the guest's byte at that offset.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let refused = |source| SourceError::Open { path: path.to_owned(), source };
        let name = fs::canonicalize(path).map_err(refused)?;
        let file = File::open(&name).map_err(refused)?;
        Self::of_memory(file, name, &[])
    }

    /// Memory that was made of other files, such as a memory file and its deltas, or an image of a
    /// broker. A later pager takes VMs over if its source has the same name and is made of the same
    /// files; `made_of` is empty for the file itself.
    ///
    /// # Errors
    /// A file cannot be looked at.
    pub fn of_memory(file: File, name: PathBuf, made_of: &[File]) -> Result<Self, SourceError> {
        let look = || -> io::Result<_> {
            let own = Part::of(&file)?;
            let len = own.len;
            let others: io::Result<Vec<Part>> = made_of.iter().map(Part::of).collect();
            Ok((len, if made_of.is_empty() { vec![own] } else { others? }))
        };
        match look().and_then(|found| Ok((found, map_if_sealed(&file)?))) {
            Ok(((len, parts), mapped)) => {
                let bytes = Bytes::File(file, mapped);
                Ok(Self { bytes, identity: Identity { name, parts }, len })
            }
            Err(source) => Err(SourceError::Open { path: name, source }),
        }
    }

    /// Memory that another thread of this process still copies. No later pager has it.
    pub(crate) fn arriving(memory: Arc<dyn Arriving>) -> Self {
        let (name, parts) = ("memory of a running VM".into(), Vec::new());
        let len = memory.bytes();
        Self { bytes: Bytes::Arriving(memory), identity: Identity { name, parts }, len }
    }

    /// Returns whether a later restore can be from the same memory.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.bytes, Bytes::File(..))
    }

    /// Opens the file that a VM was restored from, if it is unchanged.
    pub(crate) fn reopen(identity: &Identity) -> Result<Self, SourceError> {
        let source = Self::open(&identity.name)?;
        if source.identity == *identity {
            return Ok(source);
        }
        Err(SourceError::Replaced { path: identity.name.clone() })
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns its path, or its name if it has no path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.identity.name
    }

    /// Bytes that it had when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Checks that a hole is one, and not what is left behind the end of a file that was cut off.
    pub(crate) fn check_length(&self) -> Result<(), SourceError> {
        let Bytes::File(file, _) = &self.bytes else { return Ok(()) };
        let now = file.metadata().map(|found| found.len());
        match now {
            Ok(len) if len >= self.len() => Ok(()),
            Ok(_) => Err(SourceError::Cut { path: self.path().to_owned(), end: self.len() }),
            Err(source) => {
                Err(SourceError::Read { path: self.path().to_owned(), offset: self.len(), source })
            }
        }
    }

    /// Reads all of these bytes.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), SourceError> {
        let read = match &self.bytes {
            Bytes::File(file, _) => file.read_exact_at(to, offset),
            Bytes::Arriving(memory) => memory
                .data(&(offset..offset + to.len() as u64))
                .map(|data| to.copy_from_slice(data)),
        };
        read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                SourceError::Cut { path: self.path().to_owned(), end: offset + to.len() as u64 }
            }
            _ => SourceError::Read { path: self.path().to_owned(), offset, source },
        })
    }

    /// These bytes without a copy, if they are mapped and have no hole: to read a hole of a mapping
    /// would give it memory.
    pub(crate) fn mapped(&self, offsets: &Range<u64>) -> Option<&[u8]> {
        let mapped = match &self.bytes {
            Bytes::File(_, mapped) => mapped.as_ref()?,
            Bytes::Arriving(memory) => return memory.data(offsets).ok(),
        };
        let is_data = self.next_data(offsets.clone()).as_ref() == Some(offsets);
        is_data.then(|| &mapped[offsets.start as usize..offsets.end as usize])
    }

    /// The first run of bytes within `range` that is not a hole. A file system that knows no holes
    /// has one run.
    pub(crate) fn next_data(&self, range: Range<u64>) -> Option<Range<u64>> {
        let file = match &self.bytes {
            Bytes::File(file, _) => file,
            Bytes::Arriving(memory) => return memory.next_data(range),
        };
        let start = match seek(file, SeekFrom::Data(range.start)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return None,
            Err(_) => range.start,
        };
        if start >= range.end {
            return None;
        }
        let end = seek(file, SeekFrom::Hole(start)).unwrap_or(range.end);
        Some(start..end.min(range.end))
    }
}

fn map_if_sealed(file: &File) -> io::Result<Option<Mmap>> {
    if !memfd::has_sealed_contents(file)? || file.metadata()?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: no process can change a byte or the length of the file any more: it has the seals for
    // that, and seals are never lifted.
    unsafe { Mmap::map(file) }.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory.bin");
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    #[test]
    fn file_that_is_cut_off_is_an_error_with_its_end() {
        let (_folder, path) = file(&[7; 8192]);
        let source = Source::open(&path).unwrap();
        let mut bytes = [0; 4096];
        source.read(4096, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
        File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
        let refused = source.read(4096, &mut bytes).unwrap_err();
        assert!(matches!(refused, SourceError::Cut { end: 8192, .. }), "{refused}");
    }

    #[test]
    fn memory_made_of_files_is_known_by_these() {
        let (folder, path) = file(&[1; 4096]);
        let parts = [File::open(&path).unwrap()];
        let made = |bytes: &[u8]| {
            let memory = folder.path().join("made");
            fs::write(&memory, bytes).unwrap();
            Source::of_memory(File::open(memory).unwrap(), path.clone(), &parts).unwrap()
        };
        let before = made(&[3; 4096]).identity().clone();
        assert_eq!(*made(&[4; 8192]).identity(), before);
        assert_eq!(made(&[4; 8192]).len(), 8192);
        fs::write(&path, [1; 8192]).unwrap();
        assert_ne!(*made(&[3; 4096]).identity(), before);
    }

    #[test]
    fn holes_are_passed_over() {
        let (_folder, path) = file(&[]);
        let written = File::create(&path).unwrap();
        written.set_len(8 << 20).unwrap();
        written.write_all_at(&[1; 4096], 4 << 20).unwrap();
        let source = Source::open(&path).unwrap();
        let data = source.next_data(0..8 << 20).unwrap();
        assert!(data.contains(&(4 << 20)));
        assert_eq!(source.next_data(5 << 20..6 << 20).map(|data| data.start), None);
        assert_eq!(source.next_data(4 << 20..(4 << 20) + 10), Some(4 << 20..(4 << 20) + 10));
    }

    /// A file of memory with a page of data before a hole.
    fn memory() -> File {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("hugekit-test", flags).unwrap());
        file.set_len(4 << 20).unwrap();
        file.write_all_at(&vec![7; 1 << 20], 0).unwrap();
        file
    }

    #[test]
    fn sealed_memory_is_mapped_and_its_holes_are_not_read() {
        let file = memory();
        memfd::seal_contents(&file).unwrap();
        let source = Source::of_memory(file, "image".into(), &[]).unwrap();
        assert_eq!(source.mapped(&(4096..8192)), Some(&[7; 4096][..]));
        assert_eq!(source.mapped(&(0..4 << 20)), None);
        assert_eq!(source.mapped(&(3 << 20..4 << 20)), None);
        let mut bytes = [1; 4096];
        source.read(3 << 20, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
    }

    #[test]
    fn memory_that_may_be_cut_off_is_not_mapped() {
        let source = Source::of_memory(memory(), "image".into(), &[]).unwrap();
        assert_eq!(source.mapped(&(4096..8192)), None);
        let (_folder, path) = file(&[7; 8192]);
        assert_eq!(Source::open(&path).unwrap().mapped(&(0..4096)), None);
    }

    #[test]
    fn file_that_was_replaced_is_not_taken_for_the_old_one() {
        let (folder, path) = file(&[1; 4096]);
        let before = Source::open(&path).unwrap().identity().clone();
        assert!(Source::reopen(&before).is_ok());
        let other = folder.path().join("other");
        fs::write(&other, [2; 4096]).unwrap();
        fs::rename(&other, &path).unwrap();
        let refused = Source::reopen(&before).unwrap_err();
        assert!(matches!(refused, SourceError::Replaced { .. }), "{refused}");
    }
}
