//! Results: files that are whole, or as they were before.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::memfd;

/// Read and written by all users whom the mask does not exclude: results are there to be shown.
const MODE: u32 = 0o666;

/// Two threads that write to one place have a file each until then.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A file beside its place, which takes it when it is complete.
///
/// Until then it has no name, so that nothing of it is left if this process is killed. Where the file system has no such
/// files, it has a name of its own, which is removed when this is dropped.
#[derive(Debug)]
pub struct NewFile {
    place: PathBuf,
    file: File,
    partial: Option<Partial>,
}

/// A name until the file takes its place.
#[derive(Debug)]
struct Partial(PathBuf);

impl NewFile {
    /// Makes the file, empty. A device, a pipe or a folder at its place is refused: root would replace `/dev/null` for
    /// every program of the machine.
    ///
    /// # Errors
    /// The folder accepts no file, or something other than a file has the name.
    pub fn beside(place: impl Into<PathBuf>) -> io::Result<Self> {
        let place = place.into();
        if place.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Err(io::Error::other("something other than a file has this name"));
        }
        let mut options = File::options();
        options.read(true).write(true).mode(MODE);
        let unnamed =
            options.clone().custom_flags(OFlags::TMPFILE.bits() as i32).open(folder_of(&place));
        match unnamed {
            Ok(file) => Ok(Self { place, file, partial: None }),
            // Whatever the reason: a folder that accepts no file says so again.
            Err(_) => Self::named(place, &mut options),
        }
    }

    fn named(place: PathBuf, options: &mut fs::OpenOptions) -> io::Result<Self> {
        let partial = Partial::beside(&place);
        let file = options.create_new(true).open(&partial.0)?;
        Ok(Self { place, file, partial: Some(partial) })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file.
    pub fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its place. With `fsync`, it is on the disk before, and its name when this returns; otherwise neither
    /// of the two files may be there if the machine stops soon.
    ///
    /// # Errors
    /// The disk is full, or the folder may not be changed. The file that was there is as it was.
    pub fn put(self, fsync: bool) -> io::Result<()> {
        let folder = if fsync { Some(File::open(folder_of(&self.place))?) } else { None };
        if fsync {
            self.file.sync_all()?;
        }
        self.take_place()?;
        folder.map_or(Ok(()), |folder| folder.sync_all())
    }

    fn take_place(self) -> io::Result<()> {
        let Self { place, file, partial } = self;
        match partial {
            Some(partial) => partial.take(&place),
            None => match memfd::link(&file, &place) {
                // A link replaces nothing.
                Err(Errno::EXIST) => {
                    let partial = Partial::beside(&place);
                    memfd::link(&file, &partial.0)?;
                    partial.take(&place)
                }
                linked => Ok(linked?),
            },
        }
    }
}

impl Partial {
    fn beside(place: &Path) -> Self {
        let mut name = place.as_os_str().to_owned();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        name.push(format!(".{}.{number}.partial", std::process::id()));
        Self(name.into())
    }

    /// Takes the place of another file.
    fn take(self, place: &Path) -> io::Result<()> {
        fs::rename(&self.0, place)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn folder_of(place: &Path) -> &Path {
    place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    fn write_twice(make: impl Fn(PathBuf) -> NewFile, names_meanwhile: usize) {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("result");
        for text in ["first", "second"] {
            let before = names(folder.path()).len();
            let mut file = make(place.clone());
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(names(folder.path()).len(), before + names_meanwhile);
            file.put(true).unwrap();
            assert_eq!(names(folder.path()), ["result"]);
            assert_eq!(fs::read_to_string(&place).unwrap(), text);
        }
        let mut given_up = make(place.clone());
        given_up.write_all(b"third").unwrap();
        drop(given_up);
        assert_eq!(names(folder.path()), ["result"]);
        assert_eq!(fs::read_to_string(&place).unwrap(), "second");
    }

    #[test]
    fn file_has_no_name_until_it_is_complete() {
        write_twice(|place| NewFile::beside(place).unwrap(), 0);
    }

    #[test]
    fn file_where_all_files_have_names_has_one_of_its_own() {
        let make = |place| {
            let mut options = File::options();
            NewFile::named(place, options.read(true).write(true).mode(MODE)).unwrap()
        };
        write_twice(make, 1);
    }

    #[test]
    fn device_and_folder_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        for place in [Path::new("/dev/null"), folder.path()] {
            let refused = NewFile::beside(place).unwrap_err();
            assert!(refused.to_string().contains("other than a file"), "{refused}");
        }
    }
}
