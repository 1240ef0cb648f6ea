//! Memory from which VMs are restored while it is still being copied from another VM.

use std::fmt::Debug;
use std::io;
use std::ops::Range;

/// Memory of a VM that another thread copies. Readers wait for the bytes that they need. Every wait
/// ends: with the bytes, or because the copy has failed.
pub(crate) trait Arriving: Debug + Send + Sync {
    /// Returns the length of the complete memory in bytes.
    fn bytes(&self) -> u64;

    /// Waits for bytes of `range`, from its start on, until a run of data is found. All bytes
    /// before that run are zero. `None` if there is no data. If the copy has failed, all bytes
    /// count as data.
    fn next_data(&self, range: Range<u64>) -> Option<Range<u64>>;

    /// Waits for all of these bytes.
    ///
    /// # Errors
    /// An error if the copy has failed.
    fn data(&self, range: &Range<u64>) -> io::Result<&[u8]>;
}
