//! One file per experiment.

pub(crate) mod clear;
mod copies;
mod cow;
mod demand;
mod epochs;
mod epochs_throughput;
mod fault;
mod fork;
mod fork2;
mod fork_tables;
mod gigantic;
mod learn;
mod lease;
mod lease_qemu;
mod memory_sources;
mod order;
mod parallel;
mod part;
mod perf_bench;
pub(crate) mod routine_matrix;
mod served;
mod snapshot;
mod stores;
mod tend;
mod tend_redis;
mod whole_process;

use crate::LabError;
use crate::bench::Bench;
use crate::record::Experiment;

/// An experiment: its name on the command line, what it repeats, and how it runs.
#[derive(Debug)]
pub struct Definition {
    /// The name.
    pub name: &'static str,
    /// One line on what it repeats.
    pub repeats: &'static str,
    /// The comparisons that sum it up, the most telling first: `baseline-vs-subject`. A machine may lack the pages
    /// for some of them.
    pub headlines: &'static [&'static str],
    /// Whether a run of no experiment in particular has it: those end within three minutes together.
    pub is_core: bool,
    pub(crate) run: fn(&mut Bench<'_>) -> Result<Experiment, LabError>,
}

/// Every experiment, in the order of a run of all.
pub const EXPERIMENTS: &[Definition] = &[
    Definition {
        name: "stores",
        repeats: "clear_page_nt, 2020: string, vector and streaming stores by size",
        headlines: &["memset-vs-auto"],
        is_core: true,
        run: stores::run,
    },
    Definition {
        name: "copies",
        repeats: "target last, 2018, and its review: cached and streaming copies by size",
        headlines: &["memcpy-vs-auto"],
        is_core: true,
        run: copies::run,
    },
    Definition {
        name: "learn",
        repeats: "beyond: a process's first, second and later calls, and what they learn",
        headlines: &["best-vs-second"],
        is_core: true,
        run: learn::run,
    },
    Definition {
        name: "clear",
        repeats: "clearing in extents, 2023, and target subpage last, 2018: one folio",
        headlines: &["page-at-a-time-vs-engine"],
        is_core: true,
        run: clear::run_experiment,
    },
    Definition {
        name: "parallel",
        repeats: "gigantic pages in parallel, 2017: clear, copy, populate by threads",
        headlines: &["serial-vs-threads"],
        is_core: true,
        run: parallel::run,
    },
    Definition {
        name: "demand",
        repeats: "demand faults of huge pages, 2023: the kernel, a pool clean and dirty",
        headlines: &["kernel-hugetlb-vs-dirty", "kernel-thp-vs-dirty"],
        is_core: true,
        run: demand::run,
    },
    Definition {
        name: "fault",
        repeats: "the latency of one fault: the kernel's, a pool's, and those we serve",
        headlines: &[
            "kernel-hugetlb-vs-dirty-in-place",
            "kernel-thp-vs-dirty-in-place",
            "one-thread-vs-two",
        ],
        is_core: true,
        run: fault::run,
    },
    Definition {
        name: "cow",
        repeats: "target last, 2018, anon-cow-seq: writers diverge from one origin",
        headlines: &["fork2-hugetlb-vs-region", "kernel-hugetlb-vs-parent-write"],
        is_core: true,
        run: cow::run,
    },
    Definition {
        name: "fork",
        repeats: "fork with PTE-mapped THP, 2024: fork(2), tables by runs, regions",
        headlines: &["fork2-hugetlb-vs-region", "fork2-thp-vs-region", "unbatched-vs-batched"],
        is_core: true,
        run: fork::run,
    },
    Definition {
        name: "snapshot",
        repeats: "beyond: a writer while its memory is saved: fork(2), region, anonymous",
        headlines: &["fork2-thp-vs-anonymous-unreserved", "fork2-thp-vs-anonymous"],
        is_core: true,
        run: snapshot::run,
    },
    Definition {
        name: "epochs",
        repeats: "beyond: a state saved again and again, all of it or what has changed",
        headlines: &["full-vs-delta"],
        is_core: false,
        run: epochs::run,
    },
    Definition {
        name: "lease",
        repeats: "beyond: memory populated before it is asked for: clients, QEMU, refills",
        headlines: &["kernel-cpu-vs-refill-cpu"],
        is_core: false,
        run: lease::run,
    },
    Definition {
        name: "tend",
        repeats: "beyond: programs that fork, and real Redis, on huge pages from outside",
        headlines: &["plain-vs-tended"],
        is_core: false,
        run: tend::run,
    },
];
