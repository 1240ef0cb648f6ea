//! The claims of the published works, in their order.

use crate::record::published;

use super::{Claim, Direction, EventComparison, Ratios, Test, Workloads};

const EXTENTS: &str = "clearing in extents, 2023";
const TARGET_LAST: &str = "target subpage last, 2018";
const FORK: &str = "batched fork, 2024";
const STREAMED: &str = "clear_page_nt, 2020";
const KTASK: &str = "ktask, 2017";

const TWO_KERNELS: &str = "it compares two kernels (`hugekit lab --compare`)";

/// Published sizes above every last-level cache there, and below them.
const OVER: [&str; 3] = ["128MiB", "1GiB", "4GiB"];
const WITHIN: [&str; 1] = ["16MiB"];

const fn test(
    (experiment, methods): (&'static str, &'static [&'static str]),
    workloads: Workloads,
    needs: &'static str,
) -> Test {
    let claims = Direction::Faster;
    Test::Ratios(Ratios { experiment, methods, workloads, claims, needs })
}

const fn extents_count(workloads: Workloads, event: &'static str) -> Test {
    let methods = ["page-at-a-time", "extents"];
    Test::Counts(EventComparison { experiment: "clear", methods, workloads, event })
}

const fn threads<const COUNT: usize>(
    says: &'static str,
    cases: &'static [&'static str],
    needs: &'static str,
) -> Claim {
    let published = || published::parallel_speed_up(COUNT);
    Claim { work: KTASK, says, published, test: test(THREADS, Workloads::Only(cases), needs) }
}

const CLEAR: (&str, &[&str]) = ("clear", &["page-at-a-time-vs-extents"]);
const ORDER: (&str, &[&str]) = ("cow", &["sequential-vs-converging"]);
const TABLES: (&str, &[&str]) = ("fork", &["unbatched-vs-batched"]);
const STORES: (&str, &[&str]) = ("stores", &["rep_stosb-vs-movnti", "rep_stosq-vs-movnti"]);
const THREADS: (&str, &[&str]) = ("parallel", &["serial-vs-threads"]);

/// Every folio size that was published, but for base pages.
const FOLIOS: [&str; 8] = ["16KiB", "32KiB", "64KiB", "128KiB", "256KiB", "512KiB", "1MiB", "2MiB"];

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        work: EXTENTS,
        says: "an instruction for each extent clears 2MiB faster than one for each page",
        published: || published::clear_speed_up("2MiB"),
        test: test(CLEAR, Workloads::Only(&["2MiB"]), "2MiB of memory"),
    },
    Claim {
        work: EXTENTS,
        says: "the same for 1GiB",
        published: || published::clear_speed_up("1GiB"),
        test: test(CLEAR, Workloads::Only(&["1GiB"]), "`--memory 1GiB`"),
    },
    Claim {
        work: EXTENTS,
        says: "2MiB need fewer instructions",
        published: || published::clear_counts("instructions", "2MiB"),
        test: extents_count(Workloads::Only(&["2MiB"]), "instructions"),
    },
    Claim {
        work: EXTENTS,
        says: "1GiB need fewer instructions",
        published: || published::clear_counts("instructions", "1GiB"),
        test: extents_count(Workloads::Only(&["1GiB"]), "instructions"),
    },
    Claim {
        work: EXTENTS,
        says: "1GiB misses L1 less often (but on Ice Lake-X)",
        published: || published::clear_counts("L1-dcache-load-misses", "1GiB"),
        test: extents_count(Workloads::Only(&["1GiB"]), "L1-dcache-load-misses"),
    },
    Claim {
        work: EXTENTS,
        says: "so faults of huge pages become faster",
        published: || ["2MiB", "1GiB"].into_iter().flat_map(published::clear_speed_up).collect(),
        test: Test::None(TWO_KERNELS),
    },
    Claim {
        work: TARGET_LAST,
        says: "copying the target last raises the throughput of writers whose cache is scarce",
        published: || published::cow("throughput"),
        test: test(
            ORDER,
            Workloads::EndingWith("-scarce"),
            "a machine that says what its caches are",
        ),
    },
    Claim {
        work: TARGET_LAST,
        says: "user time falls",
        published: || published::cow("user time"),
        test: Test::None("user time here contains the copy, which was the kernel's there"),
    },
    Claim {
        work: TARGET_LAST,
        says: "instructions per cycle rise",
        published: || published::cow("instructions per cycle"),
        test: Test::None("counters of a case include the reads that make the cache scarce"),
    },
    Claim {
        work: FORK,
        says: "copying page tables by runs is faster on folios from 16KiB on",
        published: || FOLIOS.into_iter().flat_map(published::fork_speed_up).collect(),
        test: test(TABLES, Workloads::Only(&FOLIOS), "more memory for page tables"),
    },
    Claim {
        work: FORK,
        says: "the same on base pages",
        published: || published::fork_speed_up("4KiB"),
        test: test(TABLES, Workloads::Only(&["4KiB"]), "more memory for page tables"),
    },
    Claim {
        work: FORK,
        says: "so all of fork(2) becomes faster",
        published: || FOLIOS.into_iter().flat_map(published::fork_speed_up).collect(),
        test: Test::None(TWO_KERNELS),
    },
    Claim {
        work: STREAMED,
        says: "over the last-level cache, movnti is faster than a string instruction (but on Skylake)",
        published: || {
            let all = published::streaming_speed_up(&OVER).into_iter();
            all.filter(|figure| figure.published.value > 1.0).collect()
        },
        test: test(STORES, Workloads::OverCache, "x86-64, and more memory than last-level cache"),
    },
    Claim {
        work: STREAMED,
        says: "within it, movnti is slower",
        published: || published::streaming_speed_up(&WITHIN),
        test: Test::Ratios(Ratios {
            experiment: STORES.0,
            methods: STORES.1,
            workloads: Workloads::WithinCache,
            claims: Direction::Slower,
            needs: "x86-64, and a machine that says what its caches are",
        }),
    },
    Claim {
        work: STREAMED,
        says: "over the last-level cache, movnti misses L1 less often",
        published: || published::store_counts("L1-dcache-load-misses"),
        test: Test::Counts(EventComparison {
            experiment: "stores",
            methods: ["rep_stosb", "movnti"],
            workloads: Workloads::OverCache,
            event: "L1-dcache-load-misses",
        }),
    },
    Claim {
        work: STREAMED,
        says: "but a process that touches memory first ends later with movnti (on Rome and Skylake)",
        published: || {
            let all = published::store_counts("seconds").into_iter();
            all.filter(|figure| figure.published.value < 1.0).collect()
        },
        test: Test::Ratios(Ratios {
            experiment: "stores",
            methods: &["process-rep_stosb-vs-movnti"],
            workloads: Workloads::OverCache,
            claims: Direction::Slower,
            needs: "x86-64, and more memory",
        }),
    },
    threads::<2>("2 threads clear faster than one", &["clear/2"], "2 CPUs"),
    threads::<4>("4 threads", &["clear/4"], "4 CPUs"),
    threads::<8>("8 threads", &["clear/8"], "8 CPUs"),
    threads::<16>("16 threads", &["clear/16"], "16 CPUs"),
];
