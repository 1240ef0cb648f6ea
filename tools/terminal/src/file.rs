//! Destinations of results: standard output, or a file that is either complete or unchanged.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use hugekit_sys::new_file::NewFile;
use serde::Serialize;

use crate::text::write_out;

/// The value of `--json` and `--html`.
#[derive(Clone, Debug)]
pub enum FileSink {
    /// Standard output: `-`.
    Stdout,
    /// A file of this name.
    File(PathBuf),
}

impl FromStr for FileSink {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}

impl FileSink {
    /// Returns true for standard output.
    #[must_use]
    pub fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Checks that the result can be written. Call this before minutes of measuring.
    ///
    /// # Errors
    /// An error if the file cannot be made.
    pub fn open(&self) -> anyhow::Result<OpenSink<'_>> {
        match self {
            Self::Stdout => Ok(OpenSink(FilePlace::Stdout)),
            Self::File(path) => {
                FilePlace::file(path).map(OpenSink).with_context(|| cannot_write(path))
            }
        }
    }
}

/// A place that accepts a result.
#[derive(Debug)]
pub struct OpenSink<'a>(FilePlace<'a>);

#[derive(Debug)]
enum FilePlace<'a> {
    Stdout,
    /// A device, a pipe or a socket, which must not be replaced by a renamed file.
    Special {
        file: File,
        path: &'a Path,
    },
    /// A regular file. The result is written beside it, and renamed when it is complete.
    Regular {
        file: NewFile,
        path: &'a Path,
    },
}

impl<'a> FilePlace<'a> {
    fn file(path: &'a Path) -> io::Result<Self> {
        if is_special(path) {
            return Ok(Self::Special { file: File::options().write(true).open(path)?, path });
        }
        Ok(Self::Regular { file: NewFile::beside(path)?, path })
    }
}

impl OpenSink<'_> {
    /// Writes the result. A file then has its name; after an error, it has its former bytes.
    ///
    /// # Errors
    /// An error if standard output or the file cannot be written.
    pub fn write(self, text: &str) -> anyhow::Result<()> {
        match self.0 {
            FilePlace::Stdout => write_out(text).context("cannot print"),
            FilePlace::Special { mut file, path } => {
                file.write_all(text.as_bytes()).with_context(|| cannot_write(path))
            }
            FilePlace::Regular { file, path } => replace(file, path, text),
        }
    }

    /// Writes the result as JSON.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub fn write_json(self, value: &impl Serialize) -> anyhow::Result<()> {
        self.write(&(serde_json::to_string_pretty(value)? + "\n"))
    }
}

/// Returns the beginning of the message, to which the reason is added.
#[must_use]
pub fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file())
}

fn replace(mut file: NewFile, path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || {
        file.write_all(text.as_bytes())?;
        file.put(true)
    };
    write().with_context(|| cannot_write(path))
}
