//! Idea 4: which stores clear how much fastest, as `perf bench mem memset` would run them.
//!
//! One buffer per size, written over and over: what fits a cache is in it. The published work did
//! one pass over warmed memory; from 16 MiB on so does this.

use std::time::Instant;

use hugekit::arch::{ClearRoutine, Kind, clear_routines};
use hugekit::machine::CacheSizes;

use crate::LabError;
use crate::bench::Bench;
use crate::published::Stores;
use crate::record::{Case, Experiment, Ratio, Unit};
use crate::sampler::alternate;
use crate::size::{GIB, KIB, MIB, Size};

const SIZES: [usize; 8] = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 16 * MIB, 128 * MIB, GIB, 4 * GIB];

/// A sample clears at least this much, in several passes if need be, so that reading the clock
/// does not show.
const SAMPLE_BYTES: usize = 16 * MIB;

const COLD_AFTERWARDS: &str =
    "what auto streamed is not in the last-level cache for the next reader, as memset's would be";

/// Something that clears a buffer.
#[derive(Clone, Copy, Debug)]
enum Method {
    Routine(&'static ClearRoutine),
    Auto,
}

impl Method {
    fn name(self) -> &'static str {
        match self {
            Self::Routine(routine) => routine.name(),
            Self::Auto => "auto",
        }
    }

    #[allow(unsafe_code)]
    fn clear(self, bytes: &mut [u8]) {
        match self {
            Self::Auto => hugekit::clear(bytes),
            Self::Routine(routine) => {
                // SAFETY: the slice is ours alone; `methods` lists available routines only.
                unsafe { routine.run(bytes.as_mut_ptr(), bytes.len()) }.publish();
            }
        }
    }

    /// One sample in GiB/s.
    fn measure(self, bytes: &mut [u8]) -> f64 {
        let passes = SAMPLE_BYTES.div_ceil(bytes.len());
        let start = Instant::now();
        for _ in 0..passes {
            self.clear(std::hint::black_box(&mut *bytes));
        }
        (passes * bytes.len()) as f64 / GIB as f64 / start.elapsed().as_secs_f64()
    }
}

fn methods(only: Option<&'static ClearRoutine>) -> Vec<Method> {
    let wanted = |routine: &&ClearRoutine| {
        routine.is_available()
            && (routine.name() == "memset" || only.is_none_or(|only| only == *routine))
    };
    let routines = clear_routines().iter().filter(wanted).map(Method::Routine);
    routines.chain([Method::Auto]).collect()
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let methods = methods(bench.options().routine);
    let mut experiment = bench.experiment("stores")?;
    experiment.notices.extend(unavailable());
    for size in SIZES {
        if size > bench.arena()?.len() || (size > GIB && bench.options().quick) {
            experiment
                .notices
                .push(format!("{} left out: more memory than this run has", Size(size)));
            continue;
        }
        let cases = measure(bench, &methods, size)?;
        experiment.ratios.extend(ratios(&cases, size, bench.caches()));
        experiment.cases.extend(cases);
    }
    Ok(experiment)
}

fn unavailable() -> Option<String> {
    let missing: Vec<String> = clear_routines()
        .iter()
        .filter(|routine| !routine.is_available())
        .map(|routine| format!("{} (needs {})", routine.name(), routine.needs()))
        .collect();
    (!missing.is_empty()).then(|| format!("not on this CPU: {}", missing.join(", ")))
}

fn measure(bench: &mut Bench<'_>, methods: &[Method], size: usize) -> Result<Vec<Case>, LabError> {
    let published = Stores::load();
    let label = Size(size).to_string();
    let plan = bench.plan(1.0 / SIZES.len() as f64, 200);
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin(&format!("stores {label}"));
    let bytes = &mut arena.bytes()[..size];
    // What the case before left in the cache is not this one's: it runs once unmeasured.
    let warm = size < GIB;
    let samples = alternate(plan, methods.len(), observer, |index| {
        if warm {
            methods[index].measure(bytes);
        }
        methods[index].measure(bytes)
    })?;
    let case = |(method, samples): (&Method, _)| Case {
        id: format!("stores/{}/{label}", method.name()),
        unit: Unit::GibPerSecond,
        samples,
        published: published.bandwidth(method.name(), &label),
    };
    Ok(methods.iter().zip(samples).map(case).collect())
}

fn ratios(cases: &[Case], size: usize, caches: Option<CacheSizes>) -> Vec<Ratio> {
    let label = Size(size).to_string();
    let case =
        |method: &str| cases.iter().find(|case| case.id == format!("stores/{method}/{label}"));
    let between = |baseline: &str, subject: &str| {
        let id = format!("stores/{baseline}-vs-{subject}/{label}");
        Some(Ratio::between(id, case(baseline)?, case(subject)?))
    };
    let (auto, routines) = cases.split_last().expect("the engine's own choice is always a case");
    let candidates: Vec<&Case> = routines.iter().collect();
    let against_memset = between("memset", "auto").map(|ratio| {
        if leaves_the_cache_cold(size, caches) { ratio.unlike(COLD_AFTERWARDS) } else { ratio }
    });
    let best = Ratio::with_best(format!("stores/best-vs-auto/{label}"), &candidates, auto);
    let published = ["rep_stosb", "rep_stosq"].into_iter().filter_map(|string| {
        let published = Stores::load().speed_up(string, &label);
        between(string, "movnti").map(|ratio| Ratio { published, ..ratio })
    });
    against_memset.into_iter().chain(best).chain(published).collect()
}

/// Whether the engine streams what `memset` would have left in the cache for the next reader.
fn leaves_the_cache_cold(size: usize, caches: Option<CacheSizes>) -> bool {
    let routine = hugekit::Profile::current().warm.routine_for(size);
    routine.kind() == Kind::Streaming && caches.is_some_and(|caches| size <= caches.llc)
}
