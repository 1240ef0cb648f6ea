//! The size that the engine is built around.

/// Bytes of a huge page on machines with base pages of 4 KiB: 2 MiB.
///
/// It is the length of a folio on huge pages and of a snapshot's granule, and the shortest chunk
/// for a thread. It is the same on every machine, also if base pages have 16 or 64 KiB and the
/// kernel's huge pages are larger.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
