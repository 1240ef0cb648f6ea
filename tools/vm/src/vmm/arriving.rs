//! Memory that VMs are restored from while it is still copied from another VM.

use std::fmt::Debug;
use std::io;
use std::ops::Range;

/// Memory of a VM that another thread copies. Readers wait for the bytes that they need, and every
/// wait ends: with the bytes, or because the copy has failed.
pub(crate) trait Arriving: Debug + Send + Sync {
    /// Returns its number of bytes when all of them are there.
    fn bytes(&self) -> u64;

    /// Waits for bytes of `range`, from its start on, until a run of data is found: all other bytes
    /// before it are zero. `None` if there is none. Of a copy that has failed, all is data.
    fn next_data(&self, range: Range<u64>) -> Option<Range<u64>>;

    /// Waits for all of these bytes.
    ///
    /// # Errors
    /// The copy has failed.
    fn data(&self, range: &Range<u64>) -> io::Result<&[u8]>;
}
