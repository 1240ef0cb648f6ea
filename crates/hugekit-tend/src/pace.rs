//! How long to rest after what took how long, for all processes of a tender together.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::settings::Settings;

/// A collapse that takes so long waits for something, and the others need not wait for it.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// Whose turn it is: one collapse at a time, and rests between.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<State>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Since when a collapse goes on.
    working: Option<Instant>,
    /// When the last rest is over.
    rested: Option<Instant>,
}

/// A turn, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pace: &'a Pace,
    since: Instant,
    rest: Duration,
}

impl Pace {
    /// A turn, or how long to wait before the next try.
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Ends it, and has all rest for so long.
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

/// After a collapse of so many bytes that took `worked`: neither more of a CPU nor more bytes in a second than the
/// settings say.
pub(crate) fn rest_after(settings: &Settings, bytes: u64, worked: Duration) -> Duration {
    let share = settings.cpu_share.clamp(0.001, 1.0);
    let for_cpu = worked.mul_f64(1.0 / share - 1.0);
    let per_byte = 1.0 / settings.bytes_per_second.max(1) as f64;
    let for_bytes = Duration::from_secs_f64(bytes as f64 * per_byte).saturating_sub(worked);
    for_cpu.max(for_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_keeps_both_limits() {
        let settings =
            Settings { cpu_share: 0.25, bytes_per_second: 1 << 20, ..Settings::default() };
        let millis = Duration::from_millis;
        assert_eq!(rest_after(&settings, 0, millis(10)), millis(30));
        assert_eq!(rest_after(&settings, 1 << 20, millis(10)), millis(990));
        assert_eq!(rest_after(&settings, 1 << 20, millis(1000)), millis(3000));
        let all = Settings { cpu_share: 1.0, ..settings };
        assert_eq!(rest_after(&all, 0, millis(10)), Duration::ZERO);
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
