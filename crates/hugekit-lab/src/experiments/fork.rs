//! Idea 3: what a fork does with page tables, entry by entry and by runs, and `fork(2)` itself.
//!
//! *unbatched* and *batched* copy our own x86-64 tables of 1 GiB mapped by entries of 4 KiB, and
//! *unmap-unbatched* and *unmap-batched* unmap the copies: the same tables, folios, counts and outcome, by
//! folio size and for tables that are mixed; `fork_tables.rs` has these. *fork2* is the kernel's whole
//! fork of a process with that much memory, which also allocates tables and copies much else, and *region*
//! a fork of a region: `fork2.rs` has these.

use super::fork_tables::{BYTES, MAPPED, METHODS, Method, Tables, Workload, workloads};
use super::fork2;
use super::part::Part;
use crate::bench::{Bench, left_out};
use crate::conditions::{Conditions, NO_KERNEL};
use crate::published::{self, Beside};
use crate::record::{Case, Experiment, Ratio, Unit};
use crate::sampler::{Plan, alternate};
use crate::size::{MIB, Size};
use crate::{LabError, Observer};

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let memory = format!("page tables that map {}, and what each case shares", Size(MAPPED));
    let mut experiment =
        Experiment { name: "fork".to_owned(), memory: Some(memory), ..Experiment::default() };
    let available = bench.available_memory()?;
    if available < BYTES {
        experiment.notices.push(left_out("page tables", BYTES, available / MIB * MIB));
    } else {
        for workload in workloads() {
            let plan = bench.plan(0.05, 200);
            let tables = measure_tables(workload, plan, bench.observer());
            experiment.add(&format!("tables {}", workload.label()), tables)?;
        }
    }
    // Finished measurements stay, whatever keeps the whole forks from being made.
    let whole = fork2::run(bench, &mut experiment).map(|()| Part::default());
    experiment.add("whole", whole)?;
    Ok(experiment)
}

fn measure_tables(
    workload: Workload,
    plan: Plan,
    observer: &dyn Observer,
) -> Result<Part, LabError> {
    let label = workload.label();
    observer.begin(&format!("fork tables {label}"));
    let mut tables = Tables::new(workload);
    let samples = alternate(plan, METHODS.len(), observer, |index| {
        tables.turn(METHODS[index]).as_secs_f64() * 1e6
    })?;
    let case = |(method, samples): (&Method, _)| Case {
        id: format!("fork/{}/{label}", method.name),
        unit: Unit::Microseconds,
        samples,
        published: Vec::new(),
    };
    let cases: Vec<Case> = METHODS.iter().zip(samples).map(case).collect();
    let ratio = |name, [unbatched, batched]: [usize; 2]| {
        Ratio::between(format!("fork/{name}/{label}"), &cases[unbatched], &cases[batched])
    };
    let copy = ratio("unbatched-vs-batched", [0, 1]);
    let unmap = ratio("unmap-unbatched-vs-batched", [2, 3]);
    let beside = match workload {
        Workload::Folios(folio) => {
            Beside::of(&copy.id, &conditions(folio), published::fork_speed_up(folio))
        }
        _ => Beside::default(),
    };
    let ratios = vec![Ratio { published: beside.same, ..copy }, unmap];
    Ok(Part { cases, ratios, elsewhere: beside.elsewhere, ..Part::default() })
}

/// A part of what `fork(2)` does, in user space.
fn conditions(folio: usize) -> Conditions {
    Conditions {
        ran: "copying page tables alone".to_owned(),
        kernel: NO_KERNEL.to_owned(),
        memory: Some(Size(MAPPED).to_string()),
        pages: Some(Size(folio).to_string()),
        threads: Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fork_tables::FOLIOS;
    use super::*;

    /// The kernel's whole fork is not the copy of tables, whichever folios it is of.
    #[test]
    fn what_was_published_of_all_of_a_fork_does_not_stand_beside_tables() {
        for folio in FOLIOS {
            let ours = conditions(folio);
            let beside = Beside::of("x", &ours, published::fork_speed_up(folio));
            assert_eq!((beside.same.len(), beside.elsewhere.len()), (0, 1), "{}", Size(folio));
            let differs = beside.elsewhere[0].differs.iter().map(|one| one.aspect.as_str());
            assert_eq!(differs.collect::<Vec<_>>(), ["ran", "kernel"]);
        }
    }
}
