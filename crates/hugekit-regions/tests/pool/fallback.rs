//! What a pool falls back to where a machine lacks huge pages.

use hugekit::Pool;
use hugekit::pool::{Backing, PoolError};
use hugekit_machine::Root;

/// A machine without huge pages of any kind.
fn build_without_huge_pages_reports_the_fallback_or_refuses_it() {
    let machine = || Root::at("/nonexistent");
    let ladder = [Backing::Hugetlb1G, Backing::Hugetlb2M, Backing::Base];
    let pool = Pool::builder(1 << 20).ladder(ladder).machine(machine()).build().unwrap();
    let report = pool.backing_report();
    assert_eq!((report.backing, report.asked), (Backing::Base, Backing::Hugetlb1G));
    let fallen: Vec<_> = report.fallbacks.iter().map(|fallback| fallback.backing).collect();
    assert_eq!(fallen, ladder[..2]);
    let lacks = |size| format!("this kernel has no huge pages of {size}");
    let reasons: Vec<_> =
        report.fallbacks.iter().map(|fallback| fallback.reason.to_string()).collect();
    assert_eq!(reasons, [lacks("1 GiB"), lacks("2 MiB")]);
    let strict = Pool::builder(1 << 20).machine(machine()).strict(true).build();
    assert!(matches!(strict, Err(PoolError::NoHugePages { .. })));
    let none = Pool::builder(1 << 20).ladder(ladder[..2].to_vec()).machine(machine()).build();
    let message = none.unwrap_err().to_string();
    assert!(message.contains(&lacks("1 GiB")) && message.contains(&lacks("2 MiB")), "{message}");
}

/// A machine whose files say that there are more huge pages than there are, as if another process took them
/// between the check and the use.
fn build_with_huge_pages_taken_meanwhile_is_an_error() {
    let machine = tempfile::tempdir().unwrap();
    let pages = machine.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
    std::fs::create_dir_all(&pages).unwrap();
    for (name, count) in [
        ("nr_hugepages", "1000000"),
        ("free_hugepages", "1000000"),
        ("resv_hugepages", "0"),
        ("surplus_hugepages", "0"),
        ("nr_overcommit_hugepages", "0"),
    ] {
        std::fs::write(pages.join(name), count).unwrap();
    }
    let builder = Pool::builder(1 << 40).machine(Root::at(machine.path()));
    let strict = builder.clone().strict(true).build();
    assert!(
        matches!(strict, Err(PoolError::NotMapped { .. } | PoolError::NoHugePages { .. })),
        "{strict:?}"
    );
    let fallen = builder.ladder([Backing::Hugetlb2M, Backing::Base]).build().unwrap();
    assert_eq!(fallen.backing_report().fallbacks.len(), 1);
    assert_eq!(fallen.region(1).unwrap()[0], 0);
}

pub(crate) const CHECKS: &[(&str, fn())] = hugekit_testing::checks![
    build_without_huge_pages_reports_the_fallback_or_refuses_it,
    build_with_huge_pages_taken_meanwhile_is_an_error,
];
