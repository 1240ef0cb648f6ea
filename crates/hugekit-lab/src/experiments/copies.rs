//! Ideas 2 and 4 for copies: which loads and stores copy how much fastest, cold and warm.
//!
//! *Warm* is one source and one destination, copied over and over: what fits a cache is in it, and
//! `auto` is [`hugekit::copy`], which is told nothing. *Cold* walks memory far larger than a cache,
//! as a checkpoint or a copy-on-write does: neither side is in the cache, no thread reads the copy
//! soon, and `auto` is told so ([`Reuse::None`]), which no length could tell it. On one size, 4 KiB
//! in the middle of one side are then read, and `auto` is told which side.

use hugekit::arch::{CopyFn, copy_routines};
use hugekit::machine::CacheSizes;
use hugekit::{CopyOptions, Reuse};

use super::routine_matrix::{
    Candidate, Walk, best, between, candidates, plan, sample, share, unavailable,
};
use crate::LabError;
use crate::bench::Bench;
use crate::record::{Case, Experiment, Ratio, Unit};
use crate::sampler::alternate;
use crate::size::{GIB, KIB, MIB, Size};

const WARM: [usize; 5] = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 16 * MIB];
const COLD: [usize; 7] = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 16 * MIB, 128 * MIB, GIB];

const COLD_AFTERWARDS: &str =
    "what auto streamed is not in the cache for the copy's next reader, as memcpy's would be";

/// A huge page, on which a side is used afterwards.
const FOLIO: usize = 2 * MIB;

/// Bytes of that side that are read: a base page.
const READ: usize = 4 * KIB;

/// Where the bytes are before, and which reader needs them afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Warm,
    Cold,
    ThenReadCopy,
    ThenReadSource,
}

impl State {
    fn label(self, size: usize) -> String {
        let size = Size(size);
        match self {
            Self::Warm => format!("{size}-warm"),
            Self::Cold => format!("{size}-cold"),
            Self::ThenReadCopy => format!("{size}-cold+read-copy-{}", Size(READ)),
            Self::ThenReadSource => format!("{size}-cold+read-source-{}", Size(READ)),
        }
    }

    /// The reuse that `auto` is told beyond the length, if any.
    fn told(self, size: usize) -> Option<CopyOptions<'static>> {
        let cold = CopyOptions::new().reuse(Reuse::None);
        match self {
            Self::Warm => None,
            Self::Cold => Some(cold),
            Self::ThenReadCopy => {
                Some(CopyOptions::new().target(size / 2).source_reuse(Reuse::None))
            }
            Self::ThenReadSource => Some(cold.target(size / 2).source_reuse(Reuse::Target)),
        }
    }

    fn read_afterwards(self, dst: &[u8], src: &[u8]) {
        match self {
            Self::Warm | Self::Cold => {}
            Self::ThenReadCopy => read_words(&dst[dst.len() / 2..][..READ]),
            Self::ThenReadSource => read_words(&src[src.len() / 2..][..READ]),
        }
    }
}

/// Loads every word of eight bytes, ascending, each by an instruction of its own.
#[allow(unsafe_code)]
fn read_words(bytes: &[u8]) {
    for word in bytes.chunks_exact(8) {
        // SAFETY: eight readable bytes; the volatile load keeps the loop from being left out.
        unsafe { word.as_ptr().cast::<u64>().read_volatile() };
    }
}

/// The measurements, in order.
fn workloads() -> impl Iterator<Item = (State, usize)> {
    let warm = WARM.map(|size| (State::Warm, size)).into_iter();
    let cold = COLD.map(|size| (State::Cold, size));
    let used = [State::ThenReadCopy, State::ThenReadSource].map(|state| (state, FOLIO));
    warm.chain(cold).chain(used)
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let candidates = candidates(copy_routines(), bench.options().routine.as_deref());
    let mut experiment = bench.experiment("copies")?;
    experiment.notices.extend(unavailable(copy_routines()));
    let (arena, observer) = bench.arena_and_observer()?;
    arena.fill_with_data(observer)?;
    for (state, size) in workloads() {
        let label = state.label(size);
        if 2 * size > bench.arena()?.len() {
            experiment.notices.push(format!("{label} left out: more memory than this run has"));
            continue;
        }
        let cases = measure(bench, &candidates, state, size, &label)?;
        experiment.ratios.extend(ratios(&cases, state, size, &label, bench.caches()));
        experiment.cases.extend(cases);
    }
    Ok(experiment)
}

fn measure(
    bench: &mut Bench<'_>,
    candidates: &[Candidate<CopyFn>],
    state: State,
    size: usize,
    label: &str,
) -> Result<Vec<Case>, LabError> {
    let plan = plan(bench, share(size, workloads().map(|(_, size)| size)), size);
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin(&format!("copies {label}"));
    let half = arena.len() / 2;
    let (source, destination) = arena.bytes().split_at_mut(half);
    let mut walk = Walk::new(half);
    let told = state.told(size);
    let samples = alternate(plan, candidates.len(), observer, |index| {
        let candidate = &candidates[index];
        let mut pass = || {
            let at = if state == State::Warm { 0 } else { walk.advance(size) };
            let (dst, src) = (&mut destination[at..][..size], &source[at..][..size]);
            copy(candidate, told.as_ref(), dst, src);
            state.read_afterwards(dst, src);
        };
        if state == State::Warm {
            sample(size, &mut pass);
        }
        sample(size, pass)
    })?;
    let case = |(candidate, samples): (&Candidate<_>, _)| Case {
        id: format!("copies/{}/{label}", candidate.name()),
        unit: Unit::GibPerSecond,
        samples,
        published: Vec::new(),
    };
    Ok(candidates.iter().zip(samples).map(case).collect())
}

#[allow(unsafe_code)]
fn copy(candidate: &Candidate<CopyFn>, told: Option<&CopyOptions<'_>>, dst: &mut [u8], src: &[u8]) {
    let copied = match (candidate, told) {
        (Candidate::Auto, Some(told)) => told.run(dst, src).map(drop),
        (Candidate::Auto, None) => hugekit::copy(dst, src),
        (Candidate::Routine(routine), _) => {
            // SAFETY: two slices of `size` bytes, one of them borrowed mutably; `candidates` lists
            // available routines only.
            unsafe { routine.run(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }.publish();
            Ok(())
        }
    };
    copied.expect("both sides are of the same size, with the target inside");
}

fn ratios(
    cases: &[Case],
    state: State,
    size: usize,
    label: &str,
    caches: Option<CacheSizes>,
) -> Vec<Ratio> {
    let fits = caches.is_some_and(|caches| 2 * size <= caches.llc);
    let against_memcpy = between(cases, "copies", ("memcpy", "auto"), label).map(|ratio| {
        if state == State::Cold && fits { ratio.unlike(COLD_AFTERWARDS) } else { ratio }
    });
    against_memcpy.into_iter().chain(best(cases, "copies", label)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_copies() {
        for state in [State::Warm, State::Cold, State::ThenReadCopy, State::ThenReadSource] {
            for candidate in candidates(copy_routines(), None) {
                let source: Vec<u8> = (0..100_000).map(|at| at as u8).collect();
                let mut destination = vec![0; source.len()];
                copy(&candidate, state.told(source.len()).as_ref(), &mut destination, &source);
                assert!(destination == source, "{}", candidate.name());
            }
        }
    }
}
