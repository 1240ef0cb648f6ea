//! A record named on the command line: a file, or the ID of one that was kept.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hugekit_lab::record::Record;
use hugekit_lab::record::archive::Archive;
use hugekit_machine::plain;

/// A file if it has a slash or ends in `.json`, or if there is one of that name; else an ID.
#[derive(Clone, Debug)]
pub(super) struct Operand(String);

impl FromStr for Operand {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl Operand {
    /// The record, and what to call it.
    pub(super) fn read(&self) -> anyhow::Result<(String, Record)> {
        let path = self.path()?;
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or(&self.0).to_owned();
        Ok((plain(&name), Record::read(&path)?))
    }

    fn path(&self) -> anyhow::Result<PathBuf> {
        let path = Path::new(&self.0);
        let is_file = self.0.contains('/') || self.0.ends_with(".json") || path.is_file();
        Ok(if is_file { path.to_owned() } else { Archive::of_user()?.find(&self.0)? })
    }
}
