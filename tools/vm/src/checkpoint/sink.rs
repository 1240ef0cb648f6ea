//! Where the memory of a VM is copied to: a file, a delta, or memory that children are restored from.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::checkpoint::error::CheckpointError;

/// Bytes that are zero until they are put. One thread copies.
pub(crate) trait Sink: Debug {
    /// Bytes that were put so far are of a moment that is not saved: all bytes are zero again.
    fn restart(&self) -> io::Result<()>;

    /// The state of the devices is saved, and the VM runs again. Memory may have been put before.
    fn begin(&self, _state: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// It is the turn of these offsets, which follow on those before. Their bytes were put already,
    /// or are put next.
    fn turn(&self, _offsets: &Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// These offsets, which follow on those before, are as they were in the state before.
    fn skip(&self, _offsets: &Range<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Returns true if a granule with other bytes than zeroes should be put in one piece: a file system makes one huge
    /// page of its cache of that.
    fn wants_whole_granules(&self) -> bool {
        false
    }

    /// Puts bytes at an offset of the VM's memory. Bytes of later turns may come early.
    fn put(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// All bytes of a granule were put.
    fn end(&self, _granule: usize) {}

    /// Returns a granule that a reader waits for.
    fn wanted(&self) -> Option<usize> {
        None
    }

    /// While children are being restored, nothing should be copied that no reader waits for: they need
    /// the CPUs. The descriptor is readable as soon as a granule is wanted. Rings before this call are
    /// forgotten.
    fn rest(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn refused(&self, source: io::Error) -> CheckpointError;
}
