//! A new folder: whole or absent.
//!
//! Its files have no names until all of them are written, if the file system has such files. So nothing is left of a
//! process that is killed. They get their names in a folder beside the place, which is moved there by one rename(2).

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use hugekit_sys::new_file::NewFile;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::error::OciError;
use crate::vmm::hidden::{Planned, above, is_free, name_of};

/// A folder that is to be made.
#[derive(Debug)]
pub(crate) struct NewFolder {
    place: PathBuf,
    name: CString,
    parent: OwnedFd,
}

impl NewFolder {
    /// Checks that the place is free.
    pub(crate) fn new(place: &Path) -> Result<Self, OciError> {
        let refused = |source| OciError::Output { path: place.to_owned(), source };
        let exists = || OciError::Exists { path: place.to_owned() };
        let name = name_of(place).ok_or_else(exists)?.map_err(refused)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = openat(CWD, above(place), flags, Mode::empty());
        let parent = parent.map_err(|errno| refused(errno.into()))?;
        match is_free(&parent, &name).map_err(refused)? {
            true => Ok(Self { place: place.to_owned(), name, parent }),
            false => Err(exists()),
        }
    }

    /// Makes a file on the file system of the folder.
    pub(crate) fn file(&self) -> Result<NewFile, OciError> {
        NewFile::within(&self.parent).map_err(|source| self.refused(source))
    }

    pub(crate) fn refused(&self, source: io::Error) -> OciError {
        OciError::Output { path: self.place.clone(), source }
    }

    /// Makes the folder with these files, which may be in folders within it.
    pub(crate) fn finish(self, files: Vec<(String, NewFile)>) -> Result<(), OciError> {
        let exists = || OciError::Exists { path: self.place.clone() };
        self.make(files).map_err(|source| match source.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory => exists(),
            _ => self.refused(source),
        })
    }

    fn make(&self, files: Vec<(String, NewFile)>) -> io::Result<()> {
        // Those above come first.
        let above = |name: &str| -> Vec<String> {
            name.match_indices('/').map(|(at, _)| name[..at].to_owned()).collect()
        };
        let folders: BTreeSet<String> = files.iter().flat_map(|(name, _)| above(name)).collect();
        let names = files.iter().map(|(name, _)| name.as_str());
        let names: Vec<&str> = names.chain(folders.iter().rev().map(String::as_str)).collect();
        let parent = self.parent.try_clone()?;
        let hidden = Planned::within(parent, ".hugekit", &names)?.make()?;
        let opened = folders.iter().map(|name| Ok((name.as_str(), hidden.folder(name)?)));
        let opened: Vec<(&str, OwnedFd)> = opened.collect::<io::Result<_>>()?;
        for (name, file) in files {
            match name.rsplit_once('/') {
                Some((folder, name)) => {
                    let found = opened.iter().find(|(opened, _)| *opened == folder);
                    let (_, folder) = found.expect("each folder was made");
                    file.put_into(folder, name.as_ref())?;
                }
                None => file.put_into(&hidden, name.as_ref())?,
            }
        }
        for (_, folder) in opened {
            rustix::fs::fsync(folder)?;
        }
        hidden.rename(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn file(folder: &NewFolder, text: &str) -> NewFile {
        let mut file = folder.file().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn folder_is_whole_or_absent() {
        let above = tempfile::tempdir().unwrap();
        let place = above.path().join("new");
        let names = || fs::read_dir(above.path()).unwrap().count();
        let folder = NewFolder::new(&place).unwrap();
        let files = ["a", "b/c/d", "b/e"].map(|name| (name.to_owned(), file(&folder, name)));
        assert!(!place.exists());
        folder.finish(files.into()).unwrap();
        for name in ["a", "b/c/d", "b/e"] {
            assert_eq!(fs::read_to_string(place.join(name)).unwrap(), name);
        }
        assert_eq!(names(), 1);
        // Two files of one name: all that was made is removed.
        let folder = NewFolder::new(&above.path().join("other")).unwrap();
        let files = ["a", "b/c/d", "b/c/d"].map(|name| (name.to_owned(), file(&folder, name)));
        assert!(matches!(folder.finish(files.into()), Err(OciError::Output { .. })));
        assert_eq!(names(), 1);
    }

    #[test]
    fn folder_with_files_and_what_gets_the_name_meanwhile_stay() {
        let above = tempfile::tempdir().unwrap();
        let place = above.path().join("new");
        let folder = NewFolder::new(&place).unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(place.join("kept"), "").unwrap();
        let files = vec![("a".to_owned(), file(&folder, "a"))];
        assert!(matches!(folder.finish(files), Err(OciError::Exists { .. })));
        assert!(matches!(NewFolder::new(&place), Err(OciError::Exists { .. })));
        assert!(matches!(NewFolder::new("/".as_ref()), Err(OciError::Exists { .. })));
        assert!(place.join("kept").exists() && !place.join("a").exists());
        assert_eq!(fs::read_dir(above.path()).unwrap().count(), 1);
    }
}
