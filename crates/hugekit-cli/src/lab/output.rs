//! Where the record goes: standard output, or a file that is either complete or as it was.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use hugekit_lab::record::Record;
use tempfile::NamedTempFile;

/// The value of `--json`.
#[derive(Clone, Debug)]
pub(super) enum JsonSink {
    Stdout,
    File(PathBuf),
}

impl FromStr for JsonSink {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}

impl JsonSink {
    pub(super) fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Makes sure, before minutes of measuring, that the record can be written.
    pub(super) fn open(&self) -> anyhow::Result<OpenSink<'_>> {
        match self {
            Self::Stdout => Ok(OpenSink::Stdout),
            Self::File(path) => {
                OpenSink::file(path).with_context(|| format!("cannot write {}", path.display()))
            }
        }
    }
}

/// A place that accepts the record.
pub(super) enum OpenSink<'a> {
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
        Ok(Self::Regular { file: NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?, path })
    }

    pub(super) fn write(self, record: &Record) -> anyhow::Result<()> {
        match self {
            Self::Stdout => write_json(io::stdout().lock(), record).context("cannot print"),
            Self::Special { file, path } => {
                write_json(file, record).with_context(|| format!("cannot write {}", path.display()))
            }
            Self::Regular { mut file, path } => {
                write_json(&mut file, record)
                    .and_then(|()| Ok(file.persist(path)?))
                    .with_context(|| format!("cannot write {}", path.display()))?;
                Ok(())
            }
        }
    }
}

fn write_json(mut to: impl Write, record: &Record) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut to, record)?;
    writeln!(to)?;
    to.flush()?;
    Ok(())
}
