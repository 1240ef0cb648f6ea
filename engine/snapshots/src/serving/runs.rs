//! Writes that come in order: after a few faults, each preserves more granules, so the next writes have none.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of streams of writes that are known at a time. An optimizer writes a parameter and its moments in turn.
const STREAMS: usize = 8;

/// The streams of one snapshot. Several threads use them without a lock: a stream that is overwritten by another one
/// starts anew.
#[derive(Debug)]
pub(super) struct WriteRuns {
    /// The granule at which the stream goes on, in the upper 56 bits, and the length of its last run.
    streams: [AtomicU64; STREAMS],
    turn: AtomicUsize,
    /// The most granules of a run.
    longest: u64,
}

impl WriteRuns {
    /// Makes runs of which each has at most `bytes`, or one granule.
    pub(super) fn new(bytes: usize, granule_bytes: usize) -> Self {
        let streams = [const { AtomicU64::new(0) }; STREAMS];
        let longest = (bytes / granule_bytes).clamp(1, 0xff) as u64;
        Self { streams, turn: AtomicUsize::new(0), longest }
    }

    /// Returns how many granules a fault at this granule should preserve, from 1 to `most`. A stream doubles its runs.
    /// Async-signal-safe.
    pub(super) fn next(&self, index: usize, most: usize) -> usize {
        let index = index as u64;
        let word = |run: u64, length: u64| ((index + run) << 8) | length;
        for stream in &self.streams {
            let last = stream.load(Ordering::Relaxed);
            let length = last & 0xff;
            if length > 0 && last >> 8 == index {
                let length = (2 * length).min(self.longest);
                let run = length.min(most as u64).max(1);
                stream.store(word(run, length), Ordering::Relaxed);
                return run as usize;
            }
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % STREAMS;
        self.streams[turn].store(word(1, 1), Ordering::Relaxed);
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: usize = 64 << 10;

    fn runs() -> WriteRuns {
        WriteRuns::new(512 << 10, SMALL)
    }

    /// The granules at which a writer in order has faults.
    fn faults(runs: &WriteRuns, from: usize, to: usize, most: usize) -> Vec<usize> {
        let mut next = from;
        std::iter::from_fn(|| {
            let index = next;
            (index < to).then(|| {
                next += runs.next(index, most);
                index
            })
        })
        .collect()
    }

    #[test]
    fn runs_of_a_stream_double_up_to_half_a_mebibyte() {
        let runs = runs();
        assert_eq!(faults(&runs, 5, 40, usize::MAX), [5, 6, 8, 12, 20, 28, 36]);
    }

    #[test]
    fn run_ends_where_it_must_and_the_next_one_is_long_again() {
        let runs = runs();
        faults(&runs, 0, 15, usize::MAX);
        assert_eq!(runs.next(15, 1), 1);
        assert_eq!(runs.next(16, usize::MAX), 8);
    }

    #[test]
    fn writes_in_no_order_preserve_one_granule_each() {
        let runs = runs();
        let scattered = (0..1000).map(|number| number * 7919 % 5000 * 2);
        assert!(scattered.into_iter().all(|index| runs.next(index, usize::MAX) == 1));
    }

    #[test]
    fn several_streams_in_turn_have_runs_of_their_own() {
        let runs = runs();
        let mut next = [0, 1000, 2000];
        let mut faults = 0;
        while next[0] < 256 {
            for stream in &mut next {
                *stream += runs.next(*stream, usize::MAX);
                faults += 1;
            }
        }
        assert!(faults < 3 * 40, "{faults} faults for 3 times 256 granules");
    }

    #[test]
    fn granules_of_2_mib_are_preserved_one_by_one() {
        let runs = WriteRuns::new(2 << 20, 2 << 20);
        assert!((0..20).all(|index| runs.next(index, usize::MAX) == 1));
    }
}
