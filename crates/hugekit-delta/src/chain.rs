//! Deltas of states that are given whole: blocks that have changed are found by their hashes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};

use xxhash_rust::xxh3::xxh3_128_with_seed;

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
            blocks.feed(&part[..count], &mut |_, block| {
                hashes.push(chain.hash(block));
                Ok(())
            })?;
        }
        let given = blocks.given();
        blocks.end(&mut |_, block| {
            hashes.push(chain.hash(block));
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
        let writer = Writer::new(to, self.length, self.state())?;
        let hashes = Vec::with_capacity(self.length.div_ceil(BLOCK as u64) as usize);
        let changes = Changes { writer, hashes, run: Vec::new(), begins: 0, changed: 0 };
        Ok(Saving { chain: self, blocks: Blocks::default(), changes, has_failed: false })
    }

    fn hash(&self, block: &[u8]) -> u128 {
        xxh3_128_with_seed(block, self.seed)
    }

    /// Whether a block of the next state is not as it was in the last one.
    fn has_changed(&self, index: usize, block: &[u8], hash: u128) -> bool {
        match &self.last {
            Some(last) => last.hashes.get(index) != Some(&hash),
            // A full delta begins with zeroes.
            None => !is_zero(block),
        }
    }
}

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
        changes.flush()?;
        let Changes { writer, hashes, changed, .. } = changes;
        let (before_its_end, is_full) = (writer.written(), chain.last.is_none());
        let state = writer.finish()?;
        chain.last = Some(Last { state, hashes });
        Ok(Saved { state, is_full, changed, written: before_its_end + Writer::<W>::END })
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

/// What is done with each block of a state, at its offset.
type Each<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), DeltaError>;

/// A stream of bytes, cut into blocks.
#[derive(Debug, Default)]
struct Blocks {
    /// The beginning of a block.
    partial: Vec<u8>,
    /// Where it is.
    at: u64,
}

impl Blocks {
    fn given(&self) -> u64 {
        self.at + self.partial.len() as u64
    }

    fn feed(&mut self, mut bytes: &[u8], each: Each<'_>) -> Result<(), DeltaError> {
        if !self.partial.is_empty() {
            let missing = bytes.len().min(BLOCK - self.partial.len());
            self.partial.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if self.partial.len() < BLOCK {
                return Ok(());
            }
            each(self.at, &self.partial)?;
            self.at += BLOCK as u64;
            self.partial.clear();
        }
        let whole = bytes.chunks_exact(BLOCK);
        self.partial.extend_from_slice(whole.remainder());
        for block in whole {
            each(self.at, block)?;
            self.at += BLOCK as u64;
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
struct Changes<W> {
    writer: Writer<W>,
    hashes: Vec<u128>,
    /// Blocks that have changed and are not written yet, and where they begin.
    run: Vec<u8>,
    begins: u64,
    changed: u64,
}

impl<W: Write> Changes<W> {
    fn block(&mut self, chain: &Chain, offset: u64, block: &[u8]) -> Result<(), DeltaError> {
        let hash = chain.hash(block);
        let has_changed = chain.has_changed(self.hashes.len(), block, hash);
        self.hashes.push(hash);
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
