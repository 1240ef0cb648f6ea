//! Populating reserved pages of 1 GiB by threads. The kernel clears each page on the thread that
//! faults it in, so several threads help if there are several pages.

use std::time::Instant;

use crate::measure::LabError;
use crate::measure::machine::{clearing_kernel, here};
use crate::measure::part::Part;
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::record::Unit;
use crate::record::published::{self, Conditions};
use hugekit::Threads;
use hugekit_machine::size::{GIB, Size};

use super::{JobKind, Pieces, counts};
use crate::experiments::Bench;

/// Pages that are populated, if so many are free.
const PAGES: usize = 4;

/// Measures with as many threads as there are pages at most.
pub(super) fn measure(bench: &mut Bench<'_>, most: usize) -> Result<Part, LabError> {
    let free = bench.reserve(Pages::Hugetlb1G, PAGES)?;
    if free < 2 {
        let mut part = Part::new("parallel");
        part.notices.push(format!("populate-1GiB left out: 2 pages are needed, {free} are free"));
        return Ok(part);
    }
    let rounds = bench.long_rounds(0.2, 12);
    rounds.observer.begin("parallel populate-1GiB");
    let mut memory = Anonymous::new(Pages::Hugetlb1G, free * GIB)?;
    let counts = counts(most.min(free));
    let names: Vec<_> = counts.iter().map(|threads| format!("populate-1GiB/{threads}")).collect();
    let mut part = rounds.measure("parallel", Unit::GibPerSecond, &names, |index| {
        sample(&mut memory, counts[index])
    })?;
    compare(&mut part, &counts, free * GIB);
    Ok(part)
}

/// In GiB/s. The pages are given back outside the timed part.
fn sample(memory: &mut Anonymous, threads: usize) -> Result<f64, LabError> {
    let len = memory.addresses().len();
    memory.give_back(len)?;
    let mut pieces = Pieces::of(JobKind::Populate, memory.bytes());
    let start = Instant::now();
    pieces.done(JobKind::Populate, Threads::Exactly(threads), None)?;
    Ok(len as f64 / GIB as f64 / start.elapsed().as_secs_f64())
}

/// Beside the published speed-ups of a kernel whose threads share each page.
fn compare(part: &mut Part, counts: &[usize], memory: usize) {
    for &threads in &counts[1..] {
        let ratio = format!("serial-vs-threads/populate-1GiB/{threads}");
        let sides = ("populate-1GiB/1", &*format!("populate-1GiB/{threads}"));
        part.ratio(&ratio, sides, None);
        let ours = here(Conditions {
            ran: "a range of gigantic pages populated".to_owned(),
            kernel: clearing_kernel(),
            memory: Some(Size(memory).to_string()),
            pages: Some("1GiB".to_owned()),
            threads: Some(threads),
            ..Conditions::default()
        });
        let published = published::parallel_speed_up(threads);
        part.put_beside(&format!("parallel/{ratio}"), &ours, published);
    }
}
