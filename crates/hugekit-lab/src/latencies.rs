//! Latencies, counted by how long they were.

use hdrhistogram::Histogram;

/// A minute: longer than anything that is waited for.
const LONGEST_NS: u64 = 60_000_000_000;

/// Of nanoseconds, to so many digits; none so far.
pub(crate) fn latencies(digits: u8) -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_NS, digits).expect("a range and precision that it has")
}
