//! A served fault of a page of 1 GiB: how long it takes, and how long other threads wait that touch the same
//! region meanwhile.
//!
//! Faults of such pages are served by threads only. One that touches the page that is being cleared waits
//! for the rest of it; one that touches another page waits for a handler thread, and then for its own page.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::{Pool, Region};

use super::memory_sources::{soil, unscrubbed};
use super::part::{Part, found};
use crate::LabError;
use crate::anonymous::Pages;
use crate::bench::Bench;
use crate::record::{Case, Ratio, Unit};
use crate::sampler::try_alternate;
use crate::size::Size;
use crate::threads::spawn;

/// Pages of the region: the one that is faulted, and another one.
const PAGES: usize = 2;

/// The head start of the fault that others wait for: longer than a fault takes to be delivered, and short
/// beside the clear of a page.
const HEAD_START: Duration = Duration::from_millis(1);

/// The touch that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    /// The only one.
    Alone,
    /// After another thread's, of the same page.
    SamePage,
    /// After another thread's, of the other page.
    OtherPage,
}

/// A touch, and by how many threads faults are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    touch: Touch,
    handlers: usize,
}

/// A second handler helps only those that need one of their own.
const LOOKS: [Look; 4] = [
    Look { touch: Touch::Alone, handlers: 1 },
    Look { touch: Touch::SamePage, handlers: 1 },
    Look { touch: Touch::OtherPage, handlers: 1 },
    Look { touch: Touch::OtherPage, handlers: 2 },
];

impl Look {
    fn method(self) -> &'static str {
        match (self.touch, self.handlers) {
            (Touch::Alone, _) => "dirty-threaded",
            (Touch::SamePage, _) => "same-page-threaded",
            (Touch::OtherPage, 1) => "other-page-threaded",
            (Touch::OtherPage, _) => "other-page-two-threads",
        }
    }

    /// The latency of the touch in microseconds, in a region that is all dirty.
    fn sample(self, pool: &Pool) -> Result<f64, LabError> {
        let mut region = dirty(pool, self.handlers)?;
        let (page, other) = region.split_at_mut(pool.page_size());
        let (head, tail) = page.split_at_mut(pool.page_size() / 2);
        match self.touch {
            Touch::Alone => Ok(latency(head)),
            Touch::SamePage => behind(head, tail),
            Touch::OtherPage => behind(head, other),
        }
    }
}

/// A region of all pages that are cleared when they are touched.
fn dirty(pool: &Pool, handlers: usize) -> Result<Region, LabError> {
    soil(pool)?;
    let region = pool.region_builder(pool.capacity()).clearing(Clearing::OnFault);
    Ok(region.fault_mode(FaultMode::Threaded { threads: handlers }).build()?)
}

/// Of one store.
fn latency(bytes: &mut [u8]) -> f64 {
    let start = Instant::now();
    bytes[0] = 1;
    std::hint::black_box(bytes);
    start.elapsed().as_secs_f64() * 1e6
}

/// The latency of `bytes`, touched when another thread has already touched `first`.
fn behind(first: &mut [u8], bytes: &mut [u8]) -> Result<f64, LabError> {
    let touching = &AtomicBool::new(false);
    thread::scope(|scope| {
        spawn(scope, move || {
            touching.store(true, Ordering::Relaxed);
            latency(first)
        })?;
        while !touching.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        thread::sleep(HEAD_START);
        Ok(latency(bytes))
    })
}

/// Measures on two such pages, or what one page is enough for.
pub(super) fn measure(bench: &mut Bench<'_>, share: f64) -> Result<Part, LabError> {
    let page = Pages::Hugetlb1G.size();
    let free = bench.reserve(Pages::Hugetlb1G, PAGES)?;
    let short = (free < PAGES).then(|| {
        let size = Size(page);
        format!(
            "served faults of {size} left out where pages are missing: {free} of {PAGES} are free"
        )
    });
    let mut part = Part { notices: short.into_iter().collect(), ..Part::default() };
    if free == 0 {
        return Ok(part);
    }
    let pool = unscrubbed(free * page).backing(Backing::Hugetlb1G).strict(true).build()?;
    if let Err(error) = dirty(&pool, 1) {
        part.notices.push(format!("served faults of {} left out: {error}", Size(page)));
        return Ok(part);
    }
    let measured = measure_on(bench, &pool, share)?;
    Ok(Part { notices: part.notices, ..measured })
}

/// Those that the pool has pages for.
fn looks(pool: &Pool) -> Vec<Look> {
    let pages = pool.capacity() / pool.page_size();
    LOOKS.into_iter().filter(|look| look.touch != Touch::OtherPage || pages == PAGES).collect()
}

fn measure_on(bench: &Bench<'_>, pool: &Pool, share: f64) -> Result<Part, LabError> {
    let (size, observer) = (Size(pool.page_size()), bench.observer());
    observer.begin(&format!("fault served {size}"));
    let (plan, looks) = (bench.plan_of_long_rounds(share, 12), looks(pool));
    let rounds = try_alternate(plan, looks.len(), observer, |index| looks[index].sample(pool))?;
    let mut part = Part::default();
    let cases = part.cases_of(rounds, |index, samples| Case {
        id: format!("fault/{}/{size}", looks[index].method()),
        unit: Unit::Microseconds,
        samples,
        published: Vec::new(),
    });
    part.ratios = against_alone(&looks, &cases, size);
    part.cases = found(cases);
    Ok(part)
}

const OTHERS: &str = "both threads wait for clears of this region, and the time of one is shown";

/// How many times as long as one alone those behind another thread take: below 1, that is.
fn against_alone(looks: &[Look], cases: &[Option<Case>], size: Size) -> Vec<Ratio> {
    let (alone, others) = cases.split_first().expect("the touch alone is always a case");
    let ratio = |(look, case): (&Look, &Option<Case>)| {
        let id = format!("fault/dirty-threaded-vs-{}/{size}", look.method());
        Some(Ratio::between(id, alone.as_ref()?, case.as_ref()?).unlike(OTHERS))
    };
    looks[1..].iter().zip(others).filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_touch_waits_for_a_clear_of_its_own_page() {
        for (backing, bytes) in [(Backing::Thp, 4 << 20), (Backing::Hugetlb1G, 1 << 30)] {
            let pool = unscrubbed(bytes).backing(backing).strict(true);
            let Ok(pool) = pool.build() else { continue };
            for look in looks(&pool) {
                let before = pool.stats().unwrap().scrubbed_at_fault;
                // A process that may not have faults of system calls served is refused.
                let Ok(latency) = look.sample(&pool) else { return };
                let cleared = pool.stats().unwrap().scrubbed_at_fault - before;
                let pages = if look.touch == Touch::OtherPage { 2 } else { 1 };
                assert_eq!(cleared, pages * pool.page_size() as u64, "{look:?}");
                assert!(latency > 0.0);
            }
        }
    }

    #[test]
    fn one_page_is_enough_for_those_that_need_no_other() {
        let pool = |bytes| unscrubbed(bytes).backing(Backing::Thp).strict(true).build();
        let (Ok(one), Ok(two)) = (pool(2 << 20), pool(4 << 20)) else { return };
        assert_eq!((looks(&one), looks(&two)), (LOOKS[..2].to_vec(), LOOKS.to_vec()));
    }

    #[test]
    fn those_behind_another_are_compared_with_one_alone() {
        let case = |look: &Look| Case {
            id: format!("fault/{}/1GiB", look.method()),
            unit: Unit::Microseconds,
            samples: vec![if look.touch == Touch::Alone { 50.0 } else { 100.0 }],
            published: Vec::new(),
        };
        let cases: Vec<_> = LOOKS.iter().map(|look| Some(case(look))).collect();
        let ratios = against_alone(&LOOKS, &cases, Size(1 << 30));
        let ids: Vec<_> = ratios.iter().map(|ratio| (ratio.id.as_str(), ratio.median)).collect();
        let expected = [
            ("fault/dirty-threaded-vs-same-page-threaded/1GiB", 0.5),
            ("fault/dirty-threaded-vs-other-page-threaded/1GiB", 0.5),
            ("fault/dirty-threaded-vs-other-page-two-threads/1GiB", 0.5),
        ];
        assert_eq!(ids, expected);
    }
}
