//! What a VM touches first after a restore: a set of ranges of its memory file, in a file beside
//! it.
//!
//! The set has no order: reading in the order of the touches would be slower than ascending.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::pager::json_file;

const VERSION: u32 = 1;

/// Longer files are not ours.
const LONGEST: u64 = 64 << 20;

/// Ascending ranges of offsets, apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkingSet {
    length: u64,
    ranges: Vec<Range<u64>>,
}

/// The file: JSON.
#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    /// Bytes of the memory file.
    length: u64,
    ranges: Vec<(u64, u64)>,
}

impl WorkingSet {
    /// `MEMORY.working-set`.
    pub(crate) fn path_beside(memory: &Path) -> PathBuf {
        let mut path = memory.as_os_str().to_owned();
        path.push(".working-set");
        path.into()
    }

    /// Makes a set of ascending ranges; those that touch become one.
    pub(crate) fn new(length: u64, ascending: impl Iterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for range in ascending {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        Self { length, ranges }
    }

    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// `None` if there is no file.
    pub(crate) fn read(path: &Path, length: u64) -> io::Result<Option<Self>> {
        match fs::metadata(path) {
            Ok(found) if found.len() > LONGEST => return Err(malformed("it is too long")),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let written: Written = serde_json::from_slice(&fs::read(path)?)?;
        Self::of_written(written, length).map(Some)
    }

    fn of_written(written: Written, length: u64) -> io::Result<Self> {
        if written.version != VERSION || written.length != length {
            return Err(malformed("it was recorded with another memory file: remove it"));
        }
        let mut end_before = 0;
        for &(start, end) in &written.ranges {
            if start < end_before || start >= end || end > length {
                return Err(malformed("its ranges are not those of a memory file"));
            }
            end_before = end;
        }
        let ranges = written.ranges.into_iter().map(|(start, end)| start..end).collect();
        Ok(Self { length, ranges })
    }

    /// Writes it whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let ranges = self.ranges.iter().map(|range| (range.start, range.end)).collect();
        let written = Written { version: VERSION, length: self.length, ranges };
        json_file::write(path, &written)
    }
}

fn malformed(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = WorkingSet::path_beside(&folder.path().join("memory.bin"));
        assert_eq!(WorkingSet::read(&path, 100).unwrap(), None);
        let set = WorkingSet::new(100, [0..10, 10..20, 30..40].into_iter());
        assert_eq!((set.ranges(), set.bytes()), (&[0..20, 30..40][..], 30));
        set.write(&path).unwrap();
        assert_eq!(WorkingSet::read(&path, 100).unwrap(), Some(set));
        assert!(WorkingSet::read(&path, 101).is_err());
    }

    #[test]
    fn hostile_sets_are_refused() {
        let read = |ranges: &[(u64, u64)]| {
            let ranges = ranges.to_vec();
            WorkingSet::of_written(Written { version: VERSION, length: 100, ranges }, 100)
        };
        assert!(read(&[(0, 100)]).is_ok());
        for ranges in
            [&[(0, 101)][..], &[(5, 5)], &[(9, 3)], &[(0, 10), (5, 20)], &[(50, 60), (0, 10)]]
        {
            assert!(read(ranges).is_err(), "{ranges:?}");
        }
    }
}
