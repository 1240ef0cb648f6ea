//! A raw memory file. It is read by read(2), because a reader of a mapped file gets SIGBUS if the
//! file shrinks.

#[cfg(feature = "delta")]
use std::cell::Cell;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use hugekit_bulk::Threads;
use hugekit_bulk::parallel::{JobError, Progress, WorkSharing};
use hugekit_bulk::profile::Profile;
use hugekit_lease::protocol::ImageRange;
use hugekit_sys::file_stamp::FileStamp;
use hugekit_sys::{HUGE_PAGE_BYTES, HeapShortage, data_runs};
use rustix::fs::OFlags;

use crate::canvas::{BLOCK, Canvas};
use crate::error::ImageError;
use crate::meter::Meter;

/// Bytes of one read. They are compared with zero and copied while they are in the cache.
const PIECE: usize = 256 << 10;

/// The first bytes of files in which QEMU and libvirt save a VM with its memory.
const HEADS_OF_SAVED_VMS: [&[u8]; 3] = [b"QEVM", b"LibvirtQemudSave", b"LibvirtQemudPart"];

/// Opens a file for a load. A FIFO without a writer is opened too, and the load refuses it; open(2)
/// would wait for a writer.
///
/// # Errors
/// The errors of open(2).
pub fn open(path: &Path) -> std::io::Result<File> {
    // A load reads only regular files, for which the flag means nothing.
    let flags = OFlags::NONBLOCK.bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

/// A regular file, as it was when it was given.
#[derive(Debug)]
pub(crate) struct Raw {
    file: File,
    nth: usize,
    stamp: FileStamp,
}

impl Raw {
    pub(crate) fn new(file: File, nth: usize) -> Result<Self, ImageError> {
        let found = file.metadata().map_err(|source| ImageError::Read { nth, at: 0, source })?;
        if !found.is_file() {
            return Err(ImageError::NoFile { nth });
        }
        Ok(Self { file, nth, stamp: FileStamp::of_metadata(&found) })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.stamp.len()
    }

    #[cfg(feature = "delta")]
    pub(crate) fn nth(&self) -> usize {
        self.nth
    }

    /// Refuses a whole file that only looks like memory to a reader that does not know its head.
    pub(crate) fn refuse_saved_vm(&self) -> Result<(), ImageError> {
        for head in HEADS_OF_SAVED_VMS {
            if self.begins_with(head)? {
                return Err(ImageError::SavedVm { nth: self.nth });
            }
        }
        Ok(())
    }

    /// Returns true if it begins with these bytes.
    pub(crate) fn begins_with(&self, magic: &[u8]) -> Result<bool, ImageError> {
        let mut start = vec![0; magic.len()];
        if self.bytes() < magic.len() as u64 {
            return Ok(false);
        }
        self.read(0, &mut start)?;
        Ok(start == magic)
    }

    /// Reads a range into an image, on several threads. Holes and blocks of zeroes stay holes.
    pub(crate) fn load(
        &self,
        range: ImageRange,
        canvas: &Canvas,
        threads: Threads,
        meter: &mut Meter<'_>,
    ) -> Result<(), ImageError> {
        let tell = |done: usize, _| meter.tell(done as u64);
        let progress = meter.is_watched().then_some(&tell as &Progress<'_>);
        let cancel = meter.cancel;
        let sharing = WorkSharing { threads, progress, cancel, ..WorkSharing::default() };
        self.share(range, canvas, &sharing)?;
        meter.finish(range.len);
        Ok(())
    }

    fn share(
        &self,
        range: ImageRange,
        canvas: &Canvas,
        sharing: &WorkSharing<'_>,
    ) -> Result<(), ImageError> {
        let (to, len) = (range.to as usize, range.len as usize);
        let start = canvas.start().wrapping_add(to);
        let profile = Profile::current();
        let min_chunk = profile.min_chunk.max(1).next_multiple_of(HUGE_PAGE_BYTES);
        let job = sharing.run(start, len, profile, min_chunk, |chunk| {
            let len = chunk.len() as u64;
            let (from, to) = (range.from + chunk.start as u64, range.to + chunk.start as u64);
            self.load_alone(ImageRange { from, len, to }, canvas)
        });
        match job {
            Ok(_) => Ok(()),
            Err(JobError::Chunk { error, .. }) => Err(error),
            Err(JobError::Cancelled { .. }) => Err(ImageError::Cancelled),
            Err(JobError::NoThreads) => Err(ImageError::NoThreads),
            Err(_) => self.load_alone(range, canvas),
        }
    }

    /// Reads a range in one thread, without the file's holes.
    fn load_alone(&self, range: ImageRange, canvas: &Canvas) -> Result<(), ImageError> {
        let mut piece = Vec::new();
        piece.try_reserve_exact(PIECE).map_err(|_| HeapShortage)?;
        piece.resize(PIECE, 0);
        let end = range.from + range.len;
        let mut at = range.from;
        while let Some(Range { start, end: hole }) = self.data(at..end)? {
            at = start;
            while at < hole {
                let to = (range.to + (at - range.from)) as usize;
                // Later pieces begin where blocks of the image do.
                let len = (PIECE - to % BLOCK).min((hole - at) as usize);
                self.read(at, &mut piece[..len])?;
                canvas.fill(to, &piece[..len])?;
                at += len as u64;
            }
        }
        Ok(())
    }

    /// Returns the number of bytes of the image's granules in which this range has bytes that lie
    /// in no hole.
    pub(crate) fn needed(&self, range: ImageRange) -> Result<u64, ImageError> {
        let granule = HUGE_PAGE_BYTES as u64;
        let (mut at, mut needed) = (range.from, 0);
        let end = range.from + range.len;
        while let Some(Range { start: data, end: hole }) = self.data(at..end)? {
            let in_image = |byte: u64| range.to + (byte - range.from);
            let first = in_image(data) / granule * granule;
            let behind = in_image(hole).next_multiple_of(granule);
            needed += behind - first;
            at = hole + (behind - in_image(hole));
        }
        Ok(needed)
    }

    /// Returns the next bytes of a range that lie in no hole. A part that was cut off counts as one: `check` finds that.
    fn data(&self, range: Range<u64>) -> Result<Option<Range<u64>>, ImageError> {
        data_runs::next(&self.file, &range).map_err(|error| self.refused(range.start, error))
    }

    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> Result<(), ImageError> {
        match self.file.read_exact_at(to, at) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(self.changed()),
            Err(error) => Err(self.refused(at, error)),
        }
    }

    fn refused(&self, at: u64, source: std::io::Error) -> ImageError {
        ImageError::Read { nth: self.nth, at, source }
    }

    fn changed(&self) -> ImageError {
        let has = self.file.metadata().map_or(0, |found| found.len());
        ImageError::Changed { nth: self.nth, had: self.bytes(), has }
    }

    /// Checks that it is as it was when it was given.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        let now = FileStamp::of(&self.file).map_err(|error| self.refused(0, error))?;
        if self.stamp.has_same_bytes(&now) { Ok(()) } else { Err(self.changed()) }
    }

    /// Its bytes in their order, from the `read` ones on. The position that other descriptors of it share stays as it
    /// is.
    #[cfg(feature = "delta")]
    pub(crate) fn stream<'a>(&'a self, read: &'a Cell<u64>) -> impl std::io::Read {
        FileStream { file: &self.file, read }
    }
}

/// The bytes of a file from `read` on, which counts them.
#[cfg(feature = "delta")]
struct FileStream<'a> {
    file: &'a File,
    read: &'a Cell<u64>,
}

#[cfg(feature = "delta")]
impl std::io::Read for FileStream<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(to, self.read.get())?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use hugekit_sys::memfd::{self, FilePages};

    use super::*;
    use crate::range;

    fn raw(bytes: &[u8]) -> Raw {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        Raw::new(file, 3).unwrap()
    }

    fn canvas(bytes: u64) -> Canvas {
        Canvas::new(memfd::create(c"hugekit-test", FilePages::Shmem).unwrap(), bytes, u64::MAX)
            .unwrap()
    }

    /// The kernel answers for a part that was cut off as for a hole, or as for the end of a file.
    #[test]
    fn file_that_shrinks_while_it_is_read_is_an_error() {
        let raw = raw(&[7; 3 << 20]);
        raw.file.set_len(1 << 20).unwrap();
        let changed = |result| match result {
            Err(ImageError::Changed { nth: 3, had, has }) => {
                assert_eq!((had, has), (3 << 20, 1 << 20));
            }
            other => panic!("{other:?}"),
        };
        changed(raw.read(1 << 20, &mut [0; 5]));
        let canvas = canvas(3 << 20);
        raw.load_alone(range::whole(3 << 20), &canvas).unwrap();
        raw.load_alone(ImageRange { from: 2 << 20, len: 1 << 20, to: 0 }, &canvas).unwrap();
        changed(raw.check());
    }

    #[test]
    fn file_that_is_written_while_it_is_read_is_an_error() {
        let raw = raw(&[7; 100]);
        raw.check().unwrap();
        // Time is counted in steps that a call may be shorter than.
        while raw.check().is_ok() {
            raw.file.write_all_at(&[8], 5).unwrap();
        }
        assert!(matches!(raw.check(), Err(ImageError::Changed { had: 100, has: 100, .. })));
    }

    #[test]
    fn what_is_no_regular_file_is_refused() {
        for path in ["/dev/zero", "/"] {
            let refused = Raw::new(File::open(path).unwrap(), 1);
            assert!(matches!(refused, Err(ImageError::NoFile { nth: 1 })), "{refused:?}");
        }
    }
}
