//! The thread of low priority that reads ahead: the working set, then all other data. It does not
//! supply memory itself.
//!
//! Its window consists of its buffers: the thread waits until a buffer comes back empty.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};

use rustix::process::setpriority_process;

use super::demand::FAR;
use super::wait::Bell;
use super::{Found, ServedVm, VmError, pages_of};
use crate::pager::source::{AheadOfSource, SourceError};
use crate::pager::working_set::WorkingSet;
use crate::vmm::Piece;

/// Bytes that may be read and not yet supplied.
const WINDOW: u64 = 8 << 20;

/// The nice value of the thread. With `SCHED_IDLE`, beside busy threads, it got so little time that
/// 128 MiB were not read in a minute.
const NICE: i32 = 10;

/// A message of the thread.
pub(super) enum Chunk {
    Read(Read),
    /// The thread stopped reading because of an error.
    Failed(VmError),
    /// All data was read and sent.
    End,
}

/// Bytes that were read.
pub(super) struct Read {
    pub(super) piece: Piece,
    pub(super) found: Found,
    /// The buffer with the bytes.
    pub(super) room: Vec<u8>,
    /// True if the bytes belong to the working set.
    pub(super) is_wanted: bool,
}

/// The reason why the thread ends before all data is read.
enum ReaderEnd {
    /// The VM needs no more data.
    Hung,
    Source(SourceError),
}

/// Returns empty buffers, for the whole window.
pub(super) fn buffers(vm: &ServedVm) -> impl Iterator<Item = Vec<u8>> {
    let bytes = longest(vm);
    (0..WINDOW / bytes).map(move |_| vec![0; bytes as usize])
}

fn longest(vm: &ServedVm) -> u64 {
    FAR.max(vm.layout.page())
}

pub(super) fn run(
    vm: &ServedVm,
    set: &WorkingSet,
    empty: &Receiver<Vec<u8>>,
    filled: &Sender<Chunk>,
    bell: &Bell,
) {
    // Memory of a running VM is there already, and the process that has it waits for the end.
    if vm.source.is_kept() {
        // Of this thread. If the kernel refuses, it reads at the VM's priority.
        let _ = setpriority_process(None, NICE);
    }
    let read = || {
        let source = vm.source.ahead().map_err(ReaderEnd::Source)?;
        Reader { vm, source, empty, filled, bell }.read_all(set)
    };
    // A panic must not end the threads of other VMs, which the scope of this one would.
    let last = match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(())) => Chunk::End,
        Ok(Err(ReaderEnd::Source(error))) => Chunk::Failed(error.into()),
        Ok(Err(ReaderEnd::Hung)) => return,
        Err(_) => Chunk::Failed(VmError::Mistake),
    };
    let _ = filled.send(last);
    bell.ring();
}

struct Reader<'a> {
    vm: &'a ServedVm,
    source: AheadOfSource<'a>,
    empty: &'a Receiver<Vec<u8>>,
    filled: &'a Sender<Chunk>,
    bell: &'a Bell,
}

impl Reader<'_> {
    fn read_all(&mut self, set: &WorkingSet) -> Result<(), ReaderEnd> {
        let unit = self.vm.source.unit().unwrap_or(FAR).max(self.vm.layout.page());
        let end = self.vm.layout.end();
        for offsets in set.in_units(unit, end).ranges() {
            self.read_range(offsets.clone(), true)?;
        }
        let vm = self.vm;
        for region in vm.layout.regions() {
            self.read_data(region.offsets())?;
        }
        Ok(())
    }

    /// Reads the data between holes.
    fn read_data(&mut self, offsets: Range<u64>) -> Result<(), ReaderEnd> {
        let longest = longest(self.vm);
        let mut next = offsets.start;
        while let Some(data) = self.vm.source.next_data(next..offsets.end) {
            // Whole pieces, which begin where blocks do.
            let start = (data.start / longest * longest).max(offsets.start);
            let end = data.end.next_multiple_of(longest).min(offsets.end);
            self.read_range(start..end, false)?;
            next = end;
        }
        self.vm.source.check_unwritten().map_err(ReaderEnd::Source)
    }

    fn read_range(&mut self, offsets: Range<u64>, is_wanted: bool) -> Result<(), ReaderEnd> {
        let longest = longest(self.vm);
        let mut start = offsets.start;
        while start < offsets.end {
            let end = ((start / longest + 1) * longest).min(offsets.end);
            let vm = self.vm;
            for piece in vm.layout.pieces(start..end) {
                self.read_piece(piece, is_wanted)?;
            }
            start = end;
        }
        Ok(())
    }

    fn read_piece(&mut self, piece: Piece, is_wanted: bool) -> Result<(), ReaderEnd> {
        let last = piece.offset + piece.len - 1;
        let mut blocks = piece.offset / self.vm.block..=last / self.vm.block;
        if blocks.all(|block| self.vm.begun().has(block))
            || self.vm.supplied().has_all(pages_of(piece.offsets()))
        {
            return Ok(());
        }
        let unit = match self.vm.source.unit() {
            // Zeroes of the working set are supplied, too.
            Some(unit) if !is_wanted => unit.max(self.vm.layout.page()),
            _ => return self.read_part(piece, is_wanted),
        };
        // Only units that are not there yet: each one would be decompressed again.
        let mut left = piece.offsets();
        while let Some(missing) = self.vm.missing(left.clone()) {
            let start = (missing.start / unit * unit).max(left.start);
            let end = missing.end.next_multiple_of(unit).min(left.end);
            let address = piece.address + (start - piece.offset);
            self.read_part(Piece { address, offset: start, len: end - start }, is_wanted)?;
            left.start = end;
        }
        Ok(())
    }

    fn read_part(&mut self, piece: Piece, is_wanted: bool) -> Result<(), ReaderEnd> {
        let mut room = self.empty.recv().map_err(|_| ReaderEnd::Hung)?;
        let source = &mut self.source;
        let found = self.vm.find_by(piece, &mut room, |offset, to| source.read(offset, to));
        let found = found.map_err(ReaderEnd::Source)?;
        let read = Read { piece, found, room, is_wanted };
        self.filled.send(Chunk::Read(read)).map_err(|_| ReaderEnd::Hung)?;
        self.bell.ring();
        Ok(())
    }
}
