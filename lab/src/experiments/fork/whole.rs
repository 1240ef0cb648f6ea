//! Whole forks of 1 GiB: `fork(2)` by kind and size of pages, and regions by tier, all of it written by the
//! parent since the last one; while the other CPUs are idle, and while another thread of the process runs.

use std::fs;
use std::time::Instant;

use crate::measure::LabError;
use crate::measure::machine::{forking_kernel, here};
use crate::measure::part::Parts;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::Pages;
use crate::measure::workloads::busy::Busy;
use crate::measure::workloads::forking::{Shared, write_pages};
use crate::record::published::{self, Conditions};
use crate::record::{Experiment, Unit};
use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::{Pool, Region};
use hugekit_machine::Root;
use hugekit_machine::size::{GIB, KIB, MIB, Size};

use super::tables::{BASE_PAGE, FOLIOS};
use crate::experiments::Bench;
use crate::experiments::memory_sources::{no_pool, unscrubbed};

/// Bytes that are shared.
const SHARED: usize = GIB;

/// Bytes that are shared by a region that is forked after writes here and there.
const SMALL: usize = 256 * MIB;

/// The kernel's memory on base pages and on huge pages; beside it a region and its fork.
const NEEDED: usize = 2 * SHARED;

/// The tiers, the best first.
const RUNGS: [Backing; 3] = [Backing::Hugetlb2M, Backing::Thp, Backing::Base];

/// Adds the whole forks to the experiment.
pub(super) fn run(bench: &mut Bench<'_>, experiment: &mut Experiment) -> Result<(), LabError> {
    let memory = bench.leave_memory()?;
    bench.allow_thp()?;
    bench.allow_shared_thp()?;
    // A pool of two regions, and the kernel's side.
    bench.reserve_unwritten(Pages::Hugetlb2M, 3 * SHARED / (2 * MIB))?;
    if memory < NEEDED || bench.available_memory()? < 2 * NEEDED {
        let (shared, needed) = (Size(SHARED), Size(2 * NEEDED));
        experiment.notices.push(format!(
            "fork(2) of {shared} left out, and forks of regions: more memory than this run has; \
             they need {needed} and `--memory {}`",
            Size(NEEDED)
        ));
        return Ok(());
    }
    let mut best = None;
    for tier in RUNGS {
        let is_best = best.is_none();
        let (part, is_there) = on_rung(bench, tier, is_best);
        best = best.or(is_there.then_some(tier));
        experiment.add(&format!("region-{}", tier.option()), part)?;
    }
    experiment.notices.extend(best.map(|best| {
        format!(
            "region in ratios is region-{}; children of regions begin with nothing mapped, as \
             children of fork(2) do on hugetlb, and pay at their first touch",
            best.option()
        )
    }));
    by_folio(bench, experiment)
}

/// Forks of regions on one tier, beside the kernel's if it is the best one; and whether there is such a pool.
fn on_rung(bench: &Bench<'_>, tier: Backing, is_best: bool) -> (Result<Part, LabError>, bool) {
    // Quickly, other tiers are measured with less memory only: to fill it takes longer than to fork it.
    let whole = is_best || !bench.options().quick;
    let len = if whole { 2 * SHARED } else { 3 * SMALL };
    match unscrubbed(len).backing(tier).strict(true).build() {
        Ok(pool) => (of_pool(bench, &pool, whole, is_best), true),
        Err(error) => {
            (Ok(Part::notice(no_pool(&format!("region-{}", tier.option()), &error))), false)
        }
    }
}

fn of_pool(bench: &Bench<'_>, pool: &Pool, whole: bool, is_best: bool) -> Result<Part, LabError> {
    let mut part = Part::new("fork");
    if whole {
        let (rounds, sides) = match is_best {
            true => (bench.rounds(0.25, 60), &SIDES[..]),
            false => (bench.long_rounds(0.1, 20), &[][..]),
        };
        let (subjects, notices) = prepare(sides, pool)?;
        part = measure(subjects, pool.backing(), rounds)?;
        part.notices.extend(notices);
        part.absorb(first(pool, bench.long_rounds(0.02, 10))?);
    }
    let name = format!("region-{}/{}", pool.backing().option(), Size(SMALL));
    part.add(&name, small(pool, bench.long_rounds(0.02, 20)))?;
    Ok(part)
}

/// The memory that `fork(2)` copies.
#[derive(Clone, Copy, Debug)]
struct ParentMemory {
    name: &'static str,
    pages: Option<Pages>,
}

const OTHER_PAGES: &str = "the region is on the best pages there are, fork(2) on those whose entries it \
     has to copy; its child finds them mapped, a region's fork maps what it touches; and fork(2) also \
     makes a process, which fork2-nothing has the cost of";

const NO_ENTRIES: &str =
    "fork(2) copies no entries of hugetlb pages, and the region is on smaller ones";

const SIDES: [ParentMemory; 4] = [
    ParentMemory { name: "fork2-hugetlb", pages: Some(Pages::Hugetlb2M) },
    ParentMemory { name: "fork2-thp", pages: Some(Pages::Thp) },
    ParentMemory { name: "fork2-4k", pages: Some(Pages::Base) },
    ParentMemory { name: "fork2-nothing", pages: None },
];

impl ParentMemory {
    /// Other differences from a region on this tier.
    fn differs(self, tier: Backing) -> Option<&'static str> {
        match (self.pages?, tier) {
            (Pages::Hugetlb2M, Backing::Hugetlb2M)
            | (Pages::Thp, Backing::Thp)
            | (Pages::Base, Backing::Base) => None,
            (Pages::Hugetlb2M, _) => Some(NO_ENTRIES),
            _ => Some(OTHER_PAGES),
        }
    }
}

/// The subjects that are forked in alternation.
#[derive(Debug)]
enum ForkSubject {
    Process(Shared),
    Region(Region),
}

impl ForkSubject {
    /// Microseconds of a fork, after the parent has written everything.
    fn fork(&mut self, busy: bool) -> Result<f64, LabError> {
        match self {
            Self::Process(shared) => shared.write(),
            Self::Region(region) => write(region)?,
        }
        let _busy = busy.then(Busy::new).transpose()?;
        match self {
            Self::Process(shared) => Ok(shared.fork()?.as_secs_f64() * 1e6),
            Self::Region(region) => Ok(timed(region)?.0),
        }
    }
}

/// Every base page of a region.
fn write(region: &mut Region) -> Result<(), LabError> {
    // By one call, not by a fault for each.
    region.prepare_write(0..region.len())?;
    write_pages(region);
    Ok(())
}

/// A fork and the microseconds that it took.
fn timed(region: &Region) -> Result<(f64, Region), LabError> {
    // Which thread serves the faults of shared memory does not matter to the fork, and must not to the writes.
    let builder = region.fork_builder().fault_mode(FaultMode::InPlace);
    let start = Instant::now();
    let fork = builder.build()?;
    Ok((start.elapsed().as_secs_f64() * 1e6, fork))
}

type Named = (String, ForkSubject, Option<ParentMemory>);

/// The region of a pool, and beside it what of the kernel's there is.
fn prepare(sides: &[ParentMemory], pool: &Pool) -> Result<(Vec<Named>, Vec<String>), LabError> {
    let (mut subjects, mut notices): (Vec<Named>, _) = (Vec::new(), Vec::new());
    for side in sides {
        let shared = match side.pages {
            Some(pages) => Shared::new(pages, SHARED),
            None => Shared::new(Pages::Base, rustix::param::page_size()),
        };
        let left_out = match shared {
            Ok(shared) if side.pages != Some(Pages::Thp) || shared.is_huge() => {
                subjects.push((side.name.to_owned(), ForkSubject::Process(shared), Some(*side)));
                continue;
            }
            Ok(_) => "too few huge pages; `hugekit doctor` says why".to_owned(),
            Err(error @ LabError::Map { .. }) => {
                format!("{error}: too few huge pages are free; `--setup` (root) reserves them")
            }
            Err(error) => return Err(error),
        };
        notices.push(format!("{} left out: {left_out}", side.name));
    }
    let region = ForkSubject::Region(pool.region(SHARED)?);
    subjects.push((format!("region-{}", pool.backing().option()), region, None));
    Ok((subjects, notices))
}

/// All of them, idle and busy, and how the kernel's compare with the region.
fn measure(mut subjects: Vec<Named>, tier: Backing, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let region = format!("region-{}", tier.option());
    rounds.observer.begin(&format!("fork {region}"));
    let label = |name: &str, busy: &str| {
        let shared = if name == "fork2-nothing" { rustix::param::page_size() } else { SHARED };
        format!("{}{busy}", Size(shared))
    };
    let names = |(name, ..): &Named| BUSY.map(|busy| format!("{name}/{}", label(name, busy)));
    let names: Vec<_> = subjects.iter().flat_map(names).collect();
    let mut part = rounds.measure("fork", Unit::Microseconds, &names, |index| {
        subjects[index / 2].1.fork(index % 2 == 1)
    })?;
    let idle_on_base_pages = format!("fork/fork2-4k/{}", label("fork2-4k", ""));
    put_beside(&mut part, &idle_on_base_pages, 4 * KIB);
    for (name, _, side) in &subjects {
        let Some(side) = side.filter(|side| side.pages.is_some()) else { continue };
        for label in BUSY.map(|busy| label(name, busy)) {
            let sides = [name, &region].map(|method| format!("{method}/{label}"));
            let id = format!("{name}-vs-region/{label}");
            part.ratio(&id, (&sides[0], &sides[1]), side.differs(tier));
        }
    }
    Ok(part)
}

/// Behind the label of forks while the other CPUs are idle, and while another thread runs.
const BUSY: [&str; 2] = ["", "-busy"];

/// Forks of less memory: of a region that is whole, and of one whose every other granule it has written
/// itself since it was forked, so that its memory lies in two places.
fn small(pool: &Pool, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let name = format!("region-{}", pool.backing().option());
    rounds.observer.begin(&format!("fork {name}-fragmented"));
    let mut region = pool.region(SMALL)?;
    write(&mut region)?;
    let names = ["", "-fragmented"].map(|kind| format!("{name}{kind}/{}", Size(SMALL)));
    rounds.measure("fork", Unit::Microseconds, &names, |fragmented| {
        write(&mut region)?;
        let (whole, mut fork) = timed(&region)?;
        if fragmented == 0 {
            return Ok(whole);
        }
        for granule in fork.chunks_mut(granule(pool)).step_by(2) {
            granule[0] = 1;
        }
        Ok(timed(&fork)?.0)
    })
}

/// The first fork of a region of dirty memory: cleared when it was allocated, or still to be cleared when it is touched.
fn first(pool: &Pool, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let name = pool.backing().option();
    rounds.observer.begin(&format!("fork region-{name}-first"));
    let dirty = [pool.region(SHARED)?, pool.region(SHARED)?];
    dirty.into_iter().for_each(|mut region| region.fill(1));
    let kinds = [Clearing::OnAllocation, Clearing::OnFault];
    let label = Size(SHARED);
    let names = ["first", "first-unready"].map(|kind| format!("region-{name}-{kind}/{label}"));
    let mut part = rounds.measure("fork", Unit::Microseconds, &names, |index| {
        let builder = pool.region_builder(SHARED).clearing(kinds[index]);
        let region = builder.fault_mode(FaultMode::InPlace).build()?;
        Ok(timed(&region)?.0)
    })?;
    let id = format!("region-{name}-first-cleared-vs-unready/{label}");
    part.ratio(&id, (&names[0], &names[1]), None);
    Ok(part)
}

/// The granule that a region shares as a whole, unless told.
fn granule(pool: &Pool) -> usize {
    pool.page_size().max(64 * KIB)
}

/// `fork(2)` of memory on folios of one size, mapped by entries of base pages.
fn by_folio(bench: &mut Bench<'_>, experiment: &mut Experiment) -> Result<(), LabError> {
    let mut left_out = Vec::new();
    // Quickly, every fourth size: to fill 1 GiB of each takes longer than to fork it. Base pages are forked
    // with everything else.
    let step = if bench.options().quick { 4 } else { 1 };
    let folios = FOLIOS.into_iter().filter(|&folio| folio > BASE_PAGE);
    for folio in folios.skip(step - 1).step_by(step) {
        let size = Size(folio).to_string();
        bench.observer().begin(&format!("fork fork2 {size}"));
        match of_folio(bench, folio).transpose() {
            Some(part) => experiment.add(&format!("fork2/{size}"), part)?,
            None => left_out.push(size),
        }
    }
    if !left_out.is_empty() {
        experiment.notices.push(format!(
            "fork(2) on folios of {} left out: the kernel gives too few of them, or `--setup` (root) \
             has to choose their size",
            left_out.join(", ")
        ));
    }
    Ok(())
}

/// `None` where the kernel gives no such folios.
fn of_folio(bench: &mut Bench<'_>, folio: usize) -> Result<Option<Part>, LabError> {
    let rounds = bench.long_rounds(0.03, 20);
    bench.with_settings_for_a_while(|settings| {
        let root = Root::default();
        if !settings.only_folios_of(&root, folio)? || on_folios(&root, folio)?.is_none() {
            return Ok(None);
        }
        let names = [format!("fork2/{}", Size(folio))];
        let mut part = rounds.measure("fork", Unit::Microseconds, &names, |_| {
            // New memory for each fork: a write after a fork may copy base page by base page (Linux 6.12), and the next
            // fork would be one of base pages.
            let mut shared = on_folios(&root, folio)?.ok_or(LabError::Folios(Size(folio)))?;
            shared.fork().map(|elapsed| elapsed.as_secs_f64() * 1e6)
        })?;
        put_beside(&mut part, &format!("fork/{}", names[0]), folio);
        Ok(Some(part))
    })
}

/// Published times of `fork(2)` beside a case of ours, where the kernel is the same.
fn put_beside(part: &mut Part, id: &str, folio: usize) {
    let ours = here(Conditions {
        ran: "all of fork(2), the memory mapped by base pages".to_owned(),
        kernel: forking_kernel(),
        memory: Some(Size(SHARED).to_string()),
        pages: Some(Size(folio).to_string()),
        threads: Some(1),
        ..Conditions::default()
    });
    part.put_beside(id, &ours, published::fork_microseconds(&Size(folio).to_string()));
}

/// Memory on folios of one size, of which the kernel counts how many it allocates; `None` if it was too few.
fn on_folios(root: &Root, folio: usize) -> Result<Option<Shared>, LabError> {
    let kib = folio >> 10;
    let stats =
        format!("/sys/kernel/mm/transparent_hugepage/hugepages-{kib}kB/stats/anon_fault_alloc");
    let given =
        || -> Option<usize> { fs::read_to_string(root.path(&stats)).ok()?.trim().parse().ok() };
    let before = given();
    let mut shared = Shared::new(Pages::Thp, SHARED)?;
    let given = given().zip(before).map_or(0, |(after, before)| after - before);
    if given < SHARED / folio / 20 * 19 {
        return Ok(None);
    }
    if shared.is_huge() {
        shared.map_by_base_pages()?;
    }
    Ok(shared.is_on_folios(folio).then_some(shared))
}
