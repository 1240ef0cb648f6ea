//! The memory of a packed VM: the bytes of the memory file, with the changes of each delta over them.
//!
//! Nothing is applied or unpacked. A delta is read once from its beginning to its end, which checks it, and the places of
//! its changes are kept. A read then looks for each byte in the last delta, in those before, and in the memory file.

use std::fmt;
use std::io::BufReader;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use hugekit_delta::{BLOCK, Change, DeltaError, Reader, StateId};

use super::error::OciError;
use super::framed::{FramedFile, Window};
use super::frames::{CHUNK, Decoder, Frame, chunks_of, joined};

/// A change of a delta.
#[derive(Debug)]
struct Extent {
    offsets: Range<u64>,
    /// The place of its bytes in the delta; `None` if they are zero.
    at: Option<u64>,
}

/// A delta whose changes are known.
#[derive(Debug)]
struct PackedDelta {
    file: FramedFile,
    /// Ascending, and apart.
    extents: Vec<Extent>,
    /// True if it begins with zeroes instead of the state before.
    is_full: bool,
}

impl PackedDelta {
    /// Checks the delta, and that it follows on a state. Returns the state that it leads to.
    fn open(
        file: FramedFile,
        number: usize,
        length: u64,
        current: StateId,
    ) -> Result<(Self, StateId), OciError> {
        let refused = |source| OciError::Delta { number, source };
        let stream = file.stream().map_err(OciError::Thread)?;
        let stream = BufReader::with_capacity(CHUNK as usize, stream);
        let mut reader = Reader::new(stream).map_err(refused)?;
        let header = reader.header();
        header.check_applies_to(length, Some(current)).map_err(refused)?;
        let most = length.div_ceil(BLOCK as u64);
        let mut extents = Vec::new();
        while let Some(change) = reader.next().map_err(refused)? {
            let (offset, len) = (change.offset(), change.len());
            let is_zero = matches!(change, Change::Zeroes { .. });
            let at = (!is_zero).then(|| reader.position() - len);
            extents.push(Extent { offsets: offset..offset + len, at });
            if extents.len() as u64 > most {
                return Err(OciError::Changes { number, most });
            }
        }
        if reader.position() != file.table.length() {
            let what = "it goes on behind its end";
            return Err(refused(DeltaError::Damaged { at: reader.position(), what }));
        }
        let state = reader.finish().map_err(refused)?;
        Ok((Self { file, extents, is_full: header.base.is_none() }, state))
    }

    /// The changes that have bytes of a range.
    fn extents_in(&self, range: &Range<u64>) -> impl Iterator<Item = &Extent> {
        let first = self.extents.partition_point(|extent| extent.offsets.end <= range.start);
        let end = range.end;
        self.extents[first..].iter().take_while(move |extent| extent.offsets.start < end)
    }
}

/// The memory of one reader of a packed VM.
pub(crate) struct Windows {
    decoder: Decoder,
    /// Bytes that are read of a blob together.
    together: u64,
    /// A window for the working set, the memory file, and each delta.
    files: Vec<Window>,
}

impl fmt::Debug for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Windows").field("together", &self.together).finish_non_exhaustive()
    }
}

/// The memory.
#[derive(Debug)]
pub(crate) struct PackedMemory {
    memory: FramedFile,
    deltas: Vec<PackedDelta>,
    working_set: Option<FramedFile>,
    /// Runs of chunks that are not zero, or that a delta changes.
    data: Vec<Range<u64>>,
    /// Windows of threads that read what they need and no more.
    spare: Mutex<Vec<Windows>>,
}

/// Spare windows that are kept.
const SPARE: usize = 16;

impl PackedMemory {
    /// `state` names the bytes of the memory file.
    pub(crate) fn new(
        memory: FramedFile,
        deltas: Vec<FramedFile>,
        state: StateId,
    ) -> Result<Self, OciError> {
        let (mut current, mut known) = (state, Vec::new());
        for (number, file) in (1..).zip(deltas) {
            let (delta, state) = PackedDelta::open(file, number, memory.table.length(), current)?;
            known.push(delta);
            current = state;
        }
        let data = data_of(&memory, &known);
        let spare = Mutex::default();
        Ok(Self { memory, deltas: known, working_set: None, data, spare })
    }

    /// Takes the chunks of the working set from `file`, which has them side by side.
    pub(crate) fn with_working_set(self, file: Option<FramedFile>) -> Self {
        Self { working_set: file, ..self }
    }

    pub(crate) fn len(&self) -> u64 {
        self.memory.table.length()
    }

    /// Runs of bytes that may not be zero, ascending and apart.
    pub(crate) fn data(&self) -> &[Range<u64>] {
        &self.data
    }

    /// Ranges of the working set, ascending; `None` if the image has none.
    pub(crate) fn working_set(&self) -> Option<impl Iterator<Item = Range<u64>>> {
        let length = self.len();
        let range = move |frame: &Frame| {
            let start = u64::from(frame.chunk) * CHUNK;
            start..(start + CHUNK).min(length)
        };
        self.working_set.as_ref().map(|set| set.table.frames().iter().map(range))
    }

    /// The blobs that the bytes come from: the memory file's, and then those of the deltas.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FramedFile> {
        [&self.memory].into_iter().chain(self.deltas.iter().map(|delta| &delta.file))
    }

    /// Windows of a thread that reads the memory in its order.
    pub(crate) fn windows(&self, together: u64) -> Result<Windows, OciError> {
        let files = (0..self.deltas.len() + 2).map(|_| Window::default()).collect();
        Ok(Windows { decoder: Decoder::new().map_err(OciError::Thread)?, together, files })
    }

    /// Fills `to` with the memory from an offset on.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), OciError> {
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = spare().pop();
        let mut windows = kept.map_or_else(|| self.windows(0), Ok)?;
        self.read_by(&mut windows, offset, to)?;
        let mut spare = spare();
        if spare.len() < SPARE {
            spare.push(windows);
        }
        Ok(())
    }

    /// Like [`read`](Self::read), for a reader that has windows.
    pub(crate) fn read_by(
        &self,
        windows: &mut Windows,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), OciError> {
        let (mut at, mut left) = (offset, to);
        while !left.is_empty() {
            let len = ((CHUNK - at % CHUNK) as usize).min(left.len());
            let is_wanted = |set: &FramedFile| set.table.frame_of(at / CHUNK).is_some();
            match self.working_set.as_ref().filter(|set| is_wanted(set)) {
                Some(set) => {
                    let (part, rest) = left.split_at_mut(len);
                    read_of(windows, 0, set, at, part)?;
                    (at, left) = (at + len as u64, rest);
                }
                None => {
                    let len = self.len_without_set(at, left.len());
                    let (part, rest) = left.split_at_mut(len);
                    self.read_below(windows, self.deltas.len(), at, part)?;
                    (at, left) = (at + len as u64, rest);
                }
            }
        }
        Ok(())
    }

    /// Bytes from `at` on, at most `most`, that the working set does not have.
    fn len_without_set(&self, at: u64, most: usize) -> usize {
        let Some(set) = &self.working_set else { return most };
        let frames = set.table.frames();
        let next = frames.partition_point(|frame| u64::from(frame.chunk) * CHUNK < at);
        let next = frames.get(next).map_or(u64::MAX, |frame| u64::from(frame.chunk) * CHUNK);
        usize::try_from(next - at).map_or(most, |len| len.min(most))
    }

    /// The memory after the first `deltas` deltas.
    fn read_below(
        &self,
        windows: &mut Windows,
        deltas: usize,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), OciError> {
        let Some(below) = deltas.checked_sub(1) else {
            return read_of(windows, 1, &self.memory, offset, to);
        };
        let (delta, range) = (&self.deltas[below], offset..offset + to.len() as u64);
        let place = |at: u64| (at - offset) as usize;
        let mut next = range.start;
        for Extent { offsets, at } in delta.extents_in(&range) {
            let (start, end) = (offsets.start.max(range.start), offsets.end.min(range.end));
            self.read_between(windows, below, next, &mut to[place(next)..place(start)])?;
            let part = &mut to[place(start)..place(end)];
            match at {
                Some(at) => {
                    let at = at + (start - offsets.start);
                    read_of(windows, below + 2, &delta.file, at, part)?;
                }
                None => part.fill(0),
            }
            next = end;
        }
        self.read_between(windows, below, next, &mut to[place(next)..])
    }

    /// Bytes that delta `number` leaves as they were.
    fn read_between(
        &self,
        windows: &mut Windows,
        number: usize,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), OciError> {
        if to.is_empty() {
            return Ok(());
        }
        if self.deltas[number].is_full {
            to.fill(0);
            return Ok(());
        }
        self.read_below(windows, number, offset, to)
    }
}

fn read_of(
    windows: &mut Windows,
    number: usize,
    file: &FramedFile,
    offset: u64,
    to: &mut [u8],
) -> Result<(), OciError> {
    let Windows { decoder, together, files } = windows;
    file.read(&mut files[number], decoder, *together, offset, to)
}

/// Runs of chunks that the memory file has data in, or a delta.
fn data_of(memory: &FramedFile, deltas: &[PackedDelta]) -> Vec<Range<u64>> {
    let length = memory.table.length();
    let mut has_data = vec![false; chunks_of(length) as usize];
    for frame in memory.table.frames() {
        has_data[frame.chunk as usize] = !memory.table.is_zero(frame);
    }
    for delta in deltas {
        if delta.is_full {
            has_data.fill(false);
        }
        for extent in delta.extents.iter().filter(|extent| extent.at.is_some()) {
            let chunks = extent.offsets.start / CHUNK..chunks_of(extent.offsets.end);
            has_data[chunks.start as usize..chunks.end as usize].fill(true);
        }
    }
    let chunks = has_data.iter().enumerate().filter(|(_, has_data)| **has_data);
    joined(chunks.map(|(chunk, _)| chunk as u64), length)
}
