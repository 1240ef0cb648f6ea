//! One VM: its memory, and what of it is there.

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

use crate::firecracker::layout::{Layout, Piece, base_page};
use crate::pager::bitmap::{Bitmap, words_of};
use crate::pager::error::{Refusal, VmError};
use crate::pager::event::Completed;
use crate::pager::source::{Source, SourceError};
use crate::pager::state::State;
use crate::vmm::RegionOrder;
use crate::vmm::process::Process;
use crate::vmm::userfaultfd::Userfaultfd;

pub(crate) use demand::serve;
pub(crate) use wait::Bell;

/// The reason why a VM is served no longer.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Its process has ended.
    Ended,
    /// The pager is to end.
    Asked,
    /// All of its memory is there, and left to the kernel.
    Left(Completed),
    /// A page cannot be supplied.
    Failed(VmError),
}

/// A VM that is served. One thread supplies its pages; another one reads this to read ahead.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) process: Process,
    faults: Userfaultfd,
    layout: Layout,
    source: Arc<Source>,
    state: State,
    /// Bytes of a block: what one fault brings in. Blocks are counted by offset.
    block: u64,
    /// Blocks all of whose data is there.
    done: Vec<AtomicU64>,
}

impl Vm {
    pub(crate) fn new(
        process: Process,
        faults: Userfaultfd,
        layout: Layout,
        source: Arc<Source>,
        state: State,
        around: u64,
    ) -> Self {
        let block = around.max(layout.page());
        let words = words_of(layout.end().div_ceil(block));
        let done = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { process, faults, layout, source, state, block, done }
    }

    /// Has this descriptor serve all regions, which it does already unless the VMM lied, and keep
    /// their order.
    pub(crate) fn register(faults: &Userfaultfd, layout: &Layout) -> Result<(), Refusal> {
        for region in layout.regions() {
            let refused = |errno: rustix::io::Errno| Refusal::NotRegistered {
                start: region.start,
                source: errno.into(),
            };
            faults.register(&region.addresses()).map_err(refused)?;
        }
        if let Some(order) = RegionOrder::of(layout) {
            faults.keep_order(order);
        }
        Ok(())
    }

    /// Finds the descriptor that serves these regions, among those that a process has.
    pub(crate) fn find_userfaultfd(
        process: &Process,
        layout: &Layout,
    ) -> Result<Userfaultfd, Refusal> {
        let mut refusal = Refusal::Descriptors(0);
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

    /// Finds the descriptor by which a pager was leaving these regions when it was killed, among those that a process
    /// has. The regions are not registered again: pages that were not there then are zero since.
    pub(crate) fn find_left(process: &Process, layout: &Layout) -> Result<Userfaultfd, Refusal> {
        let mut refusal = Refusal::Descriptors(0);
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

    /// Has every thread that waits try again: the message of its fault may have been read and not
    /// answered.
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

    fn done(&self) -> Bitmap<'_> {
        Bitmap(&self.done)
    }

    fn data(&self) -> Bitmap<'_> {
        self.state.data()
    }

    /// Offsets of a block.
    fn offsets_of_block(&self, block: u64) -> Range<u64> {
        block * self.block..((block + 1) * self.block).min(self.layout.end())
    }

    /// Finds the bytes of a piece in the memory file, and reads them to `room` if they are not
    /// mapped.
    fn find(&self, piece: Piece, room: &mut [u8]) -> Result<Found, SourceError> {
        let offsets = piece.offsets();
        if self.source.next_data(offsets.clone()).is_none() {
            return self.source.check_length().map(|()| Found::Hole);
        }
        if self.source.mapped(&offsets).is_some() {
            return Ok(Found::Mapped);
        }
        self.source.read(piece.offset, &mut room[..piece.len as usize])?;
        Ok(Found::Read)
    }

    /// The bytes that were found; `None` of a hole.
    fn bytes_of<'b>(&'b self, piece: Piece, found: Found, room: &'b [u8]) -> Option<&'b [u8]> {
        match found {
            Found::Hole => None,
            Found::Mapped => self.source.mapped(&piece.offsets()),
            Found::Read => Some(&room[..piece.len as usize]),
        }
    }
}

/// The place of some bytes of the memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// All of them are zero.
    Hole,
    Mapped,
    /// In the room for them.
    Read,
}

/// Base pages of these offsets.
fn pages_of(offsets: Range<u64>) -> Range<u64> {
    offsets.start / base_page()..offsets.end / base_page()
}
