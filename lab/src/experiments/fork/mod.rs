//! Idea 3: what a fork does with page tables, entry by entry and by runs, and `fork(2)` itself.
//!
//! *unbatched* and *batched* copy our own x86-64 tables of 1 GiB mapped by entries of 4 KiB, and
//! *unmap-unbatched* and *unmap-batched* unmap the copies: the same tables, folios, counts and outcome, by
//! folio size and for tables that are mixed (`tables.rs`). *fork2* is the kernel's whole fork of a process with
//! that much memory, which also allocates tables and copies much else, and *region* a fork of a region
//! (`whole.rs`).

mod tables;
mod whole;

use crate::measure::LabError;
use crate::measure::part::Parts;
use crate::measure::part::{Part, Rounds};
use crate::record::published::{self, Conditions};
use crate::record::{Experiment, Unit};
use hugekit_machine::size::{MIB, Size};

use self::tables::{BYTES, MAPPED, METHODS, ParentPages, Tables, workloads};
use super::bench::left_out;
use super::{Bench, Definition};

pub(super) const DEFINITION: Definition = Definition {
    name: "fork",
    repeats: "fork with PTE-mapped THP, 2024: fork(2), tables by runs, regions",
    why: "Repeats fork with PTE-mapped huge pages (2024): what copying page tables by runs instead of entry by \
          entry saves, by folio size and on mixed tables, and the same of unmapping. While fork(2) copies tables \
          the caller stands still, which is what a database feels at every snapshot.",
    headlines: &["fork2-hugetlb-vs-region", "fork2-thp-vs-region", "unbatched-vs-batched"],
    is_core: true,
    run,
};

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let memory = format!("page tables that map {}, and what each case shares", Size(MAPPED));
    let mut experiment = Experiment::on("fork", memory);
    let available = bench.available_memory()?;
    if available < BYTES {
        experiment.notices.push(left_out("page tables", BYTES, available / MIB * MIB));
    } else {
        for workload in workloads() {
            let tables = measure_tables(workload, bench.rounds(0.05, 200));
            experiment.add(&format!("tables {}", workload.label()), tables)?;
        }
    }
    // Finished measurements stay, whatever keeps the whole forks from being made.
    let whole = whole::run(bench, &mut experiment).map(|()| Part::default());
    experiment.add("whole", whole)?;
    Ok(experiment)
}

fn measure_tables(workload: ParentPages, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let label = workload.label();
    rounds.observer.begin(&format!("fork tables {label}"));
    let mut tables = Tables::new(workload);
    let names = METHODS.map(|method| format!("{}/{label}", method.name));
    let mut part = rounds.measure("fork", Unit::Microseconds, &names, |index| {
        Ok(tables.turn(METHODS[index]).as_secs_f64() * 1e6)
    })?;
    compare(&mut part, workload);
    Ok(part)
}

/// Runs against entries; the published figures are of all that `fork(2)` does, and this is a part of it in user
/// space.
fn compare(part: &mut Part, workload: ParentPages) {
    let label = workload.label();
    part.compare(("unbatched", "batched"), &label, None);
    let sides = ["unmap-unbatched", "unmap-batched"].map(|method| format!("{method}/{label}"));
    let id = format!("unmap-unbatched-vs-batched/{label}");
    part.ratio(&id, (&sides[0], &sides[1]), None);
    if let ParentPages::Folios(folio) = workload {
        let ours = Conditions {
            memory: Some(Size(MAPPED).to_string()),
            pages: Some(Size(folio).to_string()),
            ..Conditions::without_kernel("copying page tables alone")
        };
        let id = format!("fork/unbatched-vs-batched/{label}");
        part.put_beside(&id, &ours, published::fork_speed_up(&label));
    }
}

#[cfg(test)]
mod tests {
    use super::tables::FOLIOS;
    use super::*;

    /// The kernel's whole fork is not the copy of tables, whichever folios it is of.
    #[test]
    fn figures_of_all_of_a_fork_do_not_stand_beside_tables() {
        for folio in FOLIOS {
            let (workload, mut part) = (ParentPages::Folios(folio), Part::new("fork"));
            for method in METHODS {
                let name = format!("{}/{}", method.name, workload.label());
                part.add_case(&name, Unit::Microseconds, vec![1.0]);
            }
            compare(&mut part, workload);
            assert_eq!((part.ratios.len(), part.ratios[0].published.len()), (2, 0));
            let [elsewhere] = &part.elsewhere[..] else { panic!("{}", Size(folio)) };
            let differs = elsewhere.differs.iter().map(|one| one.aspect.as_str());
            assert_eq!(differs.collect::<Vec<_>>(), ["ran", "kernel"]);
        }
    }
}
