//! Memory that a batch of a snapshot is read to.
#![allow(unsafe_code)]

use std::ops::Range;

use super::source::SnapshotSource;
use crate::SnapshotError;
use crate::serving::lifecycle::LossCause;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::private_pages::PrivateBytes;

/// Bytes that are read before the protection behind them is lifted: every time, all CPUs that run this process
/// are interrupted. A buffer has as many.
pub(crate) const BATCH_BYTES: usize = HUGE_PAGE_BYTES;

/// With less to read, a buffer is on base pages: where free memory is in pieces, the kernel takes milliseconds to find a
/// huge one.
const WORTH_A_HUGE_PAGE: usize = 128 << 20;

/// A buffer for bytes before other code sees them, so that this code may take its time.
#[derive(Debug)]
pub(crate) struct Buffer(PrivateBytes);

impl Buffer {
    /// Makes a buffer for so many bytes, one batch after the other.
    pub(crate) fn new(all: usize) -> Result<Self, SnapshotError> {
        let bytes =
            PrivateBytes::new(BATCH_BYTES, BATCH_BYTES).map_err(SnapshotError::kernel("mmap"))?;
        if all >= WORTH_A_HUGE_PAGE {
            // A kernel without them has base pages.
            let _ = bytes.want_huge_pages();
        }
        Ok(Self(bytes))
    }

    /// Reads parts of one granule or one edge each, no more than a batch in all.
    pub(super) fn read(
        &mut self,
        source: &SnapshotSource,
        parts: &[Range<usize>],
    ) -> Result<&[u8], LossCause> {
        let mut filled = 0;
        for part in parts {
            assert!(filled + part.len() <= BATCH_BYTES);
            // SAFETY: within the buffer, which is borrowed mutably, and which the kernel may write.
            unsafe { source.read(part, self.0.start().wrapping_add(filled)) }?;
            filled += part.len();
        }
        Ok(self.bytes(filled))
    }

    /// The first bytes of it.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= BATCH_BYTES);
        // SAFETY: so many bytes of the buffer, borrowed as it is.
        unsafe { std::slice::from_raw_parts(self.0.start(), len) }
    }
}
