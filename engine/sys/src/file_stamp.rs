//! A file as it was at one moment, by which a later look knows whether it has the same bytes.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

/// The file's place, its length, and when it was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FileStamp {
    device: u64,
    inode: u64,
    len: u64,
    /// Seconds and nanoseconds of the last write.
    modified: (i64, i64),
    /// The same of the last change of the file or of what the file system knows of it.
    changed: (i64, i64),
    /// Names, mode, user and group: a change of these changes `changed` as well.
    named: (u64, u32, u32, u32),
}

impl FileStamp {
    /// Looks at an open file.
    ///
    /// # Errors
    /// The errors of fstat(2).
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::of_metadata(&file.metadata()?))
    }

    /// Makes the stamp of what stat(2) has answered.
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

    /// Returns the bytes of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns seconds and nanoseconds of the last write.
    #[must_use]
    pub fn modified(&self) -> (i64, i64) {
        self.modified
    }

    /// Returns whether the file is the same one.
    #[must_use]
    pub fn is_of_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Returns whether it is the same file with the same bytes. Another name, mode or owner changes no byte. A time of
    /// the last write that was put back is found: the kernel sets the time of the last change itself.
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
