//! What a chain knows of the state that was saved last.

/// The knowledge about each block of the last saved state: the place of its bytes ([`Places`](crate::Places)), or a
/// hash of them ([`Hashes`](crate::Hashes)). A chain begins with a state of zeroes. Other crates cannot implement it.
pub trait Known: sealed::Compare {}

impl<K: sealed::Compare> Known for K {}

pub(crate) mod sealed {
    use std::fs::File;

    /// The methods of [`Known`](super::Known).
    pub trait Compare: std::fmt::Debug {
        /// Adds to `changed` for each block of these bytes whether it may differ from the last state. They are whole
        /// blocks that lie side by side, or a part of one.
        fn compare(&mut self, offset: u64, bytes: &[u8], changed: &mut Vec<bool>);

        /// These bytes have changed and were written. They follow on the first `at` bytes of the delta.
        fn wrote(&mut self, offset: u64, len: u64, at: u64);

        /// These bytes have changed, and are zero now.
        fn cleared(&mut self, offset: u64, len: u64);

        /// The state is saved, by a delta of this many bytes at the end of this file, if it went to one.
        fn commit(&mut self, output: Option<File>, written: u64);

        /// The next state begins with zeroes.
        fn begin_anew(&mut self);
    }
}

/// The knowledge about a block of the last saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockRecord<T> {
    /// Nothing is known: it is written whenever any of it is given.
    Unknown,
    Zero,
    Is(T),
}

/// The knowledge about all blocks. Blocks that were never set are zero.
#[derive(Debug)]
pub(crate) struct Table<T> {
    blocks: Vec<BlockRecord<T>>,
    /// The number of blocks.
    count: usize,
}

impl<T: Copy> Table<T> {
    pub(crate) fn new(count: usize) -> Self {
        Self { blocks: Vec::new(), count }
    }

    /// Makes sure that [`set`](Self::set) allocates nothing.
    pub(crate) fn reserve(&mut self) -> std::io::Result<()> {
        let missing = self.count - self.blocks.len();
        Ok(self.blocks.try_reserve_exact(missing)?)
    }

    pub(crate) fn get(&self, index: usize) -> BlockRecord<T> {
        self.blocks.get(index).copied().unwrap_or(BlockRecord::Zero)
    }

    /// Returns what it was.
    pub(crate) fn set(&mut self, index: usize, block: BlockRecord<T>) -> BlockRecord<T> {
        if index >= self.blocks.len() {
            self.blocks.resize(index + 1, BlockRecord::Zero);
        }
        std::mem::replace(&mut self.blocks[index], block)
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
    }
}
