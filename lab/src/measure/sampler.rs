//! Rounds in which every case runs once, in an order shuffled anew for each round.
//!
//! A case is never measured in a row of its own: what disturbs the machine then hits all of them
//! alike. And a case never has the same predecessor for long: one that streams leaves the cache in
//! another state than one that does not, and in a fixed order the same case would always pay.

use std::time::{Duration, Instant};

use crate::record::stats::{median, median_interval};

use crate::measure::{Interrupted, LabError, Observer};

/// The orders are the same in every run, so that one run can be repeated.
const SEED: u64 = 2018;

/// A median whose range is narrower than this fraction of it is known well enough.
const SETTLED: f64 = 0.01;

/// Rounds before that is believed: a few may agree by chance.
const SETTLED_ROUNDS: usize = 24;

/// The fewest rounds of a plan that has lost its patience: one to choose the best, one to judge it.
const LEAST_ROUNDS: usize = 2;

/// The number of rounds, and the time for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Run at least these, beyond the time if need be.
    pub min_rounds: usize,
    /// Stop after these.
    pub max_rounds: usize,
    /// Stop after this time, once the minimum is reached.
    pub budget: Duration,
    /// After this time two rounds are enough: on a machine that is slow, or that others use, the
    /// minimum takes many times as long as was thought.
    pub patience: Duration,
}

impl Plan {
    /// Exactly this many rounds.
    pub const fn exactly(rounds: usize) -> Self {
        let forever = Duration::MAX;
        Self { min_rounds: rounds, max_rounds: rounds, budget: forever, patience: forever }
    }

    fn wants_another(&self, samples: &[&[f64]], rounds: usize, since: Instant) -> bool {
        let spent = since.elapsed();
        let least =
            if spent < self.patience { self.min_rounds } else { self.min_rounds.min(LEAST_ROUNDS) };
        let may = rounds < self.max_rounds && spent < self.budget;
        rounds < least || (may && !are_settled(samples, rounds))
    }

    /// The progress of the rounds, from 0 to 1.
    fn progress(&self, rounds: usize, since: Instant) -> f64 {
        let by_rounds = rounds as f64 / self.max_rounds as f64;
        let by_time = since.elapsed().as_secs_f64() / self.budget.as_secs_f64();
        let enough = rounds as f64 / self.min_rounds as f64;
        by_rounds.max(by_time.min(enough)).min(1.0)
    }
}

/// True if further rounds would add nothing, because every median is known to [`SETTLED`].
fn are_settled(samples: &[&[f64]], rounds: usize) -> bool {
    let settled = |samples: &&[f64]| {
        let interval = median_interval(samples);
        interval.is_some_and(|(low, high)| high - low <= SETTLED * median(samples))
    };
    rounds >= SETTLED_ROUNDS && samples.iter().all(settled)
}

/// The outcome of rounds in which some cases may have failed.
#[derive(Debug)]
pub struct MeasuredRounds {
    /// The samples of each case, those of one that failed up to that moment: the n-th ones are of the
    /// same round.
    pub samples: Vec<Vec<f64>>,
    /// Cases that failed, by index, and why.
    pub failures: Vec<(usize, LabError)>,
}

/// Measures `cases` cases in alternation, after one round that is thrown away. `measure` is given
/// the index of a case and returns one sample. A case that fails leaves the rounds, and the others go on.
///
/// # Errors
/// [`Interrupted`] when the observer, or `measure`, wants to stop; the samples so far are dropped.
pub fn try_alternate(
    plan: Plan,
    cases: usize,
    observer: &dyn Observer,
    mut measure: impl FnMut(usize) -> Result<f64, LabError>,
) -> Result<MeasuredRounds, Interrupted> {
    let mut turn = |case| {
        observer.check()?;
        observer.turn_begins();
        let sample = measure(case);
        observer.turn_ends(case);
        sample
    };
    let mut rounds = MeasuredRounds { samples: vec![Vec::new(); cases], failures: Vec::new() };
    let mut order: Vec<usize> = (0..cases).collect();
    rounds.run(&mut order, |case, _| turn(case).map(drop))?;
    let mut random = fastrand::Rng::with_seed(SEED);
    let (since, mut done) = (Instant::now(), 0);
    while !order.is_empty() && plan.wants_another(&rounds.of(&order), done, since) {
        random.shuffle(&mut order);
        rounds.run(&mut order, |case, samples| turn(case).map(|sample| samples.push(sample)))?;
        done += 1;
        observer.progress(plan.progress(done, since));
    }
    observer.group_ends(&rounds.samples);
    Ok(rounds)
}

impl MeasuredRounds {
    /// Runs one turn of each case. A case that fails is removed from the order.
    fn run(
        &mut self,
        order: &mut Vec<usize>,
        mut turn: impl FnMut(usize, &mut Vec<f64>) -> Result<(), LabError>,
    ) -> Result<(), Interrupted> {
        for case in order.clone() {
            match turn(case, &mut self.samples[case]) {
                Ok(()) => {}
                Err(LabError::Interrupted(interrupted)) => return Err(interrupted),
                Err(error) => {
                    order.retain(|&other| other != case);
                    self.failures.push((case, error));
                }
            }
        }
        Ok(())
    }

    /// The samples of these cases.
    fn of(&self, cases: &[usize]) -> Vec<&[f64]> {
        cases.iter().map(|&case| &self.samples[case][..]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Quiet;

    fn alternate(
        plan: Plan,
        cases: usize,
        observer: &dyn Observer,
        mut measure: impl FnMut(usize) -> f64,
    ) -> Result<Vec<Vec<f64>>, Interrupted> {
        Ok(try_alternate(plan, cases, observer, |case| Ok(measure(case)))?.samples)
    }

    #[test]
    fn every_case_runs_once_a_round_after_any_other() {
        let mut order = Vec::new();
        let samples = alternate(Plan::exactly(40), 3, &Quiet, |case| {
            order.push(case);
            case as f64
        })
        .unwrap();
        assert_eq!(samples, [[0.0; 40], [1.0; 40], [2.0; 40]]);
        for round in order.chunks(3) {
            assert!((0..3).all(|case| round.contains(&case)), "{round:?}");
        }
        for pair in [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]] {
            assert!(order.windows(2).any(|neighbours| neighbours == pair), "{pair:?}");
        }
    }

    #[test]
    fn a_spent_budget_still_runs_the_minimum() {
        let (budget, patience) = (Duration::ZERO, Duration::MAX);
        let plan = Plan { min_rounds: 3, max_rounds: 100, budget, patience };
        let samples = alternate(plan, 1, &Quiet, |_| 1.0).unwrap();
        assert_eq!(samples[0].len(), 3);
    }

    #[test]
    fn a_plan_without_patience_left_runs_a_round_to_choose_and_one_to_judge() {
        let plan = |min_rounds| Plan {
            min_rounds,
            max_rounds: 100,
            budget: Duration::ZERO,
            patience: Duration::ZERO,
        };
        for (min_rounds, ran) in [(6, 2), (2, 2), (1, 1)] {
            let samples = alternate(plan(min_rounds), 1, &Quiet, |_| 1.0).unwrap();
            assert_eq!(samples[0].len(), ran, "of {min_rounds}");
        }
    }

    #[test]
    fn rounds_end_when_they_tell_nothing_new() {
        let plan = Plan { min_rounds: 2, max_rounds: 100, ..Plan::exactly(2) };
        let steady = alternate(plan, 1, &Quiet, |_| 5.0).unwrap();
        assert_eq!(steady[0].len(), SETTLED_ROUNDS);
        let mut sample = 0.0;
        let unsteady = alternate(plan, 1, &Quiet, |_| {
            sample += 1.0;
            sample
        });
        assert_eq!(unsteady.unwrap()[0].len(), 100);
        assert_eq!(alternate(Plan::exactly(60), 1, &Quiet, |_| 5.0).unwrap()[0].len(), 60);
    }

    #[test]
    fn an_interrupt_within_a_case_ends_the_rounds() {
        let mut left = 5;
        let samples = try_alternate(Plan::exactly(9), 1, &Quiet, |_| {
            left -= 1;
            if left > 0 { Ok(0.0) } else { Err(Interrupted.into()) }
        });
        assert!(samples.is_err() && left == 0);
    }

    #[test]
    fn rounds_end_when_every_case_has_failed() {
        let refused = |_| Err(LabError::Cpus(std::io::ErrorKind::Other.into()));
        let plan = Plan::exactly(usize::MAX);
        let rounds = try_alternate(plan, 2, &Quiet, refused).unwrap();
        assert_eq!((rounds.samples, rounds.failures.len()), (vec![Vec::new(); 2], 2));
    }

    #[test]
    fn an_interrupt_stops_within_a_round() {
        struct Stop;
        impl Observer for Stop {
            fn check(&self) -> Result<(), Interrupted> {
                Err(Interrupted)
            }
        }
        assert_eq!(alternate(Plan::exactly(9), 1, &Stop, |_| 1.0), Err(Interrupted));
    }
}
