//! A delta of the previous checkpoint: the blocks of 4 KiB that differ.
//!
//! All memory that may have been written since is compared, so no changed block is missed. A delta
//! contains its blocks in order, but memory that the VM wants to write is copied early. Such bytes
//! are kept in a file without a name until it is their turn.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use hugekit_delta::{Chain, DeltaError, Saved, SavingChanges};

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::output::Output;
use crate::checkpoint::sink::Sink;

/// A delta that is being written.
#[derive(Debug)]
pub(crate) struct Delta<'a> {
    output: &'a Output,
    /// Borrowed by the one copying thread.
    writer: RefCell<Writer<'a>>,
}

#[derive(Debug)]
struct Writer<'a> {
    saving: SavingChanges<'a, &'a File>,
    /// Bytes of a state.
    length: u64,
    /// The first byte that was not written yet.
    next: u64,
    turn: Range<u64>,
    early: File,
    /// Kept bytes: their lengths, by offset.
    kept: BTreeMap<u64, usize>,
    buffer: Vec<u8>,
}

impl<'a> Delta<'a> {
    /// Opens the file for early bytes, and makes the chain allocate its memory.
    pub(crate) fn new(chain: &'a mut Chain, output: &'a Output) -> io::Result<Self> {
        let (length, early) = (chain.length(), output.unnamed()?);
        let saving = chain.save_changes(output.memory()).map_err(refused)?;
        let (kept, buffer) = (BTreeMap::new(), Vec::new());
        let writer = Writer { saving, length, next: 0, turn: 0..0, early, kept, buffer };
        Ok(Self { output, writer: RefCell::new(writer) })
    }

    /// Ends the delta after all bytes that are not zero were passed.
    pub(crate) fn finish(self) -> io::Result<Saved> {
        let mut writer = self.writer.into_inner();
        writer.clear_up_to(writer.length)?;
        writer.saving.finish().map_err(refused)
    }
}

impl Writer<'_> {
    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.turn.contains(&offset) {
            self.kept.insert(offset, bytes.len());
            return self.early.write_all_at(bytes, offset);
        }
        self.clear_up_to(offset)?;
        self.next += bytes.len() as u64;
        self.saving.put(offset, bytes)
    }

    /// Makes memory up to this offset zero, if it was not passed.
    fn clear_up_to(&mut self, offset: u64) -> io::Result<()> {
        self.saving.clear(self.next, offset - self.next)?;
        self.next = offset;
        Ok(())
    }

    fn turn(&mut self, offsets: &Range<u64>) -> io::Result<()> {
        self.turn = offsets.clone();
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some((&offset, &len)) = self.kept.range(offsets.clone()).next() {
            self.kept.remove(&offset);
            buffer.resize(len.max(buffer.len()), 0);
            self.early.read_exact_at(&mut buffer[..len], offset)?;
            self.put(offset, &buffer[..len])?;
        }
        self.buffer = buffer;
        Ok(())
    }
}

impl Sink for Delta<'_> {
    fn restart(&self) -> io::Result<()> {
        self.writer.borrow_mut().kept.clear();
        Ok(())
    }

    fn turn(&self, offsets: &Range<u64>) -> io::Result<()> {
        self.writer.borrow_mut().turn(offsets)
    }

    fn skip(&self, offsets: &Range<u64>) -> io::Result<()> {
        let mut writer = self.writer.borrow_mut();
        writer.clear_up_to(offsets.start)?;
        writer.next = offsets.end;
        Ok(())
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.writer.borrow_mut().put(offset, bytes)
    }

    fn refused(&self, source: io::Error) -> CheckpointError {
        self.output.refused(source)
    }
}

fn refused(error: DeltaError) -> io::Error {
    match error {
        DeltaError::Io(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use hugekit_delta::{BLOCK, StateId, apply};

    use super::*;
    use crate::checkpoint::output::{OutputKind, PlannedOutput};

    /// Passes blocks as for a VM that writes from the end to the start.
    #[test]
    fn bytes_that_come_early_are_at_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let (place, raw) = (folder.path().join("saved"), folder.path().join("raw"));
        let mut state = vec![3_u8; 64 * BLOCK];
        fs::write(&raw, &state).unwrap();
        let first = StateId::from_bytes([7; 16]).unwrap();
        let mut chain = Chain::resume_raw(&File::open(raw).unwrap(), first, []).unwrap();
        let output = PlannedOutput::new(&place, OutputKind::Delta).unwrap().create(0, &[]).unwrap();
        let sink = Delta::new(&mut chain, &output).unwrap();
        let mut before = state.clone();
        state[50 * BLOCK..53 * BLOCK].fill(4);
        // The last blocks are not there: they are zero.
        state[60 * BLOCK..].fill(0);
        sink.put(0, &[9; BLOCK]).unwrap();
        sink.restart().unwrap();
        for part in [48..60, 32..48] {
            let range = part.start * BLOCK..part.end * BLOCK;
            sink.put(range.start as u64, &state[range]).unwrap();
        }
        let turn =
            |blocks: Range<usize>| (blocks.start * BLOCK) as u64..(blocks.end * BLOCK) as u64;
        sink.turn(&turn(0..32)).unwrap();
        sink.put(0, &state[..32 * BLOCK]).unwrap();
        sink.turn(&turn(32..64)).unwrap();
        let saved = sink.finish().unwrap();
        assert_eq!(saved.changed, (7 * BLOCK) as u64);
        output.finish(b"state", std::time::SystemTime::now()).unwrap();
        let path = place.join("memory.delta");
        assert_eq!(saved.written, fs::metadata(&path).unwrap().len());
        apply(&mut before, Some(first), &mut File::open(path).unwrap()).unwrap();
        assert!(before == state);
    }
}
