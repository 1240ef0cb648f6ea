//! Idea 5: clear, copy and populate by one thread, two, four … and all there are.
//!
//! Two more comparisons say what the figures cannot: whether a job is as fast as threads that were
//! simply given equal parts of the memory (if both gain little, the machine has no more bandwidth
//! to give), and what a job costs where it does not pay off.

mod gigantic;
mod nodes;

use std::thread;
use std::time::Instant;

use crate::measure::LabError;
use crate::measure::part::Part;
use crate::measure::part::Parts;
use crate::measure::workloads::arena::Arena;
use crate::measure::workloads::threads::spawn;
use crate::record::published::{self, Conditions};
use crate::record::{Case, Experiment, Unit};
use hugekit::{ClearOptions, CopyOptions, PopulateOptions, Reuse, Threads};
use hugekit_bulk::arch::{clear_routine, copy_routine};
use hugekit_bulk::parallel::Placement;
use hugekit_machine::size::{GIB, MIB, Size};

use crate::experiments::routine_matrix::sample;
use crate::experiments::{Bench, Definition};

pub(in crate::experiments) const DEFINITION: Definition = Definition {
    name: "parallel",
    repeats: "gigantic pages in parallel, 2017: clear, copy, populate by threads",
    why: "Repeats clearing gigantic pages by several threads (ktask, 2017), for copying and populating too. A \
          virtual machine's memory takes minutes to clear on one CPU; how many threads help ends where the \
          memory's bandwidth does.",
    headlines: &["serial-vs-threads"],
    is_core: true,
    run,
};

/// The bytes on which a job is not worth more than one thread, and must cost nothing.
const SMALL: usize = MIB;

/// The bytes that are given back and populated at a time. So little comes from the pages given back just before,
/// whose guest memory is there; more would come from pages that a hypervisor has reclaimed meanwhile
/// (free page reporting), and would measure its faults.
const POPULATED: usize = 512 * MIB;

const POPULATE: &str = "populate gives the pages back before each sample, outside the timed part; the guest \
     memory behind them stays warm";

/// The kind of a job on all of the memory, or on [`POPULATED`] of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobKind {
    Clear,
    /// A copy of one half of the memory to the other half, which no thread reads soon.
    Copy,
    Populate,
}

impl JobKind {
    const ALL: [Self; 3] = [Self::Clear, Self::Copy, Self::Populate];

    const fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Copy => "copy",
            Self::Populate => "populate",
        }
    }
}

/// The threads that do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadMethod {
    Job(usize),
    /// Threads started for the purpose, each with an equal part.
    PlainThreads(usize),
}

impl ThreadMethod {
    fn name(self, work: JobKind) -> String {
        match self {
            Self::Job(threads) => format!("{}/{threads}", work.name()),
            Self::PlainThreads(threads) => format!("{}-plain-threads/{threads}", work.name()),
        }
    }
}

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let most = Placement::here().threads();
    if most < 2 {
        let remedy = "let it run on more: taskset, a cpuset or a CPU quota limits it";
        let reason = "this process has the time of one CPU only";
        return Ok(Experiment::skipped("parallel", reason, remedy));
    }
    let mut experiment = bench.experiment("parallel")?;
    experiment.notices.push(POPULATE.to_owned());
    let only = bench.options().routine.clone();
    for work in JobKind::ALL {
        let part = measure(bench, work, most, only.as_deref());
        experiment.add(work.name(), part)?;
    }
    let small = measure_small(bench, only.as_deref());
    experiment.add("small", small)?;
    let gigantic = gigantic::measure(bench, most);
    experiment.add("gigantic pages", gigantic)?;
    let nodes = nodes::measure(bench);
    experiment.add("nodes", nodes)?;
    Ok(experiment)
}

/// 1, 2, 4 … and all.
pub(in crate::experiments) fn counts(most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |threads| Some(threads * 2));
    powers.take_while(|&threads| threads < most).chain([most]).collect()
}

fn measure(
    bench: &mut Bench<'_>,
    work: JobKind,
    most: usize,
    only: Option<&str>,
) -> Result<Part, LabError> {
    let rounds = bench.rounds(0.3, 100);
    rounds.observer.begin(&format!("parallel {}", work.name()));
    let arena = bench.arena()?;
    if work == JobKind::Copy {
        arena.fill_with_data(rounds.observer)?;
    }
    let methods: Vec<_> = counts(most)
        .into_iter()
        .map(ThreadMethod::Job)
        .chain([ThreadMethod::PlainThreads(2)])
        .collect();
    let names: Vec<_> = methods.iter().map(|method| method.name(work)).collect();
    let mut part = rounds.measure("parallel", Unit::GibPerSecond, &names, |index| {
        measure_once(arena, work, methods[index], only)
    })?;
    compare(&mut part, work, &counts(most), arena.len());
    Ok(part)
}

/// Measures a sample in GiB/s.
fn measure_once(
    arena: &mut Arena,
    work: JobKind,
    method: ThreadMethod,
    only: Option<&str>,
) -> Result<f64, LabError> {
    let len = if work == JobKind::Populate { POPULATED.min(arena.len()) } else { arena.len() };
    if work == JobKind::Populate {
        arena.give_back(len)?;
    }
    let mut pieces = Pieces::of(work, &mut arena.bytes()[..len]);
    let len = pieces.dst.len();
    let start = Instant::now();
    match method {
        ThreadMethod::Job(threads) => pieces.done(work, Threads::Exactly(threads), only),
        ThreadMethod::PlainThreads(threads) => thread::scope(|scope| {
            let parts = pieces
                .split(threads)
                .map(|mut part| spawn(scope, move || part.done(work, Threads::One, only)));
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            parts.into_iter().try_for_each(|part| part.join().expect("its failure is an error"))
        }),
    }?;
    Ok(len as f64 / GIB as f64 / start.elapsed().as_secs_f64())
}

/// The bytes that are written, and those that are read if any are: equally long then.
struct Pieces<'a> {
    dst: &'a mut [u8],
    src: &'a [u8],
}

impl<'a> Pieces<'a> {
    fn of(work: JobKind, bytes: &'a mut [u8]) -> Self {
        let half = bytes.len() / 2;
        match work {
            JobKind::Clear | JobKind::Populate => Self { dst: bytes, src: &[] },
            JobKind::Copy => {
                let (dst, rest) = bytes.split_at_mut(half);
                Self { dst, src: &rest[..half] }
            }
        }
    }

    /// Equal parts, the last of them possibly shorter.
    fn split(self, parts: usize) -> impl Iterator<Item = Self> {
        let each = self.dst.len().div_ceil(parts);
        let sources = self.src.chunks(each).map(Some).chain(std::iter::repeat(None));
        let parts = self.dst.chunks_mut(each).zip(sources);
        parts.map(|(dst, src)| Self { dst, src: src.unwrap_or_default() })
    }

    fn clear(&mut self, threads: Threads, only: Option<&str>) {
        let clear = ClearOptions::new().threads(threads);
        let only = only.and_then(clear_routine);
        let clear = only.iter().fold(clear, |clear, only| clear.routine(only));
        clear.run(self.dst).expect("there are threads, no target, and routines were checked");
    }

    /// A routine asked for by name is taken where the work has one of that name.
    fn done(
        &mut self,
        work: JobKind,
        threads: Threads,
        only: Option<&str>,
    ) -> Result<(), LabError> {
        match work {
            JobKind::Clear => self.clear(threads, only),
            JobKind::Copy => {
                let copy = CopyOptions::new().reuse(Reuse::None).threads(threads);
                let only = only.and_then(copy_routine);
                let copy = only.iter().fold(copy, |copy, only| copy.routine(only));
                copy.run(self.dst, self.src).expect("as above, and both sides are equally long");
            }
            JobKind::Populate => {
                let (start, len) = (self.dst.as_mut_ptr(), self.dst.len());
                let populated = {
                    let start = start.expose_provenance();
                    PopulateOptions::new().threads(threads).run_range(start..start + len)
                };
                populated.map_err(|error| LabError::Map {
                    len: Size(len),
                    source: std::io::Error::other(error),
                })?;
            }
        }
        Ok(())
    }
}

/// Every number of threads against one, and two against two that know nothing of jobs; and the bandwidth of each
/// thread of a job.
fn compare(part: &mut Part, work: JobKind, counts: &[usize], memory: usize) {
    let name = work.name();
    for threads in &counts[1..] {
        let sides = (&*format!("{name}/1"), &*format!("{name}/{threads}"));
        part.ratio(&format!("serial-vs-threads/{name}/{threads}"), sides, None);
        if work == JobKind::Clear {
            let ran = Conditions::without_kernel("clearing memory that is mapped");
            let (memory, threads) = (Some(Size(memory).to_string()), *threads);
            let ours = Conditions { memory, threads: Some(threads), ..ran };
            let id = format!("parallel/serial-vs-threads/{name}/{threads}");
            part.put_beside(&id, &ours, published::parallel_speed_up(threads));
        }
    }
    let sides = (&*format!("{name}-plain-threads/2"), &*format!("{name}/2"));
    part.ratio(&format!("plain-threads-vs-job/{name}/2"), sides, None);
    let per_thread = |threads: &usize| {
        let case = part.case(&format!("{name}/{threads}"))?;
        let samples = case.samples.iter().map(|sample| sample / *threads as f64).collect();
        Some(Case::new(format!("parallel/{name}-per-thread/{threads}"), case.unit, samples))
    };
    let per_thread: Vec<Case> = counts.iter().filter_map(per_thread).collect();
    part.cases.extend(per_thread);
}

/// The cost of asking for threads where one is enough.
fn measure_small(bench: &mut Bench<'_>, only: Option<&str>) -> Result<Part, LabError> {
    let (rounds, label) = (bench.rounds(0.1, 200), Size(SMALL).to_string());
    rounds.observer.begin(&format!("parallel {label}"));
    let mut small = Pieces::of(JobKind::Clear, &mut bench.arena()?.bytes()[..SMALL]);
    let methods = [("plain-loop", Threads::One), ("job", Threads::Auto)];
    let names = methods.map(|(name, _)| format!("{name}/{label}"));
    let mut part = rounds.measure("parallel", Unit::GibPerSecond, &names, |index| {
        let mut pass = || small.clear(methods[index].1, only);
        sample(SMALL, &mut pass);
        Ok(sample(SMALL, pass))
    })?;
    part.compare(("plain-loop", "job"), &label, None);
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_work_is_done_to_all_of_its_memory() {
        for threads in [1, 2, 3] {
            for work in [JobKind::Clear, JobKind::Copy] {
                let mut bytes: Vec<u8> = (0..8 * MIB + 10).map(|at| (at % 251) as u8 + 1).collect();
                let mut pieces = Pieces::of(work, &mut bytes);
                let expected = match work {
                    JobKind::Copy => pieces.src.to_vec(),
                    _ => vec![0; pieces.dst.len()],
                };
                pieces.done(work, Threads::Exactly(threads), None).unwrap();
                assert!(pieces.dst == expected, "{work:?}");
                pieces.dst.fill(0xa5);
                let whole = pieces.dst.len();
                let parts: Vec<_> = Pieces::of(work, &mut bytes).split(threads).collect();
                assert_eq!(parts.iter().map(|part| part.dst.len()).sum::<usize>(), whole);
                parts.into_iter().for_each(|mut part| part.done(work, Threads::One, None).unwrap());
                assert!(bytes[..whole] == expected, "{work:?}");
            }
        }
    }

    #[test]
    fn thread_counts_double_and_end_with_all() {
        assert_eq!(counts(2), [1, 2]);
        assert_eq!(counts(6), [1, 2, 4, 6]);
        assert_eq!(counts(8), [1, 2, 4, 8]);
    }

    #[test]
    fn published_speed_ups_are_shown_as_of_another_workload() {
        let (work, counts) = (JobKind::Clear, [1, 2, 4]);
        let mut part = Part::new("parallel");
        for method in
            counts.map(ThreadMethod::Job).into_iter().chain([ThreadMethod::PlainThreads(2)])
        {
            part.add_case(&method.name(work), Unit::GibPerSecond, vec![1.0]);
        }
        compare(&mut part, work, &counts, 4 * GIB);
        assert_eq!((part.cases.len(), part.ratios.len()), (7, 3));
        assert!(part.ratios.iter().all(|ratio| ratio.published.is_empty()));
        assert_eq!(part.elsewhere.len(), 14);
        assert!(part.elsewhere.iter().all(|one| one.differs.iter().any(|d| d.aspect == "kernel")));
    }
}
