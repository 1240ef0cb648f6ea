//! The files of saves. At any moment they are one whole state.
//!
//! ```text
//! dump.hkv               the image: a full delta
//! dump.<image>.<n>.hkv   the delta of number n that follows on that image, from 1 on
//! dump.hkv.part          what a save writes until the file is whole
//! ```
//!
//! `<image>` is the state of the image: deltas of an image that was replaced are never taken for
//! those of its successor. A file gets its name when all of it is on the disk.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hugekit_delta::StateId;

pub const IMAGE: &str = "dump.hkv";
pub const PARTIAL: &str = "dump.hkv.part";

pub fn delta(image: StateId, number: u64) -> String {
    format!("dump.{image}.{number}.hkv")
}

/// Where the files are. No other process may use the folder meanwhile.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    pub fn open(path: &Path) -> Result<Self> {
        let lock = path.join("dump.hkv.lock");
        let file = File::create(&lock).with_context(|| lock.display().to_string())?;
        let in_use = || format!("{} is in use by another server", path.display());
        file.try_lock().with_context(in_use)?;
        Ok(Self { path: path.to_owned(), _lock: file })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn read(&self, name: &str) -> Result<File> {
        File::open(self.path(name)).with_context(|| name.to_owned())
    }

    /// Lets `fill` write a file. If anything fails, the files are as they were.
    pub fn save<T>(&self, name: &str, fill: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        let partial = self.path(PARTIAL);
        let write = || -> Result<T> {
            let file = File::create(&partial)?;
            let result = fill(&file)?;
            file.sync_all()?;
            self.rename(PARTIAL, name)?;
            Ok(result)
        };
        let saved = write().with_context(|| format!("cannot save to {}", partial.display()));
        if saved.is_err() {
            // If the file stays, the next save overwrites it.
            let _ = fs::remove_file(&partial);
        } else if name == IMAGE {
            // A start tells of those that stay, and does not load them.
            for (image, number) in deltas(&self.path).unwrap_or_default() {
                let _ = fs::remove_file(self.path(&delta(image, number)));
            }
        }
        saved
    }

    /// Gives a file another name, which is on the disk then.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        fs::rename(self.path(from), self.path(to)).context("rename")?;
        File::open(&self.path).and_then(|folder| folder.sync_all()).context("fsync")
    }
}

/// All deltas in a folder, of any image, ascending.
pub fn deltas(path: &Path) -> Result<Vec<(StateId, u64)>> {
    let parse = |file: &str| {
        let (image, number) = file.strip_prefix("dump.")?.strip_suffix(".hkv")?.split_once('.')?;
        let (image, number) = (image.parse().ok()?, number.parse().ok()?);
        (delta(image, number) == file).then_some((image, number))
    };
    let mut deltas = Vec::new();
    for file in fs::read_dir(path).with_context(|| path.display().to_string())? {
        deltas.extend(file?.file_name().to_str().and_then(parse));
    }
    deltas.sort_unstable_by_key(|(_, number)| *number);
    Ok(deltas)
}
