//! One VM: its memory, and the supplied part of it.

mod ahead;
mod collapse;
mod demand;
mod install;
mod messages;
mod reader;
mod wait;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::pager::bitmap::{Bitmap, words_of};
use crate::pager::error::{Refusal, VmError};
use crate::pager::event::{Completed, Event};
use crate::pager::source::{Source, SourceError};
use crate::pager::state::State;
use crate::pager::waiting::{Admitted, Waiting};
use crate::vmm::process::Process;
use crate::vmm::userfaultfd::Userfaultfd;
use crate::vmm::{Layout, Piece, base_page};

pub(crate) use demand::serve;
pub(crate) use wait::Bell;

/// The reason why serving a VM ends.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The VM's process has ended.
    Ended,
    /// The pager must end.
    Asked,
    /// All of the VM's memory is supplied, and left to the kernel.
    Left(Completed),
    /// A page cannot be supplied.
    Failed(VmError),
}

/// A served VM. One thread supplies its pages; another thread uses this value to read ahead.
#[derive(Debug)]
pub(crate) struct ServedVm {
    pub(crate) process: Process,
    faults: Userfaultfd,
    layout: Layout,
    source: Arc<Source>,
    state: State,
    /// Bytes of a block, which one fault supplies. Blocks are numbered by offset.
    block: u64,
    /// Blocks that a fault has begun to supply, so nothing of them is read ahead.
    begun: Vec<AtomicU64>,
    /// Base pages whose bytes of the memory file were processed: supplied, or left out because they
    /// are zero. Each page is recorded separately, so that the VM is left only when none is
    /// missing.
    supplied: Vec<AtomicU64>,
    bell: Arc<Bell>,
}

impl ServedVm {
    pub(crate) fn new(
        process: Process,
        faults: Userfaultfd,
        admitted: Admitted,
        around: u64,
    ) -> Self {
        let Admitted { layout, source, state, bell } = admitted;
        let block = around.max(layout.page());
        let bits = |count| (0..words_of(count)).map(|_| AtomicU64::new(0)).collect();
        let begun = bits(layout.end().div_ceil(block));
        let supplied = bits(layout.end() / base_page());
        Self { process, faults, layout, source, state, block, begun, supplied, bell }
    }

    /// Ends the wait of a VM that cannot be served, and returns the event.
    pub(crate) fn refuse(self, why: Refusal) -> Event {
        self.state.remove();
        Waiting::left(self.process, Some(self.layout)).refuse(why)
    }

    /// Registers all regions with this descriptor. They are registered already, unless the VMM sent
    /// a wrong message.
    pub(crate) fn register(faults: &Userfaultfd, layout: &Layout) -> Result<(), Refusal> {
        for region in layout.regions() {
            let refused = |errno: rustix::io::Errno| Refusal::NotRegistered {
                start: region.start,
                source: errno.into(),
            };
            faults.register(&region.addresses()).map_err(refused)?;
        }
        Ok(())
    }

    /// Finds the descriptor with which these regions are registered, among the descriptors of a
    /// process.
    pub(crate) fn find_userfaultfd(
        process: &Process,
        layout: &Layout,
    ) -> Result<Userfaultfd, Refusal> {
        let mut refusal = Refusal::NoUserfaultfd;
        for descriptor in process.userfaultfds().map_err(Refusal::Process)? {
            match Self::try_descriptor(descriptor, layout) {
                Ok(faults) => return Ok(faults),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    fn try_descriptor(descriptor: OwnedFd, layout: &Layout) -> Result<Userfaultfd, Refusal> {
        let faults = Userfaultfd::new(descriptor)?;
        Self::register(&faults, layout)?;
        Ok(faults)
    }

    /// Finds the descriptor by which a pager was leaving these regions when it was killed, among
    /// the descriptors of a process. The regions are not registered again, because pages that were
    /// missing then are zero since.
    pub(crate) fn find_left(process: &Process, layout: &Layout) -> Result<Userfaultfd, Refusal> {
        let mut refusal = Refusal::NoUserfaultfd;
        for descriptor in process.userfaultfds().map_err(Refusal::Process)? {
            let faults = Userfaultfd::new(descriptor)?;
            let mut regions = layout.regions().iter();
            match regions.try_for_each(|region| faults.unregister(&region.addresses())) {
                Ok(()) => return Ok(faults),
                Err(errno) => refusal = Refusal::Process(errno.into()),
            }
        }
        Err(refusal)
    }

    /// Makes every waiting thread repeat its access. The message of its fault may have been read
    /// and not handled.
    pub(crate) fn wake_all(&self) {
        for region in self.layout.regions() {
            let _ = self.faults.wake(&region.addresses());
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.pid()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.layout.bytes()
    }

    fn begun(&self) -> Bitmap<'_> {
        Bitmap(&self.begun)
    }

    fn supplied(&self) -> Bitmap<'_> {
        Bitmap(&self.supplied)
    }

    /// Returns the first of these offsets that lie outside of holes and were not supplied.
    fn missing(&self, offsets: Range<u64>) -> Option<Range<u64>> {
        let mut at = offsets.start;
        while let Some(data) = self.source.next_data(at..offsets.end) {
            let mut pages = data.start / base_page()..data.end.div_ceil(base_page());
            if let Some(first) = pages.find(|&page| !self.supplied().has(page)) {
                let behind = pages.find(|&page| self.supplied().has(page)).unwrap_or(pages.end);
                let start = (first * base_page()).max(offsets.start);
                return Some(start..(behind * base_page()).min(offsets.end));
            }
            at = data.end;
        }
        None
    }

    fn data(&self) -> Bitmap<'_> {
        self.state.data()
    }

    /// Returns the offsets of a block.
    fn offsets_of_block(&self, block: u64) -> Range<u64> {
        block * self.block..((block + 1) * self.block).min(self.layout.end())
    }

    /// Finds the bytes of a piece in the memory file, and reads them to `room` if they are not
    /// mapped.
    fn find(&self, piece: Piece, room: &mut [u8]) -> Result<Found, SourceError> {
        self.find_by(piece, room, |offset, to| self.source.read(offset, to))
    }

    /// Does the same, but `read` reads.
    fn find_by(
        &self,
        piece: Piece,
        room: &mut [u8],
        read: impl FnOnce(u64, &mut [u8]) -> Result<(), SourceError>,
    ) -> Result<Found, SourceError> {
        let offsets = piece.offsets();
        if self.source.next_data(offsets.clone()).is_none() {
            return self.source.check_unwritten().map(|()| Found::Hole);
        }
        if self.source.mapped(&offsets).is_some() {
            return Ok(Found::Mapped);
        }
        read(piece.offset, &mut room[..piece.len as usize])?;
        Ok(Found::Read)
    }

    /// Returns the found bytes; `None` for a hole.
    fn bytes_of<'b>(&'b self, piece: Piece, found: Found, room: &'b [u8]) -> Option<&'b [u8]> {
        match found {
            Found::Hole => None,
            Found::Mapped => self.source.mapped(&piece.offsets()),
            Found::Read => Some(&room[..piece.len as usize]),
        }
    }
}

/// The place of bytes of the memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// A hole: all bytes are zero.
    Hole,
    Mapped,
    /// In the buffer for them.
    Read,
}

/// Returns the base pages of these offsets.
fn pages_of(offsets: Range<u64>) -> Range<u64> {
    offsets.start / base_page()..offsets.end / base_page()
}
