//! What handlers write lies in memory that no snapshot can protect: shown by taking all other memory away from
//! them, and by snapshotting it while they work. A hang ends by the alarm of the child that tries it, which
//! fails the test.
#![allow(unsafe_code)]

use hugekit_testing::child;
use hugekit_testing::memory;
use hugekit_testing::permitted;
use hugekit_testing::trials::{Checks, trials};

use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use child::in_a_child;
use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing, Pool};
use hugekit::snapshot::Granule;
use hugekit::{Region, Snapshot, SnapshotError};
use hugekit_testing::racing::Stops;
use libtest_mimic::Arguments;
use memory::Memory;
use rustix::mm::{MprotectFlags, mprotect};
use rustix::param::page_size;

const BYTES: usize = 1 << 20;

/// Private writable memory of no file that a snapshot may protect: the heap, other arenas, zeroed statics, and what
/// else was mapped. Not stacks, with the variables of their threads, nor what a fork leaves out, where writers'
/// copies go.
fn protectable() -> Vec<Range<usize>> {
    let alternate_stacks = ALTERNATE_STACKS.lock().unwrap().clone();
    let apart: Vec<usize> =
        thread_descriptors().into_iter().chain(alternate_stack()).chain(alternate_stacks).collect();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found: Vec<Range<usize>> = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or("");
        if first == "VmFlags:" {
            if words.any(|flag| flag == "dc") {
                found.pop();
            } else {
                continue;
            }
        } else if let Some((start, end)) = first.split_once('-') {
            let parse = |number| usize::from_str_radix(number, 16).unwrap();
            let range = parse(start)..parse(end);
            let (rights, name) = (words.next().unwrap(), words.nth(3).unwrap_or(""));
            let is_ours = rights == "rw-p" && (name.is_empty() || name == "[heap]");
            let is_taken = apart.iter().any(|address| range.contains(address));
            // An empty one stands for what is left out, so that the flags behind it find it.
            found.push(if is_ours && !is_taken { range } else { 0..0 });
        }
    }
    found.retain(|range| !range.is_empty());
    found
}

/// Those that regions do not map and unmap all the time: writers' copies may come to lie where such a one was, and
/// no caller may snapshot those.
fn lasting() -> Vec<Range<usize>> {
    let mut ranges = protectable();
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(2));
        let now = protectable();
        ranges.retain(|range| now.contains(range));
    }
    ranges
}

/// An address in each thread's stack.
fn thread_descriptors() -> Vec<usize> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let id = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_str().unwrap().parse::<libc::pid_t>().unwrap()
    };
    let descriptor = |id: libc::pid_t| {
        let (mut head, mut len) = (ptr::null_mut::<libc::c_void>(), 0_usize);
        // SAFETY: writes one pointer and one length.
        unsafe { libc::syscall(libc::SYS_get_robust_list, id, &raw mut head, &raw mut len) };
        head.addr()
    };
    threads.map(id).map(descriptor).collect()
}

/// Those of threads whose writes are served in place: the kernel writes there before the handler runs.
static ALTERNATE_STACKS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// An address in the calling thread's alternate stack.
fn alternate_stack() -> Option<usize> {
    // SAFETY: zeroed is a valid one, which is written.
    let stack = unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(ptr::null(), &raw mut stack);
        stack
    };
    (!stack.ss_sp.is_null()).then(|| stack.ss_sp.addr())
}

fn dirty_pool(bytes: usize) -> Pool {
    let pool = Pool::builder(bytes).backing(Backing::Base).scrub_threads(0).build().unwrap();
    pool.region(bytes).unwrap().fill(7);
    pool
}

fn lazy_region(pool: &Pool, fault_mode: FaultMode) -> Region {
    let builder = pool.region_builder(BYTES).clearing(Clearing::OnFault).fault_mode(fault_mode);
    builder.build().unwrap()
}

fn touch(bytes: *mut u8, len: usize) {
    for offset in (0..len).step_by(page_size()) {
        // SAFETY: within memory that this thread alone accesses.
        unsafe { bytes.add(offset).write_volatile(1) };
    }
}

/// Runs `act` while nothing of `ranges` can be written.
fn with_read_only<R>(ranges: &[Range<usize>], act: impl FnOnce() -> R) -> R {
    let protect = |flags: MprotectFlags| {
        for range in ranges {
            let start = ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: what writes there meanwhile is what the test is to find.
            unsafe { mprotect(start, range.len(), flags) }.unwrap();
        }
    };
    protect(MprotectFlags::READ);
    let result = act();
    protect(MprotectFlags::READ | MprotectFlags::WRITE);
    result
}

/// First accesses, writes to what forks share and writes to what a snapshot protects are served while the heap and
/// all its like can only be read: a handler that wrote there would end the process.
fn handlers_under_any_fault_write_to_nothing_a_snapshot_protects() {
    for fault_mode in permitted::fault_modes() {
        let code = in_a_child(|| {
            let pool = dirty_pool(8 * BYTES);
            let mut lazy = lazy_region(&pool, fault_mode);
            let mut parent = pool.region(BYTES).unwrap();
            parent.fill(3);
            let fork =
                |region: &Region| region.fork_builder().fault_mode(fault_mode).build().unwrap();
            let mut child = fork(&parent);
            let mut grandchild = fork(&child);
            let memory = Memory::filled(BYTES, false, 5);
            let builder = Snapshot::builder().granule(Granule::Small).fault_mode(fault_mode);
            // SAFETY: the memory stays, and no system call writes there.
            let snapshot = unsafe { builder.of_anonymous(memory.range()) }.unwrap();
            let written = [
                (lazy.as_mut_ptr(), BYTES),
                (parent.as_mut_ptr(), BYTES / 2),
                (child.as_mut_ptr(), BYTES / 4),
                (grandchild.as_mut_ptr(), BYTES),
                (memory.start(), BYTES),
            ];
            let mut ranges = protectable();
            let whole = memory.start().addr()..memory.start().addr() + BYTES;
            ranges.retain(|range| range.end <= whole.start || whole.end <= range.start);
            let bytes: usize = ranges.iter().map(Range::len).sum();
            with_read_only(&ranges, || written.iter().for_each(|&(start, len)| touch(start, len)));
            let seen = (lazy[1], parent[1], child[BYTES / 2], grandchild[1]);
            let copied = snapshot.stats().copied_by_writers;
            i32::from(seen != (0, 3, 3, 3)) + 2 * i32::from(copied == 0) + 4 * i32::from(bytes == 0)
        });
        assert_eq!(code, 0, "{fault_mode:?}");
    }
}

/// A C library keeps the stacks of threads that have ended for those that begin. One of them is memory as any other
/// when a snapshot is made of it, and the threads that serve the snapshot begin only then.
fn snapshot_of_an_ended_threads_stack_is_served() {
    const BEHIND: usize = 64 << 10;
    let mode = FaultMode::Threaded { threads: 1 };
    let code = in_a_child(|| {
        let place =
            thread::spawn(|| std::hint::black_box(&mut [0_u8]).as_ptr().addr()).join().unwrap();
        let all = protectable();
        let Some(stack) = all.into_iter().find(|range| range.contains(&place)) else {
            return 0; // This C library gives it back.
        };
        let Some(snapshot) = of(&stack, mode) else { return 1 };
        // The lower part: at its top is what the C library keeps of the thread.
        touch(ptr::with_exposed_provenance_mut(stack.start), stack.len() - BEHIND);
        drop(snapshot);
        0
    });
    assert_eq!(code, 0);
}

/// A snapshot of each mapping that can be had, two at a time, over and over, while regions are served and forked:
/// calls of hugekit's may fail, where the kernel may not write to what is protected, but none may hang.
fn snapshot_of_the_whole_heap_hangs_no_thread() {
    for fault_mode in permitted::fault_modes() {
        let code = in_a_child(|| {
            let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
            let most = thread::scope(|scope| {
                let _end = Stops(&stop);
                for _ in 0..2 {
                    scope.spawn(|| use_regions(fault_mode, &stop, &served));
                }
                while served.load(Ordering::Relaxed) < 2 {
                    thread::yield_now();
                }
                snapshot_everything(fault_mode, &served)
            });
            i32::from(most == 0)
        });
        assert_eq!(code, 0, "{fault_mode:?}");
    }
}

/// Has regions served and forked until it is told to stop.
fn use_regions(fault_mode: FaultMode, stop: &AtomicBool, served: &AtomicUsize) {
    ALTERNATE_STACKS.lock().unwrap().extend(alternate_stack());
    let pool = dirty_pool(8 * BYTES);
    while !stop.load(Ordering::Relaxed) {
        // Refused where the kernel may not write to the heap.
        let builder = pool.region_builder(BYTES).clearing(Clearing::OnFault).fault_mode(fault_mode);
        if let Ok(mut region) = builder.build() {
            touch(region.as_mut_ptr(), BYTES / 2);
            if let Ok(mut child) = region.fork_builder().fault_mode(fault_mode).build() {
                touch(region.as_mut_ptr(), BYTES);
                touch(child.as_mut_ptr(), BYTES);
            }
        }
        served.fetch_add(1, Ordering::Relaxed);
    }
}

/// Snapshots for a second or two; how many there were at a time.
fn snapshot_everything(fault_mode: FaultMode, served: &AtomicUsize) -> usize {
    let (began, mut most) = (Instant::now(), 0);
    let ranges = lasting();
    let start = served.load(Ordering::Relaxed);
    let is_over = || {
        let elapsed = began.elapsed();
        let is_used = served.load(Ordering::Relaxed) > start + 20;
        elapsed > Duration::from_secs(10) || is_used && elapsed > Duration::from_secs(1)
    };
    while !is_over() {
        let first: Vec<Snapshot> =
            ranges.iter().filter_map(|range| of(range, fault_mode)).collect();
        let second: Vec<Snapshot> =
            ranges.iter().filter_map(|range| of(range, fault_mode)).collect();
        most = most.max(first.len() + second.len());
    }
    most
}

/// One of a mapping, or as much of it as is still there; none where it is refused.
fn of(range: &Range<usize>, fault_mode: FaultMode) -> Option<Snapshot> {
    let start: *const u8 = ptr::with_exposed_provenance(range.start);
    let builder = Snapshot::builder().granule(Granule::Small).fault_mode(fault_mode);
    let slice = ptr::slice_from_raw_parts(start, range.len());
    // SAFETY: snapshots are not read, so that it does not matter whose the bytes are; system calls that write there
    // fail, which this test puts up with.
    let made: Result<Snapshot, SnapshotError> = unsafe { builder.of_anonymous(slice) };
    made.ok()
}

const CHECKS: Checks = hugekit_testing::checks![
    handlers_under_any_fault_write_to_nothing_a_snapshot_protects,
    snapshot_of_the_whole_heap_hangs_no_thread,
];

const OF_THREADS: Checks = hugekit_testing::checks![snapshot_of_an_ended_threads_stack_is_served];

fn main() {
    let mut tests = trials(CHECKS, permitted::lacking());
    tests.extend(trials(OF_THREADS, permitted::lacking_for_threads()));
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
