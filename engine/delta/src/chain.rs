//! Chains of deltas. The caller passes a whole state, or the bytes that may have changed, and the
//! chain finds the changed blocks.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};

use crate::blocks::{BLOCK, Blocks, is_zero};
use crate::error::DeltaError;
use crate::format::{LONGEST, StateId};
use crate::last_state::{LastState, Output};
use crate::reader::Reader;
use crate::writer::Writer;

/// Bytes that are read together when a chain is resumed, and that are compared together.
const TOGETHER: usize = 1 << 20;

/// Zeroes that are compared together.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A chain of deltas: the states of some memory, saved one after the other.
///
/// The chain finds changes by a tag of each block of 4 KiB: 128 bits of a message authentication
/// code (AEGIS-256X2) under a random key that never leaves the chain. So a client who chooses bytes
/// cannot hide a change. The chain uses 24 bytes of memory for each block. Its files stay open, at
/// most 64. If a file was removed, truncated or written to after its state was saved, the blocks in
/// this file are written again when they are passed.
#[derive(Debug)]
pub struct Chain {
    length: u64,
    state: Option<StateId>,
    last: LastState,
}

/// A saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The ID of the state.
    pub state: StateId,
    /// True if the delta contains the whole state, false if it contains only changes.
    pub is_full: bool,
    /// Bytes in blocks that were written, or that became zero.
    pub changed: u64,
    /// The length of the delta in bytes.
    pub written: u64,
}

impl Chain {
    /// Makes a chain of states of `length` bytes. The first state is saved in full.
    #[must_use]
    pub fn new(length: u64) -> Self {
        Self { length, state: None, last: LastState::new(length) }
    }

    /// Resumes a chain that an earlier process may have made. `deltas` are the files of the chain,
    /// beginning with a full delta. Each file is open for reading, at the start of its delta.
    ///
    /// # Errors
    /// [`DeltaError`] if `deltas` is empty, if a delta is damaged, if a delta does not begin with
    /// the state at which the previous delta ends, or if there is no memory for 24 bytes per block.
    pub fn resume(deltas: impl IntoIterator<Item = File>) -> Result<Self, DeltaError> {
        let mut chain = None;
        for delta in deltas {
            chain = Some(Self::followed_by(chain, &delta)?);
        }
        chain.ok_or(DeltaError::Nothing)
    }

    /// Like [`resume`](Self::resume), for a chain whose first state is a raw file. `state` names
    /// this state, because the file does not contain a name. Holes of the file are zeroes.
    ///
    /// # Errors
    /// The errors of [`resume`](Self::resume), and an error if the raw file cannot be read.
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

    /// Resumes a chain that was saved to a stream. `bytes` are all bytes of `state` in order.
    ///
    /// # Errors
    /// [`DeltaError`] if `bytes` cannot be read, if their number is not `length`, or if the kernel
    /// provides no random bytes.
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

    /// Begins to save a state to a file, at the file's position. Write all bytes of the state to
    /// the returned value in order, and then [finish](Saving::finish) it. Without `finish` the
    /// state is not saved, and the next delta begins at the previous state.
    ///
    /// # Errors
    /// [`DeltaError`] if the file returns an error, if there is no memory for 24 bytes per block,
    /// or if the kernel provides no random bytes.
    pub fn save<'a>(&'a mut self, to: &'a File) -> Result<Saving<'a, &'a File>, DeltaError> {
        let changes = self.start_file(to)?;
        Ok(Saving { chain: self, blocks: Blocks::default(), changes, has_failed: false })
    }

    /// Like [`save`](Self::save), if the caller knows the bytes that may have changed. Pass these
    /// bytes to the returned value, with their offsets, ascending. All other bytes are as in the
    /// last state. For the first state, pass all bytes.
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

    /// Like [`save`](Self::save), to a socket or to memory. The chain assumes that the receiver
    /// keeps all deltas.
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

    /// Makes the chain save the next state in full.
    pub fn begin_anew(&mut self) {
        self.state = None;
        self.last.begin_anew();
    }
}

/// A state that is being saved. Its writer takes the bytes of the state in order, and writes
/// changed blocks at once.
#[derive(Debug)]
#[must_use = "a state that is not finished was not saved"]
pub struct Saving<'a, W: Write> {
    chain: &'a mut Chain,
    blocks: Blocks,
    changes: ChangeWriter<W>,
    /// True if a write has failed, so the delta cannot be continued.
    has_failed: bool,
}

impl<W: Write> Saving<'_, W> {
    /// Ends the state after all of its bytes were written. The state is durable when the file or
    /// stream is on its disk.
    ///
    /// # Errors
    /// [`DeltaError`] if too few or too many bytes were written, or if the file returns an error.
    /// The chain stays at the previous state.
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

/// A state that is being saved from the bytes that may have changed, with their offsets. Of these
/// bytes, the changed blocks are written.
#[derive(Debug)]
#[must_use = "a state that is not finished was not saved"]
pub struct SavingChanges<'a, W: Write> {
    chain: &'a mut Chain,
    blocks: Blocks,
    changes: ChangeWriter<W>,
    given: u64,
    /// True if a write has failed, so the delta cannot be continued.
    has_failed: bool,
}

impl<'a, W: Write> SavingChanges<'a, W> {
    fn new(chain: &'a mut Chain, changes: ChangeWriter<W>) -> Self {
        Self { chain, blocks: Blocks::default(), changes, given: 0, has_failed: false }
    }

    /// Sets the bytes at `offset` of the state.
    ///
    /// # Errors
    /// An error if the bytes lie before bytes that were passed already, or beyond the state, or if
    /// the file returns an error. The state cannot be saved then.
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

    /// Ends the state after all bytes that may have changed were passed. The state is durable when
    /// the file or stream is on its disk.
    ///
    /// # Errors
    /// [`DeltaError`] if bytes of a first state are missing, if earlier bytes were refused, or if
    /// the file returns an error. The chain stays at the previous state.
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
    /// Makes `len` bytes at `offset` of the state zero. Bytes that were zero in the last state cost
    /// almost nothing.
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
    /// Changed blocks that are not written yet, and their offset.
    run: Vec<u8>,
    begins: u64,
    changed: u64,
    /// For each block that was compared together: true if it has changed.
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
