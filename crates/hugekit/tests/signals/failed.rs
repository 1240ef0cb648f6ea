//! Memory that has failed, as the kernel tells of it.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use hugekit::parallel::JobError;
use hugekit::{PopulateError, RegionError};

use crate::fixture::{
    CALLS, CODE, Case, FOLIOS, in_place, install_counting, is_zero, page_size, pool,
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
        report_broken(&raw const region.as_slice()[granule + 5], code);
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

pub(crate) const CASES: &[Case] = &[(
    "sigbus_of_broken_memory_is_passed_on_and_its_granule_kept_back",
    sigbus_of_broken_memory_is_passed_on_and_its_granule_kept_back,
    None,
)];
