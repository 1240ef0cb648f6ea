//! A program that asks for memory: how soon it has touched every page of it.

use std::path::Path;
use std::time::Instant;

use crate::measure::LabError;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::measure::workloads::broker_process::BrokerProcess;
use crate::record::Unit;
use hugekit_machine::size::Size;

use crate::experiments::memory_sources::{touch, unscrubbed};

/// The work that comparisons of what a program waits for leave out.
pub(super) const POPULATED_EARLIER: &str = "the broker had these pages populated before they were asked for, in the \
     background; kernel-cpu-vs-refill-cpu counts that";

/// From the moment a program asks for memory until it has touched every page of it, in microseconds: the kernel's, and
/// a lease as a pool.
pub(super) fn measure(hugekit: &Path, asked: usize, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let (size, page) = (Size(asked).to_string(), Pages::Hugetlb2M.size());
    rounds.observer.begin(&format!("lease {size}"));
    let mut broker = BrokerProcess::start(hugekit, asked)?;
    let names = ["kernel", "lease"].map(|method| format!("{method}/{size}"));
    let mut part = rounds.measure("lease", Unit::Microseconds, &names, |index| {
        broker.until_ready()?;
        let start = Instant::now();
        if index == 0 {
            let mut memory = Anonymous::new(Pages::Hugetlb2M, asked)?;
            touch(memory.bytes(), page);
            Ok(start.elapsed().as_secs_f64() * 1e6)
        } else {
            let pool = unscrubbed(asked).lease(broker.lease()?).build()?;
            let mut region = pool.region(asked)?;
            // In one call, instead of by a fault for each page.
            region.populate(0..asked)?;
            touch(&mut region, page);
            Ok(start.elapsed().as_secs_f64() * 1e6)
        }
    })?;
    part.compare(("kernel", "lease"), &size, Some(POPULATED_EARLIER));
    Ok(part)
}
