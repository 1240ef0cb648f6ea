//! Latencies of single events, counted by how long they were.

use crate::record::{BUCKET, Distribution, Unit};
use hdrhistogram::Histogram;

/// A minute: longer than anything that is waited for.
const LONGEST_NS: u64 = 60_000_000_000;

/// The start of the buckets: shorter than any fault, and long enough that a quarter of it counts.
const SHORTEST_NS: u64 = 64;

/// The percentiles that are kept.
const PERCENTILES: [f64; 6] = [1.0, 50.0, 90.0, 99.0, 99.9, 100.0];

/// An empty histogram of nanoseconds with this number of digits.
pub fn latencies(digits: u8) -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_NS, digits).expect("a range and precision that it has")
}

/// Adds latencies in microseconds.
pub fn record(histogram: &mut Histogram<u64>, latencies: &[f64]) {
    latencies.iter().for_each(|latency| histogram.saturating_record((latency * 1e3) as u64));
}

/// All latencies of several histograms of one range.
pub fn sum<'a>(histograms: impl Iterator<Item = &'a Histogram<u64>>) -> Histogram<u64> {
    let sum = histograms.cloned().reduce(|mut sum, other| {
        sum.add(other).expect("they have the same range");
        sum
    });
    sum.unwrap_or_else(|| latencies(1))
}

/// For the record, in microseconds, each bucket a quarter wider than the one before it.
pub fn distribution(id: &str, latencies: &Histogram<u64>) -> Distribution {
    let micros = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let buckets = latencies
        .iter_log(SHORTEST_NS, BUCKET)
        .map(|bucket| (micros(bucket.value_iterated_to()), bucket.count_since_last_iteration()));
    Distribution {
        id: id.to_owned(),
        unit: Unit::Microseconds,
        count: latencies.len(),
        percentiles: PERCENTILES.map(|at| (at, micros(latencies.value_at_percentile(at)))).into(),
        buckets: buckets.filter(|(_, count)| *count > 0).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_of_all_that_was_added() {
        let (mut one, mut other) = (latencies(3), latencies(3));
        record(&mut one, &[1.0, 2.0, 3.0]);
        record(&mut other, &[1000.0]);
        let distribution = distribution("fault/x/2MiB", &sum([&one, &other].into_iter()));
        assert_eq!((distribution.id.as_str(), distribution.count), ("fault/x/2MiB", 4));
        let [.., (_, longest)] = distribution.percentiles[..] else { panic!() };
        assert!((1000.0..1001.0).contains(&longest), "{longest}");
        assert!((2.0..2.01).contains(&distribution.percentiles[1].1));
        let counts = distribution.buckets.iter().map(|(_, count)| count);
        assert_eq!(counts.sum::<u64>(), 4);
        assert!(distribution.buckets.is_sorted_by(|one, next| one.0 < next.0));
    }
}
