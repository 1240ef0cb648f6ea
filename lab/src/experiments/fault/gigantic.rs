//! A served fault of a page of 1 GiB: how long it takes, and how long other threads wait that touch the same
//! region meanwhile.
//!
//! Faults of such pages are served by threads only. One that touches the page that is being cleared waits
//! for the rest of it; one that touches another page waits for a handler thread, and then for its own page.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::part::Part;
use crate::measure::workloads::anonymous::Pages;
use crate::measure::workloads::threads::spawn;
use crate::record::Unit;
use hugekit::error_chain;
use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::{Pool, Region};
use hugekit_machine::size::Size;

use crate::experiments::Bench;
use crate::experiments::memory_sources::{soil, unscrubbed};

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

/// Touches, and how many threads serve faults. A second handler helps only those that need one of their own.
const LOOKS: [(&str, Touch, usize); 4] = [
    ("dirty-threaded", Touch::Alone, 1),
    ("same-page-threaded", Touch::SamePage, 1),
    ("other-page-threaded", Touch::OtherPage, 1),
    ("other-page-two-threads", Touch::OtherPage, 2),
];

const OTHERS: &str = "both threads wait for clears of this region, and the time of one is shown";

/// The latency of the touch in microseconds, in a region that is all dirty.
fn sample(pool: &Pool, touch: Touch, handlers: usize) -> Result<f64, LabError> {
    let mut region = dirty(pool, handlers)?;
    let (page, other) = region.split_at_mut(pool.page_size());
    let (head, tail) = page.split_at_mut(pool.page_size() / 2);
    match touch {
        Touch::Alone => Ok(latency(head)),
        Touch::SamePage => behind(head, tail),
        Touch::OtherPage => behind(head, other),
    }
}

/// A region of all pages that are cleared when they are touched.
fn dirty(pool: &Pool, handlers: usize) -> Result<Region, LabError> {
    soil(pool)?;
    let region = pool.region_builder(pool.capacity()).clearing(Clearing::OnFault);
    Ok(region.fault_mode(FaultMode::Threaded { threads: handlers }).build()?)
}

/// The microseconds of one store.
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
    let (free, size) = (bench.reserve(Pages::Hugetlb1G, PAGES)?, Size(page));
    let mut part = Part::new("fault");
    if free < PAGES {
        part.notices.push(format!(
            "served faults of {size} left out where pages are missing: {free} of {PAGES} are free"
        ));
    }
    if free == 0 {
        return Ok(part);
    }
    let pool = unscrubbed(free * page).backing(Backing::Hugetlb1G).strict(true).build()?;
    if let Err(error) = dirty(&pool, 1) {
        part.notices.push(format!("served faults of {size} left out: {}", error_chain(&error)));
        return Ok(part);
    }
    part.absorb(measure_on(bench, &pool, share)?);
    Ok(part)
}

/// The looks for which the pool has enough pages.
fn looks(pool: &Pool) -> Vec<(&'static str, Touch, usize)> {
    let pages = pool.capacity() / pool.page_size();
    LOOKS.into_iter().filter(|(_, touch, _)| *touch != Touch::OtherPage || pages == PAGES).collect()
}

/// Compares a fault alone with faults behind another thread. Their ratio is below 1, because they take longer.
fn measure_on(bench: &Bench<'_>, pool: &Pool, share: f64) -> Result<Part, LabError> {
    let (size, rounds) = (Size(pool.page_size()).to_string(), bench.long_rounds(share, 12));
    rounds.observer.begin(&format!("fault served {size}"));
    let looks = looks(pool);
    let names: Vec<_> = looks.iter().map(|(name, ..)| format!("{name}/{size}")).collect();
    let mut part = rounds.measure("fault", Unit::Microseconds, &names, |index| {
        sample(pool, looks[index].1, looks[index].2)
    })?;
    for (name, ..) in &looks[1..] {
        part.compare((looks[0].0, name), &size, Some(OTHERS));
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_touch_waits_for_a_clear_of_its_own_page() {
        for (backing, bytes) in [(Backing::Thp, 4 << 20), (Backing::Hugetlb1G, 1 << 30)] {
            let pool = unscrubbed(bytes).backing(backing).strict(true);
            let Ok(pool) = pool.build() else { continue };
            for (name, touch, handlers) in looks(&pool) {
                let before = pool.stats().unwrap().scrubbed_at_fault;
                // A process that may not have faults of system calls served is refused.
                let Ok(latency) = sample(&pool, touch, handlers) else { return };
                let cleared = pool.stats().unwrap().scrubbed_at_fault - before;
                let pages = if touch == Touch::OtherPage { 2 } else { 1 };
                assert_eq!(cleared, pages * pool.page_size() as u64, "{name}");
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
}
