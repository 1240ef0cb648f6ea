//! The pace of collapses: rests after work, for all processes of a tender together.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A collapse that lasts longer waits for something, and other collapses need not wait for it.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// The order of collapses: one collapse at a time, and rests between collapses.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<PaceState>);

#[derive(Clone, Copy, Debug, Default)]
struct PaceState {
    /// The start of the current collapse.
    working: Option<Instant>,
    /// The end of the last rest.
    rested: Option<Instant>,
}

/// The permission to collapse, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pace: &'a Pace,
    since: Instant,
    rest: Duration,
}

impl Pace {
    /// Returns a turn, or the time to wait before the next attempt.
    pub(crate) fn start_turn(&self) -> Result<Turn<'_>, Duration> {
        let now = Instant::now();
        let mut state = self.state();
        let until = state.working.map(|since| since + STUCK_AFTER).max(state.rested);
        match until.map(|until| until.saturating_duration_since(now)) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => {
                state.working = Some(now);
                Ok(Turn { pace: self, since: now, rest: Duration::ZERO })
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, PaceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Ends the turn, and makes all threads rest for this time.
    pub(crate) fn rest(mut self, rest: Duration) {
        self.rest = rest;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.pace.state();
        // One that was passed over has no turn to give up.
        state.working = state.working.filter(|&since| since != self.since);
        state.rested = state.rested.max(Some(Instant::now() + self.rest));
    }
}

/// The share of time in which the kernel may gather free blocks for the tender: it takes pages from the page cache and
/// moves others meanwhile, for which other programs wait.
const STALLED: f64 = 0.25;

/// A turn's work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Worked {
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
    pub(crate) cpu: Duration,
    /// The part of `elapsed` in which a page fault of the process may have waited.
    pub(crate) locked: Duration,
    /// The part in which the kernel may have gathered a free block.
    pub(crate) stalled: Duration,
}

impl Worked {
    /// Returns the time to rest, to use no more than this share of a CPU and of the time for locks, and to keep the other
    /// limits.
    pub(crate) fn rest(self, share: f64, locks: f64, bytes_per_second: u64) -> Duration {
        let for_cpu = self.cpu.mul_f64(1.0 / share);
        let for_locks = self.locked.mul_f64(1.0 / locks);
        let for_others = self.stalled.mul_f64(1.0 / STALLED);
        let per_byte = 1.0 / bytes_per_second.max(1) as f64;
        let for_bytes = Duration::from_secs_f64(self.bytes as f64 * per_byte);
        for_cpu.max(for_locks).max(for_others).max(for_bytes).saturating_sub(self.elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_keeps_each_limit() {
        let millis = Duration::from_millis;
        let rest = |bytes, times: [u64; 4], share| {
            let [elapsed, cpu, locked, stalled] = times.map(millis);
            Worked { bytes, elapsed, cpu, locked, stalled }.rest(share, 0.25, 1 << 20)
        };
        assert_eq!(rest(0, [15, 10, 0, 0], 0.25), millis(25));
        assert_eq!(rest(0, [15, 10, 10, 0], 1.0), millis(25));
        assert_eq!(rest(0, [25, 10, 0, 20], 1.0), millis(55));
        assert_eq!(rest(1 << 20, [10, 10, 1, 0], 0.25), millis(990));
        assert_eq!(rest(0, [10, 10, 1, 0], 1.0), Duration::ZERO);
    }

    #[test]
    fn turns_are_one_at_a_time_with_rests_between() {
        let pace = Pace::default();
        let turn = pace.start_turn().unwrap();
        assert!(pace.start_turn().unwrap_err() <= STUCK_AFTER);
        drop(turn);
        pace.start_turn().unwrap().rest(STUCK_AFTER * 1000);
        assert!(pace.start_turn().unwrap_err() > STUCK_AFTER);
    }

    #[test]
    fn turn_that_does_not_end_is_passed_over() {
        let pace = Pace::default();
        let stuck = pace.start_turn().unwrap();
        std::thread::sleep(pace.start_turn().unwrap_err());
        let turn = pace.start_turn().unwrap();
        drop(stuck);
        assert!(pace.start_turn().is_err(), "the turn goes on");
        drop(turn);
        drop(pace.start_turn().unwrap());
    }
}
