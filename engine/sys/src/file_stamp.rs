//! The stamp of a file at one moment. A comparison with a later stamp shows if the file has the
//! same bytes.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

/// The place and the length of a file, and the times of its last changes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FileStamp {
    device: u64,
    inode: u64,
    len: u64,
    /// The time of the last write, in seconds and nanoseconds.
    modified: (i64, i64),
    /// The time of the last change of the file or of its metadata, in seconds and nanoseconds.
    changed: (i64, i64),
    /// Names, mode, user and group. A change of these values changes `changed`, too.
    named: (u64, u32, u32, u32),
}

impl FileStamp {
    /// Makes the stamp of an open file.
    ///
    /// # Errors
    /// The errors of fstat(2).
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::of_metadata(&file.metadata()?))
    }

    /// Makes the stamp from a result of stat(2).
    #[must_use]
    pub fn of_metadata(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            len: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
            named: (found.nlink(), found.mode(), found.uid(), found.gid()),
        }
    }

    /// Returns the length of the file in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the time of the last write, in seconds and nanoseconds.
    #[must_use]
    pub fn modified(&self) -> (i64, i64) {
        self.modified
    }

    /// Returns true if both stamps are of the same file.
    #[must_use]
    pub fn is_of_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Returns true if both stamps are of the same file with the same bytes. Another name, mode or
    /// owner does not change the bytes. A time of the last write that was set back is detected,
    /// because the kernel itself sets the time of the last change.
    #[must_use]
    pub fn has_same_bytes(&self, other: &Self) -> bool {
        let is_explained = self.changed == other.changed || self.named != other.named;
        self.is_of_same_file(other)
            && (self.len, self.modified) == (other.len, other.modified)
            && is_explained
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{FileTimes, Permissions};
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use super::*;

    /// Changes the file until the kernel's clock, which ticks in milliseconds, has a later time.
    fn change(file: &File, change: impl Fn()) -> FileStamp {
        let before = FileStamp::of(file).unwrap();
        loop {
            change();
            let after = FileStamp::of(file).unwrap();
            if after.changed != before.changed {
                return after;
            }
        }
    }

    #[test]
    fn write_is_found_also_if_its_time_is_put_back() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"one", 0).unwrap();
        let before = FileStamp::of(&file).unwrap();
        assert!(before.has_same_bytes(&FileStamp::of(&file).unwrap()));
        let written = file.metadata().unwrap().modified().unwrap();
        let after = change(&file, || {
            file.write_all_at(b"two", 0).unwrap();
            file.set_times(FileTimes::new().set_modified(written)).unwrap();
        });
        assert!(after.modified == before.modified && after.len() == 3);
        assert!(!before.has_same_bytes(&after));
    }

    #[test]
    fn mode_changes_no_byte() {
        let file = tempfile::tempfile().unwrap();
        let before = FileStamp::of(&file).unwrap();
        let after = change(&file, || file.set_permissions(Permissions::from_mode(0o640)).unwrap());
        assert!(before.has_same_bytes(&after));
        file.set_len(5).unwrap();
        assert!(!before.has_same_bytes(&FileStamp::of(&file).unwrap()));
    }

    #[test]
    fn file_with_the_same_times_is_another_one() {
        let (one, two) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let (one, two) = (FileStamp::of(&one).unwrap(), FileStamp::of(&two).unwrap());
        assert!(!one.is_of_same_file(&two) && !one.has_same_bytes(&two));
    }
}
