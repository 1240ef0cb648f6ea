//! One fault at a time: what the first touch of a page costs, where the kernel clears it and where a
//! pool already has.
//!
//! A clean fault only enters a page into the page tables, which is why threads do not stand in each
//! other's way, and why a whole GiB can be entered by one call. The clock is read before and after
//! each touch. A sample is the median of the faults in a row that touch memory page by page, right
//! after as much was touched and given back, as in a program that uses the same memory again and again.
//! The *first* fault after something else ran, which finds the kernel's code and its data of the page
//! out of the cache and page tables to be made, is a case of its own. `served.rs` has the faults that
//! hugekit serves itself.

mod gigantic;
mod served;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use crate::measure::LabError;
use crate::measure::latencies::{distribution, latencies, record};
use crate::measure::machine::cpus;
use crate::measure::part::Parts;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::busy::Busy;
use crate::measure::workloads::threads::spawn;
use crate::record::stats::median;
use crate::record::{Experiment, Unit};
use hugekit::pool::Backing;
use hugekit::{ClearOptions, Pool, Region, Reuse};
use hugekit_machine::size::{GIB, MIB, Size};

use self::served::LazyRegion;
use super::memory_sources::{
    CLEARED_EARLIER, Given, Held, Turns, largest, no_pool, touch, unscrubbed,
};
use super::{Bench, Definition};

pub(super) const DEFINITION: Definition = Definition {
    name: "fault",
    repeats: "the latency of one fault: the kernel's, a pool's, and hugekit's",
    why: "Measures the latency of one fault, the event that all the published work shortens, rather than the \
          bandwidth of many. A client that waits for a reply waits for the slow ones, so every single fault is \
          counted, and its histogram shown.",
    headlines: &[
        "kernel-hugetlb-vs-dirty-in-place",
        "kernel-thp-vs-dirty-in-place",
        "one-thread-vs-two",
    ],
    is_core: true,
    run,
};

/// The bytes that are touched in a row, if that is four last-level caches: the kernel clears what lies in a
/// cache faster.
const ROW_BYTES: usize = 128 * MIB;

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let given = Given::new(bench, 0)?;
    let mut experiment = given.experiment("fault", bench.options().setup);
    experiment.notices.push(format!(
        "reading the clock costs {:.3} µs, and every latency holds one such reading",
        clock_cost()
    ));
    let row = row_bytes(&given, bench.llc());
    experiment.notices.extend(short_row(row, bench.llc()));
    experiment.add("latency", latency(&given, row, bench.rounds(0.5, 400)))?;
    let gigantic = gigantic::measure(bench, 0.2);
    experiment.add("gigantic", gigantic)?;
    let mut turns = match Turns::new(&given, unscrubbed(largest(given.memory))) {
        Ok(turns) => turns,
        Err(error) => {
            experiment.add("prefault and rate", Err(error))?;
            return Ok(experiment);
        }
    };
    experiment.notices.push(turns.backing_report().to_owned());
    if largest(given.memory) == GIB {
        experiment.add("prefault", prefault(&given, &mut turns, bench.rounds(0.2, 12)))?;
    }
    let allowed = cpus::allowed()?;
    let mut cpus = cpus::numbers(&allowed);
    match cpus.next().zip(cpus.next()) {
        Some((one, other)) => {
            let rounds = bench.rounds(0.2, 60);
            let rate = turns.pool().and_then(|pool| rate(pool, [one, other], rounds));
            experiment.add("rate", rate)?;
        }
        None => {
            let left_out = "two threads left out: this process may use one CPU only";
            experiment.notices.push(left_out.into());
        }
    }
    Ok(experiment)
}

/// Rows on reserved pages at a time: the kernel's, a clean pool's, and that of the faults we serve.
const ROWS: usize = 3;

/// The bytes that are touched in a row: four last-level caches, if there is as much memory, and as much reserved for
/// every row that is held at a time.
fn row_bytes(given: &Given, llc: usize) -> usize {
    let wanted = ROW_BYTES.max(4 * llc).min(largest(given.memory) / 2);
    given.within_reserved(wanted, ROW_BYTES, ROWS) / (2 * MIB) * (2 * MIB)
}

fn short_row(row: usize, llc: usize) -> Option<String> {
    (row < 4 * llc).then(|| {
        format!(
            "a row is {}, less than four last-level caches of {}: part of it may lie in the cache",
            Size(row),
            Size(llc)
        )
    })
}

/// The time that one sample spends on reading the clock, in microseconds.
fn clock_cost() -> f64 {
    let readings: Vec<f64> = (0..999).map(|_| microseconds(|| {})).collect();
    median(&readings)
}

fn microseconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e6
}

/// The source of the pages of a row.
#[derive(Debug)]
enum FaultSource {
    Kernel(Pages),
    Pool(Pool),
    LazyRegion(LazyRegion),
    /// No fault: pages that are mapped already, cleared as a handler of faults does.
    ClearAlone(Pool),
}

/// The fault of a row that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultStatistic {
    Median,
    First,
}

impl FaultSource {
    fn page_size(&self) -> usize {
        match self {
            Self::Kernel(pages) => pages.size(),
            Self::Pool(pool) | Self::ClearAlone(pool) => pool.page_size(),
            Self::LazyRegion(served) => served.page_size(),
        }
    }

    /// `kernel-thp/2MiB`, `clean-hugetlb-first/2MiB`.
    fn label(&self, statistic: FaultStatistic) -> String {
        let method = match self {
            Self::Kernel(Pages::Thp) => "kernel-thp".to_owned(),
            Self::Kernel(Pages::Hugetlb2M) => "kernel-hugetlb".to_owned(),
            Self::Kernel(_) => "kernel-4k".to_owned(),
            Self::Pool(pool) => format!("clean-{}", pool.backing().option()),
            Self::LazyRegion(served) => served.label(),
            Self::ClearAlone(_) => served::CLEAR_ALONE.to_owned(),
        };
        let first = if statistic == FaultStatistic::First { "-first" } else { "" };
        format!("{method}{first}/{}", Size(self.page_size()))
    }

    fn take(&self, row: usize) -> Result<Held, LabError> {
        Ok(match self {
            Self::Kernel(pages) => Held::Kernel(Anonymous::new(*pages, row)?),
            Self::Pool(pool) | Self::ClearAlone(pool) => {
                pool.scrub()?;
                Held::Region(pool.region(row)?)
            }
            Self::LazyRegion(served) => Held::Region(served.take(row)?),
        })
    }

    /// The latency of each fault in a row, in microseconds.
    fn row(&self, row: usize) -> Result<Vec<f64>, LabError> {
        let page = self.page_size();
        touch(self.take(row)?.bytes(), page);
        let mut held = self.take(row)?;
        if matches!(self, Self::ClearAlone(_)) {
            touch(held.bytes(), page);
        }
        let busy = matches!(self, Self::LazyRegion(served) if served.is_busy());
        let _busy = busy.then(Busy::new).transpose()?;
        // The first page may have been touched to make the others what they are.
        let pages = held.bytes().chunks_mut(page).skip(1);
        let work = if matches!(self, Self::ClearAlone(_)) { clear_and_touch } else { touch };
        Ok(pages.map(|bytes| microseconds(|| work(bytes, page))).collect())
    }

    /// The latency of the first fault after something else ran.
    fn first(&self, row: usize) -> Result<f64, LabError> {
        let page = self.page_size();
        let mut held = self.take(row)?;
        Ok(microseconds(|| touch(&mut held.bytes()[..page], page)))
    }
}

/// Does the work of a fault of a dirty page whose first byte is touched, and touches it.
fn clear_and_touch(bytes: &mut [u8], page: usize) {
    let clear = ClearOptions::new().target(0).reuse(Reuse::Target);
    clear.run(bytes).expect("the target is the first of a page's bytes");
    touch(bytes, page);
}

/// The kernel's pages, clean pools on each tier, faults that hugekit serves, and the clear alone; why others are
/// left out; and how many of them are not served.
fn sources(given: &Given, row: usize) -> Result<(Vec<FaultSource>, Vec<String>, usize), LabError> {
    let kernel = [Pages::Base, Pages::Thp, Pages::Hugetlb2M];
    let kernel = kernel.into_iter().filter(|&pages| given.allows(pages, ROWS * row));
    let mut sources: Vec<FaultSource> = kernel.map(FaultSource::Kernel).collect();
    let mut notices = Vec::new();
    for backing in [Backing::Hugetlb2M, Backing::Thp, Backing::Base] {
        match unscrubbed(row).backing(backing).strict(true).build() {
            Ok(pool) => sources.push(FaultSource::Pool(pool)),
            Err(error) => notices.push(no_pool(&format!("clean-{}", backing.option()), &error)),
        }
    }
    let (served, left_out) = LazyRegion::all(row)?;
    notices.extend(left_out);
    let plain = sources.len();
    let alone = served.first().map(|served| FaultSource::ClearAlone(served.pool().clone()));
    sources.extend(served.into_iter().map(FaultSource::LazyRegion).chain(alone));
    Ok((sources, notices, plain))
}

/// A row of every kind, and a first fault of every kind, in each round.
fn latency(given: &Given, row: usize, rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin("fault latency");
    let (sources, notices, plain) = sources(given, row)?;
    let rows = sources.iter().map(|source| (source, FaultStatistic::Median));
    let rows: Vec<(&FaultSource, FaultStatistic)> =
        rows.chain(sources[..plain].iter().map(|source| (source, FaultStatistic::First))).collect();
    let names: Vec<_> = rows.iter().map(|(source, statistic)| source.label(*statistic)).collect();
    let mut recorded: Vec<_> = sources.iter().map(|_| latencies(3)).collect();
    let mut part =
        rounds.measure("fault", Unit::Microseconds, &names, |index| match rows[index] {
            (source, FaultStatistic::First) => source.first(row),
            (source, FaultStatistic::Median) => {
                let faults = source.row(row)?;
                record(&mut recorded[index], &faults);
                Ok(median(&faults))
            }
        })?;
    for (name, recorded) in names.iter().zip(&recorded) {
        let case = part.case(name).map(|case| distribution(&case.id, recorded));
        part.distributions.extend(case);
    }
    part.notices.extend(notices);
    ["", "-first"].iter().for_each(|first| compare(&mut part, first));
    served::compare(&mut part);
    Ok(part)
}

/// Every kind of the kernel's against a clean page of that size, the best there is.
fn compare(part: &mut Part, first: &str) {
    let base = Size(Pages::Base.size()).to_string();
    let (hugetlb, thp) = ("clean-hugetlb", "clean-thp");
    let huge = match part.case(&format!("{hugetlb}{first}/2MiB")) {
        Some(_) => hugetlb,
        None => thp,
    };
    for (kernel, clean, page) in [
        ("kernel-hugetlb", hugetlb, "2MiB"),
        ("kernel-thp", huge, "2MiB"),
        ("kernel-4k", "clean-base", &base),
    ] {
        let sides = [kernel, clean].map(|method| format!("{method}{first}/{page}"));
        let id = format!("{kernel}{first}-vs-clean{first}/{page}");
        part.ratio(&id, (&sides[0], &sides[1]), Some(CLEARED_EARLIER));
    }
}

/// A GiB ready to be used: mapped and populated by one call, or allocated and prefaulted.
fn prefault(given: &Given, turns: &mut Turns, rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin("fault prefault");
    let label = Size(GIB).to_string();
    let populated = [("map-populate", Pages::Unsaid), ("map-populate-hugetlb", Pages::Hugetlb2M)];
    let mut methods: Vec<_> = populated
        .into_iter()
        .filter(|&(_, pages)| given.allows(pages, GIB))
        .map(|(name, pages)| (name, Some(pages)))
        .collect();
    methods.push(("prefault", None));
    let names: Vec<_> = methods.iter().map(|(name, _)| format!("{name}/{label}")).collect();
    let mut part =
        rounds.measure("fault", Unit::Microseconds, &names, |index| match methods[index].1 {
            Some(pages) => {
                turns.give_way(pages);
                populate_once(pages)
            }
            None => prefault_once(turns.pool()?),
        })?;
    for (name, _) in &methods[..methods.len() - 1] {
        part.compare((name, "prefault"), &label, Some(CLEARED_EARLIER));
    }
    Ok(part)
}

/// In microseconds, giving back not included.
fn populate_once(pages: Pages) -> Result<f64, LabError> {
    let start = Instant::now();
    let populated = Anonymous::populated(pages, GIB)?;
    let elapsed = start.elapsed();
    drop(populated);
    Ok(elapsed.as_secs_f64() * 1e6)
}

fn prefault_once(pool: &Pool) -> Result<f64, LabError> {
    pool.scrub()?;
    let start = Instant::now();
    let region = pool.region(GIB)?;
    region.populate(0..GIB)?;
    let elapsed = start.elapsed();
    drop(region);
    Ok(elapsed.as_secs_f64() * 1e6)
}

/// Faults in two regions, by one thread after the other region and by two at once: clean ones, and
/// those that the faulting thread serves itself.
fn rate(pool: &Pool, cpus: [usize; 2], rounds: Rounds<'_>) -> Result<Part, LabError> {
    rounds.observer.begin("fault rate");
    let threads: [(&str, &[usize]); 2] = [("one-thread", &cpus[..1]), ("two-threads", &cpus)];
    let mut kinds: Vec<(&str, Take)> = vec![("clean", |pool, len| {
        pool.scrub()?;
        Ok([pool.region(len)?, pool.region(len)?])
    })];
    if served::two_regions(pool, half(pool)).is_ok() {
        kinds.push(("minor-in-place", served::two_regions));
    }
    let names = |(kind, _): &(&str, Take)| threads.map(|(threads, _)| format!("{threads}/{kind}"));
    let names: Vec<_> = kinds.iter().flat_map(names).collect();
    let mut part = rounds.measure("fault", Unit::FaultsPerSecond, &names, |index| {
        faults_per_second(pool, kinds[index / 2].1, threads[index % 2].1)
    })?;
    for (pair, (kind, _)) in names.chunks(2).zip(&kinds) {
        part.ratio(&format!("one-thread-vs-two/{kind}"), (&pair[0], &pair[1]), None);
    }
    Ok(part)
}

/// Half of a pool, in whole pages.
fn half(pool: &Pool) -> usize {
    pool.capacity() / 2 / pool.page_size() * pool.page_size()
}

/// Takes two regions of a length, of which everything but what was touched by this faults.
type Take = fn(&Pool, usize) -> Result<[Region; 2], LabError>;

/// Two regions touched by one thread on each of these CPUs, one or two.
fn faults_per_second(pool: &Pool, take: Take, cpus: &[usize]) -> Result<f64, LabError> {
    let (page, half) = (pool.page_size(), half(pool));
    let mut regions = take(pool, half)?;
    let seconds = seconds_at_once(&mut regions, page, cpus)?;
    Ok((regions.len() * half / page) as f64 / seconds)
}

/// The regions shared out among threads, each on a CPU of its own; from the moment when all of them
/// are running, which they wait for awake, until the last one is done.
fn seconds_at_once(regions: &mut [Region], page: usize, cpus: &[usize]) -> Result<f64, LabError> {
    let (ready, others) = (AtomicUsize::new(0), AtomicUsize::new(cpus.len()));
    let work = |regions: &mut [Region], cpu: usize| {
        // Refused, it may run anywhere, and the scheduler parts the threads sooner or later.
        let _ = cpus::run_on(&cpus::only(cpu));
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < others.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        regions.iter_mut().for_each(|region| touch(region, page));
        (start, Instant::now())
    };
    let shares = regions.chunks_mut(regions.len().div_ceil(cpus.len())).zip(cpus);
    let work = &work;
    let times = std::thread::scope(|scope| {
        let threads: Result<Vec<_>, LabError> =
            shares.map(|(share, &cpu)| spawn(scope, move || work(share, cpu))).collect();
        // A thread that could not be started is not waited for.
        others.store(if threads.is_err() { 0 } else { cpus.len() }, Ordering::SeqCst);
        let join = |thread: ScopedJoinHandle<'_, _>| thread.join().expect("a touch does not panic");
        Ok::<Vec<(Instant, Instant)>, LabError>(threads?.into_iter().map(join).collect())
    })?;
    let start = times.iter().map(|time| time.0).min();
    let end = times.iter().map(|time| time.1).max();
    Ok(start.zip(end).map_or(f64::NAN, |(start, end)| (end - start).as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base_pool(bytes: usize) -> Pool {
        unscrubbed(bytes).backing(Backing::Base).build().unwrap()
    }

    #[test]
    fn a_row_is_asked_for_anew_by_each_look() {
        let pool = base_pool(4 * MIB);
        let source = FaultSource::Pool(pool.clone());
        let faults = source.row(4 * MIB).unwrap();
        assert_eq!(faults.len(), 4 * MIB / pool.page_size() - 1);
        assert!(faults.iter().all(|&fault| fault > 0.0));
        assert!(source.first(4 * MIB).unwrap() > 0.0);
        assert_eq!(pool.stats().unwrap().allocations, 3);
        assert_eq!(source.label(FaultStatistic::First), "clean-base-first/4KiB");
    }

    #[test]
    fn a_clear_alone_clears_pages_that_are_mapped() {
        let pool = base_pool(4 * MIB);
        let source = FaultSource::ClearAlone(pool.clone());
        assert_eq!(source.label(FaultStatistic::Median), "clear-alone/4KiB");
        assert_eq!(source.row(4 * MIB).unwrap().len(), 4 * MIB / pool.page_size() - 1);
        let mut page = vec![7; 4096];
        clear_and_touch(&mut page, 4096);
        assert!(page[1..].iter().all(|&byte| byte == 0) && page[0] == 1);
    }

    /// With a last level of 300 MiB, rows for which nothing was reserved ended the lab.
    #[test]
    fn rows_fit_the_memory_and_what_is_reserved_on_every_machine() {
        for machine in hugekit_invented_machines::MACHINES {
            for huge in [0, 10, 200, 512, machine.reserved.unwrap_or(0) as usize] {
                let memory = (machine.available() / 2).min(4 << 30) as usize;
                let given = Given { memory, thp: machine.thp, huge, gigantic: 0 };
                let row = row_bytes(&given, machine.llc as usize);
                let name = machine.name;
                assert!(row >= 2 * MIB && row.is_multiple_of(2 * MIB), "{name}: {row}");
                assert!(2 * row <= memory, "{name}: {row}");
                if huge * 2 * MIB >= ROWS * ROW_BYTES {
                    assert!(given.allows(Pages::Hugetlb2M, ROWS * row), "{name}: {huge}, {row}");
                }
                let is_short = row < 4 * machine.llc as usize;
                assert_eq!(short_row(row, machine.llc as usize).is_some(), is_short, "{name}");
            }
        }
    }

    #[test]
    fn one_thread_or_two_touch_both_regions() {
        let cpus: Vec<usize> = cpus::numbers(&cpus::allowed().unwrap()).take(2).collect();
        for cpus in [&cpus[..1], &cpus[..]] {
            let pool = base_pool(4 * MIB);
            let mut regions = [pool.region(2 * MIB).unwrap(), pool.region(2 * MIB).unwrap()];
            assert!(seconds_at_once(&mut regions, pool.page_size(), cpus).unwrap() > 0.0);
            for region in &regions {
                assert!(region.iter().step_by(pool.page_size()).all(|&byte| byte == 1));
            }
        }
    }

    #[test]
    fn the_best_clean_page_is_compared_and_nothing_is_like_for_like() {
        let mut part = Part::new("fault");
        for name in ["kernel-thp/2MiB", "clean-thp/2MiB", "clean-base/4KiB"] {
            part.add_case(name, Unit::Microseconds, vec![1.0, 2.0]);
        }
        compare(&mut part, "");
        assert_eq!(part.ratios.len(), 1);
        assert_eq!(part.ratios[0].id, "fault/kernel-thp-vs-clean/2MiB");
        assert_eq!(part.ratios[0].subject, "fault/clean-thp/2MiB");
        assert!(!part.ratios[0].like_for_like);
    }
}
