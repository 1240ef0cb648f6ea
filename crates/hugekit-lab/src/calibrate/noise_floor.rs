//! How much two measurements of the same thing differ: below that, no difference means anything.

use hugekit::arch::clear_routines;

use super::Effort;
use super::routines::clear;
use crate::LabError;
use crate::bench::Bench;
use crate::experiments::routine_matrix::sample;
use crate::sampler::alternate;
use crate::size::MIB;
use crate::stats::median_ratio;

/// A difference below this is not worth another routine, on the quietest of machines: how source and
/// destination happen to lie to each other makes as much.
const LEAST_MARGIN: f64 = 0.05;

/// From here on the figures are doubtful.
const NOISY: f64 = 0.08;

/// From here on they are worthless.
const TOO_NOISY: f64 = 0.2;

/// How often each of the two sizes is measured against itself.
const TRIALS: usize = 3;

/// How far apart two measurements of the same thing are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseFloor(f64);

impl NoiseFloor {
    /// The largest distance from 1 of a ratio that should be 1, found as all others are: 0.03 is ±3 %.
    #[must_use]
    pub fn spread(self) -> f64 {
        self.0
    }

    /// Whether the profile should be measured again on a quieter machine.
    #[must_use]
    pub fn is_doubtful(self) -> bool {
        self.0 >= NOISY
    }

    /// Whether the profile should not be used at all.
    #[must_use]
    pub fn is_too_much(self) -> bool {
        self.0 >= TOO_NOISY
    }

    /// By how much something must be better to be taken.
    pub(super) fn margin(self) -> f64 {
        self.0.clamp(LEAST_MARGIN, NOISY)
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// Of two equal cases' samples.
    fn of(one: &[f64], other: &[f64]) -> Self {
        Self((median_ratio(one, other) - 1.0).abs())
    }
}

/// Two equal cases alternate, on what fits a cache and on what does not; the worst trial counts.
pub(super) fn measure(bench: &mut Bench<'_>, effort: Effort) -> Result<NoiseFloor, LabError> {
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin("noise");
    let mut worst = NoiseFloor(0.0);
    for size in [MIB, 64 * MIB].repeat(TRIALS) {
        let bytes = &mut arena.bytes()[..size];
        let samples = alternate(effort.plan, 2, observer, |_| {
            sample(size, || clear(&clear_routines()[0], bytes));
            sample(size, || clear(&clear_routines()[0], bytes))
        })?;
        worst = worst.max(NoiseFloor::of(&samples[0], &samples[1]));
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_that_were_disturbed_do_not_count_if_they_are_few() {
        assert_eq!(NoiseFloor::of(&[10.0, 1.0, 10.0], &[10.0, 5.0, 10.0]), NoiseFloor(0.0));
        assert!(
            (NoiseFloor::of(&[9.0, 9.0, 10.0], &[10.0, 10.0, 10.0]).spread() - 0.1).abs() < 1e-9
        );
    }

    #[test]
    fn a_margin_is_never_nothing_and_never_everything() {
        assert_eq!(NoiseFloor(0.0).margin(), LEAST_MARGIN);
        assert_eq!(NoiseFloor(0.06).margin(), 0.06);
        assert_eq!(NoiseFloor(3.0).margin(), NOISY);
        assert!(
            NoiseFloor(0.3).is_too_much()
                && NoiseFloor(0.3).is_doubtful()
                && !NoiseFloor(0.01).is_doubtful()
        );
    }
}
