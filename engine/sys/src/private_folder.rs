//! A folder that only this user may enter, held by a descriptor, so that a later folder of the same
//! name is never mistaken for it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use crate::input;

/// The folder.
#[derive(Debug)]
pub struct PrivateFolder(OwnedFd);

impl PrivateFolder {
    /// Opens the folder, or makes it if it does not exist.
    ///
    /// # Errors
    /// The errors of mkdir(2) and open(2). `PermissionDenied` if the folder belongs to another
    /// user, or if others may enter it.
    pub fn open(path: &Path) -> io::Result<Self> {
        match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match openat(CWD, path, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(Errno::NOTDIR.into()),
            opened => opened?,
        };
        let found = fstat(&folder)?;
        let (own, mode) = (rustix::process::geteuid().as_raw(), found.st_mode & 0o7777);
        if found.st_uid != own || mode & 0o077 != 0 {
            let why = format!(
                "it is not a folder of this user's alone: it belongs to user {}, and this is user {own}; its mode is \
                 {mode:o}",
                found.st_uid
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Self(folder))
    }

    /// Returns the names of its files, in no order.
    ///
    /// # Errors
    /// The errors of getdents(2).
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        // The path is one of this process, so that the folder is opened again, and read from its beginning.
        fs::read_dir(input::path_of(self))?.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Returns true if there is a file of this name.
    #[must_use]
    pub fn has(&self, name: &OsStr) -> bool {
        statat(self, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Reads a file of at most `most` bytes.
    ///
    /// # Errors
    /// The errors of [`input::read_trusted`].
    pub fn read(&self, name: &OsStr, most: u64) -> io::Result<Vec<u8>> {
        let file = input::trusted(self.file(name, OFlags::RDONLY)?)?;
        input::read(&file, most)
    }

    /// Opens a regular file for reading and writing, or makes it if it does not exist.
    ///
    /// # Errors
    /// The errors of open(2), and the errors of [`input::open_trusted`] for an existing file.
    pub fn open_or_make(&self, name: &OsStr) -> io::Result<File> {
        input::trusted(self.file(name, OFlags::RDWR | OFlags::CREATE)?)
    }

    /// Writes a file, completely or not at all.
    ///
    /// # Errors
    /// The errors of open(2), write(2) and rename(2).
    pub fn write(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pid = rustix::process::getpid().as_raw_pid();
        let unfinished = OsString::from_vec(format!(".{pid}-{number}.unfinished").into_bytes());
        // A process that was killed may have left this name.
        self.remove(&unfinished);
        let mut file = self.file(&unfinished, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        let written =
            file.write_all(bytes).and_then(|()| Ok(renameat(self, &unfinished, self, name)?));
        if written.is_err() {
            self.remove(&unfinished);
        }
        written
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, name: &OsStr) {
        let _ = unlinkat(self, name, AtFlags::empty());
    }

    fn file(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(openat(self, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }
}

impl AsFd for PrivateFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn file_is_written_read_listed_and_removed() {
        let above = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::open(&above.path().join("state")).unwrap();
        let name = OsStr::new("one.json");
        folder.write(name, b"first").unwrap();
        folder.write(name, b"second").unwrap();
        assert_eq!(folder.read(name, 6).unwrap(), b"second");
        assert_eq!(folder.names().unwrap(), [name]);
        assert!(folder.has(name));
        folder.remove(name);
        assert!(folder.names().unwrap().is_empty() && !folder.has(name));
        assert_eq!(folder.read(name, 6).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn folder_that_is_moved_stays_the_one_that_was_opened() {
        let above = tempfile::tempdir().unwrap();
        let (path, moved) = (above.path().join("state"), above.path().join("moved"));
        let folder = PrivateFolder::open(&path).unwrap();
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("record"), "of another").unwrap();
        assert!(!folder.has(OsStr::new("record")));
        folder.write(OsStr::new("record"), b"own").unwrap();
        assert_eq!(fs::read(moved.join("record")).unwrap(), b"own");
    }

    #[test]
    fn folder_that_others_enter_or_own_and_link_are_refused() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("state");
        drop(PrivateFolder::open(&path).unwrap());
        let link = above.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(PrivateFolder::open(&link).is_err());
        fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
        let refused = PrivateFolder::open(&path).unwrap_err();
        assert!(refused.to_string().contains("mode is 750"), "{refused}");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        let fifo = path.join("fifo");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RWXU).unwrap();
        let folder = PrivateFolder::open(&path).unwrap();
        assert_eq!(
            folder.read(OsStr::new("fifo"), 10).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        symlink("/etc/hostname", path.join("name")).unwrap();
        assert!(folder.read(OsStr::new("name"), 1000).is_err());
    }
}
