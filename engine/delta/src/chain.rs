//! Deltas of states that are given whole, or as what may have changed: blocks that have are found.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};

use crate::blocks::{BLOCK, Blocks, is_zero};
use crate::error::DeltaError;
use crate::format::{LONGEST, StateId};
use crate::last_state::{LastState, Output};
use crate::reader::Reader;
use crate::writer::Writer;

/// Bytes that are read together where a chain is resumed, and compared together.
const TOGETHER: usize = 1 << 20;

/// Zeroes that are compared together.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The states of some memory, saved one after the other.
///
/// Changes are found by a tag of each block of 4 KiB: 128 bits of a message authentication code (AEGIS-256X2) under a
/// random key that the chain never shows, so that a client who chooses bytes cannot hide a change. The chain uses 24 bytes
/// of memory for each block. Its files stay open, 64 at most. Blocks of a file that was removed, cut off or written to
/// after its state was saved are written again when they are given.
#[derive(Debug)]
pub struct Chain {
    length: u64,
    state: Option<StateId>,
    last: LastState,
}

/// A saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The state.
    pub state: StateId,
    /// True if all of it was written, rather than what has changed.
    pub is_full: bool,
    /// Bytes in blocks that were written, or are zero now.
    pub changed: u64,
    /// Bytes of the delta.
    pub written: u64,
}

impl Chain {
    /// Returns a chain of states of `length` bytes. The first one is saved in full.
    #[must_use]
    pub fn new(length: u64) -> Self {
        Self { length, state: None, last: LastState::new(length) }
    }

    /// Goes on where a chain has ended, in another process perhaps. `deltas` are its files from a full one on, each open
    /// for reading, where its delta begins.
    ///
    /// # Errors
    /// A delta is damaged, or does not begin with the state that the one before it leads to; there are no deltas; or
    /// the memory for 24 bytes a block is missing.
    pub fn resume(deltas: impl IntoIterator<Item = File>) -> Result<Self, DeltaError> {
        let mut chain = None;
        for delta in deltas {
            chain = Some(Self::followed_by(chain, &delta)?);
        }
        chain.ok_or(DeltaError::Nothing)
    }

    /// Like [`resume`](Self::resume), of a chain whose first state is a raw file: the bytes of that state, which the
    /// file does not name. Holes of the file are zeroes.
    ///
    /// # Errors
    /// The errors of [`resume`](Self::resume); or the raw file cannot be read.
    pub fn resume_raw(
        raw: &File,
        state: StateId,
        deltas: impl IntoIterator<Item = File>,
    ) -> Result<Self, DeltaError> {
        let mut chain = Self::new(raw.metadata()?.len());
        chain.last.follow_raw(raw)?;
        chain.state = Some(state);
        for delta in deltas {
            chain = Self::followed_by(Some(chain), &delta)?;
        }
        Ok(chain)
    }

    fn followed_by(before: Option<Self>, mut delta: &File) -> Result<Self, DeltaError> {
        let start = delta.stream_position()?;
        let reader = Reader::new(BufReader::with_capacity(TOGETHER, delta))?;
        let header = reader.header();
        let mut chain = before.unwrap_or_else(|| Self::new(header.length));
        header.check_applies_to(chain.length, chain.state)?;
        if header.base.is_none() {
            chain.begin_anew();
        }
        chain.state = Some(chain.last.follow(reader, delta, start)?);
        Ok(chain)
    }

    /// Goes on where a chain has ended that was saved to a stream. `bytes` are those of `state`, from the first to the last.
    ///
    /// # Errors
    /// They cannot be read, or there are fewer or more; or the kernel gives no random bytes.
    pub fn resume_stream(
        length: u64,
        state: StateId,
        mut bytes: impl Read,
    ) -> Result<Self, DeltaError> {
        let mut chain = Self::new(length);
        chain.last.start_state()?;
        let mut blocks = Blocks::default();
        let mut part = vec![0; TOGETHER];
        let mut learn = |offset: u64, bytes: &[u8]| {
            if offset + bytes.len() as u64 <= length {
                chain.last.learn(offset, bytes);
            }
            Ok(())
        };
        loop {
            let count = match bytes.read(&mut part) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            if count == 0 {
                break;
            }
            blocks.feed(&part[..count], &mut learn)?;
        }
        let given = blocks.given();
        blocks.finish(&mut learn)?;
        if given != length {
            return Err(DeltaError::NotWhole { given, length });
        }
        chain.state = Some(state);
        Ok(chain)
    }

    /// Begins to save a state to a file, from its position on: what it returns takes all of its bytes in order, and is to
    /// be [finished](Saving::finish). Otherwise it was not saved, and the next delta begins where this one would have.
    ///
    /// # Errors
    /// The file has refused, the memory for 24 bytes a block is missing, or the kernel gives no random bytes.
    pub fn save<'a>(&'a mut self, to: &'a File) -> Result<Saving<'a, &'a File>, DeltaError> {
        let changes = self.start_file(to)?;
        Ok(Saving { chain: self, blocks: Blocks::default(), changes, has_failed: false })
    }

    /// Like [`save`](Self::save), of a state of which it is known what may have changed: what it returns takes those
    /// bytes, with their offsets, ascending. All others are as they were in the last state; of the first one, all bytes
    /// are to be given.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save).
    pub fn save_changes<'a>(
        &'a mut self,
        to: &'a File,
    ) -> Result<SavingChanges<'a, &'a File>, DeltaError> {
        let changes = self.start_file(to)?;
        Ok(SavingChanges::new(self, changes))
    }

    /// Like [`save`](Self::save), to a socket or memory. The chain takes for granted that the receiver keeps all deltas.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save).
    pub fn save_stream<W: Write>(&mut self, to: W) -> Result<Saving<'_, W>, DeltaError> {
        let changes = self.start_stream(to)?;
        Ok(Saving { chain: self, blocks: Blocks::default(), changes, has_failed: false })
    }

    /// Like [`save_changes`](Self::save_changes), to a stream as in [`save_stream`](Self::save_stream).
    ///
    /// # Errors
    /// The errors of [`save`](Self::save).
    pub fn save_changes_stream<W: Write>(
        &mut self,
        to: W,
    ) -> Result<SavingChanges<'_, W>, DeltaError> {
        let changes = self.start_stream(to)?;
        Ok(SavingChanges::new(self, changes))
    }

    fn start_file<'a>(&mut self, to: &'a File) -> Result<ChangeWriter<&'a File>, DeltaError> {
        self.last.start_state()?;
        let output = self.last.start_file(to);
        ChangeWriter::new(self, to, output)
    }

    fn start_stream<W: Write>(&mut self, to: W) -> Result<ChangeWriter<W>, DeltaError> {
        self.last.start_state()?;
        ChangeWriter::new(self, to, Output::Stream)
    }

    /// Returns the number of bytes of each state.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the state that was saved last.
    #[must_use]
    pub fn state(&self) -> Option<StateId> {
        self.state
    }

    /// The next state is saved in full.
    pub fn begin_anew(&mut self) {
        self.state = None;
        self.last.begin_anew();
    }
}

/// Takes the bytes of a state, in order. What it has found changed is written at once.
#[derive(Debug)]
#[must_use = "a state that is not finished was not saved"]
pub struct Saving<'a, W: Write> {
    chain: &'a mut Chain,
    blocks: Blocks,
    changes: ChangeWriter<W>,
    /// The written bytes cannot be continued.
    has_failed: bool,
}

impl<W: Write> Saving<'_, W> {
    /// All bytes were given: the state is saved, once what it was written to is on its disk.
    ///
    /// # Errors
    /// Too few or too many bytes were given, or the file has refused; the chain is where it was.
    pub fn finish(self) -> Result<Saved, DeltaError> {
        let Self { chain, blocks, mut changes, has_failed } = self;
        let (given, length) = (blocks.given(), chain.length);
        if given != length || has_failed {
            return Err(DeltaError::NotWhole { given, length });
        }
        blocks.finish(&mut |offset, bytes| changes.add_blocks(&mut chain.last, offset, bytes))?;
        changes.finish(chain)
    }
}

impl<W: Write> Write for Saving<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self { chain, blocks, changes, has_failed } = self;
        if *has_failed || blocks.given() + bytes.len() as u64 > chain.length {
            *has_failed = true;
            let given = blocks.given() + bytes.len() as u64;
            return Err(io::Error::other(DeltaError::NotWhole { given, length: chain.length }));
        }
        let fed = blocks
            .feed(bytes, &mut |offset, bytes| changes.add_blocks(&mut chain.last, offset, bytes));
        *has_failed = fed.is_err();
        fed.map(|()| bytes.len()).map_err(|error| match error {
            DeltaError::Io(error) => error,
            other => io::Error::other(other),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes bytes that may have changed, with their offsets. Of them, those blocks are written that have changed.
#[derive(Debug)]
#[must_use = "a state that is not finished was not saved"]
pub struct SavingChanges<'a, W: Write> {
    chain: &'a mut Chain,
    blocks: Blocks,
    changes: ChangeWriter<W>,
    given: u64,
    /// The written bytes cannot be continued.
    has_failed: bool,
}

impl<'a, W: Write> SavingChanges<'a, W> {
    fn new(chain: &'a mut Chain, changes: ChangeWriter<W>) -> Self {
        Self { chain, blocks: Blocks::default(), changes, given: 0, has_failed: false }
    }

    /// These bytes are at `offset` in the state.
    ///
    /// # Errors
    /// They lie before what was given already, or beyond the state; or the file has refused. The state cannot be saved
    /// then.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.put_in_order(offset, bytes).map_err(|error| {
            self.has_failed = true;
            match error {
                DeltaError::Io(error) => error,
                other => io::Error::other(other),
            }
        })
    }

    fn put_in_order(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeltaError> {
        let Self { chain, blocks, changes, given, .. } = self;
        let (len, next, length) = (bytes.len() as u64, blocks.given(), chain.length);
        if offset < next || offset.checked_add(len).is_none_or(|end| end > length) {
            return Err(DeltaError::OutOfOrder { offset, len, next, length });
        }
        let mut each =
            |offset: u64, bytes: &[u8]| changes.add_blocks(&mut chain.last, offset, bytes);
        if offset > next {
            std::mem::replace(blocks, Blocks::from(offset)).finish(&mut each)?;
        }
        *given += len;
        blocks.feed(bytes, &mut each)
    }

    /// All bytes that may have changed were given: the state is saved, once what it was written to is on its disk.
    ///
    /// # Errors
    /// Not all bytes of a first state were given, some were refused, or the file has refused; the chain is where it was.
    pub fn finish(self) -> Result<Saved, DeltaError> {
        let Self { chain, blocks, mut changes, given, has_failed } = self;
        if has_failed || chain.state.is_none() && given != chain.length {
            return Err(DeltaError::NotWhole { given, length: chain.length });
        }
        blocks.finish(&mut |offset, bytes| changes.add_blocks(&mut chain.last, offset, bytes))?;
        changes.finish(chain)
    }
}

impl<W: Write> SavingChanges<'_, W> {
    /// This many bytes at `offset` are zero in the state. Those that were zero in the last state cost almost nothing.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    pub fn clear(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let part = at..end.min((at / ZEROES.len() as u64 + 1) * ZEROES.len() as u64);
            let len = part.end - part.start;
            at = part.end;
            if self.chain.last.is_zero(&part) {
                self.given += len;
            } else {
                self.put(part.start, &ZEROES[..len as usize])?;
            }
        }
        Ok(())
    }
}

/// Blocks of a state, of which those that have changed are written, neighbours together.
#[derive(Debug)]
struct ChangeWriter<W: Write> {
    writer: Writer<W>,
    output: Output,
    /// Blocks that have changed and are not written yet, and where they begin.
    run: Vec<u8>,
    begins: u64,
    changed: u64,
    /// For each of the blocks that were compared together: whether it has changed.
    have_changed: Vec<bool>,
}

impl<W: Write> ChangeWriter<W> {
    /// Begins the next state of a chain.
    fn new(chain: &Chain, to: W, output: Output) -> Result<Self, DeltaError> {
        let writer = Writer::new(to, chain.length, chain.state)?;
        let (run, have_changed) = (Vec::new(), Vec::new());
        Ok(Self { writer, output, run, begins: 0, changed: 0, have_changed })
    }

    fn finish(mut self, chain: &mut Chain) -> Result<Saved, DeltaError> {
        self.flush(&mut chain.last)?;
        let written = self.writer.written() + Writer::<W>::END;
        let (state, is_full) = (self.writer.finish()?, chain.state.is_none());
        chain.last.commit(self.output, written);
        chain.state = Some(state);
        Ok(Saved { state, is_full, changed: self.changed, written })
    }

    /// Takes blocks that lie side by side, or a part of one.
    fn add_blocks(
        &mut self,
        last: &mut LastState,
        mut offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeltaError> {
        for part in bytes.chunks(TOGETHER) {
            let mut have_changed = std::mem::take(&mut self.have_changed);
            have_changed.clear();
            last.compare(offset, part, &mut have_changed);
            for (block, &has_changed) in part.chunks(BLOCK).zip(&have_changed) {
                if has_changed {
                    self.block(last, offset, block)?;
                }
                offset += block.len() as u64;
            }
            self.have_changed = have_changed;
        }
        Ok(())
    }

    /// Takes a block that has changed, or a part of it.
    fn block(&mut self, last: &mut LastState, offset: u64, block: &[u8]) -> Result<(), DeltaError> {
        let len = block.len() as u64;
        self.changed += len;
        if is_zero(block) {
            self.flush(last)?;
            last.cleared(offset, len);
            return self.writer.zeroes(offset, len);
        }
        let end = self.begins + self.run.len() as u64;
        if end != offset || self.run.len() + block.len() > LONGEST {
            self.flush(last)?;
        }
        if self.run.is_empty() {
            self.begins = offset;
        }
        self.run.extend_from_slice(block);
        Ok(())
    }

    fn flush(&mut self, last: &mut LastState) -> Result<(), DeltaError> {
        if !self.run.is_empty() {
            self.writer.bytes(self.begins, &self.run)?;
            let len = self.run.len() as u64;
            // As one piece, whose bytes come last.
            last.wrote(self.begins, len, self.writer.written() - len);
            self.run.clear();
        }
        Ok(())
    }
}
