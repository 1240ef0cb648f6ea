//! Where the memory of a VM is copied to: a file, or memory that children are restored from.

use std::fmt::Debug;
use std::io;

use crate::error::CheckpointError;

/// Bytes that are zero until they are put. One thread copies.
pub(crate) trait Sink: Debug {
    /// The state of the devices is saved, and the VM runs again. Memory may have been put before.
    fn begin(&self, _state: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// Puts bytes at an offset of the VM's memory.
    fn put(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// All bytes of a granule were put.
    fn end(&self, _granule: usize) {}

    /// A granule that a reader waits for.
    fn wanted(&self) -> Option<usize> {
        None
    }

    fn refused(&self, source: io::Error) -> CheckpointError;
}
