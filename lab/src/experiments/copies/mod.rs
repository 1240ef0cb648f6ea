//! Ideas 2 and 4 for copies: which loads and stores copy how much fastest, cold and warm.
//!
//! *Warm* is one source and one destination, copied over and over: what fits a cache is in it, and
//! `auto` is [`hugekit::copy`], which is told nothing. *Cold* walks memory far larger than a cache,
//! as a checkpoint or a copy-on-write does: neither side is in the cache, no thread reads the copy
//! soon, and `auto` is told so ([`Reuse::None`]), which no length could tell it. On one size, 4 KiB
//! in the middle of one side are then read, and `auto` is told which side. After some warm copies all
//! of the copy is read (`+read`), which `auto` is not told. `order.rs` adds the orders of copying,
//! `starts.rs` where arrays start.

pub(super) mod order;
mod starts;

use crate::measure::LabError;
use crate::measure::part::Part;
use crate::measure::part::Parts;
use crate::record::Experiment;
use hugekit::{CopyOptions, Reuse};
use hugekit_bulk::arch::{CopyFn, copy_routines};
use hugekit_bulk::learning::Used;
use hugekit_machine::size::{GIB, KIB, MIB, Size};

use self::order::OrderWorkload;
use super::bench::left_out;
use super::routine_matrix::{
    Candidate, Matrix, MatrixWorkload, READ_LABEL, Walk, may_be_cached, read_all, rounds, share,
};
use super::{Bench, Definition};

pub(super) const DEFINITION: Definition = Definition {
    name: "copies",
    repeats: "target last, 2018, and its review: cached and streaming copies by size",
    why: "Asks of copies what the reviewers of target-last copying asked in 2018: why not leave the cache \
          alone? Checkpoints and copy-on-write copy memory that no thread reads soon, and memcpy reads it \
          into the cache all the same.",
    headlines: &["memcpy-vs-auto"],
    is_core: true,
    run,
};

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

/// The part of the experiment's time for the order of copying.
const ORDER_SHARE: f64 = 0.25;

/// The bytes that are in the cache before a copy, and the reader that needs them afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheState {
    Warm,
    WarmThenRead,
    Cold,
    ThenReadCopy,
    ThenReadSource,
}

impl CacheState {
    /// True if one source and one destination are copied over and over.
    fn stays(self) -> bool {
        matches!(self, Self::Warm | Self::WarmThenRead)
    }

    fn label(self, size: usize) -> String {
        let (size, read) = (Size(size), Size(READ));
        match self {
            Self::Warm => format!("{size}-warm"),
            Self::WarmThenRead => format!("{size}-warm{READ_LABEL}"),
            Self::Cold => format!("{size}-cold"),
            Self::ThenReadCopy => format!("{size}-cold+read-copy-{read}"),
            Self::ThenReadSource => format!("{size}-cold+read-source-{read}"),
        }
    }

    /// The reuse that `auto` is told beyond the length, if any.
    fn told(self, size: usize) -> Option<CopyOptions<'static>> {
        let cold = CopyOptions::new().reuse(Reuse::None);
        let used = CopyOptions::new().target(size / 2);
        match self {
            Self::Warm | Self::WarmThenRead => None,
            Self::Cold => Some(cold),
            Self::ThenReadCopy => Some(used.source_reuse(Reuse::None)),
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
fn workloads() -> impl Iterator<Item = (CacheState, usize)> {
    let warm = WARM.map(|size| (CacheState::Warm, size)).into_iter();
    let then_read = WARM_THEN_READ.map(|size| (CacheState::WarmThenRead, size));
    let cold = COLD.map(|size| (CacheState::Cold, size));
    let used = [CacheState::ThenReadCopy, CacheState::ThenReadSource].map(|state| (state, FOLIO));
    warm.chain(then_read).chain(cold).chain(used)
}

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let mut matrix = Matrix::new("copies", copy_routines(), bench.options().routine.as_deref());
    let mut experiment = bench.experiment("copies")?;
    let observer = bench.observer();
    bench.arena()?.fill_with_data(observer)?;
    for (state, size) in workloads() {
        let has = bench.arena()?.len();
        if 2 * size > has {
            experiment.notices.push(left_out(&state.label(size), 2 * size, has));
            continue;
        }
        experiment.absorb(measure(bench, &mut matrix, state, size)?);
    }
    experiment.notices.extend(matrix.notices());
    let workload =
        OrderWorkload { experiment: "copies", writers: 1, used: TOUCHED, share: ORDER_SHARE };
    experiment.add("order", order::measure(bench, workload))?;
    experiment.add("starts", starts::measure(bench))?;
    Ok(experiment)
}

fn measure(
    bench: &mut Bench<'_>,
    matrix: &mut Matrix<CopyFn>,
    state: CacheState,
    size: usize,
) -> Result<Part, LabError> {
    let is_unread = matches!(state, CacheState::Warm | CacheState::Cold);
    let workload = MatrixWorkload {
        label: state.label(size),
        size,
        is_warmed: state.stays(),
        leaves_reader_out: is_unread && may_be_cached(2 * size, bench.caches()),
    };
    let rounds = rounds(bench, share(size, workloads().map(|(_, size)| size)), size);
    let arena = bench.arena()?.bytes();
    let half = arena.len() / 2;
    let (source, destination) = arena.split_at_mut(half);
    let (mut walk, told) = (Walk::new(half), state.told(size));
    matrix.measure(rounds, &workload, |candidate| {
        let is_asked = matches!(candidate, Candidate::Asked);
        let at = if state.stays() || is_asked { 0 } else { walk.advance(size) };
        let (dst, src) = (&mut destination[at..][..size], &source[at..][..size]);
        let used = copy(candidate, told.as_ref(), dst, src);
        if !is_asked {
            state.read_afterwards(dst, src);
        }
        used
    })
}

#[allow(unsafe_code)]
fn copy(
    candidate: &Candidate<CopyFn>,
    told: Option<&CopyOptions<'_>>,
    dst: &mut [u8],
    src: &[u8],
) -> Option<Used> {
    let told = match (candidate, told) {
        (Candidate::Routine(routine), _) => {
            // SAFETY: two slices of one length, one of them borrowed mutably, and a `Matrix` lists
            // available routines only.
            unsafe { routine.run(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }.publish();
            return None;
        }
        (Candidate::Auto, None) => {
            hugekit::copy(dst, src).expect("both sides are of the same size");
            return None;
        }
        (_, told) => told.cloned().unwrap_or_default(),
    };
    told.run(dst, src).expect("both sides are of the same size, with the target inside").used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_copies() {
        for state in [
            CacheState::Warm,
            CacheState::Cold,
            CacheState::ThenReadCopy,
            CacheState::ThenReadSource,
        ] {
            let routines = copy_routines().iter().filter(|routine| routine.is_available());
            let candidates = routines.map(Candidate::Routine);
            for candidate in candidates.chain([Candidate::Auto, Candidate::Asked]) {
                let source: Vec<u8> = (0..100_000).map(|at| at as u8).collect();
                let mut destination = vec![0; source.len()];
                copy(&candidate, state.told(source.len()).as_ref(), &mut destination, &source);
                assert!(destination == source, "{}", candidate.name());
            }
        }
    }
}
