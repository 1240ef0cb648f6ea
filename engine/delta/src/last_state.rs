//! The last saved state: enough about each block to find if the block has changed since.
//!
//! For a block that this process has saved, the [tag](crate::tag) is known. For a block that an
//! earlier process has saved, the place in a file is known, and the bytes are read back and
//! compared once. If the content of a file is not certain any more, only the size of the next delta
//! grows: the blocks of the file are written again when they are passed ([`files`](crate::files)).

use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::blocks::{BLOCK, block_at, blocks_of, is_zero, whole_blocks};
use crate::error::DeltaError;
use crate::files::{FileNumber, Files};
use crate::format::StateId;
use crate::reader::{Change, Reader};
use crate::tag::{Tag, Tagger};

/// Bytes between two blocks that are read together with the blocks, because a second call would
/// last longer.
const NEAR: u64 = 16 << 10;

/// The knowledge about each block of the last saved state, in 24 bytes for each. A chain begins with a state of zeroes.
#[derive(Debug)]
pub(crate) struct LastState {
    length: u64,
    /// `None` until a state is saved.
    tagger: Option<Tagger>,
    /// The blocks. Blocks after the last one were never set, and are zero.
    blocks: Vec<BlockRecord>,
    files: Files,
    /// The blocks of the state that is being saved.
    written: Vec<Written>,
    /// Tags of the blocks that are complete.
    tags: Vec<(usize, Tag)>,
    wanted: Vec<Wanted>,
    buffer: Vec<u8>,
}

/// The knowledge about a block of the last saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockRecord {
    /// Nothing is known. The block is written whenever a byte of it is passed.
    Unknown,
    Zero,
    /// The block is at this place of a file, and was not read yet.
    At(FilePlace),
    /// The block has this tag, and the holder contains it.
    Tagged(Tag, Holder),
}

/// The receiver of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A stream. The chain does not check if the receiver still has the block.
    Stream,
    File(FileNumber),
}

/// The place where a state is saved.
#[derive(Debug)]
pub(crate) enum Output {
    Stream,
    /// `None` if the file cannot be inspected later.
    File(Option<File>),
}

/// Bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FilePlace {
    file: FileNumber,
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

    /// Returns true if both are read by one call.
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

impl LastState {
    pub(crate) fn new(length: u64) -> Self {
        Self {
            length,
            tagger: None,
            blocks: Vec::new(),
            files: Files::default(),
            written: Vec::new(),
            tags: Vec::new(),
            wanted: Vec::new(),
            buffer: Vec::new(),
        }
    }

    /// A state is about to be saved.
    pub(crate) fn start_state(&mut self) -> io::Result<()> {
        self.reserve()?;
        if self.tagger.is_none() {
            self.tagger = Some(Tagger::new()?);
        }
        self.written.clear();
        self.tags.clear();
        self.files.forget_changed();
        Ok(())
    }

    /// The state goes to this file, from its position on.
    pub(crate) fn start_file(&mut self, to: &File) -> Output {
        self.files.forget_behind(to);
        // It shares its position with the program's.
        Output::File(to.try_clone().ok())
    }

    /// Makes sure that [`set`](Self::set) allocates nothing.
    fn reserve(&mut self) -> io::Result<()> {
        let missing = blocks_of(self.length) - self.blocks.len();
        Ok(self.blocks.try_reserve_exact(missing)?)
    }

    fn get(&self, index: usize) -> BlockRecord {
        self.blocks.get(index).copied().unwrap_or(BlockRecord::Zero)
    }

    fn set(&mut self, index: usize, block: BlockRecord) {
        if index >= self.blocks.len() {
            self.blocks.resize(index + 1, BlockRecord::Zero);
        }
        let before = std::mem::replace(&mut self.blocks[index], block);
        for (record, change) in [(block, 1), (before, -1)] {
            if let BlockRecord::At(FilePlace { file, .. })
            | BlockRecord::Tagged(_, Holder::File(file)) = record
            {
                self.files.count(file, change);
            }
        }
    }

    /// Notes that the rest of this reader is the last state. It reads a file from `start` on.
    pub(crate) fn follow(
        &mut self,
        mut reader: Reader<impl Read>,
        file: &File,
        start: u64,
    ) -> Result<StateId, DeltaError> {
        self.reserve()?;
        while let Some(change) = reader.next()? {
            let (offset, len) = (change.offset(), change.len());
            match change {
                Change::Bytes { .. } => self.wrote(offset, len, reader.position() - len),
                Change::Zeroes { .. } => self.cleared(offset, len),
            }
        }
        let written = reader.position();
        let state = reader.finish()?;
        self.keep_file(Some(file), start, written);
        Ok(state)
    }

    /// All bytes of this file are of the last state.
    pub(crate) fn follow_raw(&mut self, file: &File) -> io::Result<()> {
        self.reserve()?;
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
        self.keep_file(Some(file), 0, self.length);
        Ok(())
    }

    /// Returns true if all blocks of which there are bytes in this range are known to be zero.
    pub(crate) fn is_zero(&self, range: &Range<u64>) -> bool {
        let mut touched = block_at(range.start)..blocks_of(range.end);
        touched.all(|index| self.get(index) == BlockRecord::Zero)
    }

    /// Adds to `changed` for each block of these bytes whether it may differ from the last state. They are whole blocks
    /// that lie side by side, or a part of one.
    pub(crate) fn compare(&mut self, offset: u64, bytes: &[u8], changed: &mut Vec<bool>) {
        let (before, first) = (changed.len(), block_at(offset));
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            let known = self.get(first + index);
            if let BlockRecord::At(place) = known {
                let within = if index == 0 { offset % BLOCK as u64 } else { 0 };
                wanted.push(Wanted { place: place.behind(within), index });
            }
            changed.push(match known {
                BlockRecord::Zero => !is_zero(block),
                BlockRecord::Tagged(..) => false,
                BlockRecord::At(_) | BlockRecord::Unknown => true,
            });
        }
        wanted.sort_unstable();
        for near in wanted.chunk_by(Wanted::is_near) {
            self.compare_near(near, bytes, &mut changed[before..]);
        }
        self.wanted = wanted;
        let whole = whole_blocks(offset, bytes.len() as u64, self.length);
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            let is_whole = whole.contains(&(first + index));
            self.tag(first + index, block, is_whole, &mut changed[before + index]);
        }
    }

    /// Makes the tag of a block, and compares it with the last one's.
    fn tag(&mut self, index: usize, block: &[u8], is_whole: bool, has_changed: &mut bool) {
        let known = self.get(index);
        let is_tagged = matches!(known, BlockRecord::Tagged(..));
        if !is_whole || known == BlockRecord::Zero && !*has_changed {
            // No tag is known of a part.
            *has_changed |= is_tagged;
            return;
        }
        let tagger = self.tagger.as_ref().expect("it was made when the state was begun");
        let tag = tagger.tag(block);
        match known {
            BlockRecord::Tagged(last, holder) => {
                *has_changed = tag != last || !self.files.has(holder);
            }
            BlockRecord::At(place) if !*has_changed => {
                self.set(index, BlockRecord::Tagged(tag, Holder::File(place.file)));
            }
            _ => {}
        }
        if *has_changed {
            self.tags.push((index, tag));
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

    /// Notes that these bytes have changed and were written. They follow on the first `at` bytes of the delta.
    pub(crate) fn wrote(&mut self, offset: u64, len: u64, at: u64) {
        self.written.push(Written { offset, len, at: Some(at) });
    }

    /// Notes that these bytes have changed, and are zero now.
    pub(crate) fn cleared(&mut self, offset: u64, len: u64) {
        self.written.push(Written { offset, len, at: None });
    }

    /// The state is saved, by a delta of this many bytes.
    pub(crate) fn commit(&mut self, output: Output, written: u64) {
        let Output::File(mut file) = output else {
            return self.keep(Some(Holder::Stream), 0);
        };
        if file.as_ref().is_some_and(is_stream) {
            return self.keep(Some(Holder::Stream), 0);
        }
        // Where the delta ends says where it begins, in a file that is appended to, too.
        let end = file.as_mut().and_then(|file| file.stream_position().ok());
        match end.and_then(|end| end.checked_sub(written)) {
            Some(start) => self.keep_file(file.as_ref(), start, written),
            None => self.keep(None, 0),
        }
    }

    /// Notes that the bytes written to this file, from `start` on, are the last state.
    fn keep_file(&mut self, file: Option<&File>, start: u64, written: u64) {
        let file = file.and_then(|file| self.files.keep(file, start + written));
        self.keep(file.map(Holder::File), start);
    }

    /// Notes that the holder has the bytes that were written, behind its first `start` bytes.
    fn keep(&mut self, holder: Option<Holder>, start: u64) {
        let tags = std::mem::take(&mut self.tags);
        let mut tags = tags.into_iter().peekable();
        for Written { offset, len, at } in std::mem::take(&mut self.written) {
            self.keep_edges(offset, len, at.is_none());
            for index in whole_blocks(offset, len, self.length) {
                while tags.next_if(|(tagged, _)| *tagged < index).is_some() {}
                let tag = tags.next_if(|(tagged, _)| *tagged == index).map(|(_, tag)| tag);
                let before = (index * BLOCK) as u64 - offset;
                let block = match (at, holder, tag) {
                    (None, ..) => BlockRecord::Zero,
                    (Some(_), Some(holder), Some(tag)) => BlockRecord::Tagged(tag, holder),
                    (Some(at), Some(Holder::File(file)), None) => {
                        BlockRecord::At(FilePlace { file, at: start + at }.behind(before))
                    }
                    _ => BlockRecord::Unknown,
                };
                self.set(index, block);
            }
        }
        self.files.forget_surplus();
    }

    /// Forgets blocks that were written in part, except zeroes that were written to a block of zeroes.
    fn keep_edges(&mut self, offset: u64, len: u64, are_zero: bool) {
        let whole = whole_blocks(offset, len, self.length);
        let touched = block_at(offset)..blocks_of(offset + len);
        for index in (touched.start..whole.start).chain(whole.end..touched.end) {
            if !are_zero || self.get(index) != BlockRecord::Zero {
                self.set(index, BlockRecord::Unknown);
            }
        }
    }

    /// Notes that a stream has these blocks of the last state.
    pub(crate) fn learn(&mut self, offset: u64, bytes: &[u8]) {
        self.compare(offset, bytes, &mut Vec::new());
        let mut tags = std::mem::take(&mut self.tags);
        for (index, tag) in tags.drain(..) {
            self.set(index, BlockRecord::Tagged(tag, Holder::Stream));
        }
        self.tags = tags;
    }

    /// The next state begins with zeroes.
    pub(crate) fn begin_anew(&mut self) {
        self.blocks.clear();
        self.files = Files::default();
    }
}

/// True of a pipe, a socket or a terminal.
fn is_stream(file: &File) -> bool {
    file.metadata().is_ok_and(|found| !found.is_file())
}
