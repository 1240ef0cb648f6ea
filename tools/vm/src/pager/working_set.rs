//! The working set of a VM after a restore: ranges of its memory file that it touches first, stored
//! in a file beside the memory file.
//!
//! The set has no order, because reading in the order of the touches would be slower than
//! ascending.

use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hugekit_sys::input;
use hugekit_sys::private_folder::PrivateFolder;
use serde::{Deserialize, Serialize};

use crate::pager::source::MemoryIdentity;
pub(crate) use crate::pager::source::Version;

const VERSION: u32 = 2;

/// The highest length of a file in bytes. Longer files are not hugekit's.
const LONGEST: u64 = 64 << 20;

/// The name of an image's set in the state folder.
const OF_IMAGE: &str = "image.working-set";

/// Ascending ranges of offsets, with gaps between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkingSet {
    ranges: Vec<Range<u64>>,
}

/// The content of the file, in JSON.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    /// The length of the memory in bytes.
    length: u64,
    /// The files of which the memory was made.
    of: Vec<Version>,
    ranges: Vec<(u64, u64)>,
}

impl WorkingSet {
    /// Makes a set of ascending ranges. Ranges that touch are joined.
    pub(crate) fn new(ascending: impl Iterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for range in ascending {
            match ranges.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        Self { ranges }
    }

    /// Returns the set in whole units of `unit` bytes, for memory of `length` bytes.
    pub(crate) fn in_units(&self, unit: u64, length: u64) -> Self {
        let whole = |range: &Range<u64>| {
            range.start / unit * unit..range.end.next_multiple_of(unit).min(length)
        };
        Self::new(self.ranges.iter().map(whole))
    }

    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// `None` if the set is of other memory.
    fn of_bytes(bytes: &[u8], length: u64, of: &[Version]) -> io::Result<Option<Self>> {
        let written: Written = serde_json::from_slice(bytes)?;
        if (written.version, written.length) != (VERSION, length) || written.of != of {
            return Ok(None);
        }
        let mut end_before = 0;
        for &(start, end) in &written.ranges {
            if start < end_before || start >= end || end > length {
                return Err(malformed("its ranges are not those of a memory file"));
            }
            end_before = end;
        }
        let ranges = written.ranges.into_iter().map(|(start, end)| start..end).collect();
        Ok(Some(Self { ranges }))
    }

    /// The bytes of the file with the set of memory that is made of these files.
    pub(crate) fn to_bytes(&self, length: u64, of: Vec<Version>) -> io::Result<Vec<u8>> {
        let ranges = self.ranges.iter().map(|range| (range.start, range.end)).collect();
        Ok(serde_json::to_vec(&Written { version: VERSION, length, of, ranges })?)
    }
}

/// Reads the set of memory that is made of files with these versions; `None` if the file is the set of other memory.
///
/// # Errors
/// There is no file, others can have written it, or it is no set.
pub(crate) fn read(path: &Path, length: u64, of: &[Version]) -> io::Result<Option<WorkingSet>> {
    WorkingSet::of_bytes(&input::read_trusted(path, LONGEST)?, length, of)
}

/// The place where the set of one memory is kept for later restores.
#[derive(Debug)]
pub(crate) struct WorkingSets {
    place: SetPlace,
    /// The set that this pager has recorded, because its file may not be writable.
    recorded: Mutex<Option<Arc<WorkingSet>>>,
}

#[derive(Debug)]
enum SetPlace {
    File(PathBuf),
    Folder(Arc<PrivateFolder>),
    /// A set that is read and never written.
    Found(PathBuf),
    /// No set, because no later restore uses this memory.
    None,
}

impl WorkingSets {
    /// Uses the file that the user has named, or the file beside the memory file. The set of memory
    /// without a path is in the state folder.
    pub(crate) fn new(named: Option<&Path>, memory: &Path, folder: &Arc<PrivateFolder>) -> Self {
        let place = match named {
            Some(path) => SetPlace::File(path.to_owned()),
            None if memory.is_absolute() => SetPlace::File(path_beside(memory)),
            None => SetPlace::Folder(Arc::clone(folder)),
        };
        Self { place, recorded: Mutex::new(None) }
    }

    /// Returns the set beside a memory file, if there is one. No set is recorded.
    pub(crate) fn found_beside(memory: &Path) -> Self {
        let place = if memory.is_absolute() {
            SetPlace::Found(path_beside(memory))
        } else {
            SetPlace::None
        };
        Self { place, recorded: Mutex::new(None) }
    }

    /// The set that came with the memory. None is recorded.
    pub(crate) fn known(set: WorkingSet) -> Self {
        Self { place: SetPlace::None, recorded: Mutex::new(Some(Arc::new(set))) }
    }

    /// For memory that no later restore is from.
    pub(crate) fn none() -> Self {
        Self { place: SetPlace::None, recorded: Mutex::new(None) }
    }

    /// Finds the set of this memory; `None` if it was not recorded yet.
    ///
    /// # Errors
    /// An error if the file cannot be read, or does not contain a set.
    pub(crate) fn find(
        &self,
        length: u64,
        of: &MemoryIdentity,
    ) -> io::Result<Option<Arc<WorkingSet>>> {
        if let Some(set) = &*self.recorded.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Some(Arc::clone(set)));
        }
        let read = match &self.place {
            SetPlace::File(path) | SetPlace::Found(path) => input::read_trusted(path, LONGEST),
            SetPlace::Folder(folder) => folder.read(OF_IMAGE.as_ref(), LONGEST),
            SetPlace::None => return Ok(None),
        };
        match read {
            Ok(bytes) => Ok(WorkingSet::of_bytes(&bytes, length, &of.versions())?.map(Arc::new)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores a set for later restores. This pager has it in any case.
    ///
    /// # Errors
    /// An error if its file cannot be written.
    pub(crate) fn keep(
        &self,
        set: &Arc<WorkingSet>,
        length: u64,
        of: &MemoryIdentity,
    ) -> io::Result<()> {
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(set));
        let bytes = set.to_bytes(length, of.versions())?;
        match &self.place {
            SetPlace::File(path) => write_whole(path, &bytes),
            SetPlace::Folder(folder) => folder.write(OF_IMAGE.as_ref(), &bytes),
            SetPlace::Found(_) | SetPlace::None => Ok(()),
        }
    }

    /// Returns the path for messages.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.place {
            SetPlace::File(path) | SetPlace::Found(path) => path.clone(),
            _ => OF_IMAGE.into(),
        }
    }
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

/// `MEMORY.working-set`.
pub(crate) fn path_beside(memory: &Path) -> PathBuf {
    let mut path = memory.as_os_str().to_owned();
    path.push(".working-set");
    path.into()
}

fn malformed(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::pager::source::Source;

    struct Scene {
        folder: tempfile::TempDir,
        state: Arc<PrivateFolder>,
        memory: PathBuf,
    }

    fn scene() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let memory = folder.path().canonicalize().unwrap().join("memory.bin");
        fs::write(&memory, [1; 8192]).unwrap();
        let state = Arc::new(PrivateFolder::open(&folder.path().join("state")).unwrap());
        Scene { folder, state, memory }
    }

    impl Scene {
        fn source(&self) -> Source {
            Source::open(&self.memory).unwrap()
        }

        fn sets(&self) -> WorkingSets {
            WorkingSets::new(None, &self.memory, &self.state)
        }
    }

    fn set() -> Arc<WorkingSet> {
        Arc::new(WorkingSet::new([0..10, 10..20, 30..40].into_iter()))
    }

    #[test]
    fn set_survives_its_file_and_not_its_memory() {
        let scene = scene();
        let source = scene.source();
        assert_eq!(scene.sets().find(8192, source.identity()).unwrap(), None);
        assert_eq!((set().ranges(), set().bytes()), (&[0..20, 30..40][..], 30));
        scene.sets().keep(&set(), 8192, source.identity()).unwrap();
        assert_eq!(scene.sets().find(8192, source.identity()).unwrap(), Some(set()));
        assert_eq!(scene.sets().find(4096, source.identity()).unwrap(), None);
        // A template that was built anew has the same length.
        let other = scene.folder.path().join("other");
        fs::write(&other, [2; 8192]).unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
        fs::File::options().write(true).open(&other).unwrap().set_modified(later).unwrap();
        fs::rename(&other, &scene.memory).unwrap();
        assert_eq!(scene.sets().find(8192, scene.source().identity()).unwrap(), None);
    }

    #[test]
    fn set_of_memory_without_a_path_is_in_the_state_folder() {
        let scene = scene();
        let file = fs::File::open(&scene.memory).unwrap();
        let source = Source::of_memory(file, "image one".into(), Vec::new()).unwrap();
        let sets = || WorkingSets::new(None, source.path(), &scene.state);
        sets().keep(&set(), 8192, source.identity()).unwrap();
        assert_eq!(sets().find(8192, source.identity()).unwrap(), Some(set()));
        assert_eq!(scene.state.names().unwrap(), [OF_IMAGE]);
    }

    #[test]
    fn set_that_cannot_be_written_is_kept_by_the_pager() {
        let scene = scene();
        let nowhere = scene.folder.path().join("missing/set");
        let sets = WorkingSets::new(Some(&nowhere), &scene.memory, &scene.state);
        let source = scene.source();
        assert!(sets.keep(&set(), 8192, source.identity()).is_err());
        assert_eq!(sets.find(8192, source.identity()).unwrap(), Some(set()));
    }

    #[test]
    fn set_that_others_can_have_written_is_refused() {
        let scene = scene();
        let source = scene.source();
        scene.sets().keep(&set(), 8192, source.identity()).unwrap();
        let path = path_beside(&scene.memory);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(&path, mode).unwrap();
        let refused = scene.sets().find(8192, source.identity()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert!(scene.sets().find(8192, source.identity()).is_err());
    }

    #[test]
    fn ranges_become_whole_units_within_the_memory() {
        let odd = WorkingSet::new([5..7, 14..16, 25..29].into_iter());
        assert_eq!(odd.in_units(10, 29), WorkingSet::new(std::iter::once(0..29)));
        assert_eq!(odd.in_units(4, 29).ranges(), [4..8, 12..16, 24..29]);
    }

    #[test]
    fn hostile_sets_are_refused() {
        let scene = scene();
        let source = scene.source();
        let of = source.identity();
        let read = |ranges: &[(u64, u64)]| {
            let written = Written {
                version: VERSION,
                length: 100,
                of: of.versions(),
                ranges: ranges.to_vec(),
            };
            WorkingSet::of_bytes(&serde_json::to_vec(&written).unwrap(), 100, &of.versions())
        };
        assert!(read(&[(0, 100)]).unwrap().is_some());
        for ranges in
            [&[(0, 101)][..], &[(5, 5)], &[(9, 3)], &[(0, 10), (5, 20)], &[(50, 60), (0, 10)]]
        {
            assert!(read(ranges).is_err(), "{ranges:?}");
        }
        assert!(WorkingSet::of_bytes(b"{}", 100, &of.versions()).is_err());
    }
}
