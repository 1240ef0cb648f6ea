//! Where in the files of a chain the bytes of each block are: a save compares with them.
//!
//! So no two blocks are ever taken for equal that are not, even if a client chose their bytes. A file that cannot be relied on
//! any more costs only size: its blocks are written again when they are given ([`files`](crate::files)).

use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::blocks::{BLOCK, block_at, blocks_of, is_zero, whole_blocks};
use crate::error::DeltaError;
use crate::files::Files;
use crate::format::StateId;
use crate::known::sealed::Compare;
use crate::known::{BlockRecord, Table};
use crate::reader::{Change, Reader};

/// Bytes between two blocks that are read with them, because a call takes longer.
const NEAR: u64 = 16 << 10;

/// The places of blocks, for chains that are saved to files: 16 bytes for each block of 4 KiB.
#[derive(Debug)]
pub struct Places {
    length: u64,
    blocks: Table<FilePlace>,
    files: Files,
    /// The blocks of the state that is being saved.
    written: Vec<Written>,
    wanted: Vec<Wanted>,
    buffer: Vec<u8>,
}

/// Bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FilePlace {
    file: u32,
    at: u64,
}

impl FilePlace {
    fn behind(self, len: u64) -> Self {
        Self { at: self.at + len, ..self }
    }
}

/// A block that is compared with its place: the first one of those that are compared together has index 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    place: FilePlace,
    index: usize,
}

impl Wanted {
    fn block<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let bytes = &bytes[self.index * BLOCK..];
        &bytes[..bytes.len().min(BLOCK)]
    }

    /// Returns whether both are read by one call.
    fn is_near(&self, next: &Self) -> bool {
        let end = self.place.at + BLOCK as u64;
        self.place.file == next.place.file && next.place.at <= end + NEAR
    }
}

/// Bytes that were written: where they are behind the beginning of the delta, `None` for zeroes.
#[derive(Clone, Copy, Debug)]
struct Written {
    offset: u64,
    len: u64,
    at: Option<u64>,
}

impl Places {
    pub(crate) fn new(length: u64) -> Self {
        let blocks = Table::new(blocks_of(length));
        let files = Files::default();
        let (written, wanted, buffer) = (Vec::new(), Vec::new(), Vec::new());
        Self { length, blocks, files, written, wanted, buffer }
    }

    /// A state is about to be saved to this file. Returns it for [`commit`](Compare::commit), if that is possible.
    pub(crate) fn start_state(&mut self, to: &File) -> io::Result<Option<File>> {
        self.blocks.reserve()?;
        self.written.clear();
        self.files.forget_changed();
        self.files.forget_behind(to);
        // It shares its position with the program's.
        Ok(to.try_clone().ok())
    }

    /// Notes that the rest of this reader is the last state. It reads a file from `start` on.
    pub(crate) fn follow(
        &mut self,
        mut reader: Reader<impl Read>,
        file: &File,
        start: u64,
    ) -> Result<StateId, DeltaError> {
        self.blocks.reserve()?;
        while let Some(change) = reader.next()? {
            let (offset, len) = (change.offset(), change.len());
            match change {
                Change::Bytes { .. } => self.wrote(offset, len, reader.position() - len),
                Change::Zeroes { .. } => self.cleared(offset, len),
            }
        }
        let written = reader.position();
        let state = reader.finish()?;
        self.keep(Some(file), start, written);
        Ok(state)
    }

    /// All bytes of this file are of the last state.
    pub(crate) fn follow_raw(&mut self, file: &File) -> io::Result<()> {
        self.blocks.reserve()?;
        let mut at = 0;
        while at < self.length {
            let data = match seek(file, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => break,
                // The file system tells no holes.
                Err(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => at,
                found => found?.max(at),
            };
            let hole = seek(file, SeekFrom::Hole(data)).unwrap_or(self.length);
            // A hole may begin at once if the file is changed: one byte is progress.
            let hole = hole.max(data + 1).min(self.length);
            self.wrote(data, hole - data, data);
            at = hole;
        }
        self.keep(Some(file), 0, self.length);
        Ok(())
    }

    /// Returns whether all blocks of which there are bytes in this range are known to be zero.
    pub(crate) fn is_zero(&self, range: &Range<u64>) -> bool {
        let mut touched = block_at(range.start)..blocks_of(range.end);
        touched.all(|index| self.blocks.get(index) == BlockRecord::Zero)
    }

    /// Notes that the bytes written to this file, from `start` on, are the last state.
    fn keep(&mut self, file: Option<&File>, start: u64, written: u64) {
        let file = file.and_then(|file| self.files.keep(file, start + written));
        for Written { offset, len, at } in std::mem::take(&mut self.written) {
            let block = match (at, file) {
                (None, _) => BlockRecord::Zero,
                (Some(at), Some(file)) => BlockRecord::Is(FilePlace { file, at: start + at }),
                (Some(_), None) => BlockRecord::Unknown,
            };
            self.put(offset, len, block);
        }
        self.files.forget_surplus();
    }

    /// These bytes are there now. Of blocks that were written in part, nothing is known.
    fn put(&mut self, offset: u64, len: u64, block: BlockRecord<FilePlace>) {
        let whole = whole_blocks(offset, len, self.length);
        let touched = block_at(offset)..blocks_of(offset + len);
        for index in (touched.start..whole.start).chain(whole.end..touched.end) {
            let is_same = block == BlockRecord::Zero && self.blocks.get(index) == BlockRecord::Zero;
            self.set(index, if is_same { BlockRecord::Zero } else { BlockRecord::Unknown });
        }
        for index in whole {
            let before = (index * BLOCK) as u64 - offset;
            self.set(
                index,
                match block {
                    BlockRecord::Is(place) => BlockRecord::Is(place.behind(before)),
                    other => other,
                },
            );
        }
    }

    fn set(&mut self, index: usize, block: BlockRecord<FilePlace>) {
        if let BlockRecord::Is(place) = block {
            self.files.count(place.file, 1);
        }
        if let BlockRecord::Is(place) = self.blocks.set(index, block) {
            self.files.count(place.file, -1);
        }
    }

    /// Compares blocks with places that are near each other in one file. Those that cannot be read count as changed.
    fn compare_near(&mut self, wanted: &[Wanted], bytes: &[u8], changed: &mut [bool]) {
        let ([first, ..], [.., last]) = (wanted, wanted) else { return };
        let start = first.place.at;
        let len = (last.place.at - start) as usize + last.block(bytes).len();
        self.buffer.resize(self.buffer.len().max(len), 0);
        let there = &mut self.buffer[..len];
        if self.files.read(first.place.file, start, there) {
            for one in wanted {
                let block = one.block(bytes);
                let at = (one.place.at - start) as usize;
                changed[one.index] = *block != there[at..at + block.len()];
            }
        }
    }
}

impl Compare for Places {
    fn compare(&mut self, offset: u64, bytes: &[u8], changed: &mut Vec<bool>) {
        let before = changed.len();
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            let offset = offset + (index * BLOCK) as u64;
            let known = self.blocks.get(block_at(offset));
            if let BlockRecord::Is(place) = known {
                wanted.push(Wanted { place: place.behind(offset % BLOCK as u64), index });
            }
            changed.push(known != BlockRecord::Zero || !is_zero(block));
        }
        wanted.sort_unstable();
        for near in wanted.chunk_by(Wanted::is_near) {
            self.compare_near(near, bytes, &mut changed[before..]);
        }
        self.wanted = wanted;
    }

    fn wrote(&mut self, offset: u64, len: u64, at: u64) {
        self.written.push(Written { offset, len, at: Some(at) });
    }

    fn cleared(&mut self, offset: u64, len: u64) {
        self.written.push(Written { offset, len, at: None });
    }

    fn commit(&mut self, mut output: Option<File>, written: u64) {
        // Where the delta ends says where it begins, in a file that is appended to, too.
        let end = output.as_mut().and_then(|file| file.stream_position().ok());
        match end.and_then(|end| end.checked_sub(written)) {
            Some(start) => self.keep(output.as_ref(), start, written),
            None => self.keep(None, 0, written),
        }
    }

    fn begin_anew(&mut self) {
        self.blocks.clear();
        self.files = Files::default();
    }
}
