//! What a process hears that may not serve faults.

use hugekit::PoolError;
use hugekit::fault::FaultMode;
use hugekit::pool::{Clearing, FaultError};
use hugekit_machine::userfaultfd::Obstacle;

use crate::fixture::{Case, is_zero, page_size, pool};

/// An unprivileged user, where faults of the kernel are not every user's: in place still works, and the region
/// says why it is not threaded.
fn build_without_permission_is_in_place_and_says_why() {
    let pool = pool();
    // SAFETY: this process has no other thread that minds.
    let become_nobody = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
    assert_eq!(become_nobody, 0);
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap();
    let build = |fault_mode| {
        pool.region_builder(page_size()).clearing(Clearing::OnFault).fault_mode(fault_mode).build()
    };
    if allowed.trim() == "1" {
        assert!(build(FaultMode::Threaded { threads: 1 }).is_ok());
        return;
    }
    let error = build(FaultMode::Threaded { threads: 1 }).unwrap_err();
    let PoolError::Fault(FaultError::NotPermitted { user_mode: false, obstacles, .. }) = &error
    else {
        panic!("{error}")
    };
    assert_eq!(obstacles, &[Obstacle::Unprivileged]);
    assert!(error.to_string().contains("vm.unprivileged_userfaultfd"), "{error}");
    let region = build(FaultMode::Auto).unwrap();
    let serving = region.serving().unwrap();
    assert_eq!(serving.fault_mode, FaultMode::InPlace);
    assert!(matches!(serving.fallback, Some(FaultError::NotPermitted { .. })));
    assert!(is_zero(&region));
}

/// A filter refuses userfaultfd(2), with an error or with a signal; the device is left, to who may open it.
fn filtered(action: u32) {
    let pool = pool();
    const DATA: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(DATA, 0, 0, 0),
        step(IF_EQUAL, 0, 1, libc::SYS_userfaultfd as u32),
        step(RETURN, 0, 0, action),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid while it is read; it holds for this test's process alone.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const filter), 0);
    }
    for fault_mode in [FaultMode::Auto, FaultMode::InPlace, FaultMode::Threaded { threads: 2 }] {
        let build = pool
            .region_builder(page_size())
            .clearing(Clearing::OnFault)
            .fault_mode(fault_mode)
            .build();
        let error = build.unwrap_err();
        let PoolError::Fault(FaultError::NotPermitted { obstacles, .. }) = &error else {
            panic!("{error}")
        };
        assert!(matches!(obstacles[0], Obstacle::Filter(_)), "{error}");
        assert!(error.to_string().contains("seccomp"), "{error}");
    }
    assert_eq!(pool.stats().unwrap().in_use, 0);
    assert!(is_zero(&pool.region(page_size()).unwrap()));
}

fn build_under_a_filter_that_refuses_names_it() {
    filtered(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
}

fn build_under_a_filter_that_kills_does_not_ask_it() {
    filtered(libc::SECCOMP_RET_KILL_PROCESS);
}

pub(crate) const CASES: &[Case] = &[
    (
        "build_without_permission_is_in_place_and_says_why",
        build_without_permission_is_in_place_and_says_why,
        None,
    ),
    (
        "build_under_a_filter_that_refuses_names_it",
        build_under_a_filter_that_refuses_names_it,
        None,
    ),
    (
        "build_under_a_filter_that_kills_does_not_ask_it",
        build_under_a_filter_that_kills_does_not_ask_it,
        None,
    ),
];
