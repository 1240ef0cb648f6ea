//! The memory to which a batch of a snapshot is read.
#![allow(unsafe_code)]

use std::ops::Range;

use super::source::SnapshotSource;
use crate::SnapshotError;
use crate::serving::lifecycle::LossCause;
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::private_pages::PrivateBytes;

/// The bytes that are read before the protection behind them is lifted. Lifting interrupts all CPUs that run this
/// process. A buffer has this many bytes.
pub(crate) const BATCH_BYTES: usize = HUGE_PAGE_BYTES;

/// The fewest bytes to read for which a buffer gets a huge page. If free memory is fragmented, the kernel takes
/// milliseconds to find one.
const WORTH_A_HUGE_PAGE: usize = 128 << 20;

/// A buffer for bytes that other code gets next. That code may be slow: no other thread waits for it.
#[derive(Debug)]
pub(crate) struct Buffer(PrivateBytes);

impl Buffer {
    /// Makes a buffer for reading `all` bytes, one batch after the other.
    pub(crate) fn new(all: usize) -> Result<Self, SnapshotError> {
        let bytes =
            PrivateBytes::new(BATCH_BYTES, BATCH_BYTES).map_err(SnapshotError::kernel("mmap"))?;
        if all >= WORTH_A_HUGE_PAGE {
            // A kernel without them has base pages.
            let _ = bytes.want_huge_pages();
        }
        Ok(Self(bytes))
    }

    /// Reads parts, each of one granule or one edge. Together they have at most the bytes of a batch.
    pub(super) fn read(
        &mut self,
        source: &SnapshotSource,
        parts: &[Range<usize>],
    ) -> Result<&[u8], LossCause> {
        let mut filled = 0;
        for part in parts {
            assert!(filled + part.len() <= BATCH_BYTES);
            // SAFETY: the bytes lie within the buffer, which is borrowed mutably and which the kernel may write.
            unsafe { source.read(part, self.0.start().wrapping_add(filled)) }?;
            filled += part.len();
        }
        Ok(self.bytes(filled))
    }

    /// Returns the first bytes of the buffer.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= BATCH_BYTES);
        // SAFETY: the buffer has `len` bytes, and the slice borrows it.
        unsafe { std::slice::from_raw_parts(self.0.start(), len) }
    }
}
