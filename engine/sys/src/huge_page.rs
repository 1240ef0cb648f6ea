//! The size that the engine is built around.

/// The length of a huge page on machines with base pages of 4 KiB: 2 MiB.
///
/// The same length is used for a folio on huge pages, for a granule of a snapshot, and for the
/// shortest chunk of a thread. The constant is the same on every machine, also if base pages have
/// 16 or 64 KiB and the kernel's huge pages are larger.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
