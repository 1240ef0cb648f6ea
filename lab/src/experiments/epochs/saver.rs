//! Memory that is saved again and again: as all of it, as what has changed, and plainly written.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Seek, Write};
use std::ptr::slice_from_raw_parts;
use std::sync::atomic::AtomicU64;

use crate::measure::LabError;
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use hugekit::Snapshot;
use hugekit::snapshot::{Builder, Changes, Epoch, Reserve};
use hugekit_delta::{Chain, Saved};
use hugekit_machine::size::Size;
use rustix::fs::{MemfdFlags, memfd_create};
use tempfile::TempDir;

use super::memory::{words, written};

/// Deltas that follow on each other, until all of the state is saved anew.
const MOST_DELTAS: usize = 12;

/// Memory with its saved states, and where they go.
#[derive(Debug)]
pub(super) struct Saver {
    memory: Anonymous,
    out: File,
    chain: Chain,
    deltas: Deltas,
    epoch: Option<Epoch>,
    reserve: Reserve,
}

impl Saver {
    pub(super) fn new(pages: Pages, state: usize) -> Result<Self, LabError> {
        let mut memory = written(pages, state)?;
        let mut out = File::from(
            memfd_create("hugekit-lab", MemfdFlags::CLOEXEC)
                .map_err(|errno| LabError::Map { len: Size(state), source: errno.into() })?,
        );
        // Its pages are there from the beginning, whichever is saved first.
        out.write_all(memory.bytes()).map_err(LabError::Saved)?;
        let (chain, reserve) = (Chain::new(state as u64), Reserve::new(state)?);
        let deltas = Deltas::new()?;
        Ok(Self { memory, out, chain, deltas, epoch: None, reserve })
    }

    /// The memory as writers share it.
    pub(super) fn words(&mut self) -> &'static [AtomicU64] {
        words(&mut self.memory)
    }

    /// Bytes of it.
    pub(super) fn len(&self) -> usize {
        self.memory.addresses().len()
    }

    /// A word to the reader if deltas go to a disk.
    pub(super) fn notice(&self) -> Option<String> {
        let folder = self.deltas.folder.path();
        let is_in_memory = folder.starts_with("/dev/shm");
        let notice =
            || format!("deltas go to {}, because /dev/shm cannot be written", folder.display());
        (!is_in_memory).then(notice)
    }

    fn all(&mut self) -> *const [u8] {
        let bytes = self.memory.bytes();
        slice_from_raw_parts(bytes.as_ptr(), bytes.len())
    }

    pub(super) fn plain(&mut self) -> Result<(), LabError> {
        self.out.rewind().map_err(LabError::Saved)?;
        self.out.write_all(self.memory.bytes()).map_err(LabError::Saved)
    }

    pub(super) fn full(&mut self) -> Result<(), LabError> {
        self.out.rewind().map_err(LabError::Saved)?;
        let all = self.all();
        // SAFETY: the memory outlives the snapshot; its writers are threads of ours, none of which blocks SIGBUS.
        unsafe { builder(all.len(), &self.reserve).of_anonymous(all) }?.write_to(&self.out)?;
        Ok(())
    }

    /// The next delta has what is written from now on.
    pub(super) fn begin_delta(&mut self) -> Result<(), LabError> {
        if self.deltas.count == MOST_DELTAS {
            self.chain.begin_anew();
            (self.deltas, self.epoch) = (Deltas::new()?, None);
        }
        self.delta().map(drop)
    }

    pub(super) fn delta(&mut self) -> Result<Saved, LabError> {
        let changes = self.changes()?;
        let file = self.deltas.next().map_err(LabError::Saved)?;
        let mut saving = self.chain.save_changes(&file)?;
        self.epoch = Some(changes.deliver(|offset, bytes| saving.put(offset as u64, bytes))?);
        Ok(saving.finish()?)
    }

    fn changes(&mut self) -> Result<Changes, LabError> {
        let builder = builder(self.memory.bytes().len(), &self.reserve);
        let changes = match self.epoch.take() {
            // SAFETY: the memory outlives the epoch; its writers are threads of ours, none of which blocks SIGBUS.
            Some(epoch) => unsafe { builder.since(epoch) },
            // SAFETY: as for later epochs: the memory lives as long as the saver.
            None => unsafe { builder.first_epoch(self.all()) },
        };
        Ok(changes?)
    }
}

/// The folder of the deltas.
#[derive(Debug)]
struct Deltas {
    folder: TempDir,
    count: usize,
}

impl Deltas {
    fn new() -> Result<Self, LabError> {
        let in_memory = tempfile::tempdir_in("/dev/shm");
        let folder = in_memory.or_else(|_| tempfile::tempdir()).map_err(LabError::Saved)?;
        Ok(Self { folder, count: 0 })
    }

    fn next(&mut self) -> io::Result<File> {
        self.count += 1;
        File::create(self.folder.path().join(self.count.to_string()))
    }
}

/// Wherever the writer writes, no state is lost for want of memory for its copies, and the writer does not wait until the
/// kernel has cleared it.
fn builder(state: usize, reserve: &Reserve) -> Builder {
    Snapshot::builder().max_cow_bytes(state).reserve(reserve)
}
