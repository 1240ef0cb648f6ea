//! Idea 4: which stores clear how much fastest, as `perf bench mem memset` would run them.
//!
//! One buffer per size, written over and over: what fits a cache is in it. The published work did
//! one pass over warmed memory; from 16 MiB on so does this.
//!
//! A routine that streams past the cache leaves the next reader to fetch the bytes from memory, and one
//! that does not may have left them in the cache. `+read` counts that: all of the bytes are read once
//! after each clearing. *neighbour-of* is what another reader feels meanwhile, and *process* has the first touch.

mod first_touch;
mod neighbour;
mod perf_bench;

use crate::measure::LabError;
use crate::measure::machine::here;
use crate::measure::part::Part;
use crate::measure::part::Parts;
use crate::record::published::{self, Conditions};
use crate::record::{Experiment, parts};
use hugekit::ClearOptions;
use hugekit_bulk::arch::{ClearFn, clear_routines};
use hugekit_bulk::learning::Used;
use hugekit_machine::size::{GIB, KIB, MIB, Size};

use super::bench::left_out;
use super::routine_matrix::{
    Candidate, Matrix, MatrixWorkload, READ_LABEL, may_be_cached, read_all, rounds, share,
};
use super::{Bench, Definition};

pub(super) const DEFINITION: Definition = Definition {
    name: "stores",
    repeats: "clear_page_nt, 2020: string, vector and streaming stores by size",
    why: "Repeats the comparison of string and non-temporal stores by size (clear_page_nt, 2020), and adds \
          every other way this CPU has to clear memory. Clearing is what a fresh page costs, and the fastest \
          way changes with size, CPU and cache: a program that always calls memset pays for that.",
    headlines: &["memset-vs-auto"],
    is_core: true,
    run,
};

/// The published baselines.
const STRINGS: [&str; 2] = ["rep_stosb", "rep_stosq"];

const SIZES: [usize; 8] = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 16 * MIB, 128 * MIB, GIB, 4 * GIB];

/// The part of an experiment's time for perf's own program.
const PERF_SHARE: f64 = 0.4;

/// The same for a neighbour, and for whole processes.
const NEIGHBOUR_SHARE: f64 = 0.1;
const PROCESS_SHARE: f64 = 0.2;

/// Sizes around the caches, where it matters to a reader which routine cleared.
const READ: [usize; 4] = [MIB, 2 * MIB, 16 * MIB, 128 * MIB];

/// Sizes, and whether the bytes are read afterwards.
fn workloads() -> impl Iterator<Item = (usize, bool)> {
    SIZES.map(|size| (size, false)).into_iter().chain(READ.map(|size| (size, true)))
}

fn label(size: usize, then_read: bool) -> String {
    format!("{}{}", Size(size), if then_read { READ_LABEL } else { "" })
}

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let mut matrix = Matrix::new("stores", clear_routines(), bench.options().routine.as_deref());
    let mut experiment = bench.experiment("stores")?;
    for (size, then_read) in workloads() {
        let (label, has) = (label(size, then_read), bench.arena()?.len());
        if size > GIB && bench.options().quick {
            experiment.notices.push(format!("{label} left out: --quick"));
        } else if size > has {
            experiment.notices.push(left_out(&label, size, has));
        } else {
            experiment.absorb(measure(bench, &mut matrix, size, then_read)?);
        }
    }
    experiment.notices.extend(matrix.notices());
    if bench.options().routine.is_none() {
        let perf = perf_bench::measure(bench, PERF_SHARE);
        experiment.add("perf bench", perf)?;
        let neighbour = neighbour::measure(bench, NEIGHBOUR_SHARE);
        experiment.add("neighbour", neighbour)?;
        experiment.add("process", first_touch::measure(bench, PROCESS_SHARE))?;
    }
    Ok(experiment)
}

fn measure(
    bench: &mut Bench<'_>,
    matrix: &mut Matrix<ClearFn>,
    size: usize,
    then_read: bool,
) -> Result<Part, LabError> {
    let workload = MatrixWorkload {
        label: label(size, then_read),
        size,
        is_warmed: size < GIB,
        leaves_reader_out: !then_read && may_be_cached(size, bench.caches()),
    };
    let rounds = rounds(bench, share(size, workloads().map(|(size, _)| size)), size);
    let bytes = &mut bench.arena()?.bytes()[..size];
    let mut part = matrix.measure(rounds, &workload, |candidate| {
        let used = clear(candidate, std::hint::black_box(&mut *bytes));
        if then_read && !matches!(candidate, Candidate::Asked) {
            read_all(bytes);
        }
        used
    })?;
    add_published(&mut part, size, then_read, here(conditions(size, then_read)));
    Ok(part)
}

#[allow(unsafe_code)]
fn clear(candidate: &Candidate<ClearFn>, bytes: &mut [u8]) -> Option<Used> {
    match candidate {
        Candidate::Auto => hugekit::clear(bytes),
        Candidate::Asked => return ClearOptions::new().run(bytes).ok()?.used,
        Candidate::Routine(routine) => {
            // SAFETY: the slice is borrowed mutably, and a `Matrix` lists available routines only.
            unsafe { routine.run(bytes.as_mut_ptr(), bytes.len()) }.publish();
        }
    }
    None
}

/// The published comparisons, and published figures beside all that they are of.
fn add_published(part: &mut Part, size: usize, then_read: bool, ours: Conditions) {
    let label = label(size, then_read);
    for string in STRINGS {
        part.compare((string, "movnti"), &label, None);
    }
    let size = Size(size).to_string();
    for id in part.cases.iter().map(|case| case.id.clone()).collect::<Vec<_>>() {
        let routine = parts(&id).map_or("", |(routine, _)| routine);
        part.put_beside(&id, &ours, published::stores(routine, &size));
    }
    for string in STRINGS {
        let id = format!("stores/{string}-vs-movnti/{label}");
        part.put_beside(&id, &ours, published::stores_speed_up(string, &size));
    }
}

fn conditions(size: usize, then_read: bool) -> Conditions {
    let then = if then_read { ", and of its reader" } else { "" };
    let ran = format!("one pass over a buffer written before{then}");
    let memory = Some(Size(size).to_string());
    Conditions { memory, ..Conditions::without_kernel(&ran) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Unit;

    fn published(then_read: bool) -> Part {
        let mut part = Part::new("stores");
        for name in ["rep_stosb", "movnti", "auto"] {
            let name = format!("{name}/{}", label(GIB, then_read));
            part.add_case(&name, Unit::GibPerSecond, vec![1.0, 2.0]);
        }
        add_published(&mut part, GIB, then_read, conditions(GIB, then_read));
        part
    }

    #[test]
    fn a_pass_is_what_was_published_and_a_pass_with_its_reader_is_not() {
        let Part { cases, ratios, elsewhere, .. } = published(false);
        let counts: Vec<_> = cases.iter().map(|case| case.published.len()).collect();
        assert_eq!((counts, elsewhere), (vec![2, 3, 0], vec![]));
        let published_ratios =
            ratios.iter().map(|ratio| (ratio.id.as_str(), ratio.published.len()));
        let expected = [("stores/rep_stosb-vs-movnti/1GiB", 2)];
        assert_eq!(published_ratios.collect::<Vec<_>>(), expected);
        let Part { cases, ratios, elsewhere, .. } = published(true);
        assert!(cases.iter().all(|case| case.published.is_empty()));
        assert!(ratios.iter().all(|ratio| ratio.published.is_empty()));
        assert!(elsewhere.iter().all(|one| one.differs[0].aspect == "ran"), "{elsewhere:?}");
        assert_eq!(elsewhere.len(), 2 + 3 + 2);
    }
}
