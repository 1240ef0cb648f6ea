//! Frames: each 64 KiB of a file by itself, compressed by zstd. A table has the place and the BLAKE3 hash of each frame.
//!
//! Frames follow each other without a gap, so stock `zstd -d` makes the file of them. A frame of zeroes has some twenty
//! bytes, and its hash says that it need not be read.

use std::io::{self, BufReader, Read};
use std::ops::{Range, RangeInclusive};
use std::sync::OnceLock;

use zstd_safe::{CCtx, DCtx, DParameter, InBuffer, OutBuffer};

/// Bytes of the file in one frame. The last frame may have fewer.
pub(crate) const CHUNK: u64 = 64 << 10;

/// The binary logarithm of [`CHUNK`]: no frame needs a longer window, so no frame makes a reader allocate more.
const WINDOW: u32 = CHUNK.ilog2();

const MAGIC: [u8; 8] = *b"HKFRAMES";

/// The version of the table.
const VERSION: u32 = 1;

const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 44;

/// The fewest bytes of a frame: magic number, descriptor, size and one block of zstd.
const SHORTEST: u32 = 9;

/// Frames of all tables of an image: 1 TiB of memory. A table has 48 bytes of memory for each one.
pub(crate) const MOST_FRAMES: u64 = (1 << 40) / CHUNK;

/// zstd's fastest level. Level 3 saves 3 to 7 % of the bytes and costs a third more time.
const LEVEL: i32 = 1;

/// The reason why a table or a frame is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// It is something else.
    #[error("not a table of frames: its first bytes are others")]
    NoTable,
    /// A newer hugekit has written it.
    #[error(
        "the table of frames has version {found}, this hugekit reads version {VERSION}: update hugekit"
    )]
    Newer {
        /// Its version.
        found: u32,
    },
    /// Its figures contradict each other, or those of the frames.
    #[error("the table of frames has {found} for the {of} of frame {frame}: {allowed} expected")]
    Table {
        /// The number of the frame. In the header it is 0.
        frame: u64,
        /// The name of the figure.
        of: &'static str,
        /// The figure.
        found: u64,
        /// Figures that would fit.
        allowed: String,
    },
    /// The table ends early, goes on behind its end, or is no frame of zstd.
    #[error("the table of frames cannot be read")]
    Unreadable(#[source] io::Error),
    /// The frame is no frame of zstd, or has more or fewer bytes than its part of the file.
    #[error("the frame at byte {at} of the file does not decompress to {bytes} bytes")]
    Frame {
        /// The offset in the file.
        at: u64,
        /// Bytes that it must have.
        bytes: usize,
    },
    /// Its bytes are not those that were packed.
    #[error("the bytes at {at} of the file have another BLAKE3 hash than the table")]
    Hash {
        /// The offset in the file.
        at: u64,
    },
}

/// The place and the hash of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The part of the file, counted in [`CHUNK`]s.
    pub(crate) chunk: u32,
    bytes: u32,
    /// The offset among the frames.
    pub(crate) start: u64,
    hash: [u8; 32],
}

impl Frame {
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.bytes)
    }
}

/// Chunks of a file that a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunks {
    /// All of them, in their order.
    All,
    /// Some of them, ascending.
    Some,
}

/// All frames of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrameTable {
    length: u64,
    frames: Vec<Frame>,
}

impl FrameTable {
    /// Reads a table of frames that have `size` bytes together, and of at most `most` frames. Nothing of it is believed,
    /// and no more memory is allocated than it has frames.
    pub(crate) fn read(
        compressed: impl Read,
        size: u64,
        chunks: Chunks,
        most: u64,
    ) -> Result<Self, FrameError> {
        let from = Decompressed::new(compressed)?;
        let mut from = BufReader::with_capacity(CHUNK as usize, from);
        let mut header = [0; HEADER_BYTES];
        from.read_exact(&mut header).map_err(FrameError::Unreadable)?;
        let (length, count) = read_header(&header, size, chunks, most)?;
        let (mut frames, mut start, mut next) = (Vec::new(), 0_u64, 0_u64);
        for number in 0..count {
            let mut entry = [0; ENTRY_BYTES];
            from.read_exact(&mut entry).map_err(FrameError::Unreadable)?;
            let frame = read_entry(&entry, start);
            let chunk = u64::from(frame.chunk);
            let last = if chunks == Chunks::All { next } else { chunks_of(length) - 1 };
            check(number, "part of the file", chunk, next..=last)?;
            let longest = zstd_safe::compress_bound(CHUNK as usize) as u64;
            let left = (size - start).min(longest);
            check(number, "bytes", frame.bytes.into(), SHORTEST.into()..=left)?;
            (start, next) = (frame.end(), chunk + 1);
            frames.push(frame);
        }
        check(count, "end", start, size..=size)?;
        match from.read(&mut [0]).map_err(FrameError::Unreadable)? {
            0 => Ok(Self { length, frames }),
            _ => Err(FrameError::Unreadable(io::Error::other("it goes on behind its last frame"))),
        }
    }

    /// Bytes of the file.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Bytes of all frames.
    pub(crate) fn size(&self) -> u64 {
        self.frames.last().map_or(0, Frame::end)
    }

    /// The frame of a part of the file.
    pub(crate) fn frame_of(&self, chunk: u64) -> Option<&Frame> {
        match self.frames.get(chunk as usize) {
            // The table has all of them.
            Some(frame) if u64::from(frame.chunk) == chunk => Some(frame),
            _ => {
                let found = self.frames.binary_search_by_key(&chunk, |frame| frame.chunk.into());
                Some(&self.frames[found.ok()?])
            }
        }
    }

    /// Bytes of the file in one of its chunks.
    pub(crate) fn chunk_bytes(&self, chunk: u64) -> usize {
        CHUNK.min(self.length - chunk * CHUNK) as usize
    }

    /// Returns whether the bytes of a frame are zero, by its hash.
    pub(crate) fn is_zero(&self, frame: &Frame) -> bool {
        let bytes = self.chunk_bytes(frame.chunk.into());
        if bytes as u64 == CHUNK {
            return frame.hash == *zero_hash();
        }
        frame.hash == *blake3::hash(&ZEROES[..bytes]).as_bytes()
    }

    /// Runs of chunks that are not zero.
    pub(crate) fn data_runs(&self) -> Vec<Range<u64>> {
        let data = self.frames.iter().filter(|frame| !self.is_zero(frame));
        joined(data.map(|frame| u64::from(frame.chunk)), self.length)
    }

    /// Checks the bytes of a frame.
    pub(crate) fn check(&self, frame: &Frame, bytes: &[u8]) -> Result<(), FrameError> {
        if *blake3::hash(bytes).as_bytes() == frame.hash {
            return Ok(());
        }
        Err(FrameError::Hash { at: u64::from(frame.chunk) * CHUNK })
    }
}

fn read_header(
    header: &[u8; HEADER_BYTES],
    size: u64,
    chunks: Chunks,
    most: u64,
) -> Result<(u64, u64), FrameError> {
    let word = |at: usize| u64::from_le_bytes(part(header, at));
    let half = |at: usize| u32::from_le_bytes(part(header, at));
    if header[..8] != MAGIC {
        return Err(FrameError::NoTable);
    }
    match half(8) {
        VERSION => {}
        found => return Err(FrameError::Newer { found }),
    }
    check(0, "bytes of the file", half(12).into(), CHUNK..=CHUNK)?;
    let (length, count) = (word(16), word(24));
    check(0, "length of the file behind that", length, 1..=MOST_FRAMES * CHUNK)?;
    let all = chunks_of(length);
    let fitting = if chunks == Chunks::All { all..=all } else { 0..=all };
    check(0, "number behind that", count, fitting)?;
    check(0, "number behind that", count, 0..=most.min(size / u64::from(SHORTEST)))?;
    Ok((length, count))
}

fn read_entry(entry: &[u8; ENTRY_BYTES], start: u64) -> Frame {
    let chunk = u64::from_le_bytes(part(entry, 0));
    Frame {
        // No file has this part, so a number that is too large is refused with the others.
        chunk: u32::try_from(chunk).unwrap_or(u32::MAX),
        bytes: u32::from_le_bytes(part(entry, 8)),
        start,
        hash: part(entry, 12),
    }
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a part of that length")
}

fn check(
    frame: u64,
    of: &'static str,
    found: u64,
    fitting: RangeInclusive<u64>,
) -> Result<(), FrameError> {
    if fitting.contains(&found) {
        return Ok(());
    }
    let allowed = match fitting.into_inner() {
        (first, last) if first < last => format!("{first} to {last}"),
        (first, last) if first == last => first.to_string(),
        _ => "none".to_owned(),
    };
    Err(FrameError::Table { frame, of, found, allowed })
}

/// Ascending chunks of a file, as runs of its bytes.
pub(crate) fn joined(chunks: impl Iterator<Item = u64>, length: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for chunk in chunks {
        let (start, end) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(length));
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

/// Chunks of a file.
pub(crate) fn chunks_of(length: u64) -> u64 {
    length.div_ceil(CHUNK)
}

static ZEROES: [u8; CHUNK as usize] = [0; CHUNK as usize];

fn zero_hash() -> &'static [u8; 32] {
    static HASH: OnceLock<[u8; 32]> = OnceLock::new();
    HASH.get_or_init(|| *blake3::hash(&ZEROES).as_bytes())
}

/// Makes frames. One for each thread.
pub(crate) struct Encoder {
    zstd: CCtx<'static>,
    /// The frame of a whole chunk of zeroes.
    zeroes: Vec<u8>,
}

impl Encoder {
    /// # Errors
    /// There is no memory.
    pub(crate) fn new() -> io::Result<Self> {
        let zstd = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        let mut encoder = Self { zstd, zeroes: Vec::new() };
        encoder.zeroes = encoder.compressed(&ZEROES)?;
        Ok(encoder)
    }

    fn compressed(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
        let done = self.zstd.compress(&mut frame, bytes, LEVEL);
        done.map_err(|code| io::Error::other(zstd_safe::get_error_name(code)))?;
        Ok(frame)
    }

    /// Appends the frame of a chunk, and its entry in the table.
    pub(crate) fn add(
        &mut self,
        chunk: u64,
        bytes: &[u8],
        frames: &mut Vec<u8>,
        entries: &mut Vec<u8>,
    ) -> io::Result<()> {
        let is_zero = bytes == &ZEROES[..bytes.len()];
        let made;
        let (frame, hash) = if is_zero && bytes.len() as u64 == CHUNK {
            (&self.zeroes, *zero_hash())
        } else {
            made = self.compressed(bytes)?;
            (&made, *blake3::hash(bytes).as_bytes())
        };
        frames.extend_from_slice(frame);
        entries.extend_from_slice(&chunk.to_le_bytes());
        entries.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        entries.extend_from_slice(&hash);
        Ok(())
    }

    /// A table, compressed by frames as well.
    pub(crate) fn table(&mut self, length: u64, entries: &[u8]) -> io::Result<Vec<u8>> {
        let mut table = MAGIC.to_vec();
        table.extend_from_slice(&VERSION.to_le_bytes());
        table.extend_from_slice(&(CHUNK as u32).to_le_bytes());
        table.extend_from_slice(&length.to_le_bytes());
        table.extend_from_slice(&((entries.len() / ENTRY_BYTES) as u64).to_le_bytes());
        table.extend_from_slice(entries);
        let parts = table.chunks(CHUNK as usize).map(|bytes| self.compressed(bytes));
        Ok(parts.collect::<io::Result<Vec<_>>>()?.concat())
    }
}

/// Reads frames. One for each thread.
pub(crate) struct Decoder(DCtx<'static>);

impl Decoder {
    /// # Errors
    /// There is no memory.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?))
    }

    /// Decompresses a frame to `to`, all of which it must fill. A frame that would have more bytes is refused when they
    /// are reached.
    pub(crate) fn decode(&mut self, frame: &[u8], to: &mut [u8]) -> bool {
        self.0.decompress(to, frame) == Ok(to.len())
    }
}

/// Frames, decompressed one after the other.
struct Decompressed<R> {
    from: R,
    zstd: DCtx<'static>,
    input: Vec<u8>,
    /// Bytes of the input that were not decompressed yet.
    left: Range<usize>,
    /// True between two frames.
    is_complete: bool,
}

impl<R: Read> Decompressed<R> {
    fn new(from: R) -> Result<Self, FrameError> {
        let no_memory = || FrameError::Unreadable(io::ErrorKind::OutOfMemory.into());
        let mut zstd = DCtx::try_create().ok_or_else(no_memory)?;
        zstd.set_parameter(DParameter::WindowLogMax(WINDOW)).map_err(|_| no_memory())?;
        let input = vec![0; CHUNK as usize];
        Ok(Self { from, zstd, input, left: 0..0, is_complete: true })
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.left.is_empty() {
                self.left = 0..self.from.read(&mut self.input)?;
            }
            // zstd may still hold bytes of the last frame.
            let is_end = self.left.is_empty();
            if is_end && self.is_complete {
                return Ok(0);
            }
            let mut input = InBuffer::around(&self.input[self.left.clone()]);
            let mut output = OutBuffer::around(to);
            let hint = self.zstd.decompress_stream(&mut output, &mut input);
            let hint = hint.map_err(|code| io::Error::other(zstd_safe::get_error_name(code)))?;
            self.is_complete = hint == 0;
            let count = output.pos();
            self.left.start += input.pos();
            if count > 0 {
                return Ok(count);
            }
            if is_end {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(length: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..length).map(|at| (at / 3) as u8 ^ (at >> 11) as u8).collect();
        let zeroes = length.min(CHUNK as usize)..length.min(3 * CHUNK as usize);
        bytes[zeroes].fill(0);
        bytes
    }

    fn packed(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (mut frames, mut entries, mut encoder) =
            (Vec::new(), Vec::new(), Encoder::new().unwrap());
        for (chunk, bytes) in (0..).zip(bytes.chunks(CHUNK as usize)) {
            encoder.add(chunk, bytes, &mut frames, &mut entries).unwrap();
        }
        let table = encoder.table(bytes.len() as u64, &entries).unwrap();
        (frames, table)
    }

    #[test]
    fn frames_have_the_bytes_of_the_file_in_any_length() {
        for length in [1, 4096, CHUNK as usize, 2 * CHUNK as usize + 1, 5 * CHUNK as usize - 1] {
            let bytes = bytes(length);
            let (frames, table) = packed(&bytes);
            let size = frames.len() as u64;
            let table = FrameTable::read(&table[..], size, Chunks::All, MOST_FRAMES).unwrap();
            assert_eq!((table.length(), table.size()), (length as u64, size));
            let mut decoder = Decoder::new().unwrap();
            for (frame, part) in table.frames().iter().zip(bytes.chunks(CHUNK as usize)) {
                let mut found = vec![9; part.len()];
                let frame_bytes = &frames[frame.start as usize..frame.end() as usize];
                assert!(decoder.decode(frame_bytes, &mut found) && found == part);
                table.check(frame, part).unwrap();
                assert_eq!(table.is_zero(frame), part.iter().all(|&byte| byte == 0));
            }
        }
    }

    /// Frames that would have more bytes than fit, or fewer.
    #[test]
    fn bombs_end_at_the_length_of_a_chunk() {
        let mut decoder = Decoder::new().unwrap();
        let mut zstd = CCtx::create();
        let bomb = vec![1; 64 << 20];
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(bomb.len()));
        zstd.compress(&mut frame, &bomb, LEVEL).unwrap();
        assert!(frame.len() < 16 << 10);
        assert!(!decoder.decode(&frame, &mut vec![0; CHUNK as usize]));
        // A table in one frame with a long window.
        let refused = FrameTable::read(&frame[..], 1 << 40, Chunks::All, MOST_FRAMES).unwrap_err();
        assert!(matches!(refused, FrameError::Unreadable(_)), "{refused}");
        let two = [Encoder::new().unwrap().zeroes.clone(), Encoder::new().unwrap().zeroes].concat();
        assert!(!decoder.decode(&two, &mut vec![0; CHUNK as usize]));
        assert!(!decoder.decode(&[], &mut vec![0; CHUNK as usize]));
    }

    #[test]
    fn tables_that_contradict_themselves_or_the_frames_are_refused() {
        let bytes = bytes(5 * CHUNK as usize - 1);
        let (frames, table) = packed(&bytes);
        let size = frames.len() as u64;
        let read = |table: &[u8], size, chunks, most| FrameTable::read(table, size, chunks, most);
        read(&table, size, Chunks::All, 5).unwrap();
        read(&table, size, Chunks::Some, 5).unwrap();
        assert!(read(&table, size, Chunks::All, 4).is_err());
        for other in [0, size - 1, size + 1, u64::MAX] {
            assert!(read(&table, other, Chunks::All, MOST_FRAMES).is_err(), "{other}");
        }
        let raw = zstd_of(&table);
        let changed = |at: usize, to: &[u8]| {
            let mut raw = raw.clone();
            raw[at..at + to.len()].copy_from_slice(to);
            let mut encoder = Encoder::new().unwrap();
            encoder.compressed(&raw).unwrap()
        };
        let second = HEADER_BYTES + ENTRY_BYTES;
        for (at, to) in [
            (0, &b"HKFRAMEZ"[..]),
            (8, &2_u32.to_le_bytes()),
            (12, &4096_u32.to_le_bytes()),
            (16, &0_u64.to_le_bytes()),
            (16, &(1_u64 << 62).to_le_bytes()),
            (16, &(6 * CHUNK).to_le_bytes()),
            (24, &0_u64.to_le_bytes()),
            (24, &4_u64.to_le_bytes()),
            (24, &6_u64.to_le_bytes()),
            (24, &(1_u64 << 62).to_le_bytes()),
            (second, &0_u64.to_le_bytes()),
            (second, &2_u64.to_le_bytes()),
            (second, &(1_u64 << 62).to_le_bytes()),
            (second + 8, &0_u32.to_le_bytes()),
            (second + 8, &u32::MAX.to_le_bytes()),
        ] {
            let refused = read(&changed(at, to), size, Chunks::All, MOST_FRAMES);
            assert!(refused.is_err(), "{at} {to:?}");
        }
        assert!(read(&changed(second, &0_u64.to_le_bytes()), size, Chunks::Some, 5).is_err());
        for cut in [0, 1, table.len() - 1] {
            assert!(read(&table[..cut], size, Chunks::All, MOST_FRAMES).is_err(), "{cut}");
        }
        let longer = [&table[..], &table[..]].concat();
        assert!(read(&longer, size, Chunks::All, MOST_FRAMES).is_err());
    }

    fn zstd_of(table: &[u8]) -> Vec<u8> {
        let mut raw = Vec::new();
        Decompressed::new(table).unwrap().read_to_end(&mut raw).unwrap();
        raw
    }
}
