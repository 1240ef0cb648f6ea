//! The sources of memory that `demand` and `fault` share, and what to say of each.

use crate::measure::LabError;
use crate::measure::machine::memory::{remedy, why_no_thp};
use crate::measure::workloads::anonymous::{Anonymous, Pages};
use crate::record::Experiment;
use hugekit::error_chain;
use hugekit::pool::{Backing, PoolBuilder};
use hugekit::{Pool, PoolError, Region, Threads};
use hugekit_machine::Root;
use hugekit_machine::size::{GIB, MIB, Size};

use super::bench::Bench;

/// The work that a comparison of hand-outs alone leaves out.
pub(super) const CLEARED_EARLIER: &str = "the pool cleared these pages before they were asked for, in the background; `lab demand` counts \
     that, as dirty and as sustained";

/// Memory that a case got, to be given back by the drop.
#[derive(Debug)]
pub(super) enum Held {
    Kernel(Anonymous),
    Region(Region),
}

impl Held {
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Kernel(memory) => memory.bytes(),
            Self::Region(region) => region,
        }
    }
}

/// Stores one byte to each page.
pub(super) fn touch(bytes: &mut [u8], page: usize) {
    bytes.iter_mut().step_by(page).for_each(|byte| *byte = 1);
    std::hint::black_box(bytes);
}

/// A pool of this many bytes, all of it there, that clears only when it allocates.
pub(super) fn unscrubbed(bytes: usize) -> PoolBuilder<'static> {
    Pool::builder(bytes).name("lab").scrub_threads(0)
}

/// A pool that alternates with the kernel's side: where reserved pages are too few for both, the pool
/// gives them back for each turn of the kernel's.
#[derive(Debug)]
pub(super) struct Turns {
    again: PoolBuilder<'static>,
    report: String,
    gives_way: bool,
    pool: Option<Pool>,
}

impl Turns {
    pub(super) fn new(given: &Given, pool: PoolBuilder<'static>) -> Result<Self, LabError> {
        let (again, pool) = (pool.clone(), pool.build()?);
        let short = !given.allows(Pages::Hugetlb2M, 2 * pool.capacity());
        Ok(Self {
            // On another tier it would be another comparison.
            again: again.backing(pool.backing()).strict(true),
            report: backing_report(&pool),
            gives_way: pool.backing() == Backing::Hugetlb2M && short,
            pool: Some(pool),
        })
    }

    /// The pool's tier, and why it is on no better one.
    pub(super) fn backing_report(&self) -> &str {
        &self.report
    }

    /// The pool's turn.
    pub(super) fn pool(&mut self) -> Result<&Pool, LabError> {
        let pool = match self.pool.take() {
            Some(pool) => pool,
            None => self.again.build()?,
        };
        Ok(self.pool.insert(pool))
    }

    /// The kernel's turn, on these pages.
    pub(super) fn give_way(&mut self, pages: Pages) {
        if pages == Pages::Hugetlb2M && self.gives_way {
            self.pool = None;
        }
    }
}

/// Sees to it that all of a pool is dirty.
pub(super) fn soil(pool: &Pool) -> Result<(), LabError> {
    let stats = pool.stats()?;
    if stats.clean + stats.holes > 0 {
        drop(pool.region_builder(pool.capacity()).threads(Threads::Auto).build()?);
    }
    Ok(())
}

/// A pool's tier, and why it is on no better one.
pub(super) fn backing_report(pool: &Pool) -> String {
    let report = pool.backing_report();
    let fallbacks = report.fallbacks.iter().map(|fallback| {
        let remedy = fallback.reason.remedy().map_or(String::new(), |remedy| format!("; {remedy}"));
        format!("; not on {}: {}{remedy}", fallback.backing, error_chain(&fallback.reason))
    });
    format!("the pool is on {}{}", report.backing, fallbacks.collect::<String>())
}

/// The reason why a case is left out, and a remedy.
pub(super) fn no_pool(name: &str, error: &PoolError) -> String {
    let remedy = error.remedy().map_or(String::new(), |remedy| format!("; {remedy}"));
    format!("{name} left out: {}{remedy}", error_chain(error))
}

/// The machine as both experiments find it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// Bytes that may be in use at a time, beside reserved pages.
    pub(super) memory: usize,
    pub(super) thp: bool,
    /// Reserved pages of 2 MiB that are free.
    pub(super) huge: usize,
    /// Reserved pages of 1 GiB that are free.
    pub(super) gigantic: usize,
}

impl Given {
    /// The memory given back to the kernel, and as many huge pages reserved as a pool or the kernel's
    /// side needs at a time, as far as that may be.
    pub(super) fn new(bench: &mut Bench<'_>, gigantic: usize) -> Result<Self, LabError> {
        let memory = bench.leave_memory()?;
        let thp = bench.allow_thp()?;
        let huge = bench.reserve(Pages::Hugetlb2M, largest(memory) / (2 * MIB))?;
        let gigantic = bench.reserve(Pages::Hugetlb1G, gigantic)?;
        Ok(Self { memory, thp, huge, gigantic })
    }

    /// True if this many bytes of these pages are available for all cases together.
    pub(super) fn allows(&self, pages: Pages, bytes: usize) -> bool {
        match pages {
            Pages::Unsaid | Pages::Base => true,
            Pages::Thp => self.thp,
            Pages::Hugetlb2M => bytes <= self.huge * 2 * MIB,
            Pages::Hugetlb1G => bytes <= self.gigantic * GIB,
        }
    }

    /// `wanted` bytes; where `parts` times as many are not reserved, as many as are, but no fewer than `least`:
    /// below that, reserved pages are left out.
    pub(super) fn within_reserved(&self, wanted: usize, least: usize, parts: usize) -> usize {
        let each = self.huge / parts * Pages::Hugetlb2M.size();
        if each >= least { wanted.min(each) } else { wanted }
    }

    /// An empty record that says what cannot be measured here.
    pub(super) fn experiment(&self, name: &str, setup: bool) -> Experiment {
        let (memory, huge) = (Size(self.memory), self.huge);
        let memory = format!(
            "{memory} of memory, written once before and given back to the kernel; {huge} huge pages of 2MiB"
        );
        Experiment { notices: self.left_out(setup), ..Experiment::on(name, memory) }
    }

    fn left_out(&self, setup: bool) -> Vec<String> {
        let (largest, hint) =
            (largest(self.memory), if setup { "" } else { ", or `--setup` (root)" });
        let gigantic = (largest < GIB)
            .then(|| "1GiB left out: it needs 2GiB of memory; `--memory 2GiB`".to_owned());
        let thp = (!self.thp).then(|| {
            let why = why_no_thp(&Root::default());
            format!("the kernel's transparent huge pages left out: {why}{hint}")
        });
        let wanted = largest / (2 * MIB);
        let huge = (self.huge < wanted).then(|| {
            let remedy = remedy(&Root::default(), Pages::Hugetlb2M.size(), wanted - self.huge);
            format!(
                "the kernel's hugetlb left out where pages are missing: {} of {wanted} pages of 2MiB \
                 are free{remedy}{hint}",
                self.huge
            )
        });
        gigantic.into_iter().chain(thp).chain(huge).collect()
    }
}

/// The largest region measured, where a pool and the kernel hold as much at a time.
pub(super) fn largest(memory: usize) -> usize {
    (memory / 2).min(GIB) / (2 * MIB) * (2 * MIB)
}
