//! Memory that has failed, as the kernel tells of it.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use hugekit::{PopulateError, RegionError};
use hugekit_bulk::parallel::JobError;

use crate::fixture::{
    CALLS, CODE, Case, FOLIOS, in_place, install, install_counting, is_zero, page_size, pool,
    still_serves,
};

/// As the kernel tells of memory that has failed.
fn report_broken(address: *const u8, code: c_int) {
    // SAFETY: a process may send itself any information.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_signo = libc::SIGBUS;
        info.si_code = code;
        (&raw mut info).cast::<u8>().add(16).cast::<*const u8>().write(address);
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        let sent = libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            process,
            thread,
            libc::SIGBUS,
            &raw const info,
        );
        assert_eq!(sent, 0);
    }
}

fn sigbus_of_broken_memory_is_passed_on_and_its_granule_kept_back() {
    install_counting();
    let pool = pool();
    let region = in_place(&pool);
    let granule = 64 << 10;
    for (calls, code) in [(1, libc::BUS_MCEERR_AR), (2, libc::BUS_MCEERR_AO)] {
        report_broken(&raw const region[granule + 5], code);
        assert_eq!((CALLS.load(Ordering::SeqCst), CODE.load(Ordering::SeqCst)), (calls, code));
    }
    let error = region.prepare_write(0..2 * granule).unwrap_err();
    let poisoned = |error: &RegionError| {
        matches!(
            error,
            RegionError::Populate(JobError::Chunk { error: PopulateError::Poisoned, .. })
        )
    };
    assert!(poisoned(&error), "{error}");
    assert!(is_zero(&region[..granule]) && is_zero(&region[2 * granule..]));
    drop(region);
    let (stats, broken) = (pool.stats().unwrap(), granule / page_size());
    assert_eq!(stats.in_use, broken);
    assert_eq!(stats.dirty, FOLIOS - broken);
    let rest = pool.region((FOLIOS - 2 * broken) * page_size()).unwrap();
    assert!(is_zero(&rest));
}

/// The kernel tells of memory that failed after a system call that read it, too: no access is tried again.
fn sigbus_of_broken_memory_without_an_access_under_the_default_kills() {
    install(libc::SIG_DFL, 0);
    let region = in_place(&pool());
    report_broken(region.as_ptr(), libc::BUS_MCEERR_AR);
}

/// Rust's handler puts the default in its own place and returns, so that an access that is tried again ends the process.
/// There is none here: the process goes on, as it does without us, and its faults are served.
fn sigbus_of_broken_memory_without_an_access_to_rusts_own_handler_leaves_faults_served() {
    let (broken, served) = (pool(), pool());
    let (region, mut other) = (in_place(&broken), in_place(&served));
    report_broken(region.as_ptr(), libc::BUS_MCEERR_AR);
    still_serves(&mut other);
}

fn second_sigbus_of_broken_memory_to_rusts_own_handler_kills() {
    let region = in_place(&pool());
    for _ in 0..2 {
        report_broken(region.as_ptr(), libc::BUS_MCEERR_AR);
    }
}

pub(crate) const CASES: &[Case] = &[
    (
        "sigbus_of_broken_memory_is_passed_on_and_its_granule_kept_back",
        sigbus_of_broken_memory_is_passed_on_and_its_granule_kept_back,
        None,
    ),
    (
        "sigbus_of_broken_memory_without_an_access_under_the_default_kills",
        sigbus_of_broken_memory_without_an_access_under_the_default_kills,
        Some(libc::SIGBUS),
    ),
    (
        "sigbus_of_broken_memory_without_an_access_to_rusts_own_handler_leaves_faults_served",
        sigbus_of_broken_memory_without_an_access_to_rusts_own_handler_leaves_faults_served,
        None,
    ),
    (
        "second_sigbus_of_broken_memory_to_rusts_own_handler_kills",
        second_sigbus_of_broken_memory_to_rusts_own_handler_kills,
        Some(libc::SIGBUS),
    ),
];
