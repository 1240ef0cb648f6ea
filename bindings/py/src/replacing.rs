//! Files that are whole or not there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Two threads that save to one path have a file each until then.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A file that takes its name when it is complete.
pub(crate) struct Replacing {
    path: PathBuf,
    partial: PathBuf,
    pub(crate) file: File,
    is_complete: bool,
}

impl Replacing {
    /// A device or a pipe is refused: root would replace `/dev/null` for every program.
    pub(crate) fn new(path: PathBuf) -> io::Result<Self> {
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Err(io::Error::other("something other than a file has this name"));
        }
        let mut partial = path.clone().into_os_string();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        partial.push(format!(".{}.{number}.partial", std::process::id()));
        let partial = PathBuf::from(partial);
        let file = File::create(&partial)?;
        Ok(Self { path, partial, file, is_complete: false })
    }

    pub(crate) fn finish(mut self, fsync: bool) -> io::Result<()> {
        if fsync {
            self.file.sync_all()?;
        }
        fs::rename(&self.partial, &self.path)?;
        self.is_complete = true;
        match self.path.parent().filter(|_| fsync) {
            Some(folder) if folder != Path::new("") => File::open(folder)?.sync_all(),
            Some(_) => File::open(".")?.sync_all(),
            None => Ok(()),
        }
    }
}

impl Drop for Replacing {
    fn drop(&mut self) {
        if !self.is_complete {
            let _ = fs::remove_file(&self.partial);
        }
    }
}
