//! A folder for one checkpoint, fork or restore, held by descriptors. In a folder that other users
//! may write to, another folder or a link of the same name is never mistaken for it.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use hugekit_sys::input;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Returns whether a folder can be moved to this name. An empty folder is as good as none: rename(2) replaces it. A link is
/// not one.
pub(crate) fn is_free(parent: impl AsFd, name: &CStr) -> io::Result<bool> {
    match openat(parent, name, FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(folder) => Ok(std::fs::read_dir(input::path_of(&folder))?.next().is_none()),
        Err(errno) => Ok(errno == Errno::NOENT),
    }
}

/// The last name of a path that a new folder may have. `None` of `..` and `/`, which are never free.
pub(crate) fn name_of(place: &Path) -> Option<io::Result<CString>> {
    Some(CString::new(place.file_name()?.as_bytes()).map_err(Into::into))
}

/// The folder that a new folder gets its name in.
pub(crate) fn above(place: &Path) -> &Path {
    place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A folder that will be made. Its name is known before, so a guard can remove the folder if this
/// process is killed.
#[derive(Debug)]
pub(crate) struct Planned {
    parent: OwnedFd,
    name: CString,
    /// The files that it will have, and then the folders within it.
    files: Vec<CString>,
}

impl Planned {
    /// Plans a folder in `parent`, which is opened now. The name begins with `prefix`.
    pub(crate) fn new(parent: &Path, prefix: &str, files: &[&str]) -> io::Result<Self> {
        let parent = openat(CWD, parent, FOLDER, Mode::empty())?;
        Self::within(parent, prefix, files)
    }

    pub(crate) fn within(parent: OwnedFd, prefix: &str, files: &[&str]) -> io::Result<Self> {
        let name = CString::new(format!("{prefix}-{}", unguessable()?))?;
        let files = files.iter().map(|&file| CString::new(file)).collect::<Result<_, _>>()?;
        Ok(Self { parent, name, files })
    }

    pub(crate) fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    pub(crate) fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.name.to_bytes())
    }

    /// Returns the data that a guard needs to remove the folder.
    pub(crate) fn left_over(&self) -> io::Result<LeftOver> {
        let (parent, name, files) =
            (self.parent.try_clone()?, self.name.clone(), self.files.clone());
        Ok(LeftOver { parent, name, files })
    }

    /// Makes the folder. Only this user may enter it.
    pub(crate) fn make(self) -> io::Result<Hidden> {
        mkdirat(&self.parent, &self.name, Mode::RWXU)?;
        let opened = openat(&self.parent, &self.name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
        match opened {
            Ok(folder) => Ok(Hidden { folder, planned: self, is_moved: AtomicBool::new(false) }),
            Err(errno) => {
                let _ = unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
                Err(errno.into())
            }
        }
    }
}

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// The folder. A drop removes the folder and its files, unless it was moved.
#[derive(Debug)]
pub(crate) struct Hidden {
    folder: OwnedFd,
    planned: Planned,
    is_moved: AtomicBool,
}

impl Hidden {
    /// Makes a file that must not exist yet.
    pub(crate) fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o666);
        Ok(openat(&self.folder, name, flags | OFlags::CLOEXEC, mode)?.into())
    }

    /// Makes a folder within, and opens it.
    pub(crate) fn folder(&self, name: &str) -> io::Result<OwnedFd> {
        mkdirat(&self.folder, name, Mode::RWXU)?;
        Ok(openat(&self.folder, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?)
    }

    /// Opens a regular file that another process may have made.
    pub(crate) fn open(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.folder, name, flags, Mode::empty())?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Removes a file, if it exists.
    pub(crate) fn remove(&self, name: &str) {
        let _ = unlinkat(&self.folder, name, AtFlags::empty());
    }

    #[cfg(test)]
    pub(crate) fn planned(&self) -> &Planned {
        &self.planned
    }

    /// Moves the folder to another name in the same parent folder.
    pub(crate) fn rename(&self, name: &CStr) -> io::Result<()> {
        File::from(self.folder.try_clone()?).sync_all()?;
        renameat(&self.planned.parent, &self.planned.name, &self.planned.parent, name)?;
        self.is_moved.store(true, Ordering::Relaxed);
        File::from(self.planned.parent.try_clone()?).sync_all()
    }
}

impl AsFd for Hidden {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let Planned { parent, name, files } = &self.planned;
        if self.is_moved.load(Ordering::Relaxed) {
            return;
        }
        remove_all(&self.folder, files);
        if is_same(&self.folder, parent, name) {
            let _ = unlinkat_folder(parent, name);
        }
    }
}

/// Returns random digits that no other process can guess.
pub(crate) fn unguessable() -> io::Result<String> {
    Ok(format!("{:016x}", getrandom::u64().map_err(io::Error::other)?))
}

fn is_same(folder: &OwnedFd, parent: &OwnedFd, name: &CStr) -> bool {
    let of_name = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    let found = rustix::fs::fstat(folder).and_then(|held| Ok((held, of_name?)));
    found.is_ok_and(|(held, named)| (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino))
}

/// Only this user enters the folder, so no path within it leads through another user's link.
fn remove_all(folder: &OwnedFd, names: &[CString]) {
    for name in names {
        if unlinkat(folder, name, AtFlags::empty()) == Err(Errno::ISDIR) {
            let _ = unlinkat_folder(folder, name);
        }
    }
}

fn unlinkat_folder(parent: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// A folder that a guard removes by system calls only.
#[derive(Debug)]
pub(crate) struct LeftOver {
    parent: OwnedFd,
    name: CString,
    files: Vec<CString>,
}

impl LeftOver {
    pub(crate) fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    pub(crate) fn remove(&self) {
        let opened = openat(&self.parent, &self.name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
        if let Ok(folder) = opened {
            remove_all(&folder, &self.files);
        }
        let _ = unlinkat_folder(&self.parent, &self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    fn hidden(parent: &Path) -> Hidden {
        let hidden = Planned::new(parent, ".hidden", &["a", "b"]).unwrap().make().unwrap();
        hidden.create("a").unwrap().write_all(b"text").unwrap();
        hidden
    }

    fn names(folder: &Path) -> Vec<std::ffi::OsString> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn folder_is_removed_with_its_files_unless_it_was_moved() {
        let parent = tempfile::tempdir().unwrap();
        drop(hidden(parent.path()));
        assert!(names(parent.path()).is_empty());
        let moved = hidden(parent.path());
        moved.rename(c"place").unwrap();
        drop(moved);
        assert_eq!(fs::read(parent.path().join("place/a")).unwrap(), b"text");
    }

    /// The parent's owner moves the folder away, and puts a link to another folder there.
    #[test]
    fn files_behind_a_link_of_the_same_name_stay() {
        let parent = tempfile::tempdir().unwrap();
        let victim = tempfile::tempdir().unwrap();
        fs::write(victim.path().join("a"), "precious").unwrap();
        for by_guard in [false, true] {
            let hidden = hidden(parent.path());
            let name = hidden.planned().name().to_str().unwrap().to_owned();
            let path = parent.path().join(&name);
            fs::rename(&path, parent.path().join(format!("moved{by_guard}"))).unwrap();
            symlink(victim.path(), &path).unwrap();
            let left = hidden.planned().left_over().unwrap();
            if by_guard {
                std::mem::forget(hidden);
                left.remove();
            } else {
                drop(hidden);
            }
            assert_eq!(fs::read(victim.path().join("a")).unwrap(), b"precious");
        }
    }

    #[test]
    fn folder_whose_parent_is_moved_is_removed() {
        let above = tempfile::tempdir().unwrap();
        let parent = above.path().join("parent");
        fs::create_dir(&parent).unwrap();
        let hidden = hidden(&parent);
        fs::rename(&parent, above.path().join("moved")).unwrap();
        drop(hidden);
        assert!(names(&above.path().join("moved")).is_empty());
    }
}
