//! How long a run of several experiments still takes, judged by those that have ended.

use std::time::{Duration, Instant};

/// The time of an experiment before one has ended here. The first one corrects it.
const USUAL: Duration = Duration::from_secs(18);

/// The time that a run has left.
#[derive(Debug)]
pub(super) struct TimeLeft {
    experiments: u32,
    /// The one that runs, counted from 1, and when it began.
    number: u32,
    began: Instant,
    /// When the first one began.
    started: Instant,
}

impl TimeLeft {
    pub(super) fn of(experiments: usize, now: Instant) -> Self {
        let experiments = u32::try_from(experiments).unwrap_or(u32::MAX);
        Self { experiments, number: 1, began: now, started: now }
    }

    pub(super) fn start_experiment(&mut self, number: usize, now: Instant) {
        self.number = u32::try_from(number).unwrap_or(u32::MAX);
        self.began = now;
    }

    /// Behind the time that has passed.
    pub(super) fn words(&self, now: Instant) -> String {
        match self.at(now).as_secs() {
            0..10 => ", some seconds left".to_owned(),
            seconds @ 10..90 => format!(", about {} s left", seconds.next_multiple_of(10)),
            seconds => format!(", about {} min left", (seconds + 30) / 60),
        }
    }

    fn at(&self, now: Instant) -> Duration {
        let ended = self.number - 1;
        let each = (self.began - self.started).checked_div(ended).unwrap_or(USUAL);
        each * (self.experiments - self.number) + each.saturating_sub(now - self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_the_experiments_that_have_ended() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut left = TimeLeft::of(3, start);
        assert_eq!(left.words(after(4)), ", about 50 s left");
        assert_eq!(left.words(after(50)), ", about 40 s left", "two more, and this one any moment");
        left.start_experiment(2, after(100));
        assert_eq!(left.words(after(100)), ", about 3 min left");
        left.start_experiment(3, after(200));
        assert_eq!(left.words(after(295)), ", some seconds left");
        assert_eq!(left.words(after(400)), ", some seconds left");
    }
}
