//! A VM with a record of the memory that may differ from the moment that was saved last: all
//! granules that are not protected.
//!
//! A protected granule equals that moment. The first access that would change it releases it. The
//! VM then writes to it as to any memory, and the next checkpoint reads it. So the amount of
//! protected memory only falls until memory is protected again.

use std::time::Duration;

use hugekit_sys::poll::readable;
use hugekit_sys::thread::spawn_scoped;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::granule_state::{GranuleEvent, GranuleState};
use crate::checkpoint::granules::Granules;
use crate::checkpoint::vm::Vm;
use crate::vmm::Message;

/// The longest time between two checks for actions of another thread.
const LOOK: Duration = Duration::from_millis(1);

/// The highest number of attempts to protect the memory of a VM that releases memory meanwhile.
const PROTECT_TRIES: u32 = 100;

/// The protection that a checkpoint leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// No protection: memory is released when it is copied.
    Released,
    /// All memory that the VM has not written since stays protected, because another checkpoint
    /// follows.
    Protected,
}

/// A VM whose writes are recorded.
#[derive(Debug)]
pub(crate) struct TrackedVm {
    pub(crate) vm: Vm,
    pub(crate) granules: Granules,
    /// The state of each granule.
    states: Vec<GranuleState>,
    pub(crate) afterwards: Afterwards,
}

impl TrackedVm {
    /// Makes the record of a VM that was never saved, so all memory counts as written.
    pub(crate) fn new(vm: Vm, afterwards: Afterwards) -> Self {
        let granules = Granules::of(&vm.regions);
        let states = vec![GranuleState::NEW; granules.len()];
        Self { vm, granules, states, afterwards }
    }

    pub(crate) fn state(&self, index: usize) -> GranuleState {
        self.states[index]
    }

    pub(crate) fn has_copies(&self) -> bool {
        self.states.iter().any(|state| matches!(state, GranuleState::Copied { .. }))
    }

    /// Records an event of a granule.
    pub(crate) fn note(&mut self, index: usize, event: GranuleEvent) {
        self.states[index] = self.states[index].after(event);
    }

    /// Records an event of all granules.
    pub(crate) fn note_all(&mut self, event: GranuleEvent) {
        self.states.iter_mut().for_each(|state| *state = state.after(event));
    }

    /// Protects all memory, because a moment is about to be chosen.
    pub(crate) fn protect(&mut self) -> Result<(), CheckpointError> {
        for _ in 0..PROTECT_TRIES {
            self.note_all(GranuleEvent::Protect);
            if self.vm.protect()? {
                return Ok(());
            }
            self.settle()?;
        }
        Err(CheckpointError::Restless)
    }

    /// Leaves a granule to the VM, and wakes the threads that wait for it.
    pub(crate) fn release(&mut self, index: usize) -> Result<(), CheckpointError> {
        self.note(index, GranuleEvent::Release);
        self.vm.release(&self.granules[index].addresses)
    }

    /// Protects a granule again. Returns `false` if a thread of the VM is releasing memory.
    pub(crate) fn protect_one(&mut self, index: usize) -> Result<bool, CheckpointError> {
        let is_protected = self.vm.protect_addresses(&self.granules[index].addresses)?;
        if is_protected {
            self.note(index, GranuleEvent::Protect);
        }
        Ok(is_protected)
    }

    /// Leaves all memory to the VM.
    pub(crate) fn release_all(&mut self) -> Result<(), CheckpointError> {
        self.note_all(GranuleEvent::Release);
        self.vm.release_regions()?;
        self.settle()
    }

    /// Reads all messages of the VM, and releases the granules in them.
    pub(crate) fn note_writes(&mut self) -> Result<(), CheckpointError> {
        let Self { vm, granules, states, .. } = self;
        while let Some(message) = vm.read_message()? {
            answer(vm, granules, states, &message)?;
        }
        Ok(())
    }

    /// Records writes while another thread acts, because the VM may have to write before it
    /// answers. If nothing is protected, this thread acts.
    pub(crate) fn note_writes_while<T: Send>(
        &mut self,
        act: impl FnOnce() -> Result<T, CheckpointError> + Send,
    ) -> Result<T, CheckpointError> {
        if self.afterwards == Afterwards::Released {
            return act();
        }
        std::thread::scope(|scope| {
            let thread = spawn_scoped(scope, "hugekit-act", act);
            let thread = thread.map_err(|source| self.vm.refused("watch", source))?;
            while !thread.is_finished() {
                if let Err(error) = self.note_writes() {
                    // The thread must not wait for the VM, nor the VM for the thread.
                    let _ = self.release_all();
                    return Err(error);
                }
                let _ = readable([self.vm.process.as_fd(), self.vm.faults.as_fd()], Some(LOOK));
            }
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Records writes until no thread of the VM that releases memory waits.
    pub(crate) fn settle(&mut self) -> Result<(), CheckpointError> {
        let Self { vm, granules, states, .. } = self;
        vm.settle(&mut |message| answer(vm, granules, states, &message))
    }
}

/// Releases the granules in a message.
fn answer(
    vm: &Vm,
    granules: &Granules,
    states: &mut [GranuleState],
    message: &Message,
) -> Result<(), CheckpointError> {
    let mut release = |index: usize, event| {
        states[index] = states[index].after(event);
        vm.release(&granules[index].addresses)
    };
    match *message {
        Message::Fault(address) => {
            granules.at(address).map_or(Ok(()), |index| release(index, GranuleEvent::Release))
        }
        Message::Removed { start, end } => granules
            .of_addresses(&(start..end))
            .try_for_each(|index| release(index, GranuleEvent::GiveBack)),
    }
}
