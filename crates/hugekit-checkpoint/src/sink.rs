//! Where saved bytes go: a memory file, or a delta ([`delta`](crate::delta)).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Takes the bytes of a VM's memory. Bytes that it is not given are zero.
pub(crate) trait Sink: std::fmt::Debug {
    /// These bytes are at `offset`. In their turn, they follow on those before; other bytes come
    /// early.
    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// It is the turn of these offsets, which follow on those before. Either all of their bytes were
    /// put early, or none.
    fn turn(&mut self, offsets: &Range<u64>) -> io::Result<()>;

    /// All bytes so far came early, and are of a moment that is not saved.
    fn restart(&mut self) -> io::Result<()>;

    /// All bytes were given.
    fn finish(self: Box<Self>) -> io::Result<Saved>;
}

/// Counts of a sink that is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    /// Bytes of the VM's memory, without those that were known.
    pub(crate) copied: u64,
    /// Bytes of the delta, if it is one.
    pub(crate) delta: Option<u64>,
}

/// A file of all bytes, which is zero at the beginning.
#[derive(Debug)]
pub(crate) struct MemoryFile<'a> {
    file: &'a File,
    copied: u64,
}

impl<'a> MemoryFile<'a> {
    pub(crate) fn new(file: &'a File) -> Self {
        Self { file, copied: 0 }
    }
}

impl Sink for MemoryFile<'_> {
    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if is_zero(bytes) {
            return Ok(());
        }
        self.copied += bytes.len() as u64;
        self.file.write_all_at(bytes, offset)
    }

    fn turn(&mut self, _: &Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// The file is zero again.
    fn restart(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.copied) == 0 {
            return Ok(());
        }
        let length = self.file.metadata()?.len();
        self.file.set_len(0)?;
        self.file.set_len(length)
    }

    fn finish(self: Box<Self>) -> io::Result<Saved> {
        Ok(Saved { copied: self.copied, delta: None })
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|chunk| chunk.iter().fold(0, |any, byte| any | byte) == 0)
}
