//! Beyond: what operations learn from the work that they do, from a process's first one on.
//!
//! Each round forgets what was learned, and then measures the first, the second and later operations,
//! as a new process would do them, beside libc, every routine that streams, and the built-in choice
//! with learning switched off. Operations of a GiB are told nothing; those of 2 MiB walk memory far
//! larger than a cache and are told that no thread reads the bytes soon ([`Reuse::None`]).

use std::ops::Range;
use std::time::Instant;

use hugekit::{ClearOptions, CopyOptions, Reuse};
use hugekit_bulk::arch::{ClearRoutine, CopyRoutine, Kind, Routine, clear_routines, copy_routines};
use hugekit_bulk::learning::{self, Used};

use super::part::Part;
use super::routine_matrix::{Walk, between, chosen, marked, may_be_cached, plan};
use crate::LabError;
use crate::bench::Bench;
use crate::record::{Case, Experiment, Ratio, Sequence, Skipped, Unit};
use crate::sampler::alternate;
use crate::size::{GIB, MIB, Size};
use crate::stats::median;

/// What the first operation of a process is asked to gain on.
const LARGE: usize = GIB;

const SMALL: usize = 2 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Copy,
    Clear,
}

/// An operation that is done over and over by a process that has just begun.
#[derive(Clone, Copy, Debug)]
struct Workload {
    operation: Operation,
    size: usize,
    /// Whether it walks, and is told that the bytes are not read soon.
    is_cold: bool,
    /// Of the experiment's time.
    share: f64,
}

/// Four workloads; `large` is as much as a GiB, or what fits.
fn workloads(large: usize) -> [Workload; 4] {
    let of = |operation, size, is_cold, share| Workload { operation, size, is_cold, share };
    [
        of(Operation::Copy, large, false, 0.4),
        of(Operation::Clear, large, false, 0.25),
        of(Operation::Copy, SMALL, true, 0.2),
        of(Operation::Clear, SMALL, true, 0.15),
    ]
}

impl Workload {
    /// `1GiB`, `1GiB-clear`, `2MiB-cold`, `2MiB-cold-clear`.
    fn label(self) -> String {
        let cold = if self.is_cold { "-cold" } else { "" };
        let clear = if self.operation == Operation::Clear { "-clear" } else { "" };
        format!("{}{cold}{clear}", Size(self.size))
    }

    /// Which calls of a new process are summed up, by which name.
    fn looks(self) -> &'static [(&'static str, Range<usize>)] {
        match self.is_cold {
            false => &[("first", 0..1), ("second", 1..2), ("later", 2..6)],
            true => &[("first", 0..24), ("later", 64..80)],
        }
    }

    /// How often a new process does it.
    fn calls(self) -> usize {
        self.looks().last().map_or(0, |(_, calls)| calls.end)
    }

    /// How often something else does it for one sample: as often as the last look sums up.
    fn repeated(self) -> usize {
        if self.is_cold { self.looks().last().map_or(1, |(_, calls)| calls.len()) } else { 1 }
    }

    /// Bytes that the operation touches.
    fn touched(self) -> usize {
        if self.operation == Operation::Copy { 2 * self.size } else { self.size }
    }
}

/// A routine of either table.
#[derive(Clone, Copy, Debug)]
enum Candidate {
    Copy(&'static CopyRoutine),
    Clear(&'static ClearRoutine),
}

impl Candidate {
    /// libc's and every available one that streams, or the one named beside libc's.
    fn all(operation: Operation, only: Option<&str>) -> Vec<Self> {
        match operation {
            Operation::Copy => candidates(copy_routines(), only).map(Self::Copy).collect(),
            Operation::Clear => candidates(clear_routines(), only).map(Self::Clear).collect(),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Copy(routine) => routine.name(),
            Self::Clear(routine) => routine.name(),
        }
    }
}

/// The table's first, and of the others those that are available and wanted.
fn candidates<F>(
    table: &'static [Routine<F>],
    only: Option<&str>,
) -> impl Iterator<Item = &'static Routine<F>> {
    let (libc, others) = table.split_first().expect("libc's is the first");
    let wanted = move |routine: &&Routine<F>| match only {
        Some(only) => only == routine.name(),
        None => routine.kind() == Kind::Streaming,
    };
    let available = others.iter().filter(|routine| routine.is_available());
    std::iter::once(libc).chain(available.filter(wanted))
}

/// Memory to walk on: what is written, and what is read.
#[derive(Debug)]
struct Ground<'a> {
    destination: &'a mut [u8],
    source: &'a [u8],
    walk: Walk,
}

impl Ground<'_> {
    /// One operation: by this routine, or as the engine chooses; which one that was.
    fn run(&mut self, workload: Workload, by: Option<Candidate>) -> Option<Used> {
        let at = self.walk.advance(workload.size);
        let bytes = &mut self.destination[at..][..workload.size];
        let reuse = if workload.is_cold { Reuse::None } else { Reuse::Unknown };
        let ran = match (workload.operation, by) {
            (Operation::Copy, by) => {
                let copy = CopyOptions::new().reuse(reuse);
                let copy = if let Some(Candidate::Copy(by)) = by { copy.routine(by) } else { copy };
                copy.run(bytes, &self.source[at..][..workload.size]).ok()
            }
            (Operation::Clear, by) => {
                let clear = ClearOptions::new().reuse(reuse);
                let clear =
                    if let Some(Candidate::Clear(by)) = by { clear.routine(by) } else { clear };
                clear.run(bytes).ok()
            }
        };
        ran.expect("no target, equal sizes, and routines that are available").used
    }

    /// One sample in GiB/s of what does not change from call to call.
    fn sample(&mut self, workload: Workload, by: Option<Candidate>) -> f64 {
        let start = Instant::now();
        for _ in 0..workload.repeated() {
            self.run(workload, by);
        }
        rate(workload.repeated() * workload.size, start.elapsed().as_secs_f64())
    }

    /// The calls of a process that has just begun, in seconds each; and which routine did the last one.
    fn begin_anew(&mut self, workload: Workload) -> (Vec<f64>, Option<Used>) {
        learning::set_enabled(true);
        learning::forget();
        let mut used = None;
        let calls = (0..workload.calls()).map(|_| {
            let start = Instant::now();
            used = self.run(workload, None);
            start.elapsed().as_secs_f64()
        });
        let calls = calls.collect();
        learning::set_enabled(false);
        (calls, used)
    }
}

fn rate(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / GIB as f64 / seconds
}

/// Of several calls together.
fn rate_of(calls: &[f64], size: usize) -> f64 {
    rate(calls.len() * size, calls.iter().sum())
}

/// Learning goes on afterwards, whatever ends the experiment.
struct Resumed;

impl Drop for Resumed {
    fn drop(&mut self) {
        learning::set_enabled(true);
    }
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    if !learning::is_enabled() {
        return Ok(skipped());
    }
    let mut experiment = bench.experiment("learn")?;
    let (arena, observer) = bench.arena_and_observer()?;
    let half = arena.len() / 2;
    let large = largest(half);
    arena.fill_with_data(observer)?;
    experiment.notices.extend(notices(large, half, bench.llc()));
    let _resumed = Resumed;
    for workload in workloads(large) {
        if bench.options().quick && workload.operation == Operation::Clear {
            experiment.notices.push(format!("{} left out: --quick", workload.label()));
            continue;
        }
        let part = measure(bench, workload);
        experiment.add(&workload.label(), part)?;
    }
    Ok(experiment)
}

fn skipped() -> Experiment {
    Experiment {
        name: "learn".to_owned(),
        skipped: Some(Skipped {
            reason:
                "operations do not learn here: this CPU has no clock or no routine to choose from"
                    .to_owned(),
            remedy: "none: libc does all work on this machine".to_owned(),
        }),
        ..Experiment::default()
    }
}

/// The largest power of two that either side holds, of a GiB at most.
fn largest(half: usize) -> usize {
    if half >= LARGE { LARGE } else { 1 << half.max(SMALL).ilog2() }
}

fn notices(large: usize, half: usize, llc: usize) -> Vec<String> {
    let short = (large < LARGE).then(|| {
        format!(
            "{} instead of 1GiB: source and copy have {} each; `--memory 2GiB`",
            Size(large),
            Size(half)
        )
    });
    let cached = (half < 2 * llc).then(|| {
        format!(
            "cold is what was not used last: the {} to walk on are less than two last-level caches of {}",
            Size(half),
            Size(llc)
        )
    });
    short.into_iter().chain(cached).collect()
}

/// The methods of a round, in the order of the cases: a new process, the built-in choice, the routines.
const NEW_PROCESS: usize = 0;
const BUILT_IN: usize = 1;
const ROUTINES: usize = 2;

fn measure(bench: &mut Bench<'_>, workload: Workload) -> Result<Part, LabError> {
    let label = workload.label();
    let plan = plan(bench, workload.share, workload.size);
    let candidates = Candidate::all(workload.operation, bench.options().routine.as_deref());
    let caches = bench.caches();
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin(&format!("learn {label}"));
    let half = arena.len() / 2;
    let (source, destination) = arena.bytes().split_at_mut(half);
    let mut ground = Ground { destination, source, walk: Walk::new(half) };
    let (mut begun, mut used) = (Vec::new(), None);
    let samples = alternate(plan, ROUTINES + candidates.len(), observer, |index| match index {
        NEW_PROCESS => {
            let (calls, by) = ground.begin_anew(workload);
            let first = rate_of(&calls[..1], workload.size);
            begun.push(calls);
            used = by;
            first
        }
        BUILT_IN => ground.sample(workload, None),
        _ => ground.sample(workload, Some(candidates[index - ROUTINES])),
    })?;
    let mut samples = samples.into_iter();
    // The round that is thrown away began a process, too.
    let begun = &begun[begun.len() - samples.next().map_or(0, |first| first.len())..];
    let names = std::iter::once("built-in").chain(candidates.iter().map(|one| one.name()));
    let mut cases = looks(workload, begun);
    cases.extend(names.zip(samples).map(|(name, samples)| case(name, &label, samples)));
    let mut ratios = ratios(&cases, &candidates, &label);
    if may_be_cached(workload.touched(), caches) {
        ratios = ratios.into_iter().map(|ratio| fair(ratio, workload, used)).collect();
    }
    let sequences = sequence(workload, begun, &cases, &candidates).into_iter().collect();
    Ok(Part { cases, ratios, sequences, notices: vec![said(&label, used)], ..Part::default() })
}

fn case(name: &str, label: &str, samples: Vec<f64>) -> Case {
    let id = format!("learn/{name}/{label}");
    Case { id, unit: Unit::GibPerSecond, samples, published: Vec::new() }
}

/// A case for each look at the calls of new processes.
fn looks(workload: Workload, begun: &[Vec<f64>]) -> Vec<Case> {
    let look = |(name, calls): &(&str, Range<usize>)| {
        let of_round = |round: &Vec<f64>| rate_of(&round[calls.clone()], workload.size);
        case(name, &workload.label(), begun.iter().map(of_round).collect())
    };
    workload.looks().iter().map(look).collect()
}

fn find<'a>(cases: &'a [Case], name: &str, label: &str) -> Option<&'a Case> {
    let id = format!("learn/{name}/{label}");
    cases.iter().find(|case| case.id == id)
}

/// libc and the built-in choice against each look, and the best routine against all but the first.
fn ratios(cases: &[Case], candidates: &[Candidate], label: &str) -> Vec<Ratio> {
    let libc = candidates[0].name();
    let pairs = [(libc, "first"), ("built-in", "first"), (libc, "later"), ("built-in", "later")];
    let pairs = pairs.into_iter().filter_map(|pair| between(cases, "learn", pair, label));
    let routines: Vec<&Case> =
        candidates.iter().filter_map(|one| find(cases, one.name(), label)).collect();
    let best = ["second", "later"].into_iter().filter_map(|look| {
        let id = format!("learn/best-vs-{look}/{label}");
        Ratio::with_best(id, &routines, find(cases, look, label)?)
    });
    pairs.chain(best).collect()
}

/// Not like for like if one side leaves the bytes in the cache and the other does not.
fn fair(ratio: Ratio, workload: Workload, used: Option<Used>) -> Ratio {
    match workload.operation {
        Operation::Copy => marked(ratio, copy_routines(), used),
        Operation::Clear => marked(ratio, clear_routines(), used),
    }
}

/// The routine in the end, in words.
fn said(label: &str, used: Option<Used>) -> String {
    match used {
        Some(used) => format!("{label}: in the end by {}", chosen(used)),
        None => format!("{label}: no single routine did the last call"),
    }
}

/// Every call's median over rounds, with what the calls are compared with.
fn sequence(
    workload: Workload,
    begun: &[Vec<f64>],
    cases: &[Case],
    candidates: &[Candidate],
) -> Option<Sequence> {
    let label = workload.label();
    let of_call = |call| {
        let rounds: Vec<f64> =
            begun.iter().map(|calls| rate_of(&calls[call..=call], workload.size)).collect();
        median(&rounds)
    };
    let level = |name: &str| Some((name.to_owned(), find(cases, name, &label)?.median()));
    let routines = candidates.iter().filter_map(|one| level(one.name()));
    let (best, value) = routines.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let levels =
        [level(candidates[0].name()), Some((format!("best: {best}"), value)), level("built-in")];
    Some(Sequence {
        id: format!("learn/{label}"),
        unit: Unit::GibPerSecond,
        calls: (0..workload.calls()).map(of_call).collect(),
        levels: levels.into_iter().flatten().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ground<'a>(destination: &'a mut [u8], source: &'a [u8]) -> Ground<'a> {
        let walk = Walk::new(source.len());
        Ground { destination, source, walk }
    }

    #[test]
    fn every_candidate_and_the_engine_do_the_operation() {
        let source: Vec<u8> = (0..SMALL).map(|at| at as u8 | 1).collect();
        for workload in workloads(SMALL) {
            let candidates = Candidate::all(workload.operation, None);
            assert!(candidates.len() > 1 || cfg!(not(target_arch = "x86_64")));
            for by in candidates.into_iter().map(Some).chain([None]) {
                let mut destination = vec![0xff; SMALL];
                ground(&mut destination, &source).run(workload, by);
                let expected = match workload.operation {
                    Operation::Copy => destination == source,
                    Operation::Clear => destination.iter().all(|&byte| byte == 0),
                };
                assert!(expected, "{} by {by:?}", workload.label());
            }
        }
    }

    #[test]
    fn labels_and_looks_are_those_that_are_documented() {
        let labels = workloads(GIB).map(Workload::label);
        assert_eq!(labels, ["1GiB", "1GiB-clear", "2MiB-cold", "2MiB-cold-clear"]);
        let [large, _, small, _] = workloads(GIB);
        assert_eq!((large.calls(), small.calls()), (6, 80));
        assert_eq!((large.repeated(), small.repeated()), (1, 16));
        let cases = looks(large, &[vec![1.0, 0.5, 0.25, 0.25, 0.25, 0.25]]);
        let rates: Vec<f64> = cases.iter().map(Case::median).collect();
        assert_eq!(rates, [1.0, 2.0, 4.0]);
        assert_eq!(cases[2].id, "learn/later/1GiB");
    }

    #[test]
    fn a_small_machine_has_the_largest_power_of_two_that_fits() {
        assert_eq!(largest(2 * GIB), GIB);
        assert_eq!(largest(GIB - 1), GIB / 2);
        assert_eq!(largest(24 * MIB), 16 * MIB);
        let notices = notices(16 * MIB, 24 * MIB, 32 * MIB);
        assert!(notices[0].starts_with("16MiB instead of 1GiB: source and copy have 24MiB each"));
        assert_eq!(notices.len(), 2);
    }

    #[test]
    fn ratios_are_those_that_are_documented_and_the_best_is_no_look() {
        let [large, _, small, _] = workloads(GIB);
        let routines = Candidate::all(Operation::Copy, Some("rep_movsb"));
        let of = |workload: Workload, looks: &[&str]| {
            let label = workload.label();
            let names = looks.iter().copied().chain(["built-in"]);
            let names = names.chain(routines.iter().map(|one| one.name()));
            let cases: Vec<Case> = names.map(|name| case(name, &label, vec![1.0; 4])).collect();
            let ratios = ratios(&cases, &routines, &label);
            ratios.into_iter().map(|ratio| ratio.id).collect::<Vec<_>>()
        };
        let large = of(large, &["first", "second", "later"]);
        for id in ["memcpy-vs-first", "best-vs-second", "best-vs-later", "built-in-vs-later"] {
            assert!(large.contains(&format!("learn/{id}/1GiB")), "{large:?}");
        }
        let small = of(small, &["first", "later"]);
        assert!(small.contains(&"learn/best-vs-later/2MiB-cold".to_owned()), "{small:?}");
        assert!(!small.iter().any(|id| id.contains("second")), "{small:?}");
    }
}
