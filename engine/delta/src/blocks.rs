//! A stream of bytes, split where blocks of the state end.

use crate::error::DeltaError;

/// The unit of changes in bytes: if one byte of a block changed, the whole block is written.
pub const BLOCK: usize = 4096;

static ZEROES: [u8; BLOCK] = [0; BLOCK];

/// Returns true if the bytes, at most a block, are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    *bytes == ZEROES[..bytes.len()]
}

/// Blocks of a state of this many bytes; the last one may be shorter.
pub(crate) fn blocks_of(length: u64) -> usize {
    length.div_ceil(BLOCK as u64) as usize
}

pub(crate) fn block_at(offset: u64) -> usize {
    (offset / BLOCK as u64) as usize
}

/// Returns the blocks of a state of `length` bytes that lie in these as a whole.
pub(crate) fn whole_blocks(offset: u64, len: u64, length: u64) -> std::ops::Range<usize> {
    let end = offset + len;
    let end = if end == length { blocks_of(end) } else { block_at(end) };
    let start = blocks_of(offset);
    start..end.max(start)
}

/// A callback for blocks of a state that lie side by side, or for a part of a block, with their offset.
pub(crate) type Each<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), DeltaError>;

/// The part of a stream that was not given on yet.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// The begun block.
    partial: Vec<u8>,
    /// The offset of the begun block.
    at: u64,
}

impl Blocks {
    /// Returns a stream that begins there.
    pub(crate) fn from(offset: u64) -> Self {
        Self { partial: Vec::new(), at: offset }
    }

    /// Returns the offset of the next byte.
    pub(crate) fn given(&self) -> u64 {
        self.at + self.partial.len() as u64
    }

    pub(crate) fn feed(&mut self, bytes: &[u8], each: Each<'_>) -> Result<(), DeltaError> {
        let rest = self.complete(bytes, each)?;
        let (whole, rest) = rest.split_at(rest.len() - rest.len() % BLOCK);
        if !whole.is_empty() {
            each(self.at, whole)?;
            self.at += whole.len() as u64;
        }
        self.partial.extend_from_slice(rest);
        Ok(())
    }

    /// Goes on with a block that has begun. Returns what lies behind it.
    fn complete<'a>(&mut self, bytes: &'a [u8], each: Each<'_>) -> Result<&'a [u8], DeltaError> {
        let missing = (self.given().next_multiple_of(BLOCK as u64) - self.given()) as usize;
        let (first, rest) = bytes.split_at(missing.min(bytes.len()));
        self.partial.extend_from_slice(first);
        if first.len() == missing && !self.partial.is_empty() {
            each(self.at, &self.partial)?;
            self.at += self.partial.len() as u64;
            self.partial.clear();
        }
        Ok(rest)
    }

    /// The last one may be shorter.
    pub(crate) fn finish(self, each: Each<'_>) -> Result<(), DeltaError> {
        if self.partial.is_empty() { Ok(()) } else { each(self.at, &self.partial) }
    }
}
