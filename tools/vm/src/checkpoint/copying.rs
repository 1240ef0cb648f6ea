//! The copy of a VM with protected memory, granule by granule. Granules that the VM wants to write
//! come first.
//!
//! A granule that the VM wants to write is copied, and then left to the kernel. One thread handles
//! the VM's faults and copies. Before all memory is copied, this thread reads no message that the
//! VM releases memory, because the memory is gone when the message is read.

use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::poll::readable;

use crate::api::Answer;
use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::granule_state::GranuleEvent;
use crate::checkpoint::granules::Granule;
use crate::checkpoint::saving::Saving;
use crate::checkpoint::tracked_vm::Afterwards;
use crate::vmm::{Message, Request};

/// Bytes that are read and written together. They stay in the cache meanwhile.
pub(crate) const PIECE: usize = 256 << 10;

/// The longest time between two checks for messages while an answer is awaited.
const LONGEST_WAIT: Duration = Duration::from_millis(10);

/// The first time that a device gets for a write.
pub(crate) const TIME_TO_WRITE: Duration = Duration::from_micros(100);

/// The time within which a writing device continues to write.
const QUIET: Duration = Duration::from_millis(1);

/// Counts and times until now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) read: u64,
    pub(crate) copied: u64,
    pub(crate) faults: u64,
    pub(crate) longest_fault: Duration,
}

impl Saving<'_> {
    /// Protects all memory. Earlier copies are of another moment, and are dropped.
    pub(crate) fn protect(&mut self) -> Result<(), CheckpointError> {
        (self.is_opened, self.is_unsure, self.time_to_write) = (false, false, TIME_TO_WRITE);
        self.drop_copies()?;
        self.tracked.protect()
    }

    pub(crate) fn drop_copies(&mut self) -> Result<(), CheckpointError> {
        if !self.tracked.has_copies() {
            return Ok(());
        }
        self.tracked.note_all(GranuleEvent::Drop);
        (self.progress.read, self.progress.copied) = (0, 0);
        self.sink.restart().map_err(|source| self.sink.refused(source))
    }

    /// Handles the VM's faults until an answer arrives. Until `is_saved`, accessed memory is
    /// released instead of copied, because the access comes before the saved moment.
    pub(crate) fn await_answer(
        &mut self,
        request: &mut Request,
        is_saved: &dyn Fn() -> bool,
    ) -> Result<Answer, CheckpointError> {
        loop {
            if let Some(answer) = request.answer()? {
                return Ok(answer);
            }
            self.serve(is_saved)?;
            if self.vm().gives_memory_back() {
                self.make_way(is_saved)?;
            }
            let vm = self.vm();
            if vm.process.has_ended() {
                return Err(CheckpointError::Ended { pid: vm.pid() });
            }
            let waited = [request.as_fd(), vm.faults.as_fd(), vm.process.as_fd()];
            let _ = readable(waited, Some(LONGEST_WAIT));
        }
    }

    /// Reads the message of a thread of the VM that releases memory. That thread waits for this,
    /// and may be the thread that must answer.
    fn make_way(&mut self, is_saved: &dyn Fn() -> bool) -> Result<(), CheckpointError> {
        if !is_saved() {
            self.is_opened = true;
            return self.tracked.settle();
        }
        (0..self.tracked.granules.len()).try_for_each(|index| self.copy(index))?;
        self.tracked.release_all()
    }

    /// Copies all memory that may have changed and is not copied yet.
    pub(crate) fn copy_all(&mut self) -> Result<(), CheckpointError> {
        for index in 0..self.tracked.granules.len() {
            self.rest()?;
            self.copy_wanted()?;
            self.copy_in_turn(index)?;
        }
        match self.tracked.afterwards {
            Afterwards::Released => self.tracked.release_all(),
            Afterwards::Protected => Ok(()),
        }
    }

    /// Copies only granules that the VM or a reader waits for, while the sink rests. Ends if the VM
    /// waits for the end of the copy.
    fn rest(&mut self) -> Result<(), CheckpointError> {
        while let Some(bell) = self.sink.rest() {
            self.copy_wanted()?;
            let vm = self.vm();
            if vm.gives_memory_back() || vm.process.has_ended() {
                break;
            }
            let waited = [bell, vm.faults.as_fd(), vm.process.as_fd()];
            let _ = readable(waited, Some(LONGEST_WAIT));
        }
        Ok(())
    }

    fn copy_wanted(&mut self) -> Result<(), CheckpointError> {
        self.serve(&|| true)?;
        while let Some(wanted) = self.sink.wanted() {
            self.copy_and_release(wanted)?;
        }
        Ok(())
    }

    fn copy_in_turn(&mut self, index: usize) -> Result<(), CheckpointError> {
        let offsets = self.tracked.granules[index].offsets();
        if !self.tracked.state(index).is_in_turn() {
            return self.sink.skip(&offsets).map_err(|source| self.sink.refused(source));
        }
        self.sink.turn(&offsets).map_err(|source| self.sink.refused(source))?;
        match self.tracked.afterwards {
            Afterwards::Released => self.copy_and_release(index),
            Afterwards::Protected => self.copy(index),
        }
    }

    /// Handles all waiting faults.
    fn serve(&mut self, is_saved: &dyn Fn() -> bool) -> Result<(), CheckpointError> {
        while self.vm().waiting_faults()? > 0 {
            let since = Instant::now();
            match self.vm().read_message()? {
                Some(Message::Fault(address)) => self.answer(address, is_saved)?,
                // The fault was gone, and this message was behind it.
                Some(Message::Removed { .. }) => return Err(CheckpointError::GaveBack),
                None => return Ok(()),
            }
            self.progress.faults += 1;
            self.progress.longest_fault = self.progress.longest_fault.max(since.elapsed());
        }
        Ok(())
    }

    fn answer(&mut self, address: u64, is_saved: &dyn Fn() -> bool) -> Result<(), CheckpointError> {
        let Some(index) = self.tracked.granules.at(address) else { return Ok(()) };
        if is_saved() {
            return self.copy_and_release(index);
        }
        self.let_write(index, is_saved)
    }

    /// Lets a device write to a granule before the saved moment, and protects the granule again.
    /// Devices of a paused VM write when their state is saved, for example a vsock at each save.
    /// Their writes belong to the moment.
    fn let_write(
        &mut self,
        index: usize,
        is_saved: &dyn Fn() -> bool,
    ) -> Result<(), CheckpointError> {
        self.tracked.release(index)?;
        // Whoever waited writes now. If it has not yet, it waits again, and is given more time.
        sleep(self.time_to_write);
        self.time_to_write = (2 * self.time_to_write).min(LONGEST_WAIT);
        if !self.tracked.protect_one(index)? {
            self.is_opened = true;
        }
        // A write between the moment and the protection would not be seen.
        self.is_unsure |= is_saved();
        Ok(())
    }

    /// Returns true if no memory that must be saved is written for a while.
    pub(crate) fn is_quiet(&mut self) -> Result<bool, CheckpointError> {
        let faults = self.progress.faults;
        let waited = [self.vm().faults.as_fd(), self.vm().process.as_fd()];
        let _ = readable(waited, Some(QUIET));
        self.serve(&|| true)?;
        Ok(self.progress.faults == faults)
    }

    fn copy_and_release(&mut self, index: usize) -> Result<(), CheckpointError> {
        self.copy(index)?;
        self.tracked.release(index)
    }

    /// Copies the memory of a granule that is present, if it may have changed. All other memory of
    /// the granule is zero.
    fn copy(&mut self, index: usize) -> Result<(), CheckpointError> {
        if !self.tracked.state(index).is_to_copy() {
            return Ok(());
        }
        self.tracked.note(index, GranuleEvent::Copy);
        let Granule { addresses, offset } = self.tracked.granules[index].clone();
        let runs = self.vm().pages.populated(&addresses);
        let unreadable = |source| CheckpointError::Memory { address: addresses.start, source };
        let is_whole = self.sink.wants_whole_granules();
        let mut data = Vec::new();
        for run in runs.map_err(unreadable)? {
            for start in (run.start..run.end).step_by(PIECE) {
                let piece = start..(start + PIECE as u64).min(run.end);
                data.extend(self.read_piece(addresses.start, &piece)?);
                if !is_whole {
                    self.put(offset, &data)?;
                    data.clear();
                }
            }
        }
        if is_whole {
            self.fill_gaps(&mut data, (addresses.end - addresses.start) as usize);
            self.put(offset, &data)?;
        }
        self.sink.end(index);
        Ok(())
    }

    /// Reads bytes of a granule to their place in the buffer. Returns the place, or `None` if all
    /// bytes are zero, as they are in the sink already.
    fn read_piece(
        &mut self,
        granule: u64,
        piece: &Range<u64>,
    ) -> Result<Option<Range<usize>>, CheckpointError> {
        let place = (piece.start - granule) as usize..(piece.end - granule) as usize;
        let bytes = &mut self.buffer[place.clone()];
        let read = self.tracked.vm.pages.read(piece.start, bytes);
        read.map_err(|source| CheckpointError::Memory { address: piece.start, source })?;
        self.progress.read += bytes.len() as u64;
        if is_zero(bytes) {
            return Ok(None);
        }
        self.progress.copied += bytes.len() as u64;
        Ok(Some(place))
    }

    /// Joins the pieces of a whole granule to one piece, if they are at least half of it. Zeroes
    /// are then written, too, so that the cache has one huge page.
    fn fill_gaps(&mut self, data: &mut Vec<Range<usize>>, len: usize) {
        let bytes: usize = data.iter().map(ExactSizeIterator::len).sum();
        if len < HUGE_PAGE_BYTES || bytes < len / 2 {
            return;
        }
        let ends = data.iter().map(|piece| piece.start).chain([len]);
        let starts = [0].into_iter().chain(data.iter().map(|piece| piece.end));
        starts.zip(ends).for_each(|(start, end)| self.buffer[start..end].fill(0));
        data.clear();
        data.push(0..len);
    }

    fn put(&self, offset: u64, pieces: &[Range<usize>]) -> Result<(), CheckpointError> {
        for piece in pieces {
            let put = self.sink.put(offset + piece.start as u64, &self.buffer[piece.clone()]);
            put.map_err(|source| self.sink.refused(source))?;
        }
        Ok(())
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(512).all(|chunk| chunk.iter().fold(0, |any, byte| any | byte) == 0)
}
