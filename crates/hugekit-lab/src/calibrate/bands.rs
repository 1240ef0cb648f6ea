//! From measurements at some sizes to a step function: arithmetic only.

use hugekit::profile::StoredBand;

use crate::stats::median_ratio;

/// Measurements at one size: for each routine its samples, one per round; empty for a routine
/// that was sorted out. The first routine is libc's and always there, and so is the one built in.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) size: usize,
    pub(super) builtin: usize,
    pub(super) samples: Vec<Vec<f64>>,
}

impl Point {
    /// How much faster a routine is than libc's: the median of the ratios within rounds. 0 if it was
    /// sorted out.
    fn gain(&self, routine: usize) -> f64 {
        let samples = &self.samples[routine];
        if samples.is_empty() { 0.0 } else { median_ratio(samples, &self.samples[0]) }
    }

    /// The routine for this size, where `before` is that of the next smaller one. The one built in,
    /// unless another is better by more than the margin or libc's is better at all; then libc's, unless
    /// another beats that by more than the margin; of several such, the one from before if it is within
    /// the margin of the best.
    fn choose(&self, before: usize, margin: f64) -> usize {
        let gains: Vec<f64> = (0..self.samples.len()).map(|routine| self.gain(routine)).collect();
        let best = (0..gains.len()).max_by(|&a, &b| gains[a].total_cmp(&gains[b])).unwrap_or(0);
        let clear = 1.0 + margin;
        let is_near_best = |routine: usize| gains[routine] * clear >= gains[best];
        if is_near_best(self.builtin) && gains[self.builtin] * clear >= 1.0 + margin / 2.0 {
            self.builtin
        } else if gains[best] <= clear {
            0
        } else if gains[before] > clear && is_near_best(before) {
            before
        } else {
            best
        }
    }
}

/// The bands through these points, which ascend: each routine from the first size on at which it was
/// chosen, and libc's below the smallest.
pub(super) fn bands(points: &[Point], names: &[&str], margin: f64) -> Vec<StoredBand> {
    let band = |from, routine: usize| StoredBand { from, routine: names[routine].to_owned() };
    let mut bands = vec![band(0, 0)];
    let mut before = 0;
    for point in points {
        let chosen = point.choose(before, margin);
        if chosen != before {
            bands.push(band(point.size, chosen));
            before = chosen;
        }
    }
    bands
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["memset", "cached", "streaming"];

    /// Every routine measured at this many GiB/s, twice; 0 sorts it out. `memset` is built in.
    fn point(size: usize, gib_per_second: [f64; 3]) -> Point {
        let samples = gib_per_second.map(|rate| if rate > 0.0 { vec![rate; 2] } else { vec![] });
        Point { size, builtin: 0, samples: samples.into() }
    }

    fn steps(points: &[Point]) -> Vec<(usize, String)> {
        bands(points, &NAMES, 0.05).into_iter().map(|band| (band.from, band.routine)).collect()
    }

    #[test]
    fn each_routine_begins_where_it_first_wins() {
        let points = [
            point(4096, [50.0, 60.0, 10.0]),
            point(1 << 20, [40.0, 41.0, 20.0]),
            point(16 << 20, [10.0, 12.0, 24.0]),
            point(64 << 20, [10.0, 0.0, 24.0]),
        ];
        let expected =
            [(0, "memset"), (4096, "cached"), (1 << 20, "memset"), (16 << 20, "streaming")];
        assert_eq!(steps(&points), expected.map(|(from, name)| (from, name.to_owned())));
    }

    #[test]
    fn what_is_within_the_margin_changes_nothing() {
        let points = [point(4096, [50.0, 52.0, 10.0]), point(8192, [50.0, 50.0, 52.4])];
        assert_eq!(steps(&points), [(0, "memset".to_owned())]);
        let stays = [point(4096, [10.0, 20.0, 1.0]), point(8192, [10.0, 20.0, 20.9])];
        assert_eq!(steps(&stays).last().unwrap(), &(4096, "cached".to_owned()));
    }

    #[test]
    fn what_is_built_in_stays_unless_it_is_clearly_beaten_or_slower_than_libc() {
        let builtin = |rates| Point { builtin: 1, ..point(4096, rates) };
        assert_eq!(builtin([50.0, 50.0, 52.0]).choose(0, 0.05), 1);
        assert_eq!(builtin([50.0, 49.5, 50.0]).choose(0, 0.05), 1);
        assert_eq!(builtin([50.0, 48.0, 50.0]).choose(0, 0.05), 0);
        assert_eq!(builtin([50.0, 60.0, 66.0]).choose(0, 0.05), 2);
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        // The second round was disturbed; within it the two are as far apart as ever.
        let samples = vec![vec![10.0, 1.0, 10.0], vec![20.0, 2.0, 20.0], vec![]];
        assert_eq!(Point { size: 1, builtin: 0, samples }.gain(1), 2.0);
    }
}
