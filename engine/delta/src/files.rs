//! The files of a chain that contain blocks of its last state, open for reading.
//!
//! A file is closed, which frees its space if it has no name any more, when its content is not
//! certain: it was unlinked, truncated, or written to by another program, or the chain itself is
//! about to overwrite it. At most [`MOST_FILES`] files are open.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Seek;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{OFlags, fcntl_getfl};

use crate::last_state::Holder;

/// Files that a chain keeps open at most: those that hold most blocks of its last state.
pub(crate) const MOST_FILES: usize = 64;

/// The number of a file of a chain, which no other file of it ever has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileNumber(u32);

#[derive(Debug, Default)]
pub(crate) struct Files {
    kept: BTreeMap<FileNumber, Kept>,
    next: FileNumber,
}

#[derive(Debug)]
struct Kept {
    file: File,
    stamp: Stamp,
    /// The end of the last delta in the file.
    end: u64,
    /// The number of blocks of the last state that the file contains.
    blocks: usize,
}

/// Facts that show whether a file is the same, and whether it was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    identity: (u64, u64),
    modified: (i64, i64),
}

impl Stamp {
    fn of(found: &Metadata) -> Self {
        Self { identity: (found.dev(), found.ino()), modified: (found.mtime(), found.mtime_nsec()) }
    }
}

impl Kept {
    fn is_as_it_was(&self) -> bool {
        self.file.metadata().is_ok_and(|found| {
            found.nlink() > 0 && found.len() >= self.end && Stamp::of(&found) == self.stamp
        })
    }
}

impl Files {
    /// Forgets the files that changed since the last state was saved.
    pub(crate) fn forget_changed(&mut self) {
        self.kept.retain(|_, kept| kept.is_as_it_was());
    }

    /// The file that is about to be written from its position on, unless that is behind all that is known of it.
    pub(crate) fn forget_behind(&mut self, mut to: &File) {
        let Ok(found) = to.metadata() else { return };
        let is_appended = fcntl_getfl(to).is_ok_and(|flags| flags.contains(OFlags::APPEND));
        let start = if is_appended { found.len() } else { to.stream_position().unwrap_or(0) };
        let identity = Stamp::of(&found).identity;
        self.kept.retain(|_, kept| kept.stamp.identity != identity || kept.end <= start);
    }

    /// Returns a file with bytes of the last state, up to `end`: its number, or `None` if it cannot
    /// be compared with.
    pub(crate) fn keep(&mut self, file: &File, end: u64) -> Option<FileNumber> {
        let found = file.metadata().ok().filter(Metadata::is_file)?;
        let stamp = Stamp::of(&found);
        let same = |(_, kept): &(&FileNumber, &mut Kept)| kept.stamp.identity == stamp.identity;
        if let Some((&number, kept)) = self.kept.iter_mut().find(same) {
            (kept.stamp, kept.end) = (stamp, end);
            return Some(number);
        }
        let number = self.next;
        self.next = FileNumber(number.0.checked_add(1)?);
        self.kept.insert(number, Kept { file: readable(file)?, stamp, end, blocks: 0 });
        Some(number)
    }

    /// Counts that a file has one block of the last state more or less.
    pub(crate) fn count(&mut self, number: FileNumber, change: isize) {
        if let Some(kept) = self.kept.get_mut(&number) {
            kept.blocks = kept.blocks.saturating_add_signed(change);
        }
    }

    /// Forgets the files without blocks of the last state, and those with the fewest if there are too many.
    pub(crate) fn forget_surplus(&mut self) {
        self.kept.retain(|_, kept| kept.blocks > 0);
        while self.kept.len() > MOST_FILES {
            let fewest = self.kept.iter().min_by_key(|(_, kept)| kept.blocks);
            let fewest = fewest.map(|(&number, _)| number);
            fewest.map(|number| self.kept.remove(&number));
        }
    }

    /// Returns true if the holder of blocks can be relied on.
    pub(crate) fn has(&self, holder: Holder) -> bool {
        match holder {
            Holder::Stream => true,
            Holder::File(number) => self.kept.contains_key(&number),
        }
    }

    /// Returns true if all of these bytes could be read.
    pub(crate) fn read(&self, number: FileNumber, at: u64, to: &mut [u8]) -> bool {
        self.kept.get(&number).is_some_and(|kept| kept.file.read_exact_at(to, at).is_ok())
    }
}

/// Returns the same file for reading. The program's may be open only for writing.
fn readable(file: &File) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::open(path).or_else(|_| file.try_clone()).ok()
}
