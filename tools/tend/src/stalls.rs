//! The share of time in which the tender itself waits for memory.
//!
//! The kernel counts each task that reclaims or moves pages as one that waits for memory. So the tender's own requests for
//! free blocks raise the pressure by which it decides whether others are short of memory. It subtracts its own part.

use std::time::{Duration, Instant};

/// The kernel averages `avg10` over this time, ...
const AVERAGED: Duration = Duration::from_secs(10);

/// ... and computes the average every two seconds: meanwhile its value is up to e^(2/10) times as large.
const LATE: f64 = 1.25;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stalls {
    share: f64,
    since: Option<Instant>,
}

impl Stalls {
    /// After a wait that ended now.
    pub(crate) fn add(&mut self, stalled: Duration, now: Instant) {
        self.share = self.share_at(now) + stalled.as_secs_f64() / AVERAGED.as_secs_f64();
        self.since = Some(now);
    }

    fn share_at(&self, now: Instant) -> f64 {
        let Some(since) = self.since else { return 0.0 };
        let ago = now.saturating_duration_since(since).as_secs_f64();
        self.share * (-ago / AVERAGED.as_secs_f64()).exp()
    }

    /// Returns the part of this pressure that is not the tender's own, both in percent.
    pub(crate) fn of_others(&self, pressure: f64, now: Instant) -> f64 {
        (pressure - self.share_at(now) * LATE * 100.0).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_waits_are_no_pressure_of_others_and_are_forgotten_like_the_kernels() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(Stalls::default().of_others(7.0, start), 7.0);
        let mut stalls = Stalls::default();
        // A quarter of a minute's time, as the kernel counts it: an average every two seconds.
        let mut average = 0.0;
        for tick in 1..=30 {
            let now = start + tick * second * 2;
            stalls.add(second / 2, now);
            average = 25.0 + (average - 25.0) * (-0.2_f64).exp();
            assert_eq!(stalls.of_others(average, now), 0.0, "{tick}");
            assert!(stalls.of_others(average + 20.0, now) > 5.0, "{tick}: others wait, too");
        }
        let later = start + 60 * second + 100 * second;
        assert!(stalls.of_others(6.0, later) > 5.9);
    }
}
