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

use crate::bitmap::{Bitmap, words_of};
use crate::error::{Refusal, VmError};
use crate::layout::{Layout, Piece, base_page};
use crate::process::Process;
use crate::source::{Source, SourceError};
use crate::state::State;
use crate::userfaultfd::Userfaultfd;

pub(crate) use demand::Server;
pub(crate) use wait::Bell;

/// Why a VM is served no longer.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Its process has ended.
    Ended,
    /// The pager is to end.
    Asked,
    /// A page cannot be supplied.
    Failed(VmError),
}

/// What is known of a VM. One thread supplies its pages; another one reads this to read ahead.
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
    /// Base pages that have data and are there, by offset.
    data: Vec<AtomicU64>,
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
        let words = |bits| (0..words_of(bits)).map(|_| AtomicU64::new(0)).collect();
        let done = words(layout.end().div_ceil(block));
        let data = words(layout.end() / base_page());
        Self { process, faults, layout, source, state, block, done, data }
    }

    /// Has this descriptor serve all regions, which it does already unless the VMM lied.
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

    /// Of the descriptors that a process has, the one that serves these regions.
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

    /// Ends what a pager was doing that was killed while it left a VM. What was not there then is
    /// zero since.
    pub(crate) fn finish_leaving(
        process: &Process,
        layout: &Layout,
        state: &State,
    ) -> Result<(), Refusal> {
        for descriptor in process.userfaultfds().map_err(Refusal::Process)? {
            let faults = Userfaultfd::new(descriptor)?;
            for region in layout.regions() {
                let refused = |errno: rustix::io::Errno| Refusal::Process(errno.into());
                faults.unregister(&region.addresses()).map_err(refused)?;
            }
            let unregistered = layout.regions()[0].addresses();
            while faults.is_changing(&unregistered) && !process.has_ended() {
                let read = faults.read(state.messages());
                read.map_err(|errno| Refusal::Process(errno.into()))?;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        state.remove();
        Ok(())
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

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    fn done(&self) -> Bitmap<'_> {
        Bitmap(&self.done)
    }

    fn data(&self) -> Bitmap<'_> {
        Bitmap(&self.data)
    }

    /// Offsets of a block.
    fn offsets_of_block(&self, block: u64) -> Range<u64> {
        block * self.block..((block + 1) * self.block).min(self.layout.end())
    }

    /// The bytes of a piece in the memory file; `None` of a hole.
    fn read<'b>(&self, piece: Piece, to: &'b mut [u8]) -> Result<Option<&'b [u8]>, SourceError> {
        if self.source.next_data(piece.offset..piece.offset + piece.len).is_none() {
            return self.source.check_length().map(|()| None);
        }
        let to = &mut to[..piece.len as usize];
        self.source.read(piece.offset, to)?;
        Ok(Some(to))
    }
}

/// Base pages of these offsets.
fn pages_of(offsets: Range<u64>) -> Range<u64> {
    offsets.start / base_page()..offsets.end / base_page()
}
