use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::Error;
use hugekit_sys::injection::{Call, pass};

/// Bytes of most of the kernel's files. One call reads them.
const TYPICAL_BYTES: usize = 4096;

/// The directory that contains `/sys`, `/proc` and `/dev`.
///
/// By default the root of this machine. [`Root::at`] describes another machine by a copy of these
/// directories, which was made there or which a test wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    directory: Cow<'static, Path>,
}

impl Default for Root {
    fn default() -> Self {
        Self { directory: Cow::Borrowed(Path::new("/")) }
    }
}

impl Root {
    /// Returns a machine that files below `directory` describe. `directory` contains `sys/`,
    /// `proc/` and so on.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Cow::Owned(directory.into()) }
    }

    /// Returns the path of a file that has the path `absolute` on that machine.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.directory.join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// Returns true if this process runs on this machine, so that CPUID describes it too.
    #[must_use]
    pub fn is_this_machine(&self) -> bool {
        self.directory == Path::new("/")
    }

    /// Returns true if the file exists and this process may inspect it.
    pub fn exists(&self, absolute: impl AsRef<Path>) -> bool {
        pass(Call::Stat).is_ok() && self.path(absolute).exists()
    }

    /// Returns the text of a file. Bytes that are not UTF-8 are replaced, because names of
    /// programs, files and groups may contain any bytes.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be read.
    pub fn read(&self, absolute: impl AsRef<Path>) -> Result<String, Error> {
        let text = |bytes| String::from_utf8(bytes).unwrap_or_else(|error| lossy(error.as_bytes()));
        self.read_bytes(absolute).map(text)
    }

    /// Returns the bytes of a file, for readers of the names in it.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be read.
    pub(super) fn read_bytes(&self, absolute: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let path = self.path(absolute);
        let read = || {
            pass(Call::Open)?;
            pass(Call::Read)?;
            let mut bytes = Vec::with_capacity(TYPICAL_BYTES);
            // Behind `take`, so that nobody asks for the length: the kernel's own files say 0.
            File::open(&path)?.take(u64::MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|source| Error::Unreadable { path, source })
    }

    /// Calls `take` for each line, for files that may be very long. Bytes that are not UTF-8 are
    /// replaced, as by [`read`](Self::read).
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
            File::open(&path)
        };
        let mut reader = BufReader::new(open().map_err(unreadable)?);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).map_err(unreadable)? > 0 {
            take(String::from_utf8_lossy(&line).trim_end_matches('\n'))?;
            line.clear();
        }
        Ok(())
    }

    /// Like [`read`](Self::read), for files that only some kernels have. `None` if the file does
    /// not exist.
    ///
    /// # Errors
    /// [`Error`] if the file exists and cannot be read.
    pub fn read_if_present(&self, absolute: impl AsRef<Path>) -> Result<Option<String>, Error> {
        if_present(self.read(absolute))
    }

    /// Like [`read_bytes`](Self::read_bytes), for files that only some kernels have. `None` if the
    /// file does not exist.
    ///
    /// # Errors
    /// [`Error`] if the file exists and cannot be read.
    pub(super) fn bytes_if_present(
        &self,
        absolute: impl AsRef<Path>,
    ) -> Result<Option<Vec<u8>>, Error> {
        if_present(self.read_bytes(absolute))
    }

    /// Returns the one value in a file of `/sys` or `/proc/sys`, which `parse` converts.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be read, or does not contain a value as `expected` describes
    /// it.
    pub fn read_value<T>(
        &self,
        absolute: impl AsRef<Path>,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Error> {
        let text = self.read(&absolute)?;
        parse(text.trim()).ok_or_else(|| Error::malformed(self.path(absolute), expected, &text))
    }

    /// Returns the number in a file.
    ///
    /// # Errors
    /// The errors of [`read_value`](Self::read_value).
    pub fn read_number(&self, absolute: impl AsRef<Path>) -> Result<u64, Error> {
        self.read_value(absolute, "a number", |text| text.parse().ok())
    }

    /// Returns the names in a directory, in no particular order.
    ///
    /// # Errors
    /// [`Error`] if the directory cannot be read.
    pub fn names(&self, absolute: impl AsRef<Path>) -> Result<Vec<String>, Error> {
        let path = self.path(absolute);
        let entries = pass(Call::Open).map_err(Into::into).and_then(|()| fs::read_dir(&path));
        let entries = entries.map_err(|source| Error::Unreadable { path, source })?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Returns the target of a symbolic link, as text.
    pub fn link(&self, absolute: impl AsRef<Path>) -> Option<String> {
        pass(Call::Readlink).ok()?;
        fs::read_link(self.path(absolute)).ok()?.into_os_string().into_string().ok()
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn if_present<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Err(error) if error.is_not_found() => Ok(None),
        other => other.map(Some),
    }
}
