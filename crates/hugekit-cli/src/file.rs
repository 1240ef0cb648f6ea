//! Where results go: standard output, or a file that is either complete or as it was.

use std::convert::Infallible;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::text::write_out;

/// The value of `--json` and `--html`.
#[derive(Clone, Debug)]
pub(crate) enum Sink {
    Stdout,
    File(PathBuf),
}

impl FromStr for Sink {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}

impl Sink {
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Makes sure, before minutes of measuring, that the result can be written.
    pub(crate) fn open(&self) -> anyhow::Result<OpenSink<'_>> {
        match self {
            Self::Stdout => Ok(OpenSink::Stdout),
            Self::File(path) => OpenSink::file(path).with_context(|| cannot_write(path)),
        }
    }
}

/// A place that accepts a result.
pub(crate) enum OpenSink<'a> {
    Stdout,
    /// A device, a pipe or a socket: something that a renamed file must not take the place of.
    Special {
        file: File,
        path: &'a Path,
    },
    /// Written beside its place first and moved there when complete.
    Regular {
        file: NamedTempFile,
        path: &'a Path,
    },
}

impl<'a> OpenSink<'a> {
    fn file(path: &'a Path) -> io::Result<Self> {
        if is_special(path) {
            return Ok(Self::Special { file: File::options().write(true).open(path)?, path });
        }
        Ok(Self::Regular { file: beside(path)?, path })
    }

    pub(crate) fn write(self, text: &str) -> anyhow::Result<()> {
        match self {
            Self::Stdout => write_out(text).context("cannot print"),
            Self::Special { mut file, path } => {
                file.write_all(text.as_bytes()).with_context(|| cannot_write(path))
            }
            Self::Regular { file, path } => replace(file, path, text),
        }
    }

    pub(crate) fn write_json(self, value: &impl Serialize) -> anyhow::Result<()> {
        self.write(&(serde_json::to_string_pretty(value)? + "\n"))
    }
}

pub(crate) fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file beside this place, to take it when it is complete. A device, a pipe or a folder there is refused: root would
/// replace `/dev/null` for every program of the machine.
pub(crate) fn beside(path: &Path) -> io::Result<NamedTempFile> {
    if is_special(path) {
        return Err(io::Error::other("something other than a file has this name"));
    }
    // The user's mask decides, as for any other file; results are there to be shown.
    tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder_of(path))
}

fn replace(mut file: NamedTempFile, path: &Path, text: &str) -> anyhow::Result<()> {
    file.write_all(text.as_bytes()).with_context(|| cannot_write(path))?;
    put(file, path)
}

/// On the disk before it takes the name: a disk that turns out to be full leaves what was there. The name is on the
/// disk, too, when this returns.
pub(crate) fn put(file: NamedTempFile, path: &Path) -> anyhow::Result<()> {
    let put = || {
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(folder_of(path))?.sync_all()
    };
    put().with_context(|| cannot_write(path))
}
