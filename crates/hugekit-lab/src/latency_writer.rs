//! A writer at full speed, watched store by store: before a point in time of its memory is taken, while that is
//! saved, and afterwards.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::LabError;
use crate::anonymous::Pages;
use crate::latencies::latencies;
use crate::size::Size;

/// Bytes of one store.
pub(crate) const LINE: usize = 64;

const WORDS: usize = LINE / size_of::<u64>();

/// Stores that are drawn in advance where that takes longer than a store.
const DRAWN: usize = 1 << 22;

/// The time that a step of a timeline sums up.
pub(crate) const STEP: Duration = Duration::from_millis(5);

/// The part of the round. The writer is told by a word that children of this process share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Phase {
    Before,
    During,
    After,
    Over,
}

pub(crate) const WATCHED: [Phase; 3] = [Phase::Before, Phase::During, Phase::After];

/// Which lines are written.
#[derive(Debug)]
pub(crate) enum Workload {
    /// Any, alike.
    Uniform,
    /// Any of so many, the first ones.
    Fitting(usize),
    /// The k-th most popular one k times less often than the first; popular ones lie anywhere.
    Zipf(Box<[u32]>),
}

impl Workload {
    pub(crate) fn zipf(lines: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(1935);
        let drawn = (0..DRAWN).map(|_| {
            let rank = (lines as f64).powf(random.f64()) as usize;
            // Neighbours in popularity are none in memory.
            (rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % lines) as u32
        });
        Self::Zipf(drawn.collect())
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Uniform => "",
            Self::Fitting(_) => "-fitting",
            Self::Zipf(_) => "-zipf",
        }
    }
}

/// The writer's stores and stalls.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Latencies in nanoseconds, by phase.
    pub(crate) latencies: [Histogram<u64>; 3],
    /// Pages that its faults had copied or mapped while the state was saved.
    pub(crate) faults: u64,
    /// When the writer saw that the state is being saved, in the time of the timeline.
    pub(crate) began: Duration,
    /// Stores in each step, and the longest.
    pub(crate) timeline: Vec<(u64, Duration)>,
}

/// Writes until it is over.
pub(crate) fn write(words: &[AtomicU64], workload: &Workload, phase: &AtomicU64) -> Watched {
    let lines = words.len() / WORDS;
    match workload {
        Workload::Uniform => write_lines(words, phase, any_of(lines)),
        Workload::Fitting(fitting) => write_lines(words, phase, any_of(lines.min(*fitting))),
        Workload::Zipf(drawn) => {
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
                _ if seen == Phase::During as u64 => faults_before = minor_faults(),
                _ if before == Phase::During as u64 => faults = minor_faults() - faults_before,
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

/// Faults of this thread that needed no device.
fn minor_faults() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: fills what it is given, and zeroes are a valid `rusage`, should it fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt as u64
}

/// Memory that this process and its children see alike, every byte of it written once.
#[derive(Debug)]
pub(crate) struct Outside {
    start: *mut u8,
    len: usize,
}

// SAFETY: mapped as long as it lives; each user of its address says why it may.
unsafe impl Send for Outside {}
// SAFETY: as above.
unsafe impl Sync for Outside {}

impl Outside {
    /// So many bytes, a multiple of the pages' size.
    pub(crate) fn new(pages: Pages, len: usize) -> Result<Self, LabError> {
        let huge = match pages {
            Pages::Hugetlb2M => MapFlags::HUGETLB | MapFlags::HUGE_2MB,
            _ => MapFlags::empty(),
        };
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | huge);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, prot, flags) }
            .map_err(|errno| LabError::Map { len: Size(len), cause: errno.into() })?;
        let outside = Self { start: start.cast(), len };
        // SAFETY: the mapping, of which nothing is borrowed; the advice changes no byte.
        unsafe {
            if pages == Pages::Thp {
                let _ = madvise(start, len, Advice::LinuxHugepage);
            }
            outside.start.write_bytes(1, len);
        }
        Ok(outside)
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped and aligned to pages; atomics may have any value.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / size_of::<u64>()) }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and no thread borrows it any more.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}

/// The first CPUs that this process may use: one for the writer, one for the saver. The same one twice if
/// there is only one.
pub(crate) fn two_cpus() -> Result<[usize; 2], LabError> {
    let allowed = sched_getaffinity(None).map_err(|errno| LabError::Cpus(errno.into()))?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let one = cpus.next().unwrap_or(0);
    Ok([one, cpus.next().unwrap_or(one)])
}

/// Has the calling thread, and children that it makes, run there. Where that is refused, it runs anywhere.
pub(crate) fn run_on(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    let _ = sched_setaffinity(None, &cpus);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::size::MIB;

    #[test]
    fn every_store_is_watched_in_its_phase() {
        let memory = Outside::new(Pages::Base, MIB).unwrap();
        let phase = AtomicU64::new(Phase::Before as u64);
        for workload in [Workload::Uniform, Workload::Fitting(64), Workload::zipf(MIB / LINE)] {
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
        let Workload::Zipf(drawn) = Workload::zipf(lines) else { unreachable!() };
        let mut counts = vec![0_u32; lines];
        drawn.iter().for_each(|&line| counts[line as usize] += 1);
        counts.sort_unstable_by(|one, other| other.cmp(one));
        assert!(counts[0] > 5 * counts[9] && counts[9] > 5 * counts[99], "{:?}", &counts[..10]);
    }
}
