//! Idea 5: clear, copy and populate by one thread, two, four … and all there are.
//!
//! Two more comparisons say what the figures cannot: whether a job is as fast as threads that were
//! simply given equal parts of the memory (if both gain little, the machine has no more bandwidth
//! to give), and what a job costs where it does not pay off.

use std::thread;
use std::time::Instant;

use hugekit::parallel::Placement;
use hugekit::{ClearOptions, CopyOptions, PopulateOptions, Reuse, Threads};
use hugekit_bulk::arch::{clear_routine, copy_routine};

use super::part::{Part, found};
use super::routine_matrix::sample;
use crate::LabError;
use crate::arena::Arena;
use crate::bench::Bench;
use crate::conditions::{Conditions, NO_KERNEL};
use crate::published::{self, Beside, Elsewhere};
use crate::record::{Case, Experiment, Ratio, Skipped, Unit};
use crate::sampler::{alternate, try_alternate};
use crate::size::{GIB, MIB, Size};
use crate::threads::spawn;

/// Where a job is not worth more than one thread, and must cost nothing.
const SMALL: usize = MIB;

/// The bytes that are given back and populated at a time. So little comes from the pages given back just before,
/// whose guest memory is there; more would come from pages that a hypervisor has reclaimed meanwhile
/// (free page reporting), and would measure its faults.
const POPULATED: usize = 512 * MIB;

const POPULATE: &str = "populate gives the pages back before each sample, outside the timed part; the guest \
     memory behind them stays warm";

/// The work on all of the memory, or to [`POPULATED`] of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Clear,
    /// One half of the memory to the other, which no thread reads soon.
    Copy,
    Populate,
}

impl Work {
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
enum Method {
    Job(usize),
    /// Threads started for the purpose, each with an equal part.
    PlainThreads(usize),
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let most = Placement::here().threads();
    if most < 2 {
        return Ok(skipped());
    }
    let mut experiment = bench.experiment("parallel")?;
    experiment.notices.push(POPULATE.to_owned());
    let only = bench.options().routine.clone();
    let only = only.as_deref();
    for work in Work::ALL {
        let part = measure(bench, work, most, only);
        experiment.add(work.name(), part)?;
    }
    let small = measure_small(bench, only);
    experiment.add("small", small)?;
    Ok(experiment)
}

fn skipped() -> Experiment {
    Experiment {
        name: "parallel".to_owned(),
        skipped: Some(Skipped {
            reason: "this process has the time of one CPU only".to_owned(),
            remedy: "let it run on more: taskset, a cpuset or a CPU quota limits it".to_owned(),
        }),
        ..Experiment::default()
    }
}

/// 1, 2, 4 … and all.
pub(super) fn counts(most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |threads| Some(threads * 2));
    powers.take_while(|&threads| threads < most).chain([most]).collect()
}

fn measure(
    bench: &mut Bench<'_>,
    work: Work,
    most: usize,
    only: Option<&str>,
) -> Result<Part, LabError> {
    let plan = bench.plan(0.3, 100);
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin(&format!("parallel {}", work.name()));
    if work == Work::Copy {
        arena.fill_with_data(observer)?;
    }
    let jobs = counts(most).into_iter().map(Method::Job);
    let methods: Vec<_> = jobs.chain([Method::PlainThreads(2)]).collect();
    let rounds = try_alternate(plan, methods.len(), observer, |index| {
        measure_once(arena, work, methods[index], only)
    })?;
    let mut part = Part::default();
    let cases = part.cases_of(rounds, |index, samples| case(work, methods[index], samples));
    part.ratios = ratios(work, &cases);
    if work == Work::Clear {
        part.elsewhere = published_beside(&mut part.ratios, arena.len());
    }
    part.cases = with_bandwidth_per_thread(work, &methods, cases);
    Ok(part)
}

/// One sample in GiB/s.
fn measure_once(
    arena: &mut Arena,
    work: Work,
    method: Method,
    only: Option<&str>,
) -> Result<f64, LabError> {
    let len = if work == Work::Populate { POPULATED.min(arena.len()) } else { arena.len() };
    if work == Work::Populate {
        arena.give_back(len)?;
    }
    let mut pieces = Pieces::of(work, &mut arena.bytes()[..len]);
    let len = pieces.dst.len();
    let start = Instant::now();
    match method {
        Method::Job(threads) => pieces.done(work, Threads::Exactly(threads), only),
        Method::PlainThreads(threads) => thread::scope(|scope| {
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
    fn of(work: Work, bytes: &'a mut [u8]) -> Self {
        let half = bytes.len() / 2;
        match work {
            Work::Clear | Work::Populate => Self { dst: bytes, src: &[] },
            Work::Copy => {
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
    fn done(&mut self, work: Work, threads: Threads, only: Option<&str>) -> Result<(), LabError> {
        match work {
            Work::Clear => self.clear(threads, only),
            Work::Copy => {
                let copy = CopyOptions::new().reuse(Reuse::None).threads(threads);
                let only = only.and_then(copy_routine);
                let copy = only.iter().fold(copy, |copy, only| copy.routine(only));
                copy.run(self.dst, self.src).expect("as above, and both sides are equally long");
            }
            Work::Populate => {
                let (start, len) = (self.dst.as_mut_ptr(), self.dst.len());
                let populated = PopulateOptions::new().threads(threads).run_raw(start, len);
                populated.map_err(|error| LabError::Map {
                    len: Size(len),
                    cause: std::io::Error::other(error),
                })?;
            }
        }
        Ok(())
    }
}

fn case(work: Work, method: Method, samples: Vec<f64>) -> Case {
    let (name, threads) = match method {
        Method::Job(threads) => (work.name().to_owned(), threads),
        Method::PlainThreads(threads) => (format!("{}-plain-threads", work.name()), threads),
    };
    let id = format!("parallel/{name}/{threads}");
    Case { id, unit: Unit::GibPerSecond, samples, published: Vec::new() }
}

/// Every number of threads against one, and two against two that know nothing of jobs.
fn ratios(work: Work, cases: &[Option<Case>]) -> Vec<Ratio> {
    let (plain, jobs) = cases.split_last().expect("plain threads are always a case");
    let threads = |case: &Case| case.id.rsplit('/').next().unwrap_or_default().to_owned();
    let against_one = jobs[1..].iter().map(|case| {
        let case = case.as_ref()?;
        let id = format!("parallel/serial-vs-threads/{}/{}", work.name(), threads(case));
        Some(Ratio::between(id, jobs[0].as_ref()?, case))
    });
    let id = format!("parallel/plain-threads-vs-job/{}/2", work.name());
    let sides = plain.as_ref().zip(jobs[1].as_ref());
    let against_plain = sides.map(|(plain, job)| Ratio::between(id, plain, job));
    against_one.chain([against_plain]).flatten().collect()
}

/// Puts published speed-ups beside ours where the workload is the same; returns the others.
fn published_beside(ratios: &mut [Ratio], memory: usize) -> Vec<Elsewhere> {
    let mut elsewhere = Vec::new();
    for ratio in ratios.iter_mut().filter(|ratio| ratio.id.contains("/serial-vs-threads/")) {
        let Some(threads) = ratio.id.rsplit('/').next().and_then(|last| last.parse().ok()) else {
            continue;
        };
        let ours = Conditions {
            ran: "clearing memory that is mapped".to_owned(),
            kernel: NO_KERNEL.to_owned(),
            memory: Some(Size(memory).to_string()),
            pages: None,
            threads: Some(threads),
        };
        let beside = Beside::of(&ratio.id, &ours, published::parallel_speed_up(threads));
        ratio.published = beside.same;
        elsewhere.extend(beside.elsewhere);
    }
    elsewhere
}

/// The cases that there are, and what each thread of a job did.
fn with_bandwidth_per_thread(
    work: Work,
    methods: &[Method],
    cases: Vec<Option<Case>>,
) -> Vec<Case> {
    let per_thread = |(method, case): (&Method, &Option<Case>)| match *method {
        Method::PlainThreads(_) => None,
        Method::Job(threads) => case.as_ref().map(|case| Case {
            id: format!("parallel/{}-per-thread/{threads}", work.name()),
            samples: case.samples.iter().map(|sample| sample / threads as f64).collect(),
            ..case.clone()
        }),
    };
    let each: Vec<Case> = methods.iter().zip(&cases).filter_map(per_thread).collect();
    found(cases).into_iter().chain(each).collect()
}

/// The cost of asking for threads where one is enough.
fn measure_small(bench: &mut Bench<'_>, only: Option<&str>) -> Result<Part, LabError> {
    let plan = bench.plan(0.1, 200);
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin(&format!("parallel {}", Size(SMALL)));
    let mut small = Pieces::of(Work::Clear, &mut arena.bytes()[..SMALL]);
    let methods = [("plain-loop", Threads::One), ("job", Threads::Auto)];
    let samples = alternate(plan, methods.len(), observer, |index| {
        let mut pass = || small.clear(methods[index].1, only);
        sample(SMALL, &mut pass);
        sample(SMALL, pass)
    })?;
    let case = |((name, _), samples): (&(&str, Threads), _)| {
        let id = format!("parallel/{name}/{}", Size(SMALL));
        Case { id, unit: Unit::GibPerSecond, samples, published: Vec::new() }
    };
    let cases: Vec<Case> = methods.iter().zip(samples).map(case).collect();
    let id = format!("parallel/plain-loop-vs-job/{}", Size(SMALL));
    let ratios = vec![Ratio::between(id, &cases[0], &cases[1])];
    Ok(Part { cases, ratios, ..Part::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_work_is_done_to_all_of_its_memory() {
        for threads in [1, 2, 3] {
            for work in [Work::Clear, Work::Copy] {
                let mut bytes: Vec<u8> = (0..8 * MIB + 10).map(|at| (at % 251) as u8 + 1).collect();
                let mut pieces = Pieces::of(work, &mut bytes);
                let expected = match work {
                    Work::Copy => pieces.src.to_vec(),
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
        let case = |threads: usize| case(Work::Clear, Method::Job(threads), vec![1.0]);
        let plain = super::case(Work::Clear, Method::PlainThreads(2), vec![1.0]);
        let mut ratios = ratios(
            Work::Clear,
            &[1, 2, 4].map(case).map(Some).into_iter().chain([Some(plain)]).collect::<Vec<_>>(),
        );
        let elsewhere = published_beside(&mut ratios, 4 * GIB);
        assert!(ratios.iter().all(|ratio| ratio.published.is_empty()));
        let of = |threads: &str| {
            let id = format!("parallel/serial-vs-threads/clear/{threads}");
            elsewhere.iter().filter(move |one| one.beside == id).count()
        };
        assert_eq!((elsewhere.len(), of("2"), of("4")), (14, 7, 7));
        let same_kernel = |one: &Elsewhere| !one.differs.iter().any(|d| d.aspect == "kernel");
        assert!(!elsewhere.iter().any(same_kernel), "{elsewhere:?}");
    }

    #[test]
    fn one_cpu_is_a_reason_and_a_remedy() {
        let skipped = skipped().skipped.unwrap();
        assert!(skipped.reason.contains("one CPU") && skipped.remedy.contains("taskset"));
    }
}
