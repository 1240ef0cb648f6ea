//! Idea 4: which stores clear how much fastest, as `perf bench mem memset` would run them.
//!
//! One buffer per size, written over and over: what fits a cache is in it. The published work did
//! one pass over warmed memory; from 16 MiB on so does this.
//!
//! A routine that streams past the cache leaves the next reader to fetch the bytes from memory, and one
//! that does not may have left them in the cache. `+read` counts that: all of the bytes are read once
//! after each clearing.

use hugekit::ClearOptions;
use hugekit_bulk::arch::{ClearFn, clear_routines};
use hugekit_bulk::learning::Used;
use hugekit_machine::CacheSizes;

use super::perf_bench;
use super::routine_matrix::{
    ByAuto, Candidate, READ_LABEL, best, between, candidates, marked, may_be_cached, mostly, plan,
    read_all, sample, share, unavailable,
};
use crate::LabError;
use crate::bench::{Bench, left_out};
use crate::conditions::{Conditions, NO_KERNEL};
use crate::published::{self, Beside, Elsewhere};
use crate::record::{Case, Experiment, Ratio, Unit, parts};
use crate::sampler::alternate;
use crate::size::{GIB, KIB, MIB, Size};

/// The published baselines.
const STRINGS: [&str; 2] = ["rep_stosb", "rep_stosq"];

const SIZES: [usize; 8] = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 16 * MIB, 128 * MIB, GIB, 4 * GIB];

/// Of an experiment's time, for perf's own program.
const PERF_SHARE: f64 = 0.4;

/// Sizes around the caches, where it matters to a reader which routine cleared.
const READ: [usize; 4] = [MIB, 2 * MIB, 16 * MIB, 128 * MIB];

/// What is cleared, and whether it is read afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Workload {
    size: usize,
    then_read: bool,
}

impl Workload {
    fn label(self) -> String {
        let read = if self.then_read { READ_LABEL } else { "" };
        format!("{}{read}", Size(self.size))
    }

    /// As published, as far as it is the same.
    fn conditions(self) -> Conditions {
        let then = if self.then_read { ", and of its reader" } else { "" };
        Conditions {
            ran: format!("one pass over a buffer written before{then}"),
            kernel: NO_KERNEL.to_owned(),
            memory: Some(Size(self.size).to_string()),
            pages: None,
            threads: Some(1),
        }
    }
}

/// The measurements, in order.
fn workloads() -> impl Iterator<Item = Workload> {
    let of = |then_read| move |size| Workload { size, then_read };
    SIZES.into_iter().map(of(false)).chain(READ.into_iter().map(of(true)))
}

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
    let mut by_auto = ByAuto::default();
    for workload in workloads() {
        let (size, label, has) = (workload.size, workload.label(), bench.arena()?.len());
        if size > GIB && bench.options().quick {
            experiment.notices.push(format!("{label} left out: --quick"));
            continue;
        }
        if size > has {
            experiment.notices.push(left_out(&label, size, has));
            continue;
        }
        let (mut cases, used) = measure(bench, &candidates, workload)?;
        by_auto.add(&label, used);
        let mut ratios = ratios(&cases, workload, used, bench.caches());
        experiment.elsewhere.extend(published_beside(workload, &mut cases, &mut ratios));
        experiment.ratios.extend(ratios);
        experiment.cases.extend(cases);
    }
    experiment.notices.extend(by_auto.notice());
    if bench.options().routine.is_none() {
        let perf = perf_bench::measure(bench, PERF_SHARE);
        experiment.add("perf bench", perf)?;
    }
    Ok(experiment)
}

fn measure(
    bench: &mut Bench<'_>,
    candidates: &[Candidate<ClearFn>],
    workload: Workload,
) -> Result<(Vec<Case>, Option<Used>), LabError> {
    let (size, label) = (workload.size, workload.label());
    let plan = plan(bench, share(size, workloads().map(|workload| workload.size)), size);
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin(&format!("stores {label}"));
    let bytes = &mut arena.bytes()[..size];
    // The case before left its own bytes in the cache, so this one runs once unmeasured.
    let warm = size < GIB;
    let mut used = Vec::new();
    let samples = alternate(plan, candidates.len(), observer, |index| {
        let mut pass = || {
            clear(&candidates[index], std::hint::black_box(&mut *bytes));
            if workload.then_read {
                read_all(bytes);
            }
        };
        if warm {
            sample(size, &mut pass);
        }
        let sample = sample(size, pass);
        if matches!(candidates[index], Candidate::Auto) {
            // Once more, because only this says which routine it was.
            used.extend(ClearOptions::new().run(bytes).ok().and_then(|report| report.used));
        }
        sample
    })?;
    let case = |(candidate, samples): (&Candidate<_>, _)| Case {
        id: format!("stores/{}/{label}", candidate.name()),
        unit: Unit::GibPerSecond,
        samples,
        published: Vec::new(),
    };
    Ok((candidates.iter().zip(samples).map(case).collect(), mostly(&used)))
}

fn ratios(
    cases: &[Case],
    workload: Workload,
    used: Option<Used>,
    caches: Option<CacheSizes>,
) -> Vec<Ratio> {
    let (size, label) = (workload.size, workload.label());
    let between = |pair| between(cases, "stores", pair, &label);
    let against_memset = between(("memset", "auto"));
    let against = against_memset.into_iter().chain(best(cases, "stores", &label));
    let reader_left_out = !workload.then_read && may_be_cached(size, caches);
    let against = against.map(|ratio| match reader_left_out {
        true => marked(ratio, clear_routines(), used),
        false => ratio,
    });
    let as_published = STRINGS.into_iter().filter_map(|string| between((string, "movnti")));
    against.chain(as_published).collect()
}

/// Puts published figures beside what they are of; returns those of other workloads.
fn published_beside(
    workload: Workload,
    cases: &mut [Case],
    ratios: &mut [Ratio],
) -> Vec<Elsewhere> {
    let (size, ours) = (Size(workload.size).to_string(), workload.conditions());
    let mut elsewhere = Vec::new();
    for case in cases {
        let routine = parts(&case.id).map_or("", |(routine, _)| routine);
        let beside = Beside::of(&case.id, &ours, published::stores(routine, &size));
        case.published = beside.same;
        elsewhere.extend(beside.elsewhere);
    }
    for ratio in ratios.iter_mut().filter(|ratio| ratio.subject.starts_with("stores/movnti/")) {
        let string = parts(&ratio.baseline).map_or("", |(routine, _)| routine);
        let beside = Beside::of(&ratio.id, &ours, published::stores_speed_up(string, &size));
        ratio.published = beside.same;
        elsewhere.extend(beside.elsewhere);
    }
    elsewhere
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(then_read: bool) -> (Vec<Case>, Vec<Ratio>, Vec<Elsewhere>) {
        let workload = Workload { size: GIB, then_read };
        let case = |name: &str| Case {
            id: format!("stores/{name}/{}", workload.label()),
            unit: Unit::GibPerSecond,
            samples: vec![1.0, 2.0],
            published: Vec::new(),
        };
        let mut cases = ["rep_stosb", "movnti", "auto"].map(case).to_vec();
        let mut ratios = ratios(&cases, workload, None, None);
        let elsewhere = published_beside(workload, &mut cases, &mut ratios);
        (cases, ratios, elsewhere)
    }

    #[test]
    fn a_pass_is_what_was_published_and_a_pass_with_its_reader_is_not() {
        let (cases, ratios, elsewhere) = beside(false);
        let counts: Vec<_> = cases.iter().map(|case| case.published.len()).collect();
        assert_eq!((counts, elsewhere), (vec![2, 3, 0], vec![]));
        let published = ratios.iter().map(|ratio| (ratio.id.as_str(), ratio.published.len()));
        let published: Vec<_> = published.filter(|(_, figures)| *figures > 0).collect();
        assert_eq!(published, [("stores/rep_stosb-vs-movnti/1GiB", 2)]);
        let (cases, ratios, elsewhere) = beside(true);
        assert!(cases.iter().all(|case| case.published.is_empty()));
        assert!(ratios.iter().all(|ratio| ratio.published.is_empty()));
        assert!(elsewhere.iter().all(|one| one.differs[0].aspect == "ran"), "{elsewhere:?}");
        assert_eq!(elsewhere.len(), 2 + 3 + 2);
    }
}
