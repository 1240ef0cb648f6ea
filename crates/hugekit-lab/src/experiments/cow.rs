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
use hugekit::parallel::Placement;
use hugekit::pool::Backing;
use hugekit::{Pool, Region};
use hugekit_machine::Root;

use super::memory_sources::unscrubbed;
use super::order::{self, Look};
use super::parallel::counts;
use super::part::{Part, found};
use super::served::{Busy, Recorded};
use crate::anonymous::Pages;
use crate::bench::{Bench, available_memory, free_huge_pages};
use crate::forking::{Shared, write_pages};
use crate::record::{Case, Experiment, Ratio, Unit};
use crate::sampler::{Plan, try_alternate};
use crate::size::{GIB, KIB, MIB, Size};
use crate::stats::median;
use crate::writers::{Spent, Work, in_processes, in_threads};
use crate::{LabError, Observer};

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

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    // On memory that is mapped; what follows asks the kernel for its own.
    let orders = orders(bench)?;
    let (memory, observer) = bench.leave_memory()?;
    bench.allow_thp()?;
    bench.allow_shared_thp()?;
    let unit = memory.min(MOST_MEMORY) / 2 / (WRITERS + 1) / HUGE * HUGE;
    let needed = (WRITERS + 1) * unit;
    // A pool for the origin and its forks, and as much for the kernel's.
    bench.reserve_unwritten(Pages::Hugetlb2M, 2 * needed / HUGE)?;
    let mut experiment = Experiment {
        name: "cow".to_owned(),
        memory: Some(format!(
            "{} of memory, written once before and given back to the kernel; each writer has {}",
            Size(memory),
            Size(unit)
        )),
        notices: notices(bench, unit),
        ..Experiment::default()
    };
    let (pool, fallbacks) = pool(needed)?;
    experiment.notices.extend(fallbacks);
    let (mut origins, left_out) = origins(&pool, unit)?;
    experiment.notices.extend(left_out);
    for workload in &WORKLOADS {
        let plan = bench.plan_of_long_rounds(workload.share, 40);
        let name = format!("{WRITERS}{}", workload.kind);
        experiment.add(&name, diverge(&mut origins, workload, plan, observer))?;
    }
    for (writers, order) in orders {
        experiment.add(&format!("order {writers}"), order)?;
    }
    experiment.add("one copy", single(&mut origins, &pool, bench.plan(0.25, 60), observer))?;
    Ok(experiment)
}

/// What came of each number of writers.
type Orders = Vec<(usize, Result<Part, LabError>)>;

/// The order of copying, by one writer, two … and one on each CPU.
fn orders(bench: &mut Bench<'_>) -> Result<Orders, LabError> {
    let (arena, observer) = bench.arena_and_observer()?;
    arena.fill_with_data(observer)?;
    let counts = counts(Placement::here().threads());
    let share = ORDER_SHARE / counts.len() as f64;
    let look = |writers| Look { experiment: "cow", writers, used: HUGE, share };
    Ok(counts.into_iter().map(|writers| (writers, order::measure(bench, look(writers)))).collect())
}

/// The figures' reach on this machine.
fn notices(bench: &Bench<'_>, unit: usize) -> Vec<String> {
    let at_a_time = WRITERS * 2 * HUGE;
    let caches = bench.caches().map(|caches| {
        let (llc, all) = (Size(caches.llc), Size((WRITERS + 1) * unit));
        let order = if at_a_time > caches.llc {
            "so that part of a page is evicted while the rest of it is copied: the order of copying shows"
        } else {
            "so that nothing of a page is evicted from there while the rest of it is copied: what was \
             published for the order of copying cannot show here, but from the L2"
        };
        let walk = if (WRITERS + 1) * unit > caches.llc { "do not fit" } else { "fit: not as in memory" };
        format!(
            "a CPU has an L2 of {} and {llc} of the last level, shared by {} CPUs; {WRITERS} writers \
             read and write {} at a time, one huge page each, {order}; origin and copies, {all}, {walk}",
            Size(caches.l2),
            caches.llc_shared_by,
            Size(at_a_time)
        )
    });
    caches.into_iter().collect()
}

/// The best tier there is, and why not a better one.
fn pool(bytes: usize) -> Result<(Pool, Vec<String>), LabError> {
    let pool = unscrubbed(bytes).build()?;
    let mut fallbacks = vec![format!("the pool is on {}", pool.backing())];
    fallbacks.extend(pool.backing_report().fallbacks.iter().map(|fallback| {
        let remedy = fallback.reason.remedy().map_or(String::new(), |remedy| format!("; {remedy}"));
        format!("not on {}: {}{remedy}", fallback.backing, fallback.reason)
    }));
    Ok((pool, fallbacks))
}

/// The memory that writers diverge from.
#[derive(Debug)]
enum Origin {
    Process(Pages, Shared),
    Region(Region),
}

impl Origin {
    const fn name(&self) -> &'static str {
        match self {
            Self::Process(Pages::Hugetlb2M, _) => "fork2-hugetlb",
            Self::Process(Pages::Thp, _) => "fork2-thp",
            Self::Process(..) => "fork2-4k",
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
        let name = match pages {
            Pages::Thp => "fork2-thp",
            Pages::Hugetlb2M => "fork2-hugetlb",
            _ => "fork2-4k",
        };
        // The kernel promises no memory for the copies of children, and a child without one is killed.
        let copies = (WRITERS + 1) * unit;
        let enough = match pages {
            Pages::Hugetlb2M => free_huge_pages(&root, pages)? * HUGE >= copies,
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
    plan: Plan,
    observer: &dyn Observer,
) -> Result<Part, LabError> {
    let label = format!("{WRITERS}{}", workload.kind);
    observer.begin(&format!("cow {label} writers"));
    let backing = match origins.last() {
        Some(Origin::Region(region)) => region.pool().backing(),
        _ => Backing::Base,
    };
    let mut cpu: Vec<[Vec<f64>; 2]> = origins.iter().map(|_| Default::default()).collect();
    let rounds = try_alternate(plan, origins.len(), observer, |index| {
        let spent = origins[index].diverge(workload.work)?;
        let unit = origins[index].bytes().len();
        for (samples, of) in cpu[index].iter_mut().zip([|s: &Spent| s.user, |s: &Spent| s.system]) {
            let sum: u64 = spent.iter().map(of).sum();
            samples.push(sum as f64 / 1e3 / (spent.len() * unit / HUGE) as f64);
        }
        let stored = unit as f64 * workload.density / GIB as f64;
        let rate = |spent: &Spent| stored / (spent.elapsed as f64 / 1e9);
        Ok(spent.iter().map(rate).sum())
    })?;
    let case = |name: &str, unit, samples| Case {
        id: format!("cow/{name}/{label}"),
        unit,
        samples,
        published: Vec::new(),
    };
    let mut part = Part::default();
    let rates = part.cases_of(rounds, |index, samples| {
        case(origins[index].name(), Unit::GibPerSecond, samples)
    });
    let region = rates.last().expect("the region is always one").as_ref();
    let ratio = |(origin, rate): (&Origin, &Option<Case>)| {
        let id = format!("cow/{}-vs-region/{label}", origin.name());
        let ratio = Ratio::between(id, rate.as_ref()?, region?);
        Some(match origin.differs(backing) {
            Some(differs) => ratio.unlike(differs),
            None => ratio,
        })
    };
    part.ratios = origins.iter().zip(&rates).take(rates.len() - 1).filter_map(ratio).collect();
    let times = origins.iter().zip(&rates).zip(cpu).flat_map(|((origin, rate), cpu)| {
        let kinds = ["user", "system"].into_iter().zip(cpu);
        let case = |(kind, samples): (&str, Vec<f64>)| {
            // The first of them was thrown away with its bandwidth.
            let samples = samples[samples.len() - rate.as_ref()?.samples.len()..].to_vec();
            Some(case(&format!("{}-{kind}", origin.name()), Unit::Microseconds, samples))
        };
        kinds.filter_map(case).collect::<Vec<_>>()
    });
    let times: Vec<Case> = times.collect();
    part.cases = found(rates);
    part.cases.extend(times);
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

/// The writer that is looked at: one while the other CPUs are idle, or while another thread runs.
type Looks = Vec<(Writer, bool)>;

/// The latency of one copy, in rows: the kernel's of a hugetlb page, ours of a granule.
fn single(
    origins: &mut [Origin],
    pool: &Pool,
    plan: Plan,
    observer: &dyn Observer,
) -> Result<Part, LabError> {
    observer.begin("cow one copy");
    let granule = pool.page_size().max(64 * KIB);
    let kernel = origins.iter().any(Origin::is_kernels_huge).then_some(Writer::Kernel);
    let writers = kernel.into_iter().chain([Writer::Parent, Writer::Child]);
    let looks: Looks = writers.flat_map(|writer| [(writer, false), (writer, true)]).collect();
    let mut recorded: Vec<Recorded> = looks.iter().map(|_| Recorded::new()).collect();
    let rounds = try_alternate(plan, looks.len(), observer, |index| {
        let row = look(origins, looks[index], granule)?;
        recorded[index].add(&row);
        Ok(median(&row))
    })?;
    let mut part = Part::default();
    let cases = part.cases_of(rounds, |index, samples| {
        let (writer, busy) = looks[index];
        let id = format!("cow/{}/{}", writer.name(), writer.label(busy, granule));
        Case { id, unit: Unit::Microseconds, samples, published: Vec::new() }
    });
    part.ratios = against_the_kernel(&looks, &cases, granule, pool.backing());
    let distributions = cases.iter().zip(&recorded);
    let distribution =
        |(case, recorded): (&Option<Case>, &Recorded)| Some(recorded.distribution(case.as_ref()?));
    part.distributions = distributions.filter_map(distribution).collect();
    part.cases = found(cases);
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

/// Comparisons with the kernel, whose cases come first, where both copy huge pages.
fn against_the_kernel(
    looks: &Looks,
    cases: &[Option<Case>],
    granule: usize,
    backing: Backing,
) -> Vec<Ratio> {
    let has_kernel = looks[0].0 == Writer::Kernel;
    if !has_kernel || granule != HUGE {
        return Vec::new();
    }
    let ours = looks.iter().zip(cases).filter(|((writer, _), _)| *writer != Writer::Kernel);
    ours.filter_map(|(&(writer, busy), case)| {
        let label = writer.label(busy, granule);
        let id = format!("cow/kernel-hugetlb-vs-{}/{label}", writer.name());
        let ratio = Ratio::between(id, cases[usize::from(busy)].as_ref()?, case.as_ref()?);
        Some(match backing {
            Backing::Hugetlb2M => ratio,
            _ => ratio
                .unlike("the region is on transparent huge pages, the kernel's on reserved ones"),
        })
    })
    .collect()
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
