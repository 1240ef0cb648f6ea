//! Beyond: what operations learn from the work that they do, from a process's first one on.
//!
//! Each round forgets what was learned, and then measures the first, the second and later operations,
//! as a new process would do them, beside libc, every routine that streams, and the built-in choice
//! with learning switched off. Operations of a GiB are told nothing; those of 2 MiB walk memory far
//! larger than a cache and are told that no thread reads the bytes soon ([`Reuse::None`]).

use std::ops::Range;
use std::time::Instant;

use crate::measure::LabError;
use crate::measure::part::Part;
use crate::measure::part::Parts;
use crate::record::stats::median;
use crate::record::{Case, Experiment, Ratio, Sequence, Unit};
use hugekit::{ClearOptions, CopyOptions, Reuse};
use hugekit_bulk::arch::{
    Kind, Routine, clear_routine, clear_routines, copy_routine, copy_routines,
};
use hugekit_bulk::learning::{self, Used};
use hugekit_machine::size::{GIB, MIB, Size};

use super::routine_matrix::{Walk, chosen, marked, may_be_cached, rounds};
use super::{Bench, Definition};

pub(super) const DEFINITION: Definition = Definition {
    name: "learn",
    repeats: "beyond: a process's first, second and later calls, as timings are learned",
    why: "Measures what a process's first, second and later operations gain from what the library learned of the \
          ones before, beside libc, the best routine and the built-in choice. A table of CPU models is always \
          behind the machines that programs run on, and learning must pay for itself at once.",
    headlines: &["best-vs-second"],
    is_core: true,
    run,
};

/// The bytes on which the first operation of a process should gain.
const LARGE: usize = GIB;

const SMALL: usize = 2 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Copy,
    Clear,
}

/// An operation that is done over and over by a process that has just begun.
#[derive(Clone, Copy, Debug)]
struct LearnWorkload {
    operation: Operation,
    size: usize,
    /// True if the workload walks, and the engine knows that the bytes are not read soon.
    is_cold: bool,
    /// The part of the experiment's time.
    share: f64,
}

/// Four workloads; `large` is as much as a GiB, or what fits.
fn workloads(large: usize) -> [LearnWorkload; 4] {
    let of = |operation, size, is_cold, share| LearnWorkload { operation, size, is_cold, share };
    [
        of(Operation::Copy, large, false, 0.4),
        of(Operation::Clear, large, false, 0.25),
        of(Operation::Copy, SMALL, true, 0.2),
        of(Operation::Clear, SMALL, true, 0.15),
    ]
}

impl LearnWorkload {
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

    /// The number of calls in a new process.
    fn calls(self) -> usize {
        self.looks().last().map_or(0, |(_, calls)| calls.end)
    }

    /// The number of calls by other methods for a sample: as many as the last look sums up.
    fn repeated(self) -> usize {
        if self.is_cold { self.looks().last().map_or(1, |(_, calls)| calls.len()) } else { 1 }
    }

    /// Bytes that the operation touches.
    fn touched(self) -> usize {
        if self.operation == Operation::Copy { 2 * self.size } else { self.size }
    }
}

/// The names of the routines that an operation may be done by: libc's, and of the others those that are available
/// and stream, or the one that is wanted.
fn candidates(operation: Operation, only: Option<&str>) -> Vec<&'static str> {
    fn of<F>(table: &'static [Routine<F>], only: Option<&str>) -> Vec<&'static str> {
        let (libc, others) = table.split_first().expect("libc's is the first");
        let wanted = |routine: &&Routine<F>| match only {
            Some(only) => only == routine.name(),
            None => routine.kind() == Kind::Streaming,
        };
        let others = others.iter().filter(|routine| routine.is_available()).filter(wanted);
        std::iter::once(libc).chain(others).map(Routine::name).collect()
    }
    match operation {
        Operation::Copy => of(copy_routines(), only),
        Operation::Clear => of(clear_routines(), only),
    }
}

/// Memory to walk on: what is written, and what is read.
#[derive(Debug)]
struct Ground<'a> {
    destination: &'a mut [u8],
    source: &'a [u8],
    walk: Walk,
}

impl Ground<'_> {
    /// Runs an operation by the routine of this name, or by the engine's choice. Returns that choice.
    fn run(&mut self, workload: LearnWorkload, by: Option<&str>) -> Option<Used> {
        let at = self.walk.advance(workload.size);
        let bytes = &mut self.destination[at..][..workload.size];
        let reuse = if workload.is_cold { Reuse::None } else { Reuse::Unknown };
        let ran = match workload.operation {
            Operation::Copy => {
                let (copy, by) = (CopyOptions::new().reuse(reuse), by.and_then(copy_routine));
                let copy = by.iter().fold(copy, |copy, by| copy.routine(by));
                copy.run(bytes, &self.source[at..][..workload.size]).ok()
            }
            Operation::Clear => {
                let (clear, by) = (ClearOptions::new().reuse(reuse), by.and_then(clear_routine));
                by.iter().fold(clear, |clear, by| clear.routine(by)).run(bytes).ok()
            }
        };
        ran.expect("no target, equal sizes, and routines that are available").used
    }

    /// Measures a sample in GiB/s of a method that does not change from call to call.
    fn sample(&mut self, workload: LearnWorkload, by: Option<&str>) -> f64 {
        let start = Instant::now();
        for _ in 0..workload.repeated() {
            self.run(workload, by);
        }
        rate(workload.repeated() * workload.size, start.elapsed().as_secs_f64())
    }

    /// The calls of a process that has just begun, in seconds each; and which routine did the last one.
    fn begin_anew(&mut self, workload: LearnWorkload) -> Begun {
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

/// The rate of several calls together.
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

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    if !learning::is_enabled() {
        let reason =
            "operations do not learn here: this CPU has no clock or no routine to choose from";
        return Ok(Experiment::skipped(
            "learn",
            reason,
            "none: libc does all work on this machine",
        ));
    }
    let mut experiment = bench.experiment("learn")?;
    let observer = bench.observer();
    let arena = bench.arena()?;
    arena.fill_with_data(observer)?;
    let half = arena.len() / 2;
    let large = largest(half);
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

/// The calls of a new process in seconds each, and the routine of the last one.
type Begun = (Vec<f64>, Option<Used>);

fn measure(bench: &mut Bench<'_>, workload: LearnWorkload) -> Result<Part, LabError> {
    let label = workload.label();
    let candidates = candidates(workload.operation, bench.options().routine.as_deref());
    let (rounds, caches) = (rounds(bench, workload.share, workload.size), bench.caches());
    rounds.observer.begin(&format!("learn {label}"));
    let arena = bench.arena()?.bytes();
    let half = arena.len() / 2;
    let (source, destination) = arena.split_at_mut(half);
    let mut ground = Ground { destination, source, walk: Walk::new(half) };
    let routines = candidates.iter().copied();
    let names = ["first", "built-in"].into_iter().chain(routines);
    let names: Vec<_> = names.map(|name| format!("{name}/{label}")).collect();
    let measured = rounds.measure_with("learn", Unit::GibPerSecond, &names, |index| match index {
        NEW_PROCESS => {
            let begun = ground.begin_anew(workload);
            Ok((rate_of(&begun.0[..1], workload.size), begun))
        }
        BUILT_IN => Ok((ground.sample(workload, None), Begun::default())),
        _ => {
            let by = candidates[index - ROUTINES];
            Ok((ground.sample(workload, Some(by)), Begun::default()))
        }
    });
    let (part, mut begun) = measured?;
    let begun = begun.swap_remove(NEW_PROCESS);
    let mut learned = Part::new("learn");
    looks(&mut learned, workload, &begun);
    // Instead of the first call alone.
    learned.cases.extend(part.cases.into_iter().skip(ROUTINES - 1));
    compare(&mut learned, &candidates, &label);
    let used = begun.last().and_then(|(_, used)| *used);
    if may_be_cached(workload.touched(), caches) {
        let ratios = learned.ratios.into_iter();
        learned.ratios = ratios.map(|ratio| fair(ratio, workload, used)).collect();
    }
    learned.sequences.extend(sequence(workload, &begun, &learned, &candidates));
    learned.notices.push(match used {
        Some(used) => format!("{label}: in the end by {}", chosen(used)),
        None => format!("{label}: no single routine did the last call"),
    });
    Ok(learned)
}

/// A case for each look at the calls of new processes.
fn looks(part: &mut Part, workload: LearnWorkload, begun: &[Begun]) {
    for (name, calls) in workload.looks() {
        let of_round = |(round, _): &Begun| rate_of(&round[calls.clone()], workload.size);
        let samples = begun.iter().map(of_round).collect();
        part.add_case(&format!("{name}/{}", workload.label()), Unit::GibPerSecond, samples);
    }
}

/// libc and the built-in choice against each look, and the best routine against all but the first.
fn compare(part: &mut Part, candidates: &[&str], label: &str) {
    let libc = candidates[0];
    for look in ["first", "later"] {
        part.compare((libc, look), label, None);
        part.compare(("built-in", look), label, None);
    }
    let case = |name: &str| part.case(&format!("{name}/{label}"));
    let routines: Vec<&Case> = candidates.iter().filter_map(|one| case(one)).collect();
    let best = ["second", "later"].into_iter().filter_map(|look| {
        Ratio::with_best(format!("learn/best-vs-{look}/{label}"), &routines, case(look)?)
    });
    let best: Vec<Ratio> = best.collect();
    part.ratios.extend(best);
}

/// Not like for like if one side leaves the bytes in the cache and the other does not.
fn fair(ratio: Ratio, workload: LearnWorkload, used: Option<Used>) -> Ratio {
    match workload.operation {
        Operation::Copy => marked(ratio, copy_routines(), used),
        Operation::Clear => marked(ratio, clear_routines(), used),
    }
}

/// Every call's median over rounds, with what the calls are compared with.
fn sequence(
    workload: LearnWorkload,
    begun: &[Begun],
    part: &Part,
    candidates: &[&str],
) -> Option<Sequence> {
    let label = workload.label();
    let of_call = |call| {
        let rate = |(calls, _): &Begun| rate_of(&calls[call..=call], workload.size);
        median(&begun.iter().map(rate).collect::<Vec<_>>())
    };
    let level =
        |name: &str| Some((name.to_owned(), part.case(&format!("{name}/{label}"))?.median()));
    let routines = candidates.iter().filter_map(|one| level(one));
    let (best, value) = routines.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let best = Some((format!("best: {best}"), value));
    let levels = [level(candidates[0]), best, level("built-in")];
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
            let candidates = candidates(workload.operation, None);
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
        let labels = workloads(GIB).map(LearnWorkload::label);
        assert_eq!(labels, ["1GiB", "1GiB-clear", "2MiB-cold", "2MiB-cold-clear"]);
        let [large, _, small, _] = workloads(GIB);
        assert_eq!((large.calls(), small.calls()), (6, 80));
        assert_eq!((large.repeated(), small.repeated()), (1, 16));
        let mut part = Part::new("learn");
        looks(&mut part, large, &[(vec![1.0, 0.5, 0.25, 0.25, 0.25, 0.25], None)]);
        let rates: Vec<f64> = part.cases.iter().map(Case::median).collect();
        assert_eq!(rates, [1.0, 2.0, 4.0]);
        assert_eq!(part.cases[2].id, "learn/later/1GiB");
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
        let routines = candidates(Operation::Copy, Some("rep_movsb"));
        let of = |workload: LearnWorkload, looks: &[&str]| {
            let label = workload.label();
            let names = looks.iter().copied().chain(["built-in"]);
            let names = names.chain(routines.iter().copied());
            let mut part = Part::new("learn");
            for name in names {
                part.add_case(&format!("{name}/{label}"), Unit::GibPerSecond, vec![1.0; 4]);
            }
            compare(&mut part, &routines, &label);
            part.ratios.into_iter().map(|ratio| ratio.id).collect::<Vec<_>>()
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
