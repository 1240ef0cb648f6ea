//! Idea 3: what a fork does with page tables, entry by entry and by runs, and `fork(2)` itself.
//!
//! *unbatched* and *batched* copy our own x86-64 tables of 1 GiB mapped by entries of 4 KiB, with
//! folios of one size: the same tables, folios, counts and outcome. *fork2* is the kernel's whole
//! fork of a process with that much memory, which also allocates tables and copies much else, and *region*
//! a fork of a region: `fork2.rs` has these.

use std::time::{Duration, Instant};

use hugekit_pte::{
    Entry, Folio, Fork, Mapping, Pinned, UniformFolios, X86_64, copy_table, set_run, unbatched,
};

use super::fork2;
use super::part::Part;
use crate::bench::Bench;
use crate::published;
use crate::record::{Case, Experiment, Ratio, Unit};
use crate::sampler::{Plan, alternate};
use crate::size::{GIB, KIB, MIB, Size};
use crate::{LabError, Observer};

/// Bytes that are mapped.
const MAPPED: usize = GIB;

const BASE_PAGE: usize = 4 * KIB;

/// Entries of an x86-64 table.
const TABLE: usize = 512;

const FOLIOS: [usize; 5] = [BASE_PAGE, 16 * KIB, 64 * KIB, 512 * KIB, 2 * MIB];

/// As `fork(2)` of private anonymous memory that is not tracked.
const FORK: Fork =
    Fork { mapping: Mapping::Private, tracks_soft_dirty: false, child_keeps_uffd_wp: false };

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let memory = format!("page tables that map {}, and what each case shares", Size(MAPPED));
    let mut experiment =
        Experiment { name: "fork".to_owned(), memory: Some(memory), ..Experiment::default() };
    for folio in FOLIOS {
        let plan = bench.plan(0.07, 200);
        let (cases, ratio) = measure_tables(folio, plan, bench.observer())?;
        experiment.cases.extend(cases);
        experiment.ratios.push(ratio);
    }
    experiment.notices.push(changes(&experiment.ratios));
    // Finished measurements stay, whatever keeps the whole forks from being made.
    let whole = fork2::run(bench, &mut experiment).map(|()| Part::default());
    experiment.add("whole", whole)?;
    Ok(experiment)
}

/// Tables of a parent and its child, and the folios that they map.
struct Tables {
    parent: Vec<Entry<X86_64>>,
    child: Vec<Entry<X86_64>>,
    folios: Vec<Folio>,
    order: u32,
}

type CopyTable = fn(
    &mut [Entry<X86_64>],
    &mut [Entry<X86_64>],
    &UniformFolios<'_>,
    Fork,
    &mut u64,
) -> Result<(), hugekit_pte::CopyError<Pinned>>;

/// The copying codes, in the order of the cases.
const METHODS: [(&str, CopyTable); 2] = [
    ("unbatched", |parent, child, folios, fork, resident| {
        unbatched::copy_table(parent, child, folios, fork, resident)
    }),
    ("batched", |parent, child, folios, fork, resident| {
        copy_table(parent, child, folios, fork, resident)
    }),
];

impl Tables {
    fn new(folio: usize) -> Self {
        let (pages, each) = (MAPPED / BASE_PAGE, folio / BASE_PAGE);
        let mut folios = Vec::new();
        folios.resize_with(pages / each, || Folio::new(each as u32));
        let mut tables = Self {
            parent: vec![Entry::empty(); pages],
            child: vec![Entry::empty(); pages],
            folios,
            order: each.ilog2(),
        };
        tables.map_parent();
        tables
    }

    /// The parent has written every page, and no other process maps any.
    fn map_parent(&mut self) {
        set_run(&mut self.parent, Entry::new(0).writable().dirty().accessed());
        for folio in &self.folios {
            folio.get(1 << self.order);
            folio.map(1 << self.order);
        }
    }

    /// Copies all tables, one after the other.
    fn copy(&mut self, copy: CopyTable) -> Duration {
        let folios = UniformFolios::new(0, self.order, &self.folios);
        let mut resident = 0;
        let tables = self.parent.chunks_mut(TABLE).zip(self.child.chunks_mut(TABLE));
        let start = Instant::now();
        for (parent, child) in tables {
            copy(parent, child, &folios, FORK, &mut resident).expect("no folio is pinned");
        }
        let elapsed = start.elapsed();
        assert_eq!(resident, self.parent.len() as u64, "every page is mapped");
        elapsed
    }

    /// The child is gone, and the parent has written every page again.
    fn drop_child(&mut self) {
        set_run(&mut self.parent, Entry::new(0).writable().dirty().accessed());
        self.child.fill(Entry::empty());
        for folio in &self.folios {
            folio.unmap(1 << self.order);
            folio.put(1 << self.order);
        }
    }
}

fn measure_tables(
    folio: usize,
    plan: Plan,
    observer: &dyn Observer,
) -> Result<(Vec<Case>, Ratio), LabError> {
    let label = Size(folio).to_string();
    observer.begin(&format!("fork tables {label}"));
    let mut tables = Tables::new(folio);
    let samples = alternate(plan, METHODS.len(), observer, |index| {
        let elapsed = tables.copy(METHODS[index].1);
        tables.drop_child();
        elapsed.as_secs_f64() * 1e6
    })?;
    let case = |((name, _), samples): (&(&str, CopyTable), _)| Case {
        id: format!("fork/{name}/{label}"),
        unit: Unit::Microseconds,
        samples,
        published: Vec::new(),
    };
    let cases: Vec<Case> = METHODS.iter().zip(samples).map(case).collect();
    let ratio = Ratio::between(format!("fork/unbatched-vs-batched/{label}"), &cases[0], &cases[1]);
    let published = published::Fork::load().speed_up(folio);
    Ok((cases, Ratio { published, ..ratio }))
}

/// The change in time by runs, ours beside the published one.
fn changes(ratios: &[Ratio]) -> String {
    let published = published::Fork::load();
    let change = |(ratio, folio): (&Ratio, usize)| {
        // Adding 0 keeps a rounded -0.3 from being printed as "-0".
        let ours = ((1.0 / ratio.median - 1.0) * 100.0).round() + 0.0;
        let theirs = published.change(folio).map_or("-".into(), |change| format!("{change:.0} %"));
        format!("{} {ours:.0} % ({theirs})", Size(folio))
    };
    let changes: Vec<String> = ratios.iter().zip(FOLIOS).map(change).collect();
    format!(
        "change in time by runs (published): {}; workload differs: published is all of fork(2), ours \
         the copy of its tables alone",
        changes.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_share_every_page_and_a_dropped_child_leaves_no_trace() {
        for folio in FOLIOS {
            let mut tables = Tables::new(folio);
            let fresh = tables.parent.clone();
            let each = 1 << tables.order;
            for (_, copy) in METHODS {
                tables.copy(copy);
                let pairs = tables.parent.iter().zip(&tables.child);
                for (at, (parent, child)) in pairs.enumerate() {
                    assert_eq!((parent.frame(), child.frame()), (at as u64, at as u64));
                    assert!(!parent.is_writable() && !child.is_writable());
                    assert!(parent.is_accessed() && !child.is_accessed() && child.is_dirty());
                }
                let counts = |folio: &Folio| (folio.references(), folio.mappings());
                assert!(tables.folios.iter().all(|folio| counts(folio) == (2 * each, 2 * each)));
                tables.drop_child();
                assert!(tables.folios.iter().all(|folio| counts(folio) == (each, each)));
                assert!(tables.parent == fresh && tables.child.iter().all(|e| e.is_empty()));
            }
        }
    }

    #[test]
    fn the_change_stands_beside_the_published_one() {
        let case = |id: &str, sample| Case {
            id: id.into(),
            unit: Unit::Microseconds,
            samples: vec![sample],
            published: Vec::new(),
        };
        let ratio = Ratio::between("r".into(), &case("a", 8.0), &case("b", 2.0));
        let notice = changes(&[ratio.clone(), ratio]);
        assert!(notice.contains("4KiB -75 % (-2 %), 16KiB -75 % (-16 %)"), "{notice}");
        assert!(notice.contains("workload differs"), "{notice}");
    }
}
