//! Idea 4: which stores clear how much fastest, as `perf bench mem memset` would run them.
//!
//! One buffer per size, written over and over: what fits a cache is in it. The published work did
//! one pass over warmed memory; from 16 MiB on so does this.

use hugekit::arch::{ClearFn, Kind, clear_routines};
use hugekit::machine::CacheSizes;

use super::routine_matrix::{
    Candidate, best, between, candidates, plan, sample, share, unavailable,
};
use crate::LabError;
use crate::bench::Bench;
use crate::published::Stores;
use crate::record::{Case, Experiment, Ratio, Unit};
use crate::sampler::alternate;
use crate::size::{GIB, KIB, MIB, Size};

const SIZES: [usize; 8] = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 16 * MIB, 128 * MIB, GIB, 4 * GIB];

const COLD_AFTERWARDS: &str =
    "what auto streamed is not in the last-level cache for the next reader, as memset's would be";

#[allow(unsafe_code)]
fn clear(candidate: &Candidate<ClearFn>, bytes: &mut [u8]) {
    match candidate {
        Candidate::Auto => hugekit::clear(bytes),
        Candidate::Routine(routine) => {
            // SAFETY: the slice is ours alone; `candidates` lists available routines only.
            unsafe { routine.run(bytes.as_mut_ptr(), bytes.len()) }.publish();
        }
    }
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let candidates = candidates(clear_routines(), bench.options().routine.as_deref());
    let mut experiment = bench.experiment("stores")?;
    experiment.notices.extend(unavailable(clear_routines()));
    for size in SIZES {
        if size > bench.arena()?.len() || (size > GIB && bench.options().quick) {
            experiment
                .notices
                .push(format!("{} left out: more memory than this run has", Size(size)));
            continue;
        }
        let cases = measure(bench, &candidates, size)?;
        experiment.ratios.extend(ratios(&cases, size, bench.caches()));
        experiment.cases.extend(cases);
    }
    Ok(experiment)
}

fn measure(
    bench: &mut Bench<'_>,
    candidates: &[Candidate<ClearFn>],
    size: usize,
) -> Result<Vec<Case>, LabError> {
    let published = Stores::load();
    let label = Size(size).to_string();
    let plan = plan(bench, share(size, SIZES), size);
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin(&format!("stores {label}"));
    let bytes = &mut arena.bytes()[..size];
    // The case before left its own bytes in the cache, so this one runs once unmeasured.
    let warm = size < GIB;
    let samples = alternate(plan, candidates.len(), observer, |index| {
        let mut pass = || clear(&candidates[index], std::hint::black_box(&mut *bytes));
        if warm {
            sample(size, &mut pass);
        }
        sample(size, pass)
    })?;
    let case = |(candidate, samples): (&Candidate<_>, _)| Case {
        id: format!("stores/{}/{label}", candidate.name()),
        unit: Unit::GibPerSecond,
        samples,
        published: published.bandwidth(candidate.name(), &label),
    };
    Ok(candidates.iter().zip(samples).map(case).collect())
}

fn ratios(cases: &[Case], size: usize, caches: Option<CacheSizes>) -> Vec<Ratio> {
    let label = Size(size).to_string();
    let between = |pair| between(cases, "stores", pair, &label);
    let against_memset = between(("memset", "auto")).map(|ratio| {
        if leaves_the_cache_cold(size, caches) { ratio.unlike(COLD_AFTERWARDS) } else { ratio }
    });
    let published = ["rep_stosb", "rep_stosq"].into_iter().filter_map(|string| {
        let published = Stores::load().speed_up(string, &label);
        between((string, "movnti")).map(|ratio| Ratio { published, ..ratio })
    });
    let best = best(cases, "stores", &label);
    against_memset.into_iter().chain(best).chain(published).collect()
}

/// Whether the engine streams what `memset` would have left in the cache for the next reader.
fn leaves_the_cache_cold(size: usize, caches: Option<CacheSizes>) -> bool {
    let routine = hugekit::Profile::current().clear.warm.routine_for(size);
    routine.kind() == Kind::Streaming && caches.is_some_and(|caches| size <= caches.llc)
}
