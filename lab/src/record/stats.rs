//! Medians and pairwise ratios.
//!
//! Two cases are compared only within one round, where they ran right after each other, and the
//! median of those ratios is the result: whatever slows the machine for a while slows both.

/// The middle sample; of an even number, the mean of the middle two.
///
/// # Panics
/// If there are no samples.
pub fn median(samples: &[f64]) -> f64 {
    assert!(!samples.is_empty(), "the median of no samples");
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    }
}

/// The fewest samples of which two enclose the median with 95 % confidence.
pub const FEWEST_ROUNDS: usize = 6;

/// The interval of the median of such samples with 95 % confidence: between two of them, however they are
/// distributed. `None` of too few.
pub fn median_interval(samples: &[f64]) -> Option<(f64, f64)> {
    let count = samples.len();
    if count < FEWEST_ROUNDS {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let outside = samples_outside(count);
    Some((sorted[outside], sorted[count - 1 - outside]))
}

/// The number of samples on either side that may be left out: as many as lie on one side of the median with a
/// probability of 2.5 % at most, each being there with one of one half.
fn samples_outside(count: usize) -> usize {
    if count > 500 {
        // The binomial distribution is a bell by then, and its terms are too small to sum up.
        return (count as f64 / 2.0 - 0.98 * (count as f64).sqrt()).floor() as usize;
    }
    let mut term = 0.5_f64.powi(count as i32);
    let mut sum = term;
    let mut outside = 0;
    while sum + term * (count - outside) as f64 / (outside + 1) as f64 <= 0.025 {
        term *= (count - outside) as f64 / (outside + 1) as f64;
        sum += term;
        outside += 1;
    }
    outside
}

/// Distribution of a set of samples in three numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Summary {
    /// The summary of at least one sample.
    ///
    /// # Panics
    /// If there are no samples.
    pub fn of(samples: &[f64]) -> Self {
        let fold = |pick: fn(f64, f64) -> f64| samples.iter().copied().reduce(pick);
        Self {
            median: median(samples),
            min: fold(f64::min).unwrap_or(f64::NAN),
            max: fold(f64::max).unwrap_or(f64::NAN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_narrows_with_rounds() {
        let rounds = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(median_interval(&rounds(5)), None);
        assert_eq!(median_interval(&rounds(6)), Some((1.0, 6.0)));
        // As in tables of the sign test.
        assert_eq!(median_interval(&rounds(20)), Some((6.0, 15.0)));
        assert_eq!(median_interval(&rounds(100)), Some((40.0, 61.0)));
        let (low, high) = median_interval(&rounds(1000)).unwrap();
        assert!((low - 470.0).abs() < 2.0 && (high - 531.0).abs() < 2.0, "{low} {high}");
    }

    #[test]
    fn the_median_of_few() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
    }

    #[test]
    fn a_summary_holds_the_extremes() {
        let summary = Summary::of(&[2.0, 8.0, 4.0]);
        assert_eq!(summary, Summary { median: 4.0, min: 2.0, max: 8.0 });
    }
}
