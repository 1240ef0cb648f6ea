//! The last three durations of a routine, in one word. So threads and signal handlers share the
//! word without a lock. If two of them write at once, one sample is lost, and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a sample. Three samples leave one bit unused.
const BITS: u32 = 21;
const SAMPLE: u64 = (1 << BITS) - 1;
const ALL: u64 = (1 << (3 * BITS)) - 1;

/// Time per byte, in 1/256 of a tick per KiB. 0 means no sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimePerByte(pub(super) u64);

impl TimePerByte {
    /// Returns the cost of `bytes`, which must not be 0. A time that does not fit a sample counts
    /// as the longest sample, for example if the kernel had to find the memory first.
    pub(super) fn of(ticks: u64, bytes: usize) -> Self {
        Self((ticks.saturating_mul(256 << 10) / bytes as u64).clamp(1, SAMPLE))
    }

    /// Returns a cost that is higher by `by` parts of `of`.
    pub(super) fn raised(self, by: u64, of: u64) -> Self {
        Self(self.0 + self.0 * by / of)
    }
}

#[derive(Debug, Default)]
pub(super) struct Samples(AtomicU64);

impl Samples {
    pub(super) const fn none() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds a sample and discards the oldest sample.
    pub(super) fn push(&self, cost: TimePerByte) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store((word << BITS | cost.0) & ALL, Ordering::Relaxed);
    }

    /// Returns the usual cost: the median of three samples. So neither a thread that lost its CPU
    /// nor memory that happened to be in the cache decides.
    pub(super) fn usual(&self) -> Option<TimePerByte> {
        let word = self.0.load(Ordering::Relaxed);
        // By hand: a handler of signals has no stack for a sort.
        let [a, b, c] = [0, 1, 2].map(|place| word >> (place * BITS) & SAMPLE);
        let (least, most) = (a.min(b).min(c), a.max(b).max(c));
        match (least, a + b + c - least - most, most) {
            (_, _, 0) => None,
            (0, 0, only) => Some(TimePerByte(only)),
            (0, less, more) => Some(TimePerByte(less.midpoint(more))),
            (_, middle, _) => Some(TimePerByte(middle)),
        }
    }

    /// Returns the least of the last three costs.
    pub(super) fn best(&self) -> Option<TimePerByte> {
        let word = self.0.load(Ordering::Relaxed);
        let samples = [0, 1, 2].map(|place| word >> (place * BITS) & SAMPLE);
        samples.into_iter().filter(|&sample| sample != 0).min().map(TimePerByte)
    }

    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual(costs: &[u64]) -> Option<u64> {
        let samples = Samples::none();
        costs.iter().for_each(|&cost| samples.push(TimePerByte(cost)));
        samples.usual().map(|cost| cost.0)
    }

    #[test]
    fn usual_of_three_is_the_middle_one_and_older_ones_are_forgotten() {
        assert_eq!(usual(&[]), None);
        assert_eq!(usual(&[7]), Some(7));
        assert_eq!(usual(&[7, 9]), Some(8));
        assert_eq!(usual(&[900, 7, 9]), Some(9));
        assert_eq!(usual(&[1, 1, 1, 50, 60]), Some(50));
        assert_eq!(usual(&[SAMPLE, SAMPLE, SAMPLE]), Some(SAMPLE));
    }

    #[test]
    fn best_of_three_is_the_least_that_there_is() {
        let samples = Samples::none();
        assert_eq!(samples.best(), None);
        [5, 7, 9].into_iter().for_each(|cost| samples.push(TimePerByte(cost)));
        assert_eq!(samples.best(), Some(TimePerByte(5)));
        samples.push(TimePerByte(8));
        assert_eq!(samples.best(), Some(TimePerByte(7)));
    }

    #[test]
    fn cost_of_any_time_is_a_sample() {
        assert_eq!(TimePerByte::of(0, 1 << 20), TimePerByte(1));
        assert_eq!(TimePerByte::of(u64::MAX, 1), TimePerByte(SAMPLE));
        assert_eq!(TimePerByte::of(1000, 1 << 10), TimePerByte(256_000));
        assert_eq!(TimePerByte(300).raised(1, 3), TimePerByte(400));
    }
}
