use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::Error;
use crate::sys::injection::{Call, pass};

/// Where `/sys`, `/proc` and `/dev` are looked for.
///
/// The default is the machine itself. [`Root::at`] describes another one: a copy of these directories
/// taken elsewhere, or one written by a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    directory: PathBuf,
}

impl Default for Root {
    fn default() -> Self {
        Self { directory: PathBuf::from("/") }
    }
}

impl Root {
    /// The machine described by the files below `directory`, which holds `sys/`, `proc/` and so on.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Where the file lies that a program on that machine would call `absolute`.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.directory.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// Whether this is the machine that runs us, so that asking the processor itself makes sense.
    #[must_use]
    pub fn is_this_machine(&self) -> bool {
        self.directory == Path::new("/")
    }

    /// Whether a file is there that this process may look at.
    pub fn exists(&self, absolute: impl AsRef<Path>) -> bool {
        pass(Call::Stat).is_ok() && self.path(absolute).exists()
    }

    /// The text of a file.
    ///
    /// # Errors
    /// It cannot be read, or is no text.
    pub fn read(&self, absolute: impl AsRef<Path>) -> Result<String, Error> {
        let path = self.path(absolute);
        let read = || {
            pass(Call::Open)?;
            pass(Call::Read)?;
            fs::read_to_string(&path)
        };
        read().map_err(|source| Error::Unreadable { path, source })
    }

    /// Tells `take` of one line after the other: for files that may be as long as a process has mappings.
    pub(super) fn each_line(
        &self,
        absolute: impl AsRef<Path>,
        mut take: impl FnMut(&str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let path = self.path(absolute);
        let unreadable = |source| Error::Unreadable { path: path.clone(), source };
        let open = || {
            pass(Call::Open)?;
            pass(Call::Read)?;
            fs::File::open(&path)
        };
        let mut reader = BufReader::new(open().map_err(unreadable)?);
        let mut line = String::new();
        while reader.read_line(&mut line).map_err(unreadable)? > 0 {
            take(line.trim_end_matches('\n'))?;
            line.clear();
        }
        Ok(())
    }

    /// As [`read`](Self::read), for files that not every kernel has: `None` where it is not there.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn read_if_present(&self, absolute: impl AsRef<Path>) -> Result<Option<String>, Error> {
        match self.read(absolute) {
            Err(error) if error.is_not_found() => Ok(None),
            other => other.map(Some),
        }
    }

    /// The one value that a file of `/sys` or `/proc/sys` holds, taken apart by `parse`.
    ///
    /// # Errors
    /// It cannot be read, or does not hold what is `expected`.
    pub fn read_value<T>(
        &self,
        absolute: impl AsRef<Path>,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Error> {
        let text = self.read(&absolute)?;
        parse(text.trim()).ok_or_else(|| Error::malformed(self.path(absolute), expected, &text))
    }

    /// The number that a file holds.
    ///
    /// # Errors
    /// As of [`read_value`](Self::read_value).
    pub fn read_number(&self, absolute: impl AsRef<Path>) -> Result<u64, Error> {
        self.read_value(absolute, "a number", |text| text.parse().ok())
    }

    /// Names in a directory, in no particular order.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn names(&self, absolute: impl AsRef<Path>) -> Result<Vec<String>, Error> {
        let path = self.path(absolute);
        let entries = pass(Call::Open).map_err(Into::into).and_then(|()| fs::read_dir(&path));
        let entries = entries.map_err(|source| Error::Unreadable { path, source })?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// What a symbolic link points to, as text.
    pub fn link(&self, absolute: impl AsRef<Path>) -> Option<String> {
        pass(Call::Readlink).ok()?;
        fs::read_link(self.path(absolute)).ok()?.into_os_string().into_string().ok()
    }
}
