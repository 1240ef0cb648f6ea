//! Idea 2's own workload, anon-cow-seq: writers diverge from one origin, each of which stores to every word
//! of 8 bytes of its copy, ascending.
//!
//! Writers are processes that were made by `fork(2)`, or threads that write forks of a region, served in the
//! writing thread. Only the writing is timed, from one signal on; the sum of all writers' bandwidths is what
//! was published. *random* stores to as many words as the copy has cache lines, anywhere in it. What one copy
//! costs is measured apart: each huge page of a row is written once, by the origin or by the fork. The order
//! of copying is measured apart, too (`order.rs`), because neither kernel nor region lets it be chosen.

use std::time::Instant;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{Pool, Region};
use hugekit_bulk::parallel::Placement;
use hugekit_machine::Root;

use super::copies::order::{self, Look};
use super::memory_sources::{backing_report, unscrubbed};
use super::parallel::counts;
use super::{Bench, Definition};
use crate::LabError;
use crate::machine::memory::{available_memory, free_huge_pages};
use crate::measure::latencies::{distribution, latencies, record};
use crate::measure::part::{Part, Rounds};
use crate::record::stats::median;
use crate::record::{Experiment, Unit};
use crate::size::{GIB, KIB, MIB, Size};
use crate::workloads::anonymous::Pages;
use crate::workloads::busy::Busy;
use crate::workloads::forking::{Shared, write_pages};
use crate::workloads::writers::{Spent, Work, in_processes, in_threads};

pub(super) const DEFINITION: Definition = Definition {
    name: "cow",
    repeats: "target last, 2018, anon-cow-seq: writers diverge from one origin",
    why: "Repeats anon-cow-seq, the workload of target-last copying (2018): writers diverge from one origin, and \
          each first write copies a page. After a fork, this is where the time that fork itself did not take is \
          spent.",
    headlines: &["fork2-hugetlb-vs-region", "kernel-hugetlb-vs-parent-write"],
    is_core: true,
    run,
};

/// Writers of the workload that is compared.
const WRITERS: usize = 2;

/// The published unit is a part of all memory, of which so much is enough here.
const MOST_MEMORY: usize = 2 * GIB;

const HUGE: usize = 2 * MIB;

const LINE: usize = 64;

/// Of an experiment's time, for the order of copying.
const ORDER_SHARE: f64 = 0.6;

/// The writers' work on their copies.
#[derive(Debug)]
struct Workload {
    /// Behind the number of writers.
    kind: &'static str,
    work: Work,
    /// Stores for each word of the copy.
    density: f64,
    /// Of the experiment's time.
    share: f64,
}

const WORKLOADS: [Workload; 2] = [
    Workload { kind: "", work: in_order, density: 1.0, share: 0.5 },
    Workload { kind: "-random", work: at_random, density: 8.0 / LINE as f64, share: 0.25 },
];

const BASE_PAGES: &str = "a write to a shared transparent huge page has the kernel copy a base page, and the \
     copy stays on base pages; the region's is on the pages that the pool has, reserved at the fork";

const OTHER_PAGES: &str = "the region is on base pages, copied by 64 KiB";

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    // On memory that is mapped; what follows asks the kernel for its own.
    let orders = orders(bench)?;
    let memory = bench.leave_memory()?;
    bench.allow_thp()?;
    bench.allow_shared_thp()?;
    let unit = memory.min(MOST_MEMORY) / 2 / (WRITERS + 1) / HUGE * HUGE;
    let needed = (WRITERS + 1) * unit;
    // A pool for the origin and its forks, and as much for the kernel's.
    bench.reserve_unwritten(Pages::Hugetlb2M, 2 * needed / HUGE)?;
    let (memory, each) = (Size(memory), Size(unit));
    let memory = format!(
        "{memory} of memory, written once before and given back to the kernel; each writer has {each}"
    );
    let mut experiment = Experiment::on("cow", memory);
    experiment.notices.extend(caches_notice(bench, unit));
    let pool = unscrubbed(needed).build()?;
    experiment.notices.push(backing_report(&pool));
    let (mut origins, left_out) = origins(&pool, unit)?;
    experiment.notices.extend(left_out);
    for workload in &WORKLOADS {
        let rounds = bench.long_rounds(workload.share, 40);
        let name = format!("{WRITERS}{}", workload.kind);
        experiment.add(&name, diverge(&mut origins, workload, rounds))?;
    }
    for (writers, order) in orders {
        experiment.add(&format!("order {writers}"), order)?;
    }
    experiment.add("one copy", single(&mut origins, &pool, bench.rounds(0.25, 60)))?;
    Ok(experiment)
}

/// What came of each number of writers.
type Orders = Vec<(usize, Result<Part, LabError>)>;

/// The order of copying, by one writer, two … and one on each CPU.
fn orders(bench: &mut Bench<'_>) -> Result<Orders, LabError> {
    let observer = bench.observer();
    bench.arena()?.fill_with_data(observer)?;
    let counts = counts(Placement::here().threads());
    let share = ORDER_SHARE / counts.len() as f64;
    let look = |writers| Look { experiment: "cow", writers, used: HUGE, share };
    Ok(counts.into_iter().map(|writers| (writers, order::measure(bench, look(writers)))).collect())
}

/// The figures' reach on this machine.
fn caches_notice(bench: &Bench<'_>, unit: usize) -> Option<String> {
    let caches = bench.caches()?;
    let (at_a_time, all) = (WRITERS * 2 * HUGE, (WRITERS + 1) * unit);
    let order = if at_a_time > caches.llc {
        "so that part of a page is evicted while the rest of it is copied: the order of copying shows"
    } else {
        "so that nothing of a page is evicted from there while the rest of it is copied: what was published for \
         the order of copying cannot show here, but from the L2"
    };
    let walk = if all > caches.llc { "do not fit" } else { "fit: not as in memory" };
    Some(format!(
        "a CPU has an L2 of {} and {} of the last level, shared by {} CPUs; {WRITERS} writers read and write {} \
         at a time, one huge page each, {order}; origin and copies, {}, {walk}",
        Size(caches.l2),
        Size(caches.llc),
        caches.llc_shared_by,
        Size(at_a_time),
        Size(all)
    ))
}

/// The memory that writers diverge from.
#[derive(Debug)]
enum Origin {
    Process(Pages, Shared),
    Region(Region),
}

const fn process_name(pages: Pages) -> &'static str {
    match pages {
        Pages::Thp => "fork2-thp",
        Pages::Hugetlb2M => "fork2-hugetlb",
        _ => "fork2-4k",
    }
}

impl Origin {
    const fn name(&self) -> &'static str {
        match self {
            Self::Process(pages, _) => process_name(*pages),
            Self::Region(_) => "region",
        }
    }

    /// The differences, besides the pages, from the region on the pool's tier.
    fn differs(&self, backing: Backing) -> Option<&'static str> {
        match self {
            Self::Process(Pages::Hugetlb2M, _) if backing == Backing::Hugetlb2M => None,
            Self::Process(Pages::Base, _) if backing == Backing::Base => Some(OTHER_PAGES),
            _ => Some(BASE_PAGES),
        }
    }

    const fn is_kernels_huge(&self) -> bool {
        matches!(self, Self::Process(Pages::Hugetlb2M, _))
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Process(_, shared) => shared.bytes(),
            Self::Region(region) => region,
        }
    }

    /// Writers diverge from it; the origin has written everything before.
    fn diverge(&mut self, work: Work) -> Result<Vec<Spent>, LabError> {
        write_pages(self.bytes());
        match self {
            Self::Process(_, shared) => in_processes(shared, WRITERS, work),
            Self::Region(region) => {
                let mut forks =
                    (0..WRITERS).map(|_| fork(region)).collect::<Result<Vec<_>, _>>()?;
                let mut forks: Vec<&mut [u8]> = forks.iter_mut().map(|fork| &mut **fork).collect();
                in_threads(&mut forks, work)
            }
        }
    }
}

fn fork(region: &Region) -> Result<Region, LabError> {
    Ok(region.fork_builder().fault_mode(FaultMode::InPlace).build()?)
}

/// The kernel's, as far as it has such pages, and the region last.
fn origins(pool: &Pool, unit: usize) -> Result<(Vec<Origin>, Vec<String>), LabError> {
    let (mut origins, mut left_out) = (Vec::new(), Vec::new());
    let root = Root::default();
    let on_base = pool.backing() == Backing::Base;
    let base = on_base.then_some(Pages::Base);
    for pages in base.into_iter().chain([Pages::Thp, Pages::Hugetlb2M]) {
        let name = process_name(pages);
        // The kernel promises no memory for the copies of children, and a child without one is killed.
        let copies = (WRITERS + 1) * unit;
        let enough = match pages {
            Pages::Hugetlb2M => free_huge_pages(&root, HUGE)? * HUGE >= copies,
            _ => available_memory(&root)? >= 2 * copies,
        };
        // Pages that others took meanwhile are too few of them, too.
        let shared = enough.then(|| Shared::new(pages, unit)).and_then(Result::ok);
        match shared.filter(|shared| pages != Pages::Thp || shared.is_huge()) {
            Some(shared) => origins.push(Origin::Process(pages, shared)),
            None => left_out.push(format!(
                "{name} left out: too few such pages are free; `hugekit doctor` says why, `--setup` \
                 (root) reserves them"
            )),
        }
    }
    origins.push(Origin::Region(pool.region(unit)?));
    Ok((origins, left_out))
}

/// Stores to every word, ascending.
fn in_order(bytes: &mut [u8], index: usize) {
    let (words, _) = bytes.as_chunks_mut::<8>();
    for word in words {
        // Neither collected into longer stores nor left out.
        std::hint::black_box(&mut *word);
        *word = (index as u64).to_ne_bytes();
    }
}

/// Stores to as many words as there are cache lines, anywhere.
fn at_random(bytes: &mut [u8], index: usize) {
    let (words, _) = bytes.as_chunks_mut::<8>();
    let mut random = fastrand::Rng::with_seed(index as u64);
    for _ in 0..words.len() * 8 / LINE {
        let at = random.usize(..words.len());
        words[at] = (index as u64).to_ne_bytes();
    }
    std::hint::black_box(words);
}

/// Bandwidth of all writers together, and the CPU time that 2 MiB of a copy cost.
fn diverge(
    origins: &mut [Origin],
    workload: &Workload,
    rounds: Rounds<'_>,
) -> Result<Part, LabError> {
    let label = format!("{WRITERS}{}", workload.kind);
    rounds.observer.begin(&format!("cow {label} writers"));
    let methods: Vec<&str> = origins.iter().map(Origin::name).collect();
    let names: Vec<_> = methods.iter().map(|method| format!("{method}/{label}")).collect();
    let measured = rounds.measure_with("cow", Unit::GibPerSecond, &names, |index| {
        let spent = origins[index].diverge(workload.work)?;
        let unit = origins[index].bytes().len();
        let huge_pages = (spent.len() * unit / HUGE) as f64;
        let cpu =
            |of: fn(&Spent) -> u64| spent.iter().map(of).sum::<u64>() as f64 / 1e3 / huge_pages;
        let cpu = [cpu(|spent| spent.user), cpu(|spent| spent.system)];
        let stored = unit as f64 * workload.density / GIB as f64;
        let rate = |spent: &Spent| stored / (spent.elapsed as f64 / 1e9);
        Ok((spent.iter().map(rate).sum(), cpu))
    });
    let (mut part, cpu) = measured?;
    for (method, cpu) in methods.iter().zip(cpu) {
        for (at, kind) in ["user", "system"].into_iter().enumerate() {
            let samples = cpu.iter().map(|both| both[at]).collect();
            part.add_case(&format!("{method}-{kind}/{label}"), Unit::Microseconds, samples);
        }
    }
    let backing = match origins.last() {
        Some(Origin::Region(region)) => region.pool().backing(),
        _ => Backing::Base,
    };
    for origin in &origins[..origins.len() - 1] {
        part.compare((origin.name(), "region"), &label, origin.differs(backing));
    }
    Ok(part)
}

/// The writer of shared memory, one word of each page or granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Kernel,
    Parent,
    Child,
}

impl Writer {
    const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel-hugetlb",
            Self::Parent => "parent-write",
            Self::Child => "child-write",
        }
    }

    /// The bytes that are copied at a time, and when.
    fn label(self, busy: bool, granule: usize) -> String {
        let page = if self == Self::Kernel { HUGE } else { granule };
        format!("{}{}", Size(page), if busy { "-busy" } else { "" })
    }
}

/// The latency of one copy, in rows: the kernel's of a hugetlb page, ours of a granule; while the other CPUs are
/// idle, and while another thread runs.
fn single(origins: &mut [Origin], pool: &Pool, rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin("cow one copy");
    let granule = pool.page_size().max(64 * KIB);
    let kernel = origins.iter().any(Origin::is_kernels_huge).then_some(Writer::Kernel);
    let writers = kernel.into_iter().chain([Writer::Parent, Writer::Child]);
    let looks: Vec<(Writer, bool)> =
        writers.flat_map(|writer| [(writer, false), (writer, true)]).collect();
    let name = |&(writer, busy): &(Writer, bool)| {
        format!("{}/{}", writer.name(), writer.label(busy, granule))
    };
    let names: Vec<_> = looks.iter().map(name).collect();
    let mut recorded: Vec<_> = looks.iter().map(|_| latencies(3)).collect();
    let mut part = rounds.measure("cow", Unit::Microseconds, &names, |index| {
        let row = look(origins, looks[index], granule)?;
        record(&mut recorded[index], &row);
        Ok(median(&row))
    })?;
    for (name, recorded) in names.iter().zip(&recorded) {
        let case = part.case(name).map(|case| distribution(&case.id, recorded));
        part.distributions.extend(case);
    }
    // Where both copy huge pages.
    let other_pages = "the region is on transparent huge pages, the kernel's on reserved ones";
    let moved = (pool.backing() != Backing::Hugetlb2M).then_some(other_pages);
    for &(writer, busy) in looks.iter().filter(|(writer, _)| *writer != Writer::Kernel) {
        let sides = (Writer::Kernel.name(), writer.name());
        part.compare(sides, &writer.label(busy, granule), moved);
    }
    Ok(part)
}

/// The time that one row of copies takes, after the origin has written everything.
fn look(
    origins: &mut [Origin],
    (writer, busy): (Writer, bool),
    granule: usize,
) -> Result<Vec<f64>, LabError> {
    let wanted = |origin: &&mut Origin| match writer {
        Writer::Kernel => origin.is_kernels_huge(),
        Writer::Parent | Writer::Child => matches!(origin, Origin::Region(_)),
    };
    let origin = origins.iter_mut().find(wanted).expect("one of each is there");
    write_pages(origin.bytes());
    match origin {
        Origin::Process(_, shared) => {
            let _child = shared.sleeping_child()?;
            let _busy = busy.then(Busy::new).transpose()?;
            Ok(row(shared.bytes(), HUGE))
        }
        Origin::Region(region) => {
            let mut fork = fork(region)?;
            let _busy = busy.then(Busy::new).transpose()?;
            Ok(row(if writer == Writer::Parent { region } else { &mut fork }, granule))
        }
    }
}

/// Microseconds of the first store to each piece, not always to the same place in it.
fn row(bytes: &mut [u8], piece: usize) -> Vec<f64> {
    let pages = piece / rustix::param::page_size();
    let pieces = bytes.chunks_mut(piece).enumerate();
    pieces
        .map(|(index, piece)| {
            let at = index * 37 % pages * rustix::param::page_size();
            let start = Instant::now();
            piece[at.min(piece.len() - 1)] = 1;
            std::hint::black_box(&mut *piece);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_in_order_and_at_random_store_whole_words() {
        let mut bytes = vec![9; MIB];
        in_order(&mut bytes, 3);
        assert!(bytes.chunks(8).all(|word| word == 3_u64.to_ne_bytes()));
        at_random(&mut bytes, 4);
        let written = bytes.chunks(8).filter(|word| **word == 4_u64.to_ne_bytes()).count();
        assert!((MIB / LINE / 2..=MIB / LINE).contains(&written), "{written}");
        assert!(bytes.chunks(8).all(|word| word[0] == 3 || word[0] == 4));
    }

    #[test]
    fn both_kinds_diverge_and_the_origin_keeps_its_bytes() {
        let pool = unscrubbed(3 * 4 * MIB).backing(Backing::Base).build().unwrap();
        let region = Origin::Region(pool.region(4 * MIB).unwrap());
        let process = Origin::Process(Pages::Base, Shared::new(Pages::Base, 4 * MIB).unwrap());
        for mut origin in [region, process] {
            origin.bytes().fill(7);
            let spent = origin.diverge(in_order).unwrap();
            assert_eq!(spent.len(), WRITERS);
            assert!(spent.iter().all(|spent| spent.elapsed > 0));
            assert!(origin.bytes().chunks(4096).all(|page| (page[0], page[1]) == (8, 7)));
        }
    }

    #[test]
    fn a_row_touches_every_piece_once() {
        let mut bytes = vec![0; MIB];
        assert_eq!(row(&mut bytes, 64 * KIB).len(), 16);
        assert_eq!(bytes.iter().filter(|&&byte| byte == 1).count(), 16);
        assert!(bytes.chunks(64 * KIB).all(|piece| piece.contains(&1)));
    }
}
