//! Deltas of states that are given whole, or as what may have changed: blocks that have are found.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};

use crate::blocks::{BLOCK, Blocks, is_zero};
use crate::error::DeltaError;
use crate::format::{LONGEST, StateId};
use crate::hashes::Hashes;
use crate::known::Known;
use crate::places::Places;
use crate::reader::Reader;
use crate::writer::Writer;

/// Bytes that are read together where a chain is resumed, and compared together.
const TOGETHER: usize = 1 << 20;

/// Zeroes that are compared together.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The states of some memory, saved one after the other.
///
/// Changes are found by comparing with the saved bytes. The files stay open for reading, 64 at most, and the chain
/// knows the place of each block of 4 KiB, in 16 bytes. Blocks of a file that was removed, cut off or written to after
/// its state was saved, or that cannot be read, are written again when they are given.
///
/// A chain [for streams](Chain::for_streams), which cannot be read back, knows a hash of each block instead.
#[derive(Debug)]
pub struct Chain<K = Places> {
    length: u64,
    state: Option<StateId>,
    known: K,
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
    /// A chain of states of `length` bytes, saved to files. The first one is saved in full.
    #[must_use]
    pub fn new(length: u64) -> Self {
        Self { length, state: None, known: Places::new(length) }
    }

    /// Goes on where a chain has ended, in another process perhaps. `deltas` are its files from a full one on, each open
    /// for reading, where its delta begins.
    ///
    /// # Errors
    /// A delta is damaged, or does not begin with the state that the one before it leads to; there are no deltas; or
    /// the memory for 16 bytes a block is missing.
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
        chain.known.follow_raw(raw)?;
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
        chain.state = Some(chain.known.follow(reader, delta, start)?);
        Ok(chain)
    }

    /// Begins to save a state to a file, from its position on: what it returns takes all of its bytes in order, and is to
    /// be [finished](Saving::finish). Otherwise it was not saved, and the next delta begins where this one would have.
    ///
    /// # Errors
    /// The file has refused, or the memory for 16 bytes a block is missing.
    pub fn save<'a>(&'a mut self, to: &'a File) -> Result<Saving<'a, &'a File>, DeltaError> {
        let output = self.known.start_state(to)?;
        self.saving(to, output)
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
        let output = self.known.start_state(to)?;
        self.saving_changes(to, output)
    }
}

impl Chain<Hashes> {
    /// Begins a chain of states of `length` bytes that are saved to outputs which cannot be read back: pipes, sockets,
    /// memory. The first state is saved in full.
    ///
    /// The chain keeps 17 bytes for each block of 4 KiB, a hash: BLAKE3 with a random key that the chain never shows. Hashing takes
    /// several times as long as comparing with files.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn for_streams(length: u64) -> Result<Self, DeltaError> {
        Ok(Self { length, state: None, known: Hashes::new(length)? })
    }

    /// Goes on where a chain has ended, in another process perhaps: `bytes` are those of `state`, from the first to the
    /// last.
    ///
    /// # Errors
    /// They cannot be read, or there are fewer or more; or as of [`for_streams`](Self::for_streams).
    pub fn resume_for_streams(
        length: u64,
        state: StateId,
        mut bytes: impl Read,
    ) -> Result<Self, DeltaError> {
        let mut chain = Self::for_streams(length)?;
        chain.known.start_state()?;
        let mut blocks = Blocks::default();
        let mut part = vec![0; TOGETHER];
        let mut learn = |offset: u64, bytes: &[u8]| {
            if offset + bytes.len() as u64 <= length {
                chain.known.learn(offset, bytes);
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

    /// Begins to save a state: what it returns takes all of its bytes in order, and is to be [finished](Saving::finish).
    /// Otherwise it was not saved, and the next delta begins where this one would have.
    ///
    /// # Errors
    /// The stream has refused, or the memory for 17 bytes a block is missing.
    pub fn save<W: Write>(&mut self, to: W) -> Result<Saving<'_, W, Hashes>, DeltaError> {
        self.known.start_state()?;
        self.saving(to, None)
    }

    /// Like [`save`](Self::save), of a state of which it is known what may have changed: what it returns takes those
    /// bytes, with their offsets, ascending. All others are as they were in the last state; of the first one, all bytes
    /// are to be given.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save).
    pub fn save_changes<W: Write>(
        &mut self,
        to: W,
    ) -> Result<SavingChanges<'_, W, Hashes>, DeltaError> {
        self.known.start_state()?;
        self.saving_changes(to, None)
    }
}

impl<K: Known> Chain<K> {
    /// Bytes of each state.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The state that was saved last.
    #[must_use]
    pub fn state(&self) -> Option<StateId> {
        self.state
    }

    /// The next state is saved in full.
    pub fn begin_anew(&mut self) {
        self.state = None;
        self.known.begin_anew();
    }

    fn saving<W: Write>(
        &mut self,
        to: W,
        output: Option<File>,
    ) -> Result<Saving<'_, W, K>, DeltaError> {
        let changes = ChangeWriter::new(self, to, output)?;
        Ok(Saving { chain: self, blocks: Blocks::default(), changes, has_failed: false })
    }

    fn saving_changes<W: Write>(
        &mut self,
        to: W,
        output: Option<File>,
    ) -> Result<SavingChanges<'_, W, K>, DeltaError> {
        let changes = ChangeWriter::new(self, to, output)?;
        let blocks = Blocks::default();
        Ok(SavingChanges { chain: self, blocks, changes, given: 0, has_failed: false })
    }
}

/// Takes the bytes of a state, in order. What it has found changed is written at once.
#[derive(Debug)]
#[must_use = "a state that is not finished was not saved"]
pub struct Saving<'a, W: Write, K: Known = Places> {
    chain: &'a mut Chain<K>,
    blocks: Blocks,
    changes: ChangeWriter<W>,
    /// The written bytes cannot be continued.
    has_failed: bool,
}

impl<W: Write, K: Known> Saving<'_, W, K> {
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
        blocks.finish(&mut |offset, bytes| changes.add_blocks(&mut chain.known, offset, bytes))?;
        changes.finish(chain)
    }
}

impl<W: Write, K: Known> Write for Saving<'_, W, K> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self { chain, blocks, changes, has_failed } = self;
        if *has_failed || blocks.given() + bytes.len() as u64 > chain.length {
            *has_failed = true;
            let given = blocks.given() + bytes.len() as u64;
            return Err(io::Error::other(DeltaError::NotWhole { given, length: chain.length }));
        }
        let fed = blocks
            .feed(bytes, &mut |offset, bytes| changes.add_blocks(&mut chain.known, offset, bytes));
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
pub struct SavingChanges<'a, W: Write, K: Known = Places> {
    chain: &'a mut Chain<K>,
    blocks: Blocks,
    changes: ChangeWriter<W>,
    given: u64,
    /// The written bytes cannot be continued.
    has_failed: bool,
}

impl<W: Write, K: Known> SavingChanges<'_, W, K> {
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
            |offset: u64, bytes: &[u8]| changes.add_blocks(&mut chain.known, offset, bytes);
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
        blocks.finish(&mut |offset, bytes| changes.add_blocks(&mut chain.known, offset, bytes))?;
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
            if self.chain.known.is_zero(&part) {
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
    /// The file that it writes to, of a chain that compares with files.
    output: Option<File>,
    /// Blocks that have changed and are not written yet, and where they begin.
    run: Vec<u8>,
    begins: u64,
    changed: u64,
    /// For each of the blocks that were compared together: whether it has changed.
    have_changed: Vec<bool>,
}

impl<W: Write> ChangeWriter<W> {
    /// Begins the next state of a chain.
    fn new<K>(chain: &Chain<K>, to: W, output: Option<File>) -> Result<Self, DeltaError> {
        let writer = Writer::new(to, chain.length, chain.state)?;
        let (run, have_changed) = (Vec::new(), Vec::new());
        Ok(Self { writer, output, run, begins: 0, changed: 0, have_changed })
    }

    fn finish<K: Known>(mut self, chain: &mut Chain<K>) -> Result<Saved, DeltaError> {
        self.flush(&mut chain.known)?;
        let written = self.writer.written() + Writer::<W>::END;
        let (state, is_full) = (self.writer.finish()?, chain.state.is_none());
        chain.known.commit(self.output, written);
        chain.state = Some(state);
        Ok(Saved { state, is_full, changed: self.changed, written })
    }

    /// Takes blocks that lie side by side, or a part of one.
    fn add_blocks(
        &mut self,
        known: &mut impl Known,
        mut offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeltaError> {
        for part in bytes.chunks(TOGETHER) {
            let mut have_changed = std::mem::take(&mut self.have_changed);
            have_changed.clear();
            known.compare(offset, part, &mut have_changed);
            for (block, &has_changed) in part.chunks(BLOCK).zip(&have_changed) {
                if has_changed {
                    self.block(known, offset, block)?;
                }
                offset += block.len() as u64;
            }
            self.have_changed = have_changed;
        }
        Ok(())
    }

    /// Takes a block that has changed, or a part of it.
    fn block(
        &mut self,
        known: &mut impl Known,
        offset: u64,
        block: &[u8],
    ) -> Result<(), DeltaError> {
        let len = block.len() as u64;
        self.changed += len;
        if is_zero(block) {
            self.flush(known)?;
            known.cleared(offset, len);
            return self.writer.zeroes(offset, len);
        }
        let end = self.begins + self.run.len() as u64;
        if end != offset || self.run.len() + block.len() > LONGEST {
            self.flush(known)?;
        }
        if self.run.is_empty() {
            self.begins = offset;
        }
        self.run.extend_from_slice(block);
        Ok(())
    }

    fn flush(&mut self, known: &mut impl Known) -> Result<(), DeltaError> {
        if !self.run.is_empty() {
            self.writer.bytes(self.begins, &self.run)?;
            let len = self.run.len() as u64;
            // As one piece, whose bytes come last.
            known.wrote(self.begins, len, self.writer.written() - len);
            self.run.clear();
        }
        Ok(())
    }
}
