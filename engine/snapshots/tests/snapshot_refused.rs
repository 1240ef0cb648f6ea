//! Snapshots in a process whose system calls are refused after they were made. Each in a child of its own, whose
//! alarm turns a hang into a failure.
#![allow(unsafe_code)]

use hugekit_testing::child;
use hugekit_testing::memory;
use hugekit_testing::permitted::usable;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use child::in_a_child;

use hugekit::fault::FaultMode;
use hugekit::snapshot::Granule;
use hugekit::{ErrorKind, HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};
use memory::Memory;

const FAULT_MODES: [FaultMode; 3] =
    [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }, FaultMode::Threaded { threads: 3 }];

/// A snapshot of the second and third 2 MiB. The first may lie above a thread's stack in one mapping.
fn of(fault_mode: FaultMode, memory: &Memory) -> Result<Snapshot, SnapshotError> {
    of_part(fault_mode, memory, HUGE)
}

fn of_part(fault_mode: FaultMode, memory: &Memory, at: usize) -> Result<Snapshot, SnapshotError> {
    let builder = Snapshot::builder().fault_mode(fault_mode).granule(Granule::Small);
    let range = std::ptr::slice_from_raw_parts(memory.start().wrapping_add(at), 2 * HUGE);
    // SAFETY: no thread blocks SIGBUS, and no system call writes there.
    unsafe { builder.of_anonymous(range) }
}

/// Has the kernel answer every `ioctl` of every thread of this process with an error, if its request has the byte in
/// its middle that userfaultfd's and the page map's have, one of them or both.
fn refuse_ioctls(errno: i32, groups: &[u8]) {
    let load = |offset: u32| sock(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let jump =
        |k: u32, yes: u8, no: u8| sock(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, k);
    let answer = |k: u32| sock(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let count = groups.len() as u8;
    let mut filter = vec![
        load(0),
        jump(libc::SYS_ioctl as u32, 0, 3 + count),
        // The second argument: bits 8 to 15 are the group.
        load(24),
        sock(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, 0xff00),
    ];
    for (index, &group) in groups.iter().enumerate() {
        filter.push(jump(u32::from(group) << 8, count - index as u8, 0));
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    filter.push(answer(libc::SECCOMP_RET_ERRNO | errno as u32));
    // What is no ioctl goes to the first answer.
    filter[1].jf = filter.len() as u8 - 4;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: reads the program, for all threads of this process, which is the test's own.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (operation, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        let done = libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program);
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

fn sock(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Closes every userfaultfd of this process, as a library does that closes what is not its own.
fn close_userfaultfds() {
    let is_one = |number: &RawFd| {
        std::fs::read_link(format!("/proc/self/fd/{number}"))
            .is_ok_and(|link| link.to_str() == Some("anon_inode:[userfaultfd]"))
    };
    let closed: Vec<RawFd> = (3..100).filter(is_one).collect();
    assert!(!closed.is_empty());
    // SAFETY: what is tried is what this leads to; nothing else of the child uses them.
    closed.into_iter().for_each(|number| unsafe { assert_eq!(libc::close(number), 0) });
}

/// Whether snapshots may hold what was all the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    Lost,
    LostOrRight,
}

/// Writers run, readers are told, and everything can be dropped, when this was done to the process.
fn is_survived(fault_mode: FaultMode, expected: Expected, done_to_it: impl Fn()) {
    let code = in_a_child(|| {
        let memory = Memory::filled(7 * HUGE, true, 7);
        let (first, second) = (of(fault_mode, &memory).unwrap(), of(fault_mode, &memory).unwrap());
        let of_other = of_part(fault_mode, &memory, 5 * HUGE).unwrap();
        memory.words()[HUGE / 8].store(8, Ordering::Relaxed);
        let (mut before, mut now) = ([0; 100], [0; 100]);
        first.read_at(HUGE, &mut before).unwrap();
        done_to_it();
        thread::scope(|scope| {
            for writer in 0..3 {
                let words = memory.words().iter().skip(writer).step_by(1021);
                scope.spawn(move || words.for_each(|word| word.store(9, Ordering::Relaxed)));
            }
        });
        let is_told = |answer: Result<(), SnapshotError>| match answer {
            Ok(()) => expected == Expected::LostOrRight,
            Err(error) => error.kind() == ErrorKind::Lost,
        };
        let read = first.read_at(HUGE, &mut now);
        assert!(read.is_err() || now == before);
        assert!(is_told(read));
        assert!(is_told(of_other.prepare_write(0..HUGE)));
        assert!(is_told(second.copy_to(&mut vec![0; 2 * HUGE]).map(drop)));
        drop((first, of_other));
        let written = |word: &&AtomicU64| word.load(Ordering::Relaxed) == 9;
        assert!(memory.words().iter().filter(written).count() >= memory.len() / 8 / 1021 * 3);
        0
    });
    assert_eq!(code, 0, "{fault_mode:?}");
}

/// Those of userfaultfd and of the page map.
const GROUPS: [&[u8]; 3] = [&[0xaa], b"f", &[0xaa, b'f']];

fn a_filter_is_survived(fault_mode: FaultMode) {
    for errno in [libc::EPERM, libc::EAGAIN, libc::ENOENT, libc::EINVAL, libc::ENOSYS] {
        for groups in [GROUPS[0], GROUPS[2]] {
            is_survived(fault_mode, Expected::Lost, || refuse_ioctls(errno, groups));
        }
    }
}

#[test]
fn snapshot_under_a_system_call_filter_in_place_is_lost_and_writers_run() {
    usable(&FAULT_MODES[..1]).into_iter().for_each(a_filter_is_survived);
}

#[test]
fn snapshot_under_a_system_call_filter_threaded_is_lost_and_writers_run() {
    usable(&FAULT_MODES[1..]).into_iter().for_each(a_filter_is_survived);
}

/// Nothing can be known of the owner's memory then, but protection is lifted as ever. Where the page map is read and not
/// scanned, no filter of ioctls refuses it.
#[test]
fn snapshot_with_the_page_map_refused_is_lost_or_right_and_writers_run() {
    for fault_mode in usable(&FAULT_MODES) {
        let refuse = || refuse_ioctls(libc::EPERM, GROUPS[1]);
        is_survived(fault_mode, Expected::LostOrRight, refuse);
    }
}

#[test]
fn snapshot_with_its_descriptors_closed_is_lost_and_writers_run() {
    for fault_mode in usable(&FAULT_MODES) {
        is_survived(fault_mode, Expected::Lost, close_userfaultfds);
    }
}

/// No thread writes: dropping it is all that is done.
#[test]
fn drop_of_a_snapshot_under_a_filter_leaves_writers_alone() {
    for fault_mode in usable(&FAULT_MODES) {
        let code = in_a_child(|| {
            let memory = Memory::filled(3 * HUGE, true, 7);
            let snapshots = (of(fault_mode, &memory).unwrap(), of(fault_mode, &memory).unwrap());
            refuse_ioctls(libc::EPERM, GROUPS[2]);
            drop(snapshots);
            memory.words().iter().for_each(|word| word.store(9, Ordering::Relaxed));
            0
        });
        assert_eq!(code, 0, "{fault_mode:?}");
    }
}

#[test]
fn snapshot_beside_a_lost_one_is_refused() {
    for fault_mode in usable(&FAULT_MODES) {
        let code = in_a_child(|| {
            let memory = Memory::filled(3 * HUGE, true, 7);
            let lost = of(fault_mode, &memory).unwrap();
            refuse_ioctls(libc::EPERM, GROUPS[2]);
            memory.words()[HUGE / 8].store(9, Ordering::Relaxed);
            assert!(matches!(lost.read_at(0, &mut [0]), Err(SnapshotError::Refused)));
            let refused = of(fault_mode, &memory).unwrap_err();
            assert!(!refused.to_string().is_empty());
            drop(lost);
            assert!(of(fault_mode, &memory).is_err());
            0
        });
        assert_eq!(code, 0, "{fault_mode:?}");
    }
}
