//! Clients of a server: one that asks at a constant rate, and one that asks as fast as it can.

use std::thread::sleep;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::measure::LabError;
use crate::measure::latencies::latencies;

/// Asks so often a second until told to end. Latencies, in nanoseconds, count from when a request was due: one that had to wait for an
/// answer to the one before it has waited, too.
pub fn at_constant_rate(
    per_second: u32,
    ask: impl FnMut() -> Result<(), LabError>,
    goes_on: impl Fn() -> bool,
) -> Result<Histogram<u64>, LabError> {
    let mut latencies = latencies(3);
    let mut note = |wait: Wait| latencies.saturating_record(wait.took.as_nanos() as u64);
    each_at_constant_rate(per_second, ask, goes_on, &mut note)?;
    Ok(latencies)
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub due: Instant,
    /// From when it was due to its answer.
    pub took: Duration,
}

/// Like [`at_constant_rate`]; returns each request.
pub fn waits_at_constant_rate(
    per_second: u32,
    ask: impl FnMut() -> Result<(), LabError>,
    goes_on: impl Fn() -> bool,
) -> Result<Vec<Wait>, LabError> {
    let mut waits = Vec::new();
    each_at_constant_rate(per_second, ask, goes_on, &mut |wait| waits.push(wait))?;
    Ok(waits)
}

fn each_at_constant_rate(
    per_second: u32,
    mut ask: impl FnMut() -> Result<(), LabError>,
    goes_on: impl Fn() -> bool,
    note: &mut dyn FnMut(Wait),
) -> Result<(), LabError> {
    let step = Duration::from_secs(1) / per_second;
    let mut due = Instant::now();
    while goes_on() {
        sleep(due.saturating_duration_since(Instant::now()));
        ask()?;
        note(Wait { due, took: due.elapsed() });
        due += step;
    }
    Ok(())
}

/// Asks until told to end; how many answers a second there were. `ask` says how many it has had.
pub fn at_full_speed(
    mut ask: impl FnMut() -> Result<usize, LabError>,
    goes_on: impl Fn() -> bool,
) -> Result<f64, LabError> {
    let (began, mut answers) = (Instant::now(), 0);
    while goes_on() {
        answers += ask()?;
    }
    Ok(answers as f64 / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn requests_that_wait_for_a_slow_one_have_waited() {
        let asked = Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            if asked.get() == 1 {
                sleep(Duration::from_millis(20));
            }
            Ok(())
        };
        let latencies = at_constant_rate(1000, ask, || asked.get() < 10).unwrap();
        assert_eq!(latencies.len(), 10);
        // The second was due 1 ms after the first, and began 19 later.
        let late = latencies.iter_recorded().filter(|value| value.value_iterated_to() > 9_000_000);
        assert!(late.map(|value| value.count_at_value()).sum::<u64>() >= 10);
    }

    #[test]
    fn rate_at_full_speed_is_of_all_answers() {
        let asked = Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            sleep(Duration::from_millis(1));
            Ok(100)
        };
        let rate = at_full_speed(ask, || asked.get() < 5).unwrap();
        assert!(rate > 0.0 && rate <= 100_000.0, "{rate}");
    }
}
