//! Deltas of states that are given whole: blocks that have changed are found by their hashes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};

use twox_hash::XxHash3_128;

use crate::error::DeltaError;
use crate::format::{LONGEST, StateId};
use crate::writer::Writer;

/// What is written if any byte of it has changed.
pub const BLOCK: usize = 4096;

/// Bytes that are read together where a chain is resumed.
const READ_TOGETHER: usize = 1 << 20;

const ZEROES: [u8; BLOCK] = [0; BLOCK];

/// The states of some memory, saved one after the other. Of the last one it keeps a hash of each block: 16 bytes for
/// 4 KiB. Two blocks of one hash are taken for equal: that happens by chance once in 2⁶⁴ blocks or so, and the hash is
/// seeded anew for each chain, but it is not made to stand against a writer who reads this program's memory.
#[derive(Debug)]
pub struct Chain {
    length: u64,
    seed: u64,
    last: Option<Last>,
}

/// The state that was saved last.
#[derive(Debug)]
struct Last {
    state: StateId,
    hashes: Vec<u128>,
}

/// What was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The state.
    pub state: StateId,
    /// Whether all of it was written, rather than what has changed.
    pub is_full: bool,
    /// Bytes in blocks that were written, or are zero now.
    pub changed: u64,
    /// Bytes of the delta.
    pub written: u64,
}

impl Chain {
    /// Of states of so many bytes. The first one is saved in full.
    #[must_use]
    pub fn new(length: u64) -> Self {
        Self { length, seed: RandomState::new().build_hasher().finish(), last: None }
    }

    /// Goes on where a chain has ended, in another process perhaps: `bytes` are those of `state`, from the first to the
    /// last.
    ///
    /// # Errors
    /// They cannot be read, or there are fewer or more.
    pub fn resume(length: u64, state: StateId, mut bytes: impl Read) -> Result<Self, DeltaError> {
        let mut chain = Self::new(length);
        let (mut blocks, mut hashes) = (Blocks::default(), Vec::new());
        let mut part = vec![0; READ_TOGETHER];
        loop {
            let count = match bytes.read(&mut part) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            if count == 0 {
                break;
            }
            blocks.feed(&part[..count], &mut |offset, block| {
                hashes.push(chain.hash(offset, block));
                Ok(())
            })?;
        }
        let given = blocks.given();
        blocks.end(&mut |offset, block| {
            hashes.push(chain.hash(offset, block));
            Ok(())
        })?;
        if given != length {
            return Err(DeltaError::NotWhole { given, length });
        }
        chain.last = Some(Last { state, hashes });
        Ok(chain)
    }

    /// Bytes of each state.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The state that was saved last.
    #[must_use]
    pub fn state(&self) -> Option<StateId> {
        self.last.as_ref().map(|last| last.state)
    }

    /// The next state is saved in full.
    pub fn begin_anew(&mut self) {
        self.last = None;
    }

    /// Begins to save a state: what it returns takes all of its bytes in order, and is to be
    /// [finished](Saving::finish). Otherwise it was not saved, and the next delta begins where this one would have.
    ///
    /// # Errors
    /// The file has refused.
    pub fn save<W: Write>(&mut self, to: W) -> Result<Saving<'_, W>, DeltaError> {
        let changes = Changes::new(self, to)?;
        Ok(Saving { chain: self, blocks: Blocks::default(), changes, has_failed: false })
    }

    /// As [`save`](Self::save), of a state of which it is known what may have changed: what it returns takes those bytes,
    /// with their offsets, ascending. All others are as they were in the last state; of the first one, all bytes are to
    /// be given.
    ///
    /// # Errors
    /// The file has refused.
    pub fn save_changes<W: Write>(&mut self, to: W) -> Result<SavingChanges<'_, W>, DeltaError> {
        let changes = Changes::new(self, to)?;
        Ok(SavingChanges {
            chain: self,
            blocks: Blocks::default(),
            changes,
            given: 0,
            has_failed: false,
        })
    }

    /// Of a block that is given whole; 0 stands for one that is not known.
    fn hash(&self, offset: u64, block: &[u8]) -> u128 {
        let end = offset + block.len() as u64;
        let is_whole = offset.is_multiple_of(BLOCK as u64)
            && (end.is_multiple_of(BLOCK as u64) || end == self.length);
        if is_whole { XxHash3_128::oneshot_with_seed(self.seed, block).max(1) } else { UNKNOWN }
    }

    /// Whether a block of the next state is not as it was in the last one, as far as is known.
    fn has_changed(&self, index: usize, block: &[u8], hash: u128) -> bool {
        match &self.last {
            Some(last) => hash == UNKNOWN || last.hashes.get(index) != Some(&hash),
            // A full delta begins with zeroes.
            None => !is_zero(block),
        }
    }
}

/// Of a block of which only a part was given.
const UNKNOWN: u128 = 0;

fn is_zero(block: &[u8]) -> bool {
    *block == ZEROES[..block.len()]
}

/// Takes the bytes of a state, in order. What it has found changed is written at once.
#[derive(Debug)]
#[must_use = "a state that is not finished was not saved"]
pub struct Saving<'a, W: Write> {
    chain: &'a mut Chain,
    blocks: Blocks,
    changes: Changes<W>,
    /// What was written cannot be gone on with.
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
        blocks.end(&mut |offset, block| changes.block(chain, offset, block))?;
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
        let fed = blocks.feed(bytes, &mut |offset, block| changes.block(chain, offset, block));
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
    changes: Changes<W>,
    given: u64,
    /// What was written cannot be gone on with.
    has_failed: bool,
}

impl<W: Write> SavingChanges<'_, W> {
    /// These bytes are at `offset` in the state.
    ///
    /// # Errors
    /// They lie before what was given already, or beyond the state; or the file has refused. The state cannot be saved
    /// then.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.take(offset, bytes).map_err(|error| {
            self.has_failed = true;
            match error {
                DeltaError::Io(error) => error,
                other => io::Error::other(other),
            }
        })
    }

    fn take(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeltaError> {
        let Self { chain, blocks, changes, given, .. } = self;
        let (len, next, length) = (bytes.len() as u64, blocks.given(), chain.length);
        if offset < next || offset.checked_add(len).is_none_or(|end| end > length) {
            return Err(DeltaError::OutOfOrder { offset, len, next, length });
        }
        let mut each = |offset: u64, block: &[u8]| changes.block(chain, offset, block);
        if offset > next {
            std::mem::replace(blocks, Blocks::from(offset)).end(&mut each)?;
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
        if has_failed || chain.last.is_none() && given != chain.length {
            return Err(DeltaError::NotWhole { given, length: chain.length });
        }
        blocks.end(&mut |offset, block| changes.block(chain, offset, block))?;
        changes.finish(chain)
    }
}

/// What is done with each block of a state, at its offset.
type Each<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), DeltaError>;

/// A stream of bytes, cut where blocks of the state end.
#[derive(Debug, Default)]
struct Blocks {
    /// The beginning of a block.
    partial: Vec<u8>,
    /// Where it is.
    at: u64,
}

impl Blocks {
    /// One that begins there.
    fn from(offset: u64) -> Self {
        Self { partial: Vec::new(), at: offset }
    }

    /// The offset of the next byte.
    fn given(&self) -> u64 {
        self.at + self.partial.len() as u64
    }

    fn feed(&mut self, mut bytes: &[u8], each: Each<'_>) -> Result<(), DeltaError> {
        while !bytes.is_empty() {
            let missing = BLOCK - (self.given() % BLOCK as u64) as usize;
            if bytes.len() < missing || !self.partial.is_empty() {
                let (first, rest) = bytes.split_at(missing.min(bytes.len()));
                self.partial.extend_from_slice(first);
                bytes = rest;
                if first.len() < missing {
                    return Ok(());
                }
                each(self.at, &self.partial)?;
                self.at += self.partial.len() as u64;
                self.partial.clear();
            } else {
                let (block, rest) = bytes.split_at(missing);
                bytes = rest;
                each(self.at, block)?;
                self.at += block.len() as u64;
            }
        }
        Ok(())
    }

    /// The last one may be shorter.
    fn end(self, each: Each<'_>) -> Result<(), DeltaError> {
        if self.partial.is_empty() { Ok(()) } else { each(self.at, &self.partial) }
    }
}

/// A state's blocks, of which those that have changed are written, neighbours together.
#[derive(Debug)]
struct Changes<W: Write> {
    writer: Writer<W>,
    /// Of blocks that are not as they were: which they are, and what they hash to.
    hashes: Vec<(usize, u128)>,
    /// Blocks that have changed and are not written yet, and where they begin.
    run: Vec<u8>,
    begins: u64,
    changed: u64,
}

impl<W: Write> Changes<W> {
    /// Of the next state of a chain: none so far.
    fn new(chain: &Chain, to: W) -> Result<Self, DeltaError> {
        let writer = Writer::new(to, chain.length, chain.state())?;
        Ok(Self { writer, hashes: Vec::new(), run: Vec::new(), begins: 0, changed: 0 })
    }

    fn finish(mut self, chain: &mut Chain) -> Result<Saved, DeltaError> {
        self.flush()?;
        let Self { writer, hashes: changed_hashes, changed, .. } = self;
        let (before_its_end, is_full) = (writer.written(), chain.last.is_none());
        let state = writer.finish()?;
        let blocks = chain.length.div_ceil(BLOCK as u64) as usize;
        let last = chain.last.take().map(|last| last.hashes);
        let mut hashes = last.unwrap_or_else(|| vec![UNKNOWN; blocks]);
        changed_hashes.into_iter().for_each(|(block, hash)| hashes[block] = hash);
        chain.last = Some(Last { state, hashes });
        Ok(Saved { state, is_full, changed, written: before_its_end + Writer::<W>::END })
    }

    fn block(&mut self, chain: &Chain, offset: u64, block: &[u8]) -> Result<(), DeltaError> {
        let index = (offset / BLOCK as u64) as usize;
        let hash = chain.hash(offset, block);
        let has_changed = chain.has_changed(index, block, hash);
        if has_changed || chain.last.is_none() {
            self.hashes.push((index, hash));
        }
        if !has_changed {
            return Ok(());
        }
        self.changed += block.len() as u64;
        if is_zero(block) {
            self.flush()?;
            return self.writer.zeroes(offset, block.len() as u64);
        }
        let end = self.begins + self.run.len() as u64;
        if end != offset || self.run.len() >= LONGEST {
            self.flush()?;
        }
        if self.run.is_empty() {
            self.begins = offset;
        }
        self.run.extend_from_slice(block);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeltaError> {
        if !self.run.is_empty() {
            self.writer.bytes(self.begins, &self.run)?;
            self.run.clear();
        }
        Ok(())
    }
}
