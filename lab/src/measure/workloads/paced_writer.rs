//! A writer at a fixed rate, of 64 bytes at a time: what a program changes between two states, and while one is saved.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hugekit_machine::size::MIB;

use crate::measure::LabError;
use crate::measure::workloads::latency_writer::{LINE, WrittenLines};
use crate::measure::workloads::threads::spawn;

const WORDS: usize = LINE / size_of::<u64>();

/// The period of the writer. In each, it does all stores that are due.
const TICK: Duration = Duration::from_millis(1);

/// Bytes that each cluster has.
const CLUSTER: usize = 2 * MIB;

/// Ends the writer when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Which lines are written, and how many of them in a second.
#[derive(Debug)]
pub struct Pattern {
    pub name: &'static str,
    pub rate: usize,
    lines: Lines,
}

#[derive(Debug)]
enum Lines {
    /// All lines of some ranges of words, one after the other.
    Clusters(Vec<Range<usize>>),
    /// Drawn in advance, and then from the beginning.
    Drawn(Box<[u32]>),
}

impl Pattern {
    /// Writes one percent of the memory each second, once, in pieces of 2 MiB that lie apart.
    pub fn clustered(bytes: usize) -> Self {
        let count = (bytes / 100).div_ceil(CLUSTER).max(1);
        let (apart, len) = (bytes / count, CLUSTER.min(bytes / count));
        let words = |bytes: usize| bytes / size_of::<u64>();
        let cluster = |index: usize| words(index * apart)..words(index * apart + len);
        let lines = Lines::Clusters((0..count).map(cluster).collect());
        Self { name: "clustered-1%", rate: bytes / 100 / LINE, lines }
    }

    /// The k-th most popular line k times less often than the first, wherever it lies; one store a second for each 64 KiB.
    pub fn zipf(bytes: usize) -> Self {
        let WrittenLines::Zipf(drawn) = WrittenLines::zipf(bytes / LINE) else {
            unreachable!("that is what was asked for")
        };
        Self { name: "zipf", rate: bytes >> 16, lines: Lines::Drawn(drawn) }
    }

    /// Writes one block of 4 KiB in a thousand each second, anywhere.
    pub fn uniform(bytes: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(1969);
        let lines = (bytes / LINE) as u32;
        let drawn = (0..1 << 20).map(|_| random.u32(..lines)).collect();
        Self { name: "uniform-0.1%", rate: bytes / 4096 / 1000, lines: Lines::Drawn(drawn) }
    }

    /// Writes so many of its lines, from the `first` on.
    pub fn write(&self, words: &[AtomicU64], first: usize, count: usize) {
        match &self.lines {
            Lines::Drawn(drawn) => {
                let lines = drawn.iter().cycle().skip(first % drawn.len()).take(count);
                lines.for_each(|&line| store(words, line as usize * WORDS));
            }
            Lines::Clusters(clusters) => {
                let all = || clusters.iter().flat_map(|words| words.clone().step_by(WORDS));
                let of_all = all().count();
                let lines = all().cycle().skip(first % of_all).take(count);
                lines.for_each(|word| store(words, word));
            }
        }
    }

    /// Writes at its rate while something is done, until that ends or panics.
    pub fn during<T>(
        &self,
        words: &[AtomicU64],
        act: impl FnOnce() -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = End(&over);
            spawn(scope, || self.write_until(words, &over))?;
            act()
        })
    }

    fn write_until(&self, words: &[AtomicU64], over: &AtomicBool) {
        let (began, mut written) = (Instant::now(), 0);
        while !over.load(Ordering::Relaxed) {
            let due = (began.elapsed().as_secs_f64() * self.rate as f64) as usize;
            // Where the writer was held up, it does not make up for it: a rate, not a debt.
            let most = (self.rate / 1000).max(1);
            self.write(words, written, (due - written).min(most));
            written = due;
            thread::sleep(TICK);
        }
    }
}

/// Changes every word of a line.
fn store(words: &[AtomicU64], first: usize) {
    for word in &words[first..first + WORDS] {
        word.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use super::*;

    fn words(bytes: usize) -> Vec<AtomicU64> {
        (0..bytes / 8).map(|_| AtomicU64::new(0)).collect()
    }

    fn changed_blocks(words: &[AtomicU64]) -> usize {
        let is_changed =
            |block: &&[AtomicU64]| block.iter().any(|word| word.load(Ordering::Relaxed) > 0);
        words.chunks(512).filter(is_changed).count()
    }

    #[test]
    fn each_pattern_writes_what_its_name_says() {
        let bytes = 256 * MIB;
        let clustered = Pattern::clustered(bytes);
        let memory = words(bytes);
        clustered.write(&memory, 0, clustered.rate);
        let part = changed_blocks(&memory) as f64 / (bytes / 4096) as f64;
        assert!((0.0095..0.0105).contains(&part), "{part}");
        let uniform = Pattern::uniform(bytes);
        let memory = words(bytes);
        uniform.write(&memory, 0, uniform.rate);
        assert!((50..=65).contains(&changed_blocks(&memory)), "of 65536");
        let zipf = Pattern::zipf(bytes);
        let memory = words(bytes);
        zipf.write(&memory, 0, zipf.rate);
        let blocks = changed_blocks(&memory);
        assert!((zipf.rate / 4..zipf.rate).contains(&blocks), "{blocks} of {}", zipf.rate);
    }

    #[test]
    fn lines_go_on_where_they_ended_and_begin_again() {
        let bytes = 4 * MIB;
        let (pattern, once, twice) = (Pattern::clustered(bytes), words(bytes), words(bytes));
        pattern.write(&once, 0, 100_000);
        pattern.write(&twice, 0, 60_000);
        pattern.write(&twice, 60_000, 40_000);
        let loaded = |words: &[AtomicU64]| -> Vec<u64> {
            words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
        };
        assert_eq!(loaded(&once), loaded(&twice));
        assert!(loaded(&once).iter().any(|&count| count > 1));
    }

    #[test]
    fn writer_writes_while_something_is_done_and_no_longer() {
        let bytes = 4 * MIB;
        let (pattern, memory) = (Pattern::clustered(bytes), words(bytes));
        let count = || memory.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>();
        let more = || {
            let before = count();
            while count() == before {
                thread::yield_now();
            }
            Ok(())
        };
        pattern.during(&memory, more).unwrap();
        let act =
            || pattern.during(&memory, || -> Result<(), LabError> { panic!("while it writes") });
        std::panic::catch_unwind(AssertUnwindSafe(act)).unwrap_err();
        let after = count();
        thread::sleep(3 * TICK);
        assert_eq!(count(), after);
    }
}
