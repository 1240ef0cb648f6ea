//! The page cache of a file, brought into a state before each sample, and checked.
//!
//! How a file came into the cache decides how fast it is mapped: by small pages, by huge ones, or from the disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::measure::LabError;
use hugekit_sys::page_cache::drop_clean;
use hugekit_warm::{WarmMode, WarmOptions, WarmReport, Warmer, WhySmall};
use rustix::fs::{Advice, fadvise};

/// The most times that a file is dropped: the kernel may use pages of a VMM for a moment that has just ended.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// A state of a file's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiments) enum FileCache {
    /// All of it on base pages.
    Small,
    /// All of it on huge pages.
    Warmed,
    /// None of it.
    Cold,
}

impl FileCache {
    /// Brings a file into this state.
    pub(in crate::experiments) fn prepare(self, path: &Path) -> Result<(), LabError> {
        match self {
            Self::Warmed => {
                let report = Self::warm(path)?;
                check(path, report.is_warm(), &report)
            }
            Self::Small if self.is_state_of(&run(path, WarmMode::Check)?) => Ok(()),
            Self::Small | Self::Cold => {
                let mut tries = TRIES;
                loop {
                    self.read(path).map_err(LabError::Saved)?;
                    let report = run(path, WarmMode::Check)?;
                    if tries == 0 || self.is_state_of(&report) {
                        return check(path, self.is_state_of(&report), &report);
                    }
                    tries -= 1;
                    sleep(PAUSE);
                }
            }
        }
    }

    /// Warms a file as far as this file system can, and as memory is free in blocks of 2 MiB.
    pub(in crate::experiments) fn warm(path: &Path) -> Result<WarmReport, LabError> {
        run(path, WarmMode::Make)
    }

    /// Drops a file from the cache, and reads it by base pages if it is to be there.
    fn read(self, path: &Path) -> io::Result<()> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        drop_clean(&file, &(0..bytes))?;
        if self == Self::Cold {
            return Ok(());
        }
        fadvise(&file, 0, None, Advice::Random)?;
        let mut page = [0; 4096];
        (0..bytes).step_by(page.len()).try_for_each(|at| file.read_at(&mut page, at).map(drop))
    }

    fn is_state_of(self, report: &WarmReport) -> bool {
        let left = report.left.as_ref().map(|left| &left.why);
        let Some(&WhySmall::NotMade { on_small_pages, not_in_memory }) = left else { return false };
        let counted = if self == Self::Cold { not_in_memory } else { on_small_pages };
        counted == report.units()
    }
}

fn run(path: &Path, mode: WarmMode) -> Result<WarmReport, LabError> {
    let options = WarmOptions { mode, ..WarmOptions::default() };
    let warmed = Warmer::new(options).run(path);
    Ok(warmed.map_err(|error| LabError::Saved(io::Error::other(error)))?.report)
}

fn check(path: &Path, is_as_wanted: bool, report: &WarmReport) -> Result<(), LabError> {
    if is_as_wanted {
        return Ok(());
    }
    let other = format!("the page cache of {} is in another state: {report}", path.display());
    Err(LabError::Saved(io::Error::other(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_brought_into_each_state_or_the_state_that_it_has_is_named() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR").to_owned() + "/../target");
        let folder = folder.unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 8 << 20]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        for state in [FileCache::Small, FileCache::Cold, FileCache::Warmed, FileCache::Small] {
            let prepared = state.prepare(&path);
            let report = run(&path, WarmMode::Check).unwrap();
            match prepared {
                Ok(()) if state == FileCache::Warmed => assert!(report.is_warm(), "{report}"),
                Ok(()) => assert!(state.is_state_of(&report), "{state:?}: {report}"),
                // This file system cannot, or memory is fragmented.
                Err(LabError::Saved(error)) => {
                    assert!(error.to_string().contains("in another state: "), "{error}");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}
