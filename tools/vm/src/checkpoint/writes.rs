//! Which memory the VM may have written: all granules that are not protected.
//!
//! A granule that is protected is as it was at the moment that was saved last. The first access that
//! would change it releases it: the VM then writes to it as to any memory, and the next checkpoint
//! reads it. So protected memory only becomes less until it is protected again.

use std::ops::Range;
use std::time::Duration;

use crate::vmm::Message;
use hugekit_sys::thread::spawn_scoped;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::granules::{Granule, granules};
use crate::checkpoint::vm::{Vm, readable};

/// How long it is not looked whether another thread has acted.
const LOOK: Duration = Duration::from_millis(1);

/// How often memory is protected of a VM that gives memory back meanwhile.
const PROTECT_TRIES: u32 = 100;

/// What a checkpoint leaves of the protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// Nothing: memory is released when it is copied.
    Released,
    /// All memory that the VM has not written since: another checkpoint follows.
    Protected,
}

/// The granules of a VM, and which of them may have changed.
#[derive(Debug)]
pub(crate) struct Writes {
    pub(crate) granules: Vec<Granule>,
    pub(crate) afterwards: Afterwards,
    /// May have been written between the moment that was saved last and the next one.
    is_written: Vec<bool>,
    /// Were released since all memory was protected.
    is_released: Vec<bool>,
    /// Have memory that was given back: the message comes before the memory is gone, so they are read
    /// once more by the checkpoint after the next.
    is_removed: Vec<bool>,
}

impl Writes {
    /// Nothing is saved yet, so all memory counts as written.
    pub(crate) fn new(vm: &Vm, afterwards: Afterwards) -> Self {
        let granules: Vec<Granule> = granules(&vm.regions).collect();
        let [is_written, is_released] = [true; 2].map(|is| vec![is; granules.len()]);
        let is_removed = vec![false; granules.len()];
        Self { granules, afterwards, is_written, is_released, is_removed }
    }

    pub(crate) fn is_written(&self, index: usize) -> bool {
        self.is_written[index]
    }

    /// The granule of an address of the VM.
    pub(crate) fn index_of(&self, address: u64) -> Option<usize> {
        self.granules.iter().position(|granule| granule.addresses.contains(&address))
    }

    /// Protects all memory: the next moment is about to be chosen. Granules that were released
    /// before may have been written.
    pub(crate) fn protect(&mut self, vm: &Vm) -> Result<(), CheckpointError> {
        for _ in 0..PROTECT_TRIES {
            for (written, released) in self.is_written.iter_mut().zip(&mut self.is_released) {
                *written |= std::mem::take(released);
            }
            if vm.protect()? {
                return Ok(());
            }
            self.settle(vm)?;
        }
        Err(CheckpointError::Restless)
    }

    /// The moment after the last protection is saved. Only granules that were
    /// released since may differ.
    pub(crate) fn saved(&mut self) {
        for (written, removed) in self.is_written.iter_mut().zip(&mut self.is_removed) {
            *written = std::mem::take(removed);
        }
    }

    /// All memory counts as written.
    pub(crate) fn forget(&mut self) {
        self.is_written.fill(true);
    }

    /// Leaves a granule to the VM, and wakes who waits for it.
    pub(crate) fn release(&mut self, vm: &Vm, index: usize) -> Result<(), CheckpointError> {
        self.is_released[index] = true;
        vm.release(&self.granules[index].addresses)
    }

    /// Leaves all memory to the VM.
    pub(crate) fn release_all(&mut self, vm: &Vm) -> Result<(), CheckpointError> {
        self.is_released.fill(true);
        vm.release_all()
    }

    /// Reads all messages of the VM, and releases the granules that they name.
    pub(crate) fn note(&mut self, vm: &Vm) -> Result<(), CheckpointError> {
        while let Some(message) = vm.read_message()? {
            self.heed(vm, &message)?;
        }
        Ok(())
    }

    /// Notes writes while another thread acts: the VM may have to write before it answers. If nothing
    /// is protected, this thread acts.
    pub(crate) fn note_while<T: Send>(
        &mut self,
        vm: &Vm,
        act: impl FnOnce() -> Result<T, CheckpointError> + Send,
    ) -> Result<T, CheckpointError> {
        if self.afterwards == Afterwards::Released {
            return act();
        }
        std::thread::scope(|scope| {
            let thread = spawn_scoped(scope, "hugekit-act", act);
            let thread = thread.map_err(|source| vm.refused("watch", source))?;
            while !thread.is_finished() {
                if let Err(error) = self.note(vm) {
                    // The thread must not wait for the VM, nor the VM for the thread.
                    let _ = self.release_all(vm);
                    return Err(error);
                }
                readable([vm.process.as_fd(), vm.faults.as_fd()], LOOK);
            }
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Notes writes until no thread of the VM waits that gives memory back.
    pub(crate) fn settle(&mut self, vm: &Vm) -> Result<(), CheckpointError> {
        vm.settle(&mut |message| self.heed(vm, &message))
    }

    fn heed(&mut self, vm: &Vm, message: &Message) -> Result<(), CheckpointError> {
        match *message {
            Message::Fault(address) => {
                self.index_of(address).map_or(Ok(()), |index| self.release(vm, index))
            }
            Message::Removed { start, end } => {
                for index in self.indexes_of(&(start..end)) {
                    self.is_removed[index] = true;
                    self.release(vm, index)?;
                }
                Ok(())
            }
        }
    }

    /// The granules that have any of these addresses.
    fn indexes_of(&self, addresses: &Range<u64>) -> Vec<usize> {
        let overlaps = |granule: &Granule| {
            granule.addresses.start < addresses.end && addresses.start < granule.addresses.end
        };
        (0..self.granules.len()).filter(|&index| overlaps(&self.granules[index])).collect()
    }
}
