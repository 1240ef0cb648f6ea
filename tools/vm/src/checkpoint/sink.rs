//! Destinations of a copy of a VM's memory: a file, a delta, or memory from which children are
//! restored.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::checkpoint::error::CheckpointError;

/// A destination of a copy. Bytes are zero until they are put. One thread copies.
pub(crate) trait Sink: Debug {
    /// Discards all bytes, because they are of a moment that is not saved: all bytes are zero
    /// again.
    fn restart(&self) -> io::Result<()>;

    /// Called when the state of the devices is saved and the VM runs again. Memory may have been
    /// put before.
    fn begin(&self, _state: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// Begins the turn of these offsets, which follow on the offsets before. Their bytes were put
    /// already, or are put next.
    fn turn(&self, _offsets: &Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Skips these offsets, which follow on the offsets before. They are unchanged since the
    /// previous state.
    fn skip(&self, _offsets: &Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Returns true if a granule with bytes other than zero should be put in one piece, so that a
    /// file system makes one huge page of its cache.
    fn wants_whole_granules(&self) -> bool {
        false
    }

    /// Puts bytes at an offset of the VM's memory. Bytes of later turns may come early.
    fn put(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Ends a granule: all of its bytes were put.
    fn end(&self, _granule: usize) {}

    /// Returns a granule that a reader waits for.
    fn wanted(&self) -> Option<usize> {
        None
    }

    /// Returns a descriptor while children are being restored. The copy should then only copy
    /// granules that a reader waits for, because the restores need the CPUs. The descriptor is
    /// readable as soon as a reader wants a granule. Signals before this call are forgotten.
    fn rest(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn refused(&self, source: io::Error) -> CheckpointError;
}
