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
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Ok(Self::Special { file: File::options().write(true).open(path)?, path });
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // The user's mask decides, as for any other file; results are there to be shown.
        let file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        Ok(Self::Regular { file, path })
    }

    pub(crate) fn write(self, text: &str) -> anyhow::Result<()> {
        match self {
            Self::Stdout => write_out(text).context("cannot print"),
            Self::Special { mut file, path } => {
                file.write_all(text.as_bytes()).with_context(|| cannot_write(path))
            }
            Self::Regular { file, path } => {
                replace(file, path, text).with_context(|| cannot_write(path))
            }
        }
    }

    pub(crate) fn write_json(self, value: &impl Serialize) -> anyhow::Result<()> {
        self.write(&(serde_json::to_string_pretty(value)? + "\n"))
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// On the disk before it takes the name: a disk that turns out to be full leaves what was there.
fn replace(mut file: NamedTempFile, path: &Path, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
