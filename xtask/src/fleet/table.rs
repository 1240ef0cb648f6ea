//! The machines. Each differs from `PLAIN` in what it is there to show.

use super::kernels::{
    AARCH64_4K, AARCH64_16K, AARCH64_64K, LINUX_5_10, LINUX_6_1, LINUX_6_12, NEWEST,
};
use super::machine::{Beside, Machine, Reserved, Rights, Run};
use super::programs::Program::{Doctor, Lab, Soak, Test, Units};

/// These in every change's tests: together they differ in most that has broken before, and take few minutes.
pub(super) const TELLING: [&str; 3] = ["two-nodes-6.1", "four-nodes", "small"];

/// All unit tests but one.
const UNITS: Run = Run::with(Units, &[WITHOUT_SOURCES]);

/// A unit test reads the library's sources, which no guest has.
const WITHOUT_SOURCES: &str = "--skip=error_of_any_kind_does_not_derive_debug";

/// Jobs and pools by node. Memory that moves meanwhile, which takes two minutes, is `places`'s.
const NODES: Run = Run::with(Test("nodes"), &["--skip=move", "--skip=follow"]);

/// That the lab works here.
const LAB: Run = Run::with(Lab, &["clear"]);

/// What runs on every machine.
const USUAL: &[Run] = &[
    Run::new(Doctor),
    UNITS,
    Run::new(Test("parallel")),
    NODES,
    Run::new(Test("region")),
    Run::with(Test("fault"), &["base::"]),
    Run::new(Test("signals")),
    Run::new(Test("failed_memory")),
    LAB,
];

/// What runs on another architecture: as everywhere, signals and threads on its own stacks and atomics, and everything
/// at once.
const ELSEWHERE: &[Run] = &[
    Run::new(Doctor),
    UNITS,
    Run::new(Test("parallel")),
    NODES,
    Run::new(Test("region")),
    Run::with(Test("fault"), &["base::"]),
    Run::new(Test("signals")),
    Run::new(Test("failed_memory")),
    Run::with(Soak, &["--minutes", "0.1"]),
    LAB,
];

/// What runs on kernels before `PAGEMAP_SCAN`, where forks and snapshots go other ways.
const OLD: &[Run] = &[
    Run::new(Doctor),
    UNITS,
    Run::new(Test("parallel")),
    Run::new(Test("region")),
    Run::with(Test("fault"), &["base::"]),
    Run::with(Test("pool"), &["any_steps"]),
    Run::with(Test("fork"), &["any_operations"]),
    Run::with(Test("snapshot"), &["any_steps"]),
    LAB,
];

/// What runs before `MADV_POPULATE_WRITE` (5.14), which pools rest on: they say so, and all tests of regions are skipped.
const OLDEST: &[Run] = &[
    Run::new(Doctor),
    Run::with(
        Units,
        &[
            WITHOUT_SOURCES,
            "--skip=cow::tests::gate_while_held_sees_no_allocation",
            "--skip=region_whose_handler_thread_dies_goes_on_with_clean_memory",
            "--skip=build_where_the_kernel_may_show_dirty_memory_clears_at_allocation",
            "--skip=snapshot::arena::tests::take_of_slots",
            "--skip=snapshot::reserve::tests::reserve_of_several",
            "--skip=lease::memory_file::tests::file_that_is_populated",
        ],
    ),
    Run::new(Test("clear")),
    Run::new(Test("copy")),
    Run::with(Test("parallel"), &["--skip=populate"]),
    Run::new(Test("region")),
    LAB,
];

/// Where a kernel's own work meets ours: the models of stale bytes, forks and snapshots, and everything at once.
const MODELS: &[Run] = &[
    Run::new(Doctor),
    UNITS,
    Run::with(Test("pool"), &["any_steps"]),
    Run::with(Test("stale"), &["at_full_speed"]),
    Run::with(Test("stale"), &["swap"]),
    Run::with(Test("fork"), &["any_operations"]),
    Run::with(Test("fork"), &["one_moment"]),
    Run::with(Test("snapshot"), &["any_steps"]),
    Run::new(Test("broken_memory")),
    Run::with(Soak, &["--minutes", "0.1"]),
    LAB,
];

/// The library's tests whole, those left out that need a compiler or have nothing to do with the machine.
const WHOLE: &[Run] = &[
    Run::new(Doctor),
    UNITS,
    Run::new(Test("clear")),
    Run::new(Test("copy")),
    Run::new(Test("parallel")),
    Run::new(Test("pool")),
    Run::new(Test("region")),
    Run::new(Test("fault")),
    Run::new(Test("signals")),
    Run::new(Test("stale")),
    Run::new(Test("fork")),
    Run::new(Test("snapshot")),
    Run::new(Test("failed_memory")),
    Run::new(Test("snapshot_order")),
    Run::new(Test("snapshot_signals")),
    Run::with(Soak, &["--minutes", "0.5"]),
    Run::with(Lab, &["clear", "fork"]),
];

/// What is about nodes and CPUs.
const PLACES: &[Run] = &[
    Run::new(Doctor),
    UNITS,
    Run::new(Test("nodes")),
    Run::new(Test("parallel_beside_others")),
    Run::with(Test("pool"), &["node"]),
    Run::with(Lab, &["parallel"]),
];

/// What chooses by CPU and executes its instructions.
const CHOICES: &[Run] = &[
    Run::new(Doctor),
    UNITS,
    Run::new(Test("clear")),
    Run::new(Test("copy")),
    Run::new(Test("routines")),
    LAB,
];

/// What shares memory by write protection, which came to kernels step by step, and which not all permit.
const SHARING: &[Run] = &[
    Run::new(Doctor),
    UNITS,
    Run::new(Test("region")),
    Run::new(Test("signals")),
    Run::with(Test("fork"), &["any_operations"]),
    Run::with(Test("snapshot"), &["any_steps"]),
    LAB,
];

/// A small machine of today, with all that hugekit asks for but reserved pages.
const PLAIN: Machine = Machine {
    name: "newest",
    about: "nothing is missing but reserved pages",
    kernel: &NEWEST,
    cpu: "max",
    cpus: 2,
    mib: 2048,
    nodes: 1,
    reserved: Reserved { pages_2m: 0, pages_1g: 0 },
    thp: "madvise",
    shmem_thp: "advise",
    swap_mib: 0,
    rights: Rights::Root,
    settings: &[],
    beside: &[],
    counters: &[],
    runs: MODELS,
    left_out: &[NO_SOURCES],
};

/// Pages went to the disk, and came back.
const SWAPPED: &[(&str, &str)] = &[("/proc/vmstat", "pswpout"), ("/proc/vmstat", "pswpin")];

const NO_SOURCES: (&str, &str) =
    ("a unit test", "it reads the library's sources, which no guest has");

const BEFORE_POPULATE: &[(&str, &str)] = &[
    NO_SOURCES,
    ("tests of populated memory", "MADV_POPULATE_WRITE needs Linux 5.14"),
    ("tests of forks and snapshots", "pools need Linux 5.14, as they say there"),
];

pub(super) static MACHINES: &[Machine] = &[
    Machine { runs: WHOLE, ..PLAIN },
    Machine {
        name: "two-nodes-6.1",
        about: "two nodes, a kernel before PAGEMAP_SCAN, and huge pages of shared memory by collapse alone",
        kernel: &LINUX_6_1,
        nodes: 2,
        shmem_thp: "never",
        runs: OLD,
        ..PLAIN
    },
    Machine {
        name: "four-nodes",
        about: "four nodes in a row, each with reserved pages",
        cpus: 4,
        nodes: 4,
        mib: 2048,
        reserved: Reserved { pages_2m: 256, pages_1g: 0 },
        runs: USUAL,
        ..PLAIN
    },
    Machine {
        name: "small",
        about: "little memory, one CPU, no huge page at all",
        kernel: &LINUX_6_12,
        cpus: 1,
        mib: 512,
        thp: "never",
        shmem_thp: "never",
        runs: USUAL,
        ..PLAIN
    },
    Machine {
        name: "places",
        about: "jobs and pools on four nodes with two CPUs each",
        cpus: 8,
        nodes: 4,
        mib: 4096,
        runs: PLACES,
        ..PLAIN
    },
    Machine {
        name: "gigantic",
        about: "reserved pages of both sizes",
        mib: 4096,
        reserved: Reserved { pages_2m: 256, pages_1g: 1 },
        ..PLAIN
    },
    Machine {
        name: "broadwell",
        about: "AVX2 and no AVX-512, 2014",
        cpu: "Broadwell",
        runs: CHOICES,
        ..PLAIN
    },
    Machine {
        name: "skylake",
        about: "a server's CPU of 2017, whose AVX-512 TCG lacks",
        cpu: "Skylake-Server",
        runs: CHOICES,
        ..PLAIN
    },
    Machine {
        name: "rome",
        about: "AMD, whose CLZERO TCG lacks",
        cpu: "EPYC-Rome",
        runs: CHOICES,
        ..PLAIN
    },
    Machine {
        name: "no-avx",
        about: "a CPU of 2008: SSE alone",
        cpu: "Penryn",
        runs: CHOICES,
        ..PLAIN
    },
    Machine {
        name: "always",
        about: "huge pages unasked, and khugepaged without rest",
        thp: "always",
        shmem_thp: "always",
        settings: &[
            ("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "0"),
            ("/sys/kernel/mm/transparent_hugepage/khugepaged/alloc_sleep_millisecs", "0"),
            ("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", "65536"),
        ],
        counters: &[("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_collapsed", "")],
        ..PLAIN
    },
    Machine {
        name: "no-shared-huge",
        about: "huge pages of anonymous memory alone: pools get base pages",
        kernel: &LINUX_6_12,
        shmem_thp: "never",
        runs: SHARING,
        ..PLAIN
    },
    Machine {
        name: "user",
        about: "userfaultfd serves faults of user mode alone",
        rights: Rights::User,
        runs: SHARING,
        ..PLAIN
    },
    Machine {
        name: "no-userfaultfd",
        about: "neither forks nor snapshots: what is left must say so",
        rights: Rights::NoUserfaultfd,
        runs: SHARING,
        ..PLAIN
    },
    Machine {
        name: "swap",
        about: "less memory than the tests use, and a disk to swap to",
        mib: 768,
        swap_mib: 512,
        settings: &[("/proc/sys/vm/swappiness", "200")],
        counters: SWAPPED,
        ..PLAIN
    },
    Machine {
        name: "restless",
        about: "pages are compacted, merged, taken out of use and reclaimed meanwhile",
        reserved: Reserved { pages_2m: 128, pages_1g: 0 },
        swap_mib: 512,
        settings: &[
            ("/sys/kernel/mm/ksm/sleep_millisecs", "1"),
            ("/sys/kernel/mm/ksm/pages_to_scan", "10000"),
            ("/sys/kernel/mm/ksm/run", "1"),
            // Of those that monitor all memory one runs at a time.
            ("/sys/module/damon_stat/parameters/enabled", "N"),
            ("/sys/module/damon_reclaim/parameters/min_age", "1000000"),
            ("/sys/module/damon_reclaim/parameters/wmarks_high", "1000"),
            ("/sys/module/damon_reclaim/parameters/wmarks_mid", "999"),
            ("/sys/module/damon_reclaim/parameters/wmarks_low", "0"),
            ("/sys/module/damon_reclaim/parameters/enabled", "Y"),
        ],
        beside: &[Beside::Compaction, Beside::SoftOffline, Beside::Merging],
        counters: &[
            ("/proc/vmstat", "compact_isolated"),
            ("/sys/kernel/mm/ksm/pages_scanned", ""),
            ("/proc/meminfo", "HardwareCorrupted:"),
            ("/sys/module/damon_reclaim/parameters/bytes_reclaimed_regions", ""),
            ("/proc/vmstat", "pswpout"),
        ],
        ..PLAIN
    },
    Machine {
        name: "6.1",
        about: "Debian 12: before PAGEMAP_SCAN",
        kernel: &LINUX_6_1,
        runs: OLD,
        ..PLAIN
    },
    Machine { name: "6.12", about: "Debian 13", kernel: &LINUX_6_12, runs: SHARING, ..PLAIN },
    Machine {
        name: "5.10",
        about: "Debian 11: before `MADV_POPULATE_WRITE` (5.14), minor faults of shared memory and its write protection",
        kernel: &LINUX_5_10,
        runs: OLDEST,
        left_out: BEFORE_POPULATE,
        ..PLAIN
    },
    Machine { name: "aarch64", about: "64-bit Arm", kernel: &AARCH64_4K, ..ARM },
    Machine {
        name: "aarch64-16k",
        about: "64-bit Arm with larger base pages",
        kernel: &AARCH64_16K,
        ..ARM
    },
    Machine {
        name: "aarch64-64k",
        about: "64-bit Arm with the largest base pages",
        kernel: &AARCH64_64K,
        ..ARM
    },
];

const ARM: Machine = Machine { runs: ELSEWHERE, ..PLAIN };

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_guests_and_of_their_commands_are_unique() {
        let names: BTreeSet<_> = MACHINES.iter().map(|machine| machine.name).collect();
        assert_eq!(names.len(), MACHINES.len());
        for machine in MACHINES {
            let runs: BTreeSet<_> = machine.runs.iter().map(Run::name).collect();
            assert_eq!(runs.len(), machine.runs.len(), "{}", machine.name);
        }
        assert!(TELLING.iter().all(|name| names.contains(name)));
    }

    #[test]
    fn parts_of_each_guest_are_equal() {
        for machine in MACHINES {
            assert_eq!(machine.cpus % machine.nodes, 0, "CPUs of {}", machine.name);
            assert_eq!(machine.mib % machine.nodes, 0, "memory of {}", machine.name);
        }
    }
}
