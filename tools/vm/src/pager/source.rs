//! The memory file from which VMs are restored. It is read by `pread(2)`, so a file that is
//! truncated meanwhile causes an error and never a signal. A stamp shows if the file was written to
//! or replaced.
//!
//! Sealed memory, such as an image, cannot be truncated or written to. It is mapped, and copied
//! from the mapping to VMs.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hugekit_sys::file_stamp::FileStamp;
use hugekit_sys::{Remedy, data_runs, input, memfd};
use memmap2::Mmap;
use serde::{Deserialize, Serialize};

use crate::oci::framed::TOGETHER;
use crate::oci::frames::CHUNK;
use crate::oci::memory::{PackedMemory, Windows};
use crate::oci::{OciError, PackedVm};
use crate::pager::working_set::WorkingSet;
use crate::vmm::Arriving;

/// The highest number of runs of data that are kept for a file. Bytes after the last run count as
/// data. The list then has 16 MiB.
const MOST_RUNS: usize = 1 << 20;

/// The reason why bytes of a memory file are not available.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The memory file cannot be opened or inspected.
    #[error("memory file {path} cannot be opened", path = path.display())]
    Open {
        /// The path, as the caller named it.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The memory file is empty.
    #[error("memory file {path} is empty", path = path.display())]
    Empty {
        /// The path, as the caller named it.
        path: PathBuf,
    },
    /// The path refers to another file than the one from which the VM was restored, or the file was
    /// written to.
    #[error(
        "memory file {path} is not the one that the VM was restored from",
        path = path.display()
    )]
    Replaced {
        /// The former path of the file.
        path: PathBuf,
    },
    /// The path refers to another file than the one that the pager has open.
    #[error(
        "{path} is another file now than the pager has opened{}",
        Remedy(Some("start the pager again: it then serves VMs of the new file")),
        path = path.display()
    )]
    Renewed {
        /// The path of the file, or the name of the image.
        path: PathBuf,
    },
    /// The memory file was written to.
    #[error(
        "memory file {path} was written to while the pager had it open{}",
        Remedy(Some("write a new file and rename it, and start the pager again")),
        path = path.display()
    )]
    Written {
        /// The path of the file.
        path: PathBuf,
    },
    /// The memory file was truncated.
    #[error(
        "memory file {path} ends before byte {end}, which it had when it was opened",
        path = path.display()
    )]
    Cut {
        /// The path of the file.
        path: PathBuf,
        /// The end of the requested bytes.
        end: u64,
    },
    /// The memory file cannot be read.
    #[error("memory file {path} cannot be read at byte {offset}", path = path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The offset in the file.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
}

/// A file of which the memory is made, as it was when it was opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SourceFile {
    /// `None` if the file has no path.
    path: Option<PathBuf>,
    stamp: FileStamp,
}

/// The identity of memory, by which a later pager knows that its memory has the same bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemoryIdentity {
    name: PathBuf,
    parts: Vec<SourceFile>,
}

impl MemoryIdentity {
    /// Returns true if both identities are of the same files with the same bytes.
    pub(crate) fn has_same_bytes(&self, other: &Self) -> bool {
        let parts = self.parts.iter().zip(&other.parts);
        self.name == other.name
            && self.parts.len() == other.parts.len()
            && parts.into_iter().all(|(one, other)| one.stamp.has_same_bytes(&other.stamp))
    }

    /// Returns the time of the last write of each file, and its length. A copy of the files has the
    /// same times.
    pub(crate) fn versions(&self) -> Vec<Version> {
        self.parts.iter().map(|part| (part.stamp.modified(), part.stamp.len())).collect()
    }
}

/// The time of the last write of a file in seconds and nanoseconds, and its length.
pub(crate) type Version = ((i64, i64), u64);

/// A function that returns true if memory without a path is still the memory of its name.
type IsCurrent = Box<dyn Fn() -> bool + Send + Sync>;

/// The memory from which VMs are restored, opened.
pub struct Source {
    bytes: Bytes,
    identity: MemoryIdentity,
    len: u64,
    is_current: Option<IsCurrent>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("identity", &self.identity).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Bytes {
    File(KeptFile),
    Packed(PackedMemory),
    Arriving(Arc<dyn Arriving>),
}

/// Memory that is kept in a file.
#[derive(Debug)]
struct KeptFile {
    file: File,
    /// `None` if the file is sealed, so no process can change it.
    stamp: Option<FileStamp>,
    /// The mapping of the whole file, if it is sealed.
    mapped: Option<Mmap>,
    /// Runs of bytes outside of holes, ascending.
    data: Vec<Range<u64>>,
}

impl Source {
    /// Opens a raw memory file: the byte at an offset is the guest's byte at that offset.
    ///
    /// # Errors
    /// [`SourceError`] if the file cannot be opened, is not regular, or is empty.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let refused = |source| SourceError::Open { path: path.to_owned(), source };
        let name = fs::canonicalize(path).map_err(refused)?;
        let file = input::open(&name).map_err(refused)?;
        Self::new(file, name.clone(), Some(name), Vec::new())
    }

    /// Makes a source of memory that was made of other files, such as a memory file and its deltas,
    /// or an image of a broker. A later pager takes VMs over if its source has the same name and is
    /// made of the same files. `made_of` is empty for the file itself.
    ///
    /// # Errors
    /// [`SourceError`] if a file cannot be inspected, or if the memory is empty.
    pub fn of_memory(
        file: File,
        name: PathBuf,
        made_of: Vec<(PathBuf, File)>,
    ) -> Result<Self, SourceError> {
        Self::new(file, name, None, made_of)
    }

    /// The memory of a packed VM, which is read from its layout without unpacking it.
    ///
    /// # Errors
    /// A blob cannot be looked at.
    pub fn of_packed(vm: PackedVm) -> Result<Self, SourceError> {
        let refused = |source| SourceError::Open { path: vm.reference.path.clone(), source };
        let name = vm.reference.absolute().map_err(refused)?;
        let parts = vm.memory.files().map(|file| {
            let (path, stamp) = (fs::canonicalize(&file.path)?, FileStamp::of(&file.blob)?);
            Ok(SourceFile { path: Some(path), stamp })
        });
        let parts = parts.collect::<io::Result<_>>().map_err(refused)?;
        let (identity, len) = (MemoryIdentity { name, parts }, vm.memory.len());
        Ok(Self { bytes: Bytes::Packed(vm.memory), identity, len, is_current: None })
    }

    fn new(
        file: File,
        name: PathBuf,
        path: Option<PathBuf>,
        made_of: Vec<(PathBuf, File)>,
    ) -> Result<Self, SourceError> {
        let look = || -> io::Result<_> {
            let stamp = FileStamp::of(&file)?;
            let kept = KeptFile::new(file, &stamp)?;
            let own = SourceFile { path, stamp };
            let part = |(path, file): (PathBuf, File)| {
                Ok((fs::canonicalize(path)?, FileStamp::of(&file)?))
            };
            let others = made_of.into_iter().map(part).map(|found: io::Result<_>| {
                found.map(|(path, stamp)| SourceFile { path: Some(path), stamp })
            });
            let others: Vec<SourceFile> = others.collect::<io::Result<_>>()?;
            let len = own.stamp.len();
            Ok((kept, len, if others.is_empty() { vec![own] } else { others }))
        };
        match look() {
            Ok((_, 0, _)) => Err(SourceError::Empty { path: name }),
            Ok((kept, len, parts)) => {
                let identity = MemoryIdentity { name, parts };
                Ok(Self { bytes: Bytes::File(kept), identity, len, is_current: None })
            }
            Err(source) => Err(SourceError::Open { path: name, source }),
        }
    }

    /// Sets a function that is called whenever a VM connects. This is for memory whose name may get
    /// other memory: an image that was loaded again. By default none.
    #[must_use]
    pub fn current_if(self, is_current: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { is_current: Some(Box::new(is_current)), ..self }
    }

    /// Makes a source of memory that another thread of this process still copies. No later pager
    /// has this memory.
    pub(crate) fn arriving(memory: Arc<dyn Arriving>) -> Self {
        let (name, parts) = ("memory of a running VM".into(), Vec::new());
        let len = memory.bytes();
        let identity = MemoryIdentity { name, parts };
        Self { bytes: Bytes::Arriving(memory), identity, len, is_current: None }
    }

    /// Returns true if a later restore can use the same memory.
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(self.bytes, Bytes::Arriving(..))
    }

    /// The memory that VMs touch first, if the source itself knows it.
    pub(crate) fn working_set(&self) -> Option<WorkingSet> {
        let Bytes::Packed(memory) = &self.bytes else { return None };
        memory.working_set().map(WorkingSet::new)
    }

    /// The unit in which the source reads: of others, nothing is read twice. `None` if it reads any bytes.
    pub(crate) fn unit(&self) -> Option<u64> {
        matches!(self.bytes, Bytes::Packed(..)).then_some(CHUNK)
    }

    /// The memory of a thread that reads all bytes in their order.
    pub(crate) fn ahead(&self) -> Result<AheadOfSource<'_>, SourceError> {
        let windows = match &self.bytes {
            Bytes::Packed(memory) => Some(memory.windows(TOGETHER)),
            _ => None,
        };
        let windows = windows.transpose().map_err(|why| self.refused(0, why))?;
        Ok(AheadOfSource { source: self, windows })
    }

    fn refused(&self, offset: u64, why: OciError) -> SourceError {
        let path = self.path().to_owned();
        SourceError::Read { path, offset, source: io::Error::other(why) }
    }

    /// Opens the file from which a VM was restored, if it is unchanged.
    pub(crate) fn reopen(identity: &MemoryIdentity) -> Result<Self, SourceError> {
        let source = Self::open_again(&identity.name)?;
        if source.identity.has_same_bytes(identity) {
            return Ok(source);
        }
        Err(SourceError::Replaced { path: identity.name.clone() })
    }

    fn open_again(name: &Path) -> Result<Self, SourceError> {
        if name.is_file() {
            return Self::open(name);
        }
        match PackedVm::open(name) {
            Ok(vm) => Self::of_packed(vm),
            Err(why) => {
                Err(SourceError::Open { path: name.to_owned(), source: io::Error::other(why) })
            }
        }
    }

    pub(crate) fn identity(&self) -> &MemoryIdentity {
        &self.identity
    }

    /// Returns the path of the memory, or its name if it has no path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.identity.name
    }

    /// Returns true if a process has the file open for writing. It may change bytes that VMs get.
    #[must_use]
    pub fn is_open_for_writing(&self) -> bool {
        let Bytes::File(KeptFile { file, mapped: None, .. }) = &self.bytes else { return false };
        input::is_open_for_writing(file) == Some(true)
    }

    /// Returns the length of the memory in bytes when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Checks that the names of its files still refer to the opened files. This is for a VM that
    /// connects now, because its user means the file that has the name. A file without a name is
    /// still the meant file.
    pub(crate) fn check_current(&self) -> Result<(), SourceError> {
        self.check_unwritten()?;
        for SourceFile { path, stamp } in &self.identity.parts {
            let Some(path) = path else { continue };
            let Ok(now) = fs::metadata(path) else { continue };
            let now = FileStamp::of_metadata(&now);
            if !now.is_of_same_file(stamp) {
                return Err(SourceError::Renewed { path: path.clone() });
            }
            if !now.has_same_bytes(stamp) {
                return Err(SourceError::Written { path: path.clone() });
            }
        }
        match &self.is_current {
            Some(is_current) if !is_current() => {
                Err(SourceError::Renewed { path: self.path().to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Checks that no byte was changed since the source was opened. A hole must still be a hole,
    /// and not the part after the end of a truncated file.
    pub(crate) fn check_unwritten(&self) -> Result<(), SourceError> {
        let Bytes::File(KeptFile { file, stamp: Some(stamp), .. }) = &self.bytes else {
            return Ok(());
        };
        let path = || self.path().to_owned();
        match FileStamp::of(file) {
            Ok(now) if now.has_same_bytes(stamp) => Ok(()),
            Ok(now) if now.len() < self.len => {
                Err(SourceError::Cut { path: path(), end: self.len })
            }
            Ok(_) => Err(SourceError::Written { path: path() }),
            Err(source) => Err(SourceError::Read { path: path(), offset: self.len, source }),
        }
    }

    /// Reads all of these bytes of the file as it was opened.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), SourceError> {
        let read = match &self.bytes {
            // The hashes of its bytes were compared.
            Bytes::Packed(memory) => {
                return memory.read(offset, to).map_err(|why| self.refused(offset, why));
            }
            Bytes::File(kept) => kept.file.read_exact_at(to, offset),
            Bytes::Arriving(memory) => memory
                .data(&(offset..offset + to.len() as u64))
                .map(|data| to.copy_from_slice(data)),
        };
        read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                SourceError::Cut { path: self.path().to_owned(), end: offset + to.len() as u64 }
            }
            _ => SourceError::Read { path: self.path().to_owned(), offset, source },
        })?;
        self.check_unwritten()
    }

    /// Returns these bytes without a copy, if they are mapped and contain no hole. A read of a hole
    /// in a mapping would allocate memory for it.
    pub(crate) fn mapped(&self, offsets: &Range<u64>) -> Option<&[u8]> {
        let mapped = match &self.bytes {
            Bytes::File(kept) => kept.mapped.as_ref()?,
            Bytes::Packed(_) => return None,
            Bytes::Arriving(memory) => return memory.data(offsets).ok(),
        };
        let is_data = self.next_data(offsets.clone()).as_ref() == Some(offsets);
        is_data.then(|| &mapped[offsets.start as usize..offsets.end as usize])
    }

    /// Returns the number of bytes outside of holes.
    pub(crate) fn data_bytes(&self) -> u64 {
        let (mut left, mut bytes) = (0..self.len(), 0);
        while let Some(run) = self.next_data(left.clone()) {
            bytes += run.end - run.start;
            left.start = run.end;
        }
        bytes
    }

    /// Returns the first run of bytes within `range` that is not a hole. A file system without
    /// holes has one run.
    pub(crate) fn next_data(&self, range: Range<u64>) -> Option<Range<u64>> {
        let data = match &self.bytes {
            Bytes::File(kept) => kept.data.as_slice(),
            Bytes::Packed(memory) => memory.data(),
            Bytes::Arriving(memory) => return memory.next_data(range),
        };
        let next = data.get(data.partition_point(|run| run.end <= range.start))?;
        let (start, end) = (next.start.max(range.start), next.end.min(range.end));
        (start < end).then_some(start..end)
    }
}

/// A source that one thread reads in the order of its bytes.
#[derive(Debug)]
pub(crate) struct AheadOfSource<'a> {
    source: &'a Source,
    /// Set for a packed VM, whose blobs are read by larger pieces than those that are asked for.
    windows: Option<Windows>,
}

impl AheadOfSource<'_> {
    /// Does the same as [`Source::read`].
    pub(crate) fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), SourceError> {
        match (&self.source.bytes, &mut self.windows) {
            (Bytes::Packed(memory), Some(windows)) => {
                memory.read_by(windows, offset, to).map_err(|why| self.source.refused(offset, why))
            }
            _ => self.source.read(offset, to),
        }
    }
}

impl KeptFile {
    /// Finds the data of the file once, because on tmpfs the kernel walks to the end of a run at
    /// each call.
    fn new(file: File, stamp: &FileStamp) -> io::Result<Self> {
        let mapped = map_if_sealed(&file)?;
        let data = data_runs::all(&file, 0..stamp.len(), MOST_RUNS)?;
        let stamp = mapped.is_none().then(|| stamp.clone());
        Ok(Self { file, stamp, mapped, data })
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
        // Grown again, it has the length, and not the bytes.
        File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
        let refused = source.read(4096, &mut bytes).unwrap_err();
        assert!(matches!(refused, SourceError::Written { .. }), "{refused}");
    }

    #[test]
    fn memory_made_of_files_is_known_by_these() {
        let (folder, path) = file(&[1; 4096]);
        let made = |bytes: &[u8]| {
            let memory = folder.path().join("made");
            fs::write(&memory, bytes).unwrap();
            let parts = vec![(path.clone(), File::open(&path).unwrap())];
            Source::of_memory(File::open(memory).unwrap(), "made".into(), parts).unwrap()
        };
        let before = made(&[3; 4096]).identity().clone();
        let again = made(&[4; 8192]);
        assert!(again.identity().has_same_bytes(&before));
        assert_eq!(again.len(), 8192);
        fs::write(&path, [1; 8192]).unwrap();
        assert!(!made(&[3; 4096]).identity().has_same_bytes(&before));
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

    /// Returns a file of memory with a page of data before a hole.
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
        let source = Source::of_memory(file, "image".into(), Vec::new()).unwrap();
        assert_eq!(source.mapped(&(4096..8192)), Some(&[7; 4096][..]));
        assert_eq!(source.mapped(&(0..4 << 20)), None);
        assert_eq!(source.mapped(&(3 << 20..4 << 20)), None);
        let mut bytes = [1; 4096];
        source.read(3 << 20, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
    }

    #[test]
    fn memory_that_may_be_cut_off_is_not_mapped() {
        let source = Source::of_memory(memory(), "image".into(), Vec::new()).unwrap();
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

    #[test]
    fn name_that_another_file_has_is_not_current_and_a_file_without_a_name_is() {
        let (folder, path) = file(&[1; 4096]);
        let source = Source::open(&path).unwrap();
        source.check_current().unwrap();
        let other = folder.path().join("other");
        fs::write(&other, [2; 4096]).unwrap();
        fs::rename(&other, &path).unwrap();
        let refused = source.check_current().unwrap_err();
        assert!(matches!(refused, SourceError::Renewed { .. }), "{refused}");
        // What it has open is unchanged.
        source.check_unwritten().unwrap();
        fs::remove_file(&path).unwrap();
        source.check_current().unwrap();
    }

    #[test]
    fn part_that_is_written_and_memory_that_is_loaded_anew_are_not_current() {
        let (_folder, path) = file(&[1; 4096]);
        let parts = vec![(path.clone(), File::open(&path).unwrap())];
        let made = Source::of_memory(memory(), "made".into(), parts).unwrap();
        made.check_current().unwrap();
        fs::write(&path, [1; 8192]).unwrap();
        let refused = made.check_current().unwrap_err();
        assert!(matches!(refused, SourceError::Written { .. }), "{refused}");
        let image = Source::of_memory(memory(), "image".into(), Vec::new()).unwrap();
        let refused = image.current_if(|| false).check_current().unwrap_err();
        assert!(matches!(refused, SourceError::Renewed { .. }), "{refused}");
    }

    #[test]
    fn what_is_no_file_with_bytes_is_refused_at_once() {
        let (folder, path) = file(&[]);
        let refused = Source::open(&path).unwrap_err();
        assert!(matches!(refused, SourceError::Empty { .. }), "{refused}");
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, 0o600.into()).unwrap();
        for path in [fifo.as_path(), folder.path(), "/dev/zero".as_ref(), "/dev/null".as_ref()] {
            let refused = Source::open(path).unwrap_err();
            assert!(matches!(refused, SourceError::Open { .. }), "{refused}");
        }
    }

    #[test]
    fn writer_of_the_file_is_known() {
        let (_folder, path) = file(&[1; 4096]);
        let source = Source::open(&path).unwrap();
        assert!(!source.is_open_for_writing());
        let _writer = File::options().write(true).open(&path).unwrap();
        assert!(source.is_open_for_writing());
    }
}
