//! Ideas 2 and 4 for copies: which loads and stores copy how much fastest, cold and warm.
//!
//! *Warm* is one source and one destination, copied over and over: what fits a cache is in it, and
//! `auto` is [`hugekit::copy`], which is told nothing. *Cold* walks memory far larger than a cache,
//! as a checkpoint or a copy-on-write does: neither side is in the cache, no thread reads the copy
//! soon, and `auto` is told so ([`Reuse::None`]), which no length could tell it. On one size, 4 KiB
//! in the middle of one side are then read, and `auto` is told which side. After some warm copies all
//! of the copy is read (`+read`), which `auto` is not told. `order.rs` adds the orders of copying.

use hugekit::{CopyOptions, Reuse};
use hugekit_bulk::arch::{CopyFn, copy_routines};
use hugekit_bulk::learning::Used;

use super::order::{self, Look};
use super::routine_matrix::{
    ByAuto, Candidate, READ_LABEL, Walk, best, between, candidates, marked, may_be_cached, mostly,
    plan, read_all, sample, share, unavailable,
};
use crate::LabError;
use crate::bench::{Bench, left_out};
use crate::record::{Case, Experiment, Ratio, Unit};
use crate::sampler::alternate;
use crate::size::{GIB, KIB, MIB, Size};

const WARM: [usize; 5] = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 16 * MIB];
const COLD: [usize; 7] = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 16 * MIB, 128 * MIB, GIB];

/// Sizes around the caches, where it matters to a reader which routine copied.
const WARM_THEN_READ: [usize; 3] = [MIB, 2 * MIB, 16 * MIB];

/// A huge page, on which a side is used afterwards.
const FOLIO: usize = 2 * MIB;

/// Bytes of that side that are read: a base page.
const READ: usize = 4 * KIB;

/// Bytes of the copy of a huge page that are stored to where it was copied in one order or another.
const TOUCHED: usize = 64 * KIB;

/// Of the experiment's time, for these.
const ORDER_SHARE: f64 = 0.25;

/// Where the bytes are before, and which reader needs them afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Warm,
    WarmThenRead,
    Cold,
    ThenReadCopy,
    ThenReadSource,
}

impl State {
    /// Whether one source and one destination are copied over and over.
    fn stays(self) -> bool {
        matches!(self, Self::Warm | Self::WarmThenRead)
    }

    /// Whether nothing is read afterwards that would show what is in the cache.
    fn leaves_the_reader_out(self) -> bool {
        matches!(self, Self::Warm | Self::Cold)
    }

    fn label(self, size: usize) -> String {
        let size = Size(size);
        match self {
            Self::Warm => format!("{size}-warm"),
            Self::WarmThenRead => format!("{size}-warm{READ_LABEL}"),
            Self::Cold => format!("{size}-cold"),
            Self::ThenReadCopy => format!("{size}-cold+read-copy-{}", Size(READ)),
            Self::ThenReadSource => format!("{size}-cold+read-source-{}", Size(READ)),
        }
    }

    /// The reuse that `auto` is told beyond the length, if any.
    fn told(self, size: usize) -> Option<CopyOptions<'static>> {
        let cold = CopyOptions::new().reuse(Reuse::None);
        match self {
            Self::Warm | Self::WarmThenRead => None,
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
            Self::WarmThenRead => read_all(dst),
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
    let then_read = WARM_THEN_READ.map(|size| (State::WarmThenRead, size));
    let cold = COLD.map(|size| (State::Cold, size));
    let used = [State::ThenReadCopy, State::ThenReadSource].map(|state| (state, FOLIO));
    warm.chain(then_read).chain(cold).chain(used)
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let candidates = candidates(copy_routines(), bench.options().routine.as_deref());
    let mut experiment = bench.experiment("copies")?;
    experiment.notices.extend(unavailable(copy_routines()));
    let (arena, observer) = bench.arena_and_observer()?;
    arena.fill_with_data(observer)?;
    let mut by_auto = ByAuto::default();
    for (state, size) in workloads() {
        let label = state.label(size);
        let has = bench.arena()?.len();
        if 2 * size > has {
            experiment.notices.push(left_out(&label, 2 * size, has));
            continue;
        }
        let (cases, used) = measure(bench, &candidates, state, size, &label)?;
        by_auto.add(&label, used);
        let reader_left_out =
            state.leaves_the_reader_out() && may_be_cached(2 * size, bench.caches());
        let mark = |ratio| match reader_left_out {
            true => marked(ratio, copy_routines(), used),
            false => ratio,
        };
        experiment.ratios.extend(ratios(&cases, &label).map(mark));
        experiment.cases.extend(cases);
    }
    experiment.notices.extend(by_auto.notice());
    let look = Look { experiment: "copies", writers: 1, used: TOUCHED, share: ORDER_SHARE };
    experiment.add("order", order::measure(bench, look))?;
    Ok(experiment)
}

fn measure(
    bench: &mut Bench<'_>,
    candidates: &[Candidate<CopyFn>],
    state: State,
    size: usize,
    label: &str,
) -> Result<(Vec<Case>, Option<Used>), LabError> {
    let plan = plan(bench, share(size, workloads().map(|(_, size)| size)), size);
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin(&format!("copies {label}"));
    let half = arena.len() / 2;
    let (source, destination) = arena.bytes().split_at_mut(half);
    let mut walk = Walk::new(half);
    let told = state.told(size);
    let mut used = Vec::new();
    let samples = alternate(plan, candidates.len(), observer, |index| {
        let candidate = &candidates[index];
        let mut pass = || {
            let at = if state.stays() { 0 } else { walk.advance(size) };
            let (dst, src) = (&mut destination[at..][..size], &source[at..][..size]);
            copy(candidate, told.as_ref(), dst, src);
            state.read_afterwards(dst, src);
        };
        if state.stays() {
            sample(size, &mut pass);
        }
        let sample = sample(size, pass);
        if matches!(candidate, Candidate::Auto) {
            // Once more, because only this says which routine it was.
            let copy = told.clone().unwrap_or_default();
            let copied = copy.run(&mut destination[..size], &source[..size]);
            used.extend(copied.ok().and_then(|report| report.used));
        }
        sample
    })?;
    let case = |(candidate, samples): (&Candidate<_>, _)| Case {
        id: format!("copies/{}/{label}", candidate.name()),
        unit: Unit::GibPerSecond,
        samples,
        published: Vec::new(),
    };
    Ok((candidates.iter().zip(samples).map(case).collect(), mostly(&used)))
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

fn ratios(cases: &[Case], label: &str) -> impl Iterator<Item = Ratio> {
    let against_memcpy = between(cases, "copies", ("memcpy", "auto"), label);
    against_memcpy.into_iter().chain(best(cases, "copies", label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_copies() {
        let told = [State::Warm, State::Cold, State::ThenReadCopy, State::ThenReadSource];
        for state in told {
            for candidate in candidates(copy_routines(), None) {
                let source: Vec<u8> = (0..100_000).map(|at| at as u8).collect();
                let mut destination = vec![0; source.len()];
                copy(&candidate, state.told(source.len()).as_ref(), &mut destination, &source);
                assert!(destination == source, "{}", candidate.name());
            }
        }
    }
}
