//! Ideas 2 and 4 for copies: which loads and stores copy how much fastest, cold and warm.
//!
//! *Warm* is one source and one destination, copied over and over: what fits a cache is in it, and
//! `auto` is [`hugekit::copy`], which is told nothing. *Cold* walks memory far larger than a cache,
//! as a checkpoint or a copy-on-write does: neither side is in the cache, nobody reads the copy
//! soon, and `auto` is told so ([`Reuse::None`]), which no length could tell it.

use hugekit::arch::{CopyFn, copy_routines};
use hugekit::machine::CacheSizes;
use hugekit::{Copy, Reuse};

use super::contest::{Contender, best, between, contenders, sample, share, unavailable};
use crate::LabError;
use crate::bench::Bench;
use crate::record::{Case, Experiment, Ratio, Unit};
use crate::sampler::alternate;
use crate::size::{GIB, KIB, MIB, Size};

const WARM: [usize; 5] = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 16 * MIB];
const COLD: [usize; 6] = [64 * KIB, MIB, 2 * MIB, 16 * MIB, 128 * MIB, GIB];

const COLD_AFTERWARDS: &str =
    "what auto streamed is not in the cache for whoever reads the copy next, as memcpy's would be";

/// Where the bytes are before, and who needs them afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Warm,
    Cold,
}

impl State {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
        }
    }
}

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let contenders = contenders(copy_routines(), bench.options().routine.as_deref());
    let mut experiment = bench.experiment("copies")?;
    experiment.notices.extend(unavailable(copy_routines()));
    let workloads = WARM.map(|size| (State::Warm, size)).into_iter();
    for (state, size) in workloads.chain(COLD.map(|size| (State::Cold, size))) {
        let label = format!("{}-{}", Size(size), state.suffix());
        if 2 * size > bench.arena()?.len() {
            experiment.notices.push(format!("{label} left out: more memory than this run has"));
            continue;
        }
        let cases = measure(bench, &contenders, state, size, &label)?;
        experiment.ratios.extend(ratios(&cases, state, size, &label, bench.caches()));
        experiment.cases.extend(cases);
    }
    Ok(experiment)
}

fn measure(
    bench: &mut Bench<'_>,
    contenders: &[Contender<CopyFn>],
    state: State,
    size: usize,
    label: &str,
) -> Result<Vec<Case>, LabError> {
    let plan = bench.plan(share(size, WARM.into_iter().chain(COLD)), 200);
    let (arena, observer) = bench.arena_and_observer()?;
    observer.begin(&format!("copies {label}"));
    let half = arena.len() / 2;
    let (source, destination) = arena.bytes().split_at_mut(half);
    let mut walk = Walk { half, next: 0 };
    let samples = alternate(plan, contenders.len(), observer, |index| {
        let contender = &contenders[index];
        let mut pass = || {
            let at = if state == State::Cold { walk.advance(size) } else { 0 };
            copy(contender, state, &mut destination[at..][..size], &source[at..][..size]);
        };
        if state == State::Warm {
            sample(size, &mut pass);
        }
        sample(size, pass)
    })?;
    let case = |(contender, samples): (&Contender<_>, _)| Case {
        id: format!("copies/{}/{label}", contender.name()),
        unit: Unit::GibPerSecond,
        samples,
        published: Vec::new(),
    };
    Ok(contenders.iter().zip(samples).map(case).collect())
}

/// Places to copy at, one after the other, from the start again at the end.
#[derive(Debug)]
struct Walk {
    half: usize,
    next: usize,
}

impl Walk {
    fn advance(&mut self, size: usize) -> usize {
        let at = if self.next + size > self.half { 0 } else { self.next };
        self.next = at + size;
        at
    }
}

#[allow(unsafe_code)]
fn copy(contender: &Contender<CopyFn>, state: State, dst: &mut [u8], src: &[u8]) {
    let copied = match contender {
        Contender::Auto if state == State::Cold => Copy::new().reuse(Reuse::None).run(dst, src),
        Contender::Auto => hugekit::copy(dst, src),
        Contender::Routine(routine) => {
            // SAFETY: two slices of `size` bytes, one of them borrowed mutably; `contenders` lists
            // available routines only.
            unsafe { routine.run(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }.publish();
            Ok(())
        }
    };
    copied.expect("both sides are of the same size");
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
    fn a_walk_stays_within_its_half_and_starts_again() {
        let mut walk = Walk { half: 10, next: 0 };
        assert_eq!([walk.advance(4), walk.advance(4), walk.advance(4)], [0, 4, 0]);
        assert_eq!(walk.advance(6), 4);
    }

    #[test]
    fn every_contender_copies() {
        for state in [State::Warm, State::Cold] {
            for contender in contenders(copy_routines(), None) {
                let source: Vec<u8> = (0..100_000).map(|at| at as u8).collect();
                let mut destination = vec![0; source.len()];
                copy(&contender, state, &mut destination, &source);
                assert!(destination == source, "{}", contender.name());
            }
        }
    }
}
