//! What a pool falls back to where a machine lacks huge pages.

use hugekit::pool::{Backing, PoolError};
use hugekit::{HUGE_PAGE_BYTES, Pool};
use hugekit_machine::Root;
use hugekit_testing::trials::skipped;

use crate::child::in_a_child;

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
    let builder = builder.populate_on_allocation(true); // The other backing would populate a TiB.
    let strict = builder.clone().strict(true).build();
    assert!(
        matches!(strict, Err(PoolError::NotMapped { .. } | PoolError::NoHugePages { .. })),
        "{strict:?}"
    );
    let fallen = builder.ladder([Backing::Hugetlb2M, Backing::Base]).build().unwrap();
    assert_eq!(fallen.backing_report().fallbacks.len(), 1);
    assert_eq!(fallen.region(1).unwrap()[0], 0);
}

/// Has the kernel refuse to populate 2 MiB at once, which a pool on base pages asks for, and one on transparent huge pages
/// does not. Where there are no filters, as under an emulator, false.
fn refuse_to_populate_base_pages() -> bool {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let unless = |k: u32, skip| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, k);
    let answer = |k| step(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let mut program = [
        load(0), // The call, then its second and its third argument.
        unless(libc::SYS_madvise as u32, 5),
        load(24),
        unless(HUGE_PAGE_BYTES as u32, 3),
        load(32),
        unless(libc::MADV_POPULATE_WRITE as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid while it is read. It lasts as long as this process, which is a test's child.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    }
}

fn build_that_cannot_populate_takes_the_next_backing() {
    let builder = Pool::builder(HUGE_PAGE_BYTES).ladder([Backing::Base, Backing::Thp]);
    if builder.clone().ladder([Backing::Thp]).build().is_err() {
        return skipped("this machine has no pool on transparent huge pages");
    }
    let code = in_a_child(|| {
        if !refuse_to_populate_base_pages() {
            skipped("this process may not install a filter of system calls");
            return 0;
        }
        let strict = builder.clone().strict(true).build();
        let fallen = builder.build().unwrap();
        let [fallback] = &fallen.backing_report().fallbacks[..] else { return 1 };
        let is_zero = fallen.region(HUGE_PAGE_BYTES).unwrap().iter().all(|&byte| byte == 0);
        let later = builder.clone().populate_on_allocation(true).build().unwrap();
        let is_so = [
            matches!(strict, Err(PoolError::Populate(_))),
            matches!(fallback.reason, PoolError::Populate(_)),
            (fallback.backing, fallen.backing()) == (Backing::Base, Backing::Thp),
            is_zero,
            later.backing() == Backing::Base,
            matches!(later.region(HUGE_PAGE_BYTES), Err(PoolError::Populate(_))),
        ];
        is_so.iter().position(|&is_so| !is_so).map_or(0, |at| at as i32 + 2)
    });
    assert_eq!(code, 0);
}

pub(crate) const CHECKS: &[(&str, fn())] = hugekit_testing::checks![
    build_without_huge_pages_reports_the_fallback_or_refuses_it,
    build_with_huge_pages_taken_meanwhile_is_an_error,
    build_that_cannot_populate_takes_the_next_backing,
];
