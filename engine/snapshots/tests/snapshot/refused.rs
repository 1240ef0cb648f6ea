//! Memory that cannot be snapshotted: the error says which and why.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hugekit::fault::FaultMode;
use hugekit::pool::FaultError;
use hugekit::snapshot::{Granule, Unsuitable};
use hugekit::{HUGE_PAGE_BYTES as HUGE, SnapshotError};

use crate::child::in_a_child;
use crate::fixture::{Check, PAGE, copied, of, words};
use crate::memory::Memory;

fn unsuitable(fault_mode: FaultMode, range: *const [u8]) -> Unsuitable {
    match of(fault_mode, range, Granule::Auto) {
        Err(SnapshotError::Unsuitable { mapping, reason }) => {
            let start = range.cast::<u8>().addr();
            assert!(mapping.addresses.start < start + range.len() && start < mapping.addresses.end);
            reason
        }
        other => panic!("{other:?}"),
    }
}

fn snapshot_of_unsuitable_memory_is_refused_and_says_why(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    let part =
        |at: usize, len: usize| ptr::slice_from_raw_parts(memory.start().wrapping_add(at), len);
    assert!(matches!(of(fault_mode, part(0, 0), Granule::Auto), Err(SnapshotError::Empty { .. })));
    let endless = ptr::slice_from_raw_parts(memory.start(), usize::MAX);
    assert!(matches!(of(fault_mode, endless, Granule::Auto), Err(SnapshotError::Empty { .. })));
    let stack = [0_u8; PAGE];
    let refused = unsuitable(fault_mode, &raw const stack);
    assert!(matches!(refused, Unsuitable::Stack { .. }), "{refused}");
    thread_local!(static OWN: AtomicU64 = const { AtomicU64::new(0) });
    OWN.with(|own| {
        let range = ptr::slice_from_raw_parts(ptr::from_ref(own).cast::<u8>(), 8);
        assert!(matches!(unsuitable(fault_mode, range), Unsuitable::Stack { .. }));
    });
    // SAFETY: of the test's own memory, which no thread uses, all of it.
    unsafe {
        assert_eq!(libc::munmap(part(HUGE, 0).cast_mut().cast(), PAGE), 0);
        match of(fault_mode, part(0, 2 * HUGE), Granule::Auto) {
            Err(SnapshotError::Unmapped { hole }) => {
                let start = memory.start().addr() + HUGE;
                assert_eq!(hole, start..start + PAGE);
            }
            other => panic!("{other:?}"),
        }
        let at = part(3 * HUGE, PAGE);
        let place = |prot, flags, file| {
            let flags = flags | libc::MAP_FIXED;
            assert!(libc::mmap(at.cast_mut().cast(), PAGE, prot, flags, file, 0).addr() > 0);
        };
        let (read_write, anonymous) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS);
        place(read_write, libc::MAP_SHARED | anonymous, -1);
        assert_eq!(unsuitable(fault_mode, part(2 * HUGE, 2 * HUGE)), Unsuitable::Shared);
        let file = File::open("/proc/self/exe").unwrap();
        place(libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd());
        assert_eq!(unsuitable(fault_mode, at), Unsuitable::File);
        place(libc::PROT_NONE, libc::MAP_PRIVATE | anonymous, -1);
        assert_eq!(unsuitable(fault_mode, at), Unsuitable::Unreadable);
        place(read_write, libc::MAP_PRIVATE | anonymous, -1);
        if libc::madvise(at.cast_mut().cast(), PAGE, libc::MADV_MERGEABLE) == 0 {
            assert_eq!(unsuitable(fault_mode, at), Unsuitable::Mergeable);
        }
        let vdso = ptr::with_exposed_provenance(libc::getauxval(libc::AT_SYSINFO_EHDR) as usize);
        let vdso = ptr::slice_from_raw_parts(vdso, 64);
        assert_eq!(unsuitable(fault_mode, vdso), Unsuitable::Kernels);
    }
}

fn snapshot_of_another_userfaultfds_memory_is_refused(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 7);
    // SAFETY: system calls with what they ask for; the memory is the test's own.
    let other = unsafe {
        let opened = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1);
        assert!(opened >= 0);
        let other = OwnedFd::from_raw_fd(i32::try_from(opened).unwrap());
        let mut api = [0xaa_u64, 0, 0];
        assert_eq!(libc::ioctl(other.as_raw_fd(), 0xc018_aa3f, &raw mut api), 0);
        let mut register = [memory.start().addr() as u64 + 2 * HUGE as u64, HUGE as u64, 1, 0];
        assert_eq!(libc::ioctl(other.as_raw_fd(), 0xc020_aa00, &raw mut register), 0);
        other
    };
    assert_eq!(unsuitable(fault_mode, memory.range()), Unsuitable::OtherUserfaultfd);
    memory.words()[0].store(8, Ordering::Relaxed);
    drop(other);
    // A child that another test has forked meanwhile has the descriptor until it ends.
    let until = Instant::now() + Duration::from_secs(240);
    let snapshot = loop {
        match of(fault_mode, memory.range(), Granule::Auto) {
            Err(SnapshotError::Unsuitable { reason: Unsuitable::OtherUserfaultfd, .. })
                if Instant::now() < until =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            taken => break taken.unwrap(),
        }
    };
    let another = if fault_mode == FaultMode::InPlace {
        FaultMode::Threaded { threads: 1 }
    } else {
        FaultMode::InPlace
    };
    assert_eq!(unsuitable(another, memory.range()), Unsuitable::OtherFaultMode);
    memory.words()[0].store(9, Ordering::Relaxed);
    assert!(words(&copied(snapshot)).eq((0..memory.words().len()).map(|at| if at == 0 {
        8
    } else {
        7
    })));
}

/// A program that does not say how takes as many snapshots of its memory as it likes, with the rights that it has.
fn snapshot_by_default_is_served_as_the_one_before(fault_mode: FaultMode) {
    let memory = Memory::filled(2 * HUGE, true, 7);
    let first = of(fault_mode, memory.range(), Granule::Auto).unwrap();
    let second = of(FaultMode::Auto, memory.range(), Granule::Auto).unwrap();
    memory.words()[0].store(8, Ordering::Relaxed);
    let serving = second.serving().unwrap();
    assert_eq!(serving.fault_mode, first.serving().unwrap().fault_mode);
    let told = matches!(serving.fallback, Some(FaultError::AnotherInPlace));
    assert_eq!(told, fault_mode == FaultMode::InPlace);
    for snapshot in [first, second] {
        assert!(words(&copied(snapshot)).all(|word| word == 7));
    }
}

/// In a process of its own: others refuse while it lasts.
fn snapshot_beside_a_thread_that_blocks_sigbus_names_it(fault_mode: FaultMode) {
    let code = in_a_child(|| {
        let memory = Memory::filled(2 * HUGE, true, 7);
        let (ready, done) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: a set of one signal, blocked in this thread alone.
                unsafe {
                    let mut set = std::mem::zeroed();
                    libc::sigemptyset(&raw mut set);
                    libc::sigaddset(&raw mut set, libc::SIGBUS);
                    libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
                }
                ready.wait();
                done.wait();
            });
            ready.wait();
            let made = of(fault_mode, memory.range(), Granule::Auto);
            done.wait();
            match made {
                Err(SnapshotError::Blocked { thread }) => {
                    i32::from(fault_mode != FaultMode::InPlace || thread == std::process::id())
                }
                made => i32::from(made.is_err() || fault_mode == FaultMode::InPlace),
            }
        })
    });
    assert_eq!(code, 0);
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    snapshot_of_unsuitable_memory_is_refused_and_says_why,
    snapshot_of_another_userfaultfds_memory_is_refused,
    snapshot_by_default_is_served_as_the_one_before,
    snapshot_beside_a_thread_that_blocks_sigbus_names_it,
];
