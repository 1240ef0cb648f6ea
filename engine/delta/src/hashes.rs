//! A hash of each block, for chains whose deltas cannot be read back.
//!
//! The hash is BLAKE3 with a random key of 256 bits that no file has and no other chain shares. So a writer who chooses
//! bytes cannot find two blocks of one hash, and 128 bits of it make one by chance as good as impossible.

use std::fs::File;
use std::io;

use crate::blocks::{BLOCK, block_at, blocks_of, is_zero, whole_blocks};
use crate::format::random;
use crate::known::sealed::Compare;
use crate::known::{BlockRecord, Table};

type Hash = [u8; 16];

/// The hashes of blocks, for chains that are saved to streams: 17 bytes for each block of 4 KiB.
#[derive(Debug)]
pub struct Hashes {
    length: u64,
    key: Key,
    blocks: Table<Hash>,
    /// Blocks of the state that is being saved that are not as they were.
    changed: Vec<(usize, BlockRecord<Hash>)>,
}

/// Shown to no program, by `Debug` neither.
struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Hashes {
    pub(crate) fn new(length: u64) -> io::Result<Self> {
        let blocks = Table::new(blocks_of(length));
        Ok(Self { length, key: Key(random()?), blocks, changed: Vec::new() })
    }

    /// A state is about to be saved.
    pub(crate) fn start_state(&mut self) -> io::Result<()> {
        self.changed.clear();
        self.blocks.reserve()
    }

    /// These blocks are what the last state has.
    pub(crate) fn learn(&mut self, offset: u64, bytes: &[u8]) {
        self.compare(offset, bytes, &mut Vec::new());
        self.commit(None, 0);
    }

    /// Returns the knowledge about a block or a part of one.
    fn block(&self, offset: u64, bytes: &[u8]) -> BlockRecord<Hash> {
        if whole_blocks(offset, bytes.len() as u64, self.length).is_empty() {
            return BlockRecord::Unknown;
        }
        if is_zero(bytes) {
            return BlockRecord::Zero;
        }
        let hash = blake3::keyed_hash(&self.key.0, bytes);
        BlockRecord::Is(*hash.as_bytes().first_chunk().expect("a part of the hash"))
    }
}

impl Compare for Hashes {
    fn compare(&mut self, mut offset: u64, bytes: &[u8], changed: &mut Vec<bool>) {
        for bytes in bytes.chunks(BLOCK) {
            let (index, block) = (block_at(offset), self.block(offset, bytes));
            let is_same = block != BlockRecord::Unknown && block == self.blocks.get(index);
            if !is_same {
                self.changed.push((index, block));
            }
            changed.push(!is_same);
            offset += bytes.len() as u64;
        }
    }

    fn wrote(&mut self, _: u64, _: u64, _: u64) {}

    fn cleared(&mut self, _: u64, _: u64) {}

    fn commit(&mut self, _: Option<File>, _: u64) {
        for (index, block) in std::mem::take(&mut self.changed) {
            self.blocks.set(index, block);
        }
    }

    fn begin_anew(&mut self) {
        self.blocks.clear();
    }
}
