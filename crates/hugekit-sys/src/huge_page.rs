//! The size that the engine is built around.

/// Bytes of a huge page where base pages have 4 KiB: a folio of a pool on huge pages, a granule of
/// a snapshot, and the least that is worth a thread's while.
///
/// It is what this library works in, whatever the machine; what the kernel calls huge is another
/// size where base pages have 16 or 64 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
