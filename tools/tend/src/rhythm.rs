//! How soon a process forks again after a child has ended, and the pace that a pass needs to end before.

use std::time::{Duration, Instant};

/// The share of time in which collapses may hold locks of a process's memory map: its page faults wait then.
const LOCKED: f64 = 0.25;

/// The same if the process is likely to fork before the pass would end.
const LOCKED_AT_MOST: f64 = 0.5;

/// A pass is to end in this part of the time until the next fork: the time varies.
const MARGIN: f64 = 0.5;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rhythm {
    /// When the last child ended.
    ended: Option<Instant>,
    /// From the end of a child to the next fork, the last time.
    gap: Option<Duration>,
    /// The mean time of a collapse in the last pass.
    collapse: Duration,
}

impl Rhythm {
    /// A child was seen that is the only one.
    pub(crate) fn forked(&mut self, now: Instant) {
        self.gap = self.ended.take().map(|ended| now.saturating_duration_since(ended)).or(self.gap);
    }

    /// The last child has ended.
    pub(crate) fn ended(&mut self, now: Instant) {
        self.ended = Some(now);
    }

    /// After a pass whose collapses took so long together.
    pub(crate) fn passed(&mut self, collapses: u64, took: Duration) {
        if let Ok(collapses @ 1..) = u32::try_from(collapses) {
            self.collapse = took / collapses;
        }
    }

    /// Returns the share of time that the collapses of a pass may take.
    pub(crate) fn share_for(&self, ranges: usize) -> f64 {
        let Some(gap) = self.gap else { return LOCKED };
        let needed = self.collapse.as_secs_f64() * ranges as f64;
        (needed / (gap.as_secs_f64() * MARGIN)).clamp(LOCKED, LOCKED_AT_MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_takes_a_larger_share_only_when_the_next_fork_comes_soon() {
        let (start, milli) = (Instant::now(), Duration::from_millis(1));
        // The gap in milliseconds, the time of a collapse, and the ranges.
        let rows = [
            (None, 10, 10_000, LOCKED),
            (Some(60_000), 1, 1000, LOCKED),
            (Some(5000), 1, 1000, 0.4),
            (Some(2000), 1, 1000, LOCKED_AT_MOST),
            (Some(2000), 1, 100, LOCKED),
            (Some(0), 1, 1, LOCKED_AT_MOST),
            (Some(2000), 0, 1000, LOCKED),
        ];
        for (gap, collapse, ranges, expected) in rows {
            let mut rhythm = Rhythm::default();
            rhythm.forked(start);
            if let Some(gap) = gap {
                rhythm.ended(start);
                rhythm.forked(start + gap * milli);
            }
            rhythm.passed(10, 10 * collapse * milli);
            rhythm.passed(0, Duration::ZERO);
            assert_eq!(rhythm.share_for(ranges), expected, "{gap:?} {collapse} {ranges}");
        }
    }
}
