//! One fault at a time: what the first touch of a page costs, where the kernel clears it and where a
//! pool already has.
//!
//! A clean fault only enters a page into the page tables, which is why threads do not stand in each
//! other's way, and why a whole GiB can be entered by one call. The clock is read before and after
//! each touch; a sample is one fault.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hugekit::pool::Backing;
use hugekit::{Pool, Region};

use super::handout::{CLEARED_EARLIER, Given, Held, Turns, largest, short_name, touch, unscrubbed};
use crate::anonymous::{Anonymous, Pages};
use crate::bench::Bench;
use crate::record::{Case, Experiment, Ratio, Unit};
use crate::sampler::{Plan, try_alternate};
use crate::size::{GIB, MIB, Size};
use crate::stats::median;
use crate::{LabError, Observer};

/// What a case holds before it gives everything back and asks anew.
const WALK_BYTES: usize = 32 * MIB;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let given = Given::new(bench, 0)?;
    let mut experiment = given.experiment("fault", bench.options().setup);
    experiment.notices.push(format!(
        "reading the clock costs {:.3} µs, and every latency holds one such reading",
        clock_cost()
    ));
    let (_, observer) = bench.leave_memory()?;
    let (cases, ratios, notices) = latency(&given, bench.plan(0.3, 2000), observer)?;
    experiment.cases.extend(cases);
    experiment.ratios.extend(ratios);
    experiment.notices.extend(notices);

    let mut turns = Turns::new(&given, unscrubbed(largest(given.memory)))?;
    experiment.notices.push(turns.standing().to_owned());
    if turns.pool()?.capacity() == GIB {
        let (cases, ratios) = prefault(&given, &mut turns, bench.plan(0.3, 12), observer)?;
        experiment.cases.extend(cases);
        experiment.ratios.extend(ratios);
    }
    let (cases, ratio) = rate(turns.pool()?, bench.plan(0.2, 60), observer)?;
    experiment.cases.extend(cases);
    experiment.ratios.push(ratio);
    Ok(experiment)
}

/// What one sample spends on reading the clock, in microseconds.
fn clock_cost() -> f64 {
    let readings: Vec<f64> = (0..999).map(|_| microseconds(|| {})).collect();
    median(&readings)
}

fn microseconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e6
}

/// Where the pages of a walk come from.
#[derive(Debug)]
enum Source {
    Kernel(Pages),
    Pool(Pool),
}

impl Source {
    fn page_size(&self) -> usize {
        match self {
            Self::Kernel(pages) => pages.size(),
            Self::Pool(pool) => pool.page_size(),
        }
    }

    /// `kernel-thp/2MiB`, `clean-hugetlb/2MiB`.
    fn label(&self) -> String {
        let (who, what) = match self {
            Self::Kernel(Pages::Thp) => ("kernel", "thp"),
            Self::Kernel(Pages::Hugetlb2M) => ("kernel", "hugetlb"),
            Self::Kernel(_) => ("kernel", "4k"),
            Self::Pool(pool) => ("clean", short_name(pool.backing())),
        };
        format!("{who}-{what}/{}", Size(self.page_size()))
    }

    fn take(&self) -> Result<Held, LabError> {
        Ok(match self {
            Self::Kernel(pages) => Held::Kernel(Anonymous::new(*pages, WALK_BYTES)?),
            Self::Pool(pool) => {
                pool.scrub()?;
                Held::Region(pool.region(WALK_BYTES)?)
            }
        })
    }
}

/// Memory whose pages are touched one by one, and all of it anew when none is left.
#[derive(Debug)]
struct Walk {
    source: Source,
    held: Option<Held>,
    next: usize,
}

impl Walk {
    fn new(source: Source) -> Self {
        Self { source, held: None, next: 0 }
    }

    /// One fault in microseconds.
    fn fault(&mut self) -> Result<f64, LabError> {
        if self.next == WALK_BYTES {
            (self.held, self.next) = (None, 0);
        }
        let held = match &mut self.held {
            Some(held) => held,
            none => none.insert(self.source.take()?),
        };
        let page = self.source.page_size();
        let bytes = &mut held.bytes()[self.next..][..page];
        self.next += page;
        Ok(microseconds(|| touch(bytes, page)))
    }
}

type Measured = (Vec<Case>, Vec<Ratio>, Vec<String>);

/// One fault of every kind in each round.
fn latency(given: &Given, plan: Plan, observer: &dyn Observer) -> Result<Measured, LabError> {
    observer.begin("fault latency");
    let kernel = [Pages::Base, Pages::Thp, Pages::Hugetlb2M];
    let kernel = kernel.into_iter().filter(|&pages| given.allows(pages, 2 * WALK_BYTES));
    let mut walks: Vec<Walk> = kernel.map(|pages| Walk::new(Source::Kernel(pages))).collect();
    let mut notices = Vec::new();
    for backing in [Backing::Hugetlb2M, Backing::Thp, Backing::Base] {
        match unscrubbed(WALK_BYTES).backing(backing).strict(true).build() {
            Ok(pool) => walks.push(Walk::new(Source::Pool(pool))),
            Err(error) => {
                let remedy = error.remedy().map_or(String::new(), |remedy| format!("; {remedy}"));
                notices.push(format!("clean-{} left out: {error}{remedy}", short_name(backing)));
            }
        }
    }
    let samples = try_alternate(plan, walks.len(), observer, |index| walks[index].fault())?;
    let case = |(walk, samples): (&Walk, _)| {
        case(format!("fault/{}", walk.source.label()), Unit::Microseconds, samples)
    };
    let cases: Vec<Case> = walks.iter().zip(samples).map(case).collect();
    let ratios = latency_ratios(&cases);
    Ok((cases, ratios, notices))
}

/// Every kind of the kernel's against a clean page of that size, the best there is.
fn latency_ratios(cases: &[Case]) -> Vec<Ratio> {
    let find = |method: &str| {
        let with = format!("fault/{method}/");
        cases.iter().find(|case| case.id.starts_with(&with))
    };
    let huge = find("clean-hugetlb").or_else(|| find("clean-thp"));
    let pairs = [
        ("kernel-hugetlb", find("clean-hugetlb")),
        ("kernel-thp", huge),
        ("kernel-4k", find("clean-base")),
    ];
    let ratio = |(kernel, clean): (&str, Option<&Case>)| {
        let (baseline, clean) = (find(kernel)?, clean?);
        let page = clean.id.rsplit('/').next().unwrap_or_default();
        let id = format!("fault/{kernel}-vs-clean/{page}");
        Some(Ratio::between(id, baseline, clean).unlike(CLEARED_EARLIER))
    };
    pairs.into_iter().filter_map(ratio).collect()
}

/// A GiB ready to be used: mapped and populated by one call, or handed out and prefaulted.
fn prefault(
    given: &Given,
    turns: &mut Turns,
    plan: Plan,
    observer: &dyn Observer,
) -> Result<(Vec<Case>, Vec<Ratio>), LabError> {
    observer.begin("fault prefault");
    let populated = [("map-populate", Pages::Unsaid), ("map-populate-hugetlb", Pages::Hugetlb2M)];
    let populated: Vec<_> =
        populated.into_iter().filter(|&(_, pages)| given.allows(pages, GIB)).collect();
    let samples =
        try_alternate(plan, populated.len() + 1, observer, |index| match populated.get(index) {
            Some(&(_, pages)) => {
                turns.give_way(pages);
                populate_once(pages)
            }
            None => prefault_once(turns.pool()?),
        })?;
    let label = Size(GIB);
    let names = populated.iter().map(|&(name, _)| name).chain(["prefault"]);
    let cases: Vec<Case> = names
        .zip(samples)
        .map(|(name, samples)| case(format!("fault/{name}/{label}"), Unit::Microseconds, samples))
        .collect();
    let (prefault, populates) = cases.split_last().expect("prefault is always a case");
    let ratio = |(&(name, _), case): (&(&str, Pages), &Case)| {
        let id = format!("fault/{name}-vs-prefault/{label}");
        Ratio::between(id, case, prefault).unlike(CLEARED_EARLIER)
    };
    let ratios = populated.iter().zip(populates).map(ratio).collect();
    Ok((cases, ratios))
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
    region.prefault(0..GIB)?;
    let elapsed = start.elapsed();
    drop(region);
    Ok(elapsed.as_secs_f64() * 1e6)
}

/// Clean faults in two regions, by one thread after the other region and by two at once.
fn rate(pool: &Pool, plan: Plan, observer: &dyn Observer) -> Result<(Vec<Case>, Ratio), LabError> {
    observer.begin("fault rate");
    let threads = [("one-thread", 1), ("two-threads", 2)];
    let samples = try_alternate(plan, threads.len(), observer, |index| {
        faults_per_second(pool, threads[index].1)
    })?;
    let cases: Vec<Case> = threads
        .iter()
        .zip(samples)
        .map(|((name, _), samples)| {
            case(format!("fault/{name}/clean"), Unit::FaultsPerSecond, samples)
        })
        .collect();
    let ratio = Ratio::between("fault/one-thread-vs-two/clean".into(), &cases[0], &cases[1]);
    Ok((cases, ratio))
}

fn faults_per_second(pool: &Pool, threads: usize) -> Result<f64, LabError> {
    pool.scrub()?;
    let (page, half) =
        (pool.page_size(), pool.capacity() / 2 / pool.page_size() * pool.page_size());
    let mut regions = [pool.region(half)?, pool.region(half)?];
    let faults = regions.len() * half / page;
    let seconds = match threads {
        1 => microseconds(|| touch_all(&mut regions, page)) / 1e6,
        _ => seconds_at_once(&mut regions, page),
    };
    Ok(faults as f64 / seconds)
}

fn touch_all(regions: &mut [Region], page: usize) {
    regions.iter_mut().for_each(|region| touch(region, page));
}

/// Each region by a thread of its own; from the moment when all of them are running, which they wait
/// for awake, until the last one is done.
fn seconds_at_once(regions: &mut [Region], page: usize) -> f64 {
    let (count, ready) = (regions.len(), AtomicUsize::new(0));
    let work = |region: &mut Region| {
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < count {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        touch(region, page);
        (start, Instant::now())
    };
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            regions.iter_mut().map(|region| scope.spawn(|| work(region))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a touch does not panic")).collect()
    });
    let start = times.iter().map(|time| time.0).min();
    let end = times.iter().map(|time| time.1).max();
    start.zip(end).map_or(f64::NAN, |(start, end)| (end - start).as_secs_f64())
}

fn case(id: String, unit: Unit, samples: Vec<f64>) -> Case {
    Case { id, unit, samples, published: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base_pool(bytes: usize) -> Pool {
        unscrubbed(bytes).backing(Backing::Base).build().unwrap()
    }

    #[test]
    fn a_walk_touches_every_page_once_and_begins_anew() {
        let pool = base_pool(WALK_BYTES);
        let mut walk = Walk::new(Source::Pool(pool.clone()));
        let pages = WALK_BYTES / pool.page_size();
        for _ in 0..pages {
            assert!(walk.fault().unwrap() > 0.0);
        }
        let held = walk.held.as_mut().unwrap().bytes();
        assert!(held.iter().step_by(pool.page_size()).all(|&byte| byte == 1));
        walk.fault().unwrap();
        assert_eq!(pool.stats().unwrap().hand_outs, 2);
        let held = walk.held.as_mut().unwrap().bytes();
        assert_eq!(held.iter().filter(|&&byte| byte == 1).count(), 1);
    }

    #[test]
    fn two_threads_touch_both_regions() {
        let pool = base_pool(4 * MIB);
        let mut regions = [pool.region(2 * MIB).unwrap(), pool.region(2 * MIB).unwrap()];
        assert!(seconds_at_once(&mut regions, pool.page_size()) > 0.0);
        for region in &regions {
            assert!(region.iter().step_by(pool.page_size()).all(|&byte| byte == 1));
        }
    }

    #[test]
    fn the_best_clean_page_is_compared_and_nothing_is_like_for_like() {
        let names = ["kernel-thp/2MiB", "clean-thp/2MiB", "clean-base/4KiB"];
        let cases =
            names.map(|name| case(format!("fault/{name}"), Unit::Microseconds, vec![1.0, 2.0]));
        let ratios = latency_ratios(&cases);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].id, "fault/kernel-thp-vs-clean/2MiB");
        assert_eq!(ratios[0].subject, "fault/clean-thp/2MiB");
        assert!(!ratios[0].like_for_like);
    }
}
