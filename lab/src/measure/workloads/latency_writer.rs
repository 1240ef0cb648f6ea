//! A writer at full speed, watched store by store: before a point in time of its memory is taken, while that is
//! saved, and afterwards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::measure::latencies::latencies;
use crate::measure::machine::usage::{Usage, Who};

/// Bytes of one store.
pub const LINE: usize = 64;

const WORDS: usize = LINE / size_of::<u64>();

/// Stores that are drawn in advance where that takes longer than a store.
const DRAWN: usize = 1 << 22;

/// The time that a step of a timeline sums up.
pub const STEP: Duration = Duration::from_millis(5);

/// The part of the round. The writer is told by a word that children of this process share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    Before,
    During,
    After,
    Over,
}

pub const WATCHED: [Phase; 3] = [Phase::Before, Phase::During, Phase::After];

/// The cache lines that a writer writes.
#[derive(Debug)]
pub enum WrittenLines {
    /// Any, alike.
    Uniform,
    /// Any of so many, the first ones.
    Fitting(usize),
    /// The k-th most popular one k times less often than the first; popular ones lie anywhere.
    Zipf(Box<[u32]>),
}

impl WrittenLines {
    pub fn zipf(lines: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(1935);
        let drawn = (0..DRAWN).map(|_| {
            let rank = (lines as f64).powf(random.f64()) as usize;
            // Neighbours in popularity are none in memory.
            (rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % lines) as u32
        });
        Self::Zipf(drawn.collect())
    }

    pub const fn name(&self) -> &'static str {
        match self {
            Self::Uniform => "",
            Self::Fitting(_) => "-fitting",
            Self::Zipf(_) => "-zipf",
        }
    }
}

/// The writer's stores and stalls.
#[derive(Debug)]
pub struct Watched {
    /// Latencies in nanoseconds, by phase.
    pub latencies: [Histogram<u64>; 3],
    /// Pages that its faults had copied or mapped while the state was saved.
    pub faults: u64,
    /// When the writer saw that the state is being saved, in the time of the timeline.
    pub began: Duration,
    /// Stores in each step, and the longest.
    pub timeline: Vec<(u64, Duration)>,
}

/// Writes until it is over.
pub fn write(words: &[AtomicU64], workload: &WrittenLines, phase: &AtomicU64) -> Watched {
    let lines = words.len() / WORDS;
    match workload {
        WrittenLines::Uniform => write_lines(words, phase, any_of(lines)),
        WrittenLines::Fitting(fitting) => write_lines(words, phase, any_of(lines.min(*fitting))),
        WrittenLines::Zipf(drawn) => {
            let mut drawn = drawn.iter().cycle();
            write_lines(words, phase, || *drawn.next().expect("it never ends") as usize)
        }
    }
}

/// Draws, all alike.
fn any_of(lines: usize) -> impl FnMut() -> usize {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % lines
    }
}

fn write_lines(words: &[AtomicU64], phase: &AtomicU64, mut next: impl FnMut() -> usize) -> Watched {
    let mut latencies = [(); 3].map(|()| latencies(2));
    let mut timeline: Vec<(u64, Duration)> = Vec::with_capacity(4096);
    let (mut faults, mut faults_before) = (0, 0);
    let (mut seen, mut value) = (Phase::Before as u64, 0);
    let began = Instant::now();
    let mut saving = Duration::ZERO;
    let mut last = began;
    loop {
        value += 1;
        for word in &words[next() * WORDS..][..WORDS] {
            word.store(value, Ordering::Relaxed);
        }
        let now = Instant::now();
        let (took, before) = (now - last, seen);
        last = now;
        seen = phase.load(Ordering::Relaxed);
        if seen != before {
            if before == Phase::Before as u64 {
                saving = now - began;
            }
            match seen {
                _ if seen == Phase::During as u64 => {
                    faults_before = Usage::of(Who::ThisThread).minor_faults;
                }
                _ if before == Phase::During as u64 => {
                    faults = Usage::of(Who::ThisThread).minor_faults - faults_before;
                }
                _ => {}
            }
        }
        // One that was held up on either side of the moment was held up by it, however long.
        let of = match (before, seen) {
            (_, seen) if seen == Phase::Before as u64 => Phase::Before,
            (before, _) if before == Phase::After as u64 => Phase::After,
            _ => Phase::During,
        };
        latencies[of as usize].saturating_record(took.as_nanos() as u64);
        let step = ((now - began).as_nanos() / STEP.as_nanos()) as usize;
        if timeline.len() <= step {
            timeline.resize(step + 1, (0, Duration::ZERO));
        }
        timeline[step].0 += 1;
        timeline[step].1 = timeline[step].1.max(took);
        if seen == Phase::Over as u64 {
            return Watched { latencies, faults, began: saving, timeline };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::measure::workloads::anonymous::Pages;
    use crate::measure::workloads::outside::Outside;
    use hugekit_machine::size::MIB;

    #[test]
    fn every_store_is_watched_in_its_phase() {
        let memory = Outside::new(Pages::Base, MIB).unwrap();
        let phase = AtomicU64::new(Phase::Before as u64);
        for workload in
            [WrittenLines::Uniform, WrittenLines::Fitting(64), WrittenLines::zipf(MIB / LINE)]
        {
            let watched = thread::scope(|scope| {
                let writer = scope.spawn(|| write(memory.words(), &workload, &phase));
                let newest = || {
                    memory.words().iter().map(|word| word.load(Ordering::Relaxed)).max().unwrap()
                };
                memory.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
                for next in [Phase::During, Phase::After, Phase::Over] {
                    // Two stores that began in this phase, at least.
                    let seen = newest();
                    while newest() < seen + 3 {
                        thread::yield_now();
                    }
                    phase.store(next as u64, Ordering::Relaxed);
                }
                writer.join().unwrap()
            });
            assert!(watched.latencies.iter().all(|latencies| !latencies.is_empty()));
            let all: u64 = watched.latencies.iter().map(Histogram::len).sum();
            assert_eq!(watched.timeline.iter().map(|(stores, _)| stores).sum::<u64>(), all);
            phase.store(Phase::Before as u64, Ordering::Relaxed);
        }
    }

    #[test]
    fn popular_lines_are_written_more_often_and_lie_within() {
        let lines = 1000;
        let WrittenLines::Zipf(drawn) = WrittenLines::zipf(lines) else { unreachable!() };
        let mut counts = vec![0_u32; lines];
        drawn.iter().for_each(|&line| counts[line as usize] += 1);
        counts.sort_unstable_by(|one, other| other.cmp(one));
        assert!(counts[0] > 5 * counts[9] && counts[9] > 5 * counts[99], "{:?}", &counts[..10]);
    }
}
