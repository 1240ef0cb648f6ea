//! The files of saves, so that at any moment one whole state is there.
//!
//! ```text
//! dump.hkv                      entries (SAVE), or an image of the store: a full delta (BGSAVE)
//! dump.<generation>.<n>.hkv     deltas that follow on that image, n = 1, 2, …
//! dump.hkv.part                 what a save writes until it is whole
//! ```
//!
//! A file takes its name when all of it is on the disk. Deltas of another generation than the image's are those of one
//! that was replaced: its successor was there before they went.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const DUMP: &str = "dump.hkv";
const PARTIAL: &str = "dump.hkv.part";

/// Where saves are. No other process may use it meanwhile.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

/// What a file is of, and so its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// A whole state: whatever was there before is out of date.
    Whole,
    /// The delta of that number, from 1 on.
    Delta { generation: u64, number: u64 },
}

impl Name {
    pub fn file(self) -> String {
        match self {
            Self::Whole => DUMP.to_owned(),
            Self::Delta { generation, number } => format!("dump.{generation:016x}.{number}.hkv"),
        }
    }

    /// Of a file of this name, if it is a delta's.
    fn of_delta(file: &str) -> Option<Self> {
        let (generation, number) =
            file.strip_prefix("dump.")?.strip_suffix(".hkv")?.split_once('.')?;
        let generation = u64::from_str_radix(generation, 16).ok()?;
        let name = Self::Delta { generation, number: number.parse().ok()? };
        (name.file() == file).then_some(name)
    }
}

impl Folder {
    pub fn open(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        let lock = path.join("dump.hkv.lock");
        let open = File::options().create(true).truncate(false).write(true).open(&lock);
        let file = open.with_context(|| format!("cannot open {}", lock.display()))?;
        let locked = file.try_lock();
        locked.with_context(|| format!("{} is in use by another server", path.display()))?;
        Ok(Self { path, _lock: file })
    }

    /// Where the file of this name is.
    pub fn file(&self, name: Name) -> PathBuf {
        self.path.join(name.file())
    }

    /// What a save that was ended has left behind.
    pub fn partial(&self) -> Option<&'static str> {
        self.path.join(PARTIAL).exists().then_some(PARTIAL)
    }

    /// Gives a delta that cannot be read another name, under which it is not loaded. Returns that.
    pub fn set_aside(&self, name: Name) -> Result<String> {
        let aside = format!("{}.damaged", name.file());
        fs::rename(self.file(name), self.path.join(&aside)).context("rename")?;
        self.synchronize()?;
        Ok(aside)
    }

    /// Has `fill` write a file, which takes its name when all of it is on the disk. If it fails, what was there is still
    /// there.
    pub fn save<T>(&self, name: Name, fill: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        let partial = self.path.join(PARTIAL);
        let saved = write_whole(&partial, fill).and_then(|result| {
            fs::rename(&partial, self.file(name)).context("rename")?;
            self.synchronize()?;
            Ok(result)
        });
        if saved.is_err() {
            // Not there, or no matter: the next save overwrites it.
            let _ = fs::remove_file(&partial);
        } else if name == Name::Whole {
            self.remove_deltas();
        }
        saved.with_context(|| format!("cannot save to {}", partial.display()))
    }

    /// Names that were given are on the disk.
    fn synchronize(&self) -> Result<()> {
        File::open(&self.path).and_then(|folder| folder.sync_all()).context("fsync")
    }

    /// Deltas of states that are out of date: those that stay are said, and left out, by the next start.
    fn remove_deltas(&self) {
        for name in self.deltas().unwrap_or_default() {
            let _ = fs::remove_file(self.file(name));
        }
    }

    /// All that are there, of any generation, in no order.
    pub fn deltas(&self) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        let files = fs::read_dir(&self.path).with_context(|| self.path.display().to_string())?;
        for file in files {
            names.extend(file?.file_name().to_str().and_then(Name::of_delta));
        }
        Ok(names)
    }
}

fn write_whole<T>(path: &Path, fill: impl FnOnce(&File) -> Result<T>) -> Result<T> {
    let file = File::create(path)?;
    let result = fill(&file)?;
    file.sync_all()?;
    Ok(result)
}
