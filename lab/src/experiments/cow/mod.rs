//! Idea 2's own workload, anon-cow-seq: writers diverge from one origin, each of which stores to every word
//! of 8 bytes of its copy, ascending.
//!
//! Writers are processes that were made by `fork(2)`, or threads that write forks of a region, served in the
//! writing thread. Only the writing is timed, from one signal on; the sum of all writers' bandwidths is what
//! was published. *random* stores to as many words as the copy has cache lines, anywhere in it. What one copy
//! costs is measured apart: each huge page of a row is written once, by the origin or by the fork. The order
//! of copying is measured apart, too (`order.rs`), because neither kernel nor region lets it be chosen.

mod origin;
mod single;

use std::collections::HashSet;

use crate::measure::LabError;
use crate::measure::part::Parts;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::anonymous::Pages;
use crate::measure::workloads::writers::{Spent, WriterFn};
use crate::record::{Experiment, Unit};
use hugekit_bulk::parallel::Placement;
use hugekit_machine::size::{GIB, MIB, Size};

use self::origin::{CowOrigin, origins};
use super::bench::left_out;
use super::copies::order::{self, OrderWorkload};
use super::memory_sources::{backing_report, unscrubbed};
use super::parallel::counts;
use super::{Bench, Definition};

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

/// The published unit is a part of all memory, of which so much is enough here, one half for the kernel's.
const MOST_MEMORY: usize = 2 * GIB;

const HUGE: usize = 2 * MIB;

const LINE: usize = 64;

/// The part of an experiment's time for the order of copying.
const ORDER_SHARE: f64 = 0.6;

/// The writers' work on their copies.
#[derive(Debug)]
struct CopyUse {
    /// Behind the number of writers.
    kind: &'static str,
    work: WriterFn,
    /// Stores for each word of the copy.
    density: f64,
    /// The part of the experiment's time.
    share: f64,
}

const WORKLOADS: [CopyUse; 2] = [
    CopyUse { kind: "", work: in_order, density: 1.0, share: 0.5 },
    CopyUse { kind: "-random", work: at_random, density: 8.0 / LINE as f64, share: 0.25 },
];

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    // On memory that is mapped; what follows asks the kernel for its own.
    let orders = orders(bench)?;
    let memory = bench.leave_memory()?;
    bench.allow_thp()?;
    bench.allow_shared_thp()?;
    // A pool for the origin and its forks, and as much for the kernel's.
    let half = memory.min(MOST_MEMORY) / 2;
    bench.reserve_unwritten(Pages::Hugetlb2M, 2 * half / HUGE)?;
    let memory = Size(memory);
    let memory = format!("{memory} of memory, written once before and given back to the kernel");
    let mut experiment = Experiment::on("cow", memory);
    let counts = counts(Placement::here().threads());
    for &writers in &counts {
        let share = 1.0 / counts.len() as f64;
        experiment.add(&format!("{writers} writers"), with_writers(bench, writers, half, share))?;
    }
    for (writers, order) in orders {
        experiment.add(&format!("order {writers}"), order)?;
    }
    let mut seen = HashSet::new();
    experiment.notices.retain(|notice| seen.insert(notice.clone()));
    Ok(experiment)
}

/// Writers diverge from an origin as long as each copy; origin and copies have half of the memory.
fn with_writers(
    bench: &Bench<'_>,
    writers: usize,
    half: usize,
    share: f64,
) -> Result<Part, LabError> {
    let unit = half / (writers + 1) / HUGE * HUGE;
    if unit == 0 {
        let name = format!("{writers} writers");
        return Ok(Part::notice(left_out(&name, 2 * (writers + 1) * HUGE, 2 * half)));
    }
    let mut part = Part::new("cow");
    let pool = unscrubbed((writers + 1) * unit).build()?;
    let (mut origins, left_out) = origins(&pool, unit, writers)?;
    part.notices.extend(caches_notice(bench, writers, unit));
    part.notices.extend(left_out);
    for workload in &WORKLOADS {
        let rounds = bench.long_rounds(workload.share * share, 40);
        let name = format!("{writers}{}", workload.kind);
        part.add(&name, diverge(&mut origins, writers, workload, rounds))?;
    }
    if writers == 1 {
        // The pools of more writers need no more pages.
        part.notices.push(backing_report(&pool));
        part.add("one copy", single::measure(&mut origins, &pool, bench.rounds(0.25, 60)))?;
    }
    Ok(part)
}

/// The result for each number of writers.
type Orders = Vec<(usize, Result<Part, LabError>)>;

/// The order of copying, by one writer, two … and one on each CPU.
fn orders(bench: &mut Bench<'_>) -> Result<Orders, LabError> {
    let observer = bench.observer();
    bench.arena()?.fill_with_data(observer)?;
    let counts = counts(Placement::here().threads());
    let share = ORDER_SHARE / counts.len() as f64;
    let workload = |writers| OrderWorkload { experiment: "cow", writers, used: HUGE, share };
    Ok(counts
        .into_iter()
        .map(|writers| (writers, order::measure(bench, workload(writers))))
        .collect())
}

/// The figures' reach on this machine.
fn caches_notice(bench: &Bench<'_>, writers: usize, unit: usize) -> Option<String> {
    let caches = bench.caches()?;
    let (at_a_time, all) = (writers * 2 * HUGE, (writers + 1) * unit);
    let order = if at_a_time > caches.llc {
        "so that part of a page is evicted while the rest of it is copied: the order of copying shows"
    } else {
        "so that nothing of a page is evicted from there while the rest of it is copied: what was published for \
         the order of copying cannot show here, but from the L2"
    };
    let walk = if all > caches.llc { "do not fit" } else { "fit: not as in memory" };
    Some(format!(
        "a CPU has an L2 of {} and {} of the last level, shared by {} CPUs; writers: {writers}, which read and write {} \
         at a time, one huge page each, {order}; origin and copies, {} each, {walk}",
        Size(caches.l2),
        Size(caches.llc),
        caches.llc_shared_by,
        Size(at_a_time),
        Size(unit)
    ))
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
    origins: &mut [CowOrigin],
    writers: usize,
    workload: &CopyUse,
    rounds: Rounds<'_>,
) -> Result<Part, LabError> {
    let label = format!("{writers}{}", workload.kind);
    rounds.observer.begin(&format!("cow {label} writers"));
    let methods: Vec<&str> = origins.iter().map(CowOrigin::name).collect();
    let names: Vec<_> = methods.iter().map(|method| format!("{method}/{label}")).collect();
    let measured = rounds.measure_with("cow", Unit::GibPerSecond, &names, |index| {
        let spent = origins[index].diverge(writers, workload.work)?;
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
    let (region, kernels) = origins.split_last().expect("the region is the last");
    for origin in kernels {
        part.compare((origin.name(), region.name()), &label, origin.differs(region));
    }
    Ok(part)
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
}
