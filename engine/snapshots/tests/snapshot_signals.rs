//! Snapshots of memory that signal handlers write, in every thread and at any moment, the makers' and readers' own
//! included; and that children write which share it. A hang ends by the alarm of the child that tries it, which
//! fails the test.
#![allow(unsafe_code)]

use hugekit_testing::child;
use hugekit_testing::memory;
use hugekit_testing::permitted;

use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use child::in_a_child;
use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing, Pool};
use hugekit::snapshot::Granule;
use hugekit::snapshot::View;
use hugekit::{HUGE_PAGE_BYTES as HUGE, Snapshot, SnapshotError};
use hugekit_testing::racing::Stops;
use hugekit_testing::trials::{Checks, skip, trials};
use libtest_mimic::Arguments;
use memory::Memory;

const PAGE: usize = 4096;

/// What the handler writes: a word of each page in turn.
static WRITTEN: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static WRITTEN_LEN: AtomicUsize = AtomicUsize::new(0);
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn write_somewhere(_: libc::c_int) {
    let count = SIGNALS.fetch_add(1, Ordering::Relaxed);
    let at = count * 7919 * PAGE % WRITTEN_LEN.load(Ordering::Relaxed);
    let place = WRITTEN.load(Ordering::Relaxed).wrapping_add(at).cast::<usize>();
    // SAFETY: an aligned word of the memory, which is accessed by volatile accesses alone, and only here.
    unsafe { place.write_volatile(place.read_volatile() + 1) };
}

fn have_handlers_write(memory: &Memory) {
    WRITTEN.store(memory.start(), Ordering::Relaxed);
    WRITTEN_LEN.store(memory.len(), Ordering::Relaxed);
    // SAFETY: the handler does what signal-safety(7) allows; zeroed, the structure is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = write_somewhere as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()), 0);
    }
}

/// Signals for the calling thread, one a millisecond, until dropped.
struct Interrupted(libc::timer_t);

impl Interrupted {
    fn start() -> Self {
        // SAFETY: zeroed, the structures are valid; one timer is written.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGUSR1;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = std::mem::zeroed();
            let clock = libc::CLOCK_MONOTONIC;
            assert_eq!(libc::timer_create(clock, &raw mut event, &raw mut timer), 0);
            let every = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let times = libc::itimerspec { it_interval: every, it_value: every };
            assert_eq!(libc::timer_settime(timer, 0, &raw const times, ptr::null_mut()), 0);
            Self(timer)
        }
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        // SAFETY: created above.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn of(
    fault_mode: FaultMode,
    memory: &Memory,
    first: usize,
    granule: Granule,
) -> Result<Snapshot, SnapshotError> {
    let range = ptr::slice_from_raw_parts(memory.start().wrapping_add(first), memory.len() - first);
    let builder = Snapshot::builder().fault_mode(fault_mode).granule(granule);
    let builder = builder
        .max_cow_bytes(usize::MAX >> 1)
        .in_background(first % PAGE == 24 && first % HUGE > HUGE / 2);
    // SAFETY: no thread blocks SIGBUS, and no system call writes there.
    unsafe { builder.of_anonymous(range) }
}

/// Whether snapshots can be handled so here.
fn can(fault_mode: FaultMode) -> bool {
    let memory = Memory::filled(HUGE, false, 0);
    of(fault_mode, &memory, 0, Granule::Small).is_ok()
}

/// Everything that can be done with a snapshot, once.
fn use_one(fault_mode: FaultMode, memory: &Memory, round: usize) {
    let granule = if round.is_multiple_of(2) { Granule::Huge } else { Granule::Small };
    let snapshot = of(fault_mode, memory, round % 5 * (HUGE / 2 + PAGE) + 24, granule).unwrap();
    let (len, middle) = (snapshot.len(), snapshot.len() / 2);
    snapshot.prepare_write(middle..middle + PAGE).unwrap();
    snapshot.read_at(middle - 100, &mut [0; 200]).unwrap();
    match round % 4 {
        0 => drop(snapshot.write_to(std::io::sink()).unwrap()),
        1 => drop(snapshot.copy_to(&mut vec![0; len]).unwrap()),
        2 => drop(View::of(&snapshot).unwrap().bytes(0..middle).unwrap().to_vec()),
        _ => drop(snapshot.split(&[0..PAGE, middle..middle + PAGE]).unwrap()),
    }
}

/// How long the makers go on: that signals meet each step is a matter of time.
const LONG: Duration = Duration::from_secs(4);

/// Each maker makes a few snapshots, in any case, and goes on until a signal has come.
const LEAST: usize = 4;

/// Whether a thread that has done this in `rounds` rounds has to go on.
fn goes_on(rounds: usize, until: Instant) -> bool {
    let has_signals = SIGNALS.load(Ordering::Relaxed) > 0;
    rounds < LEAST || !has_signals || Instant::now() < until
}

fn makers_are_interrupted(fault_mode: FaultMode, time: Duration) {
    if !can(fault_mode) {
        skip(format!("{fault_mode:?} is not permitted"));
    }
    let code = in_a_child(|| {
        let memory = Memory::filled(8 * HUGE + PAGE, true, 0);
        have_handlers_write(&memory);
        let (until, stop) = (Instant::now() + time, AtomicBool::new(false));
        let rounds: usize = thread::scope(|scope| {
            let _end = Stops(&stop);
            // One that waits for nothing, so that handlers write while the makers are anywhere.
            scope.spawn(|| {
                let _interrupted = Interrupted::start();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let make = |maker: usize| {
                let _interrupted = Interrupted::start();
                let mut rounds = 0;
                while goes_on(rounds, until) {
                    use_one(fault_mode, &memory, maker + rounds);
                    rounds += 1;
                }
                rounds
            };
            let makers: Vec<_> = (0..3).map(|maker| scope.spawn(move || make(maker))).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).sum()
        });
        assert!(rounds > 0 && SIGNALS.load(Ordering::Relaxed) > 0);
        0
    });
    assert_eq!(code, 0);
}

fn snapshot_made_under_signals_in_place_holds_what_was() {
    makers_are_interrupted(FaultMode::InPlace, Duration::ZERO);
}

fn snapshot_made_under_signals_threaded_holds_what_was() {
    makers_are_interrupted(FaultMode::Threaded { threads: 2 }, Duration::ZERO);
}

fn snapshot_made_for_long_under_signals_in_place_holds_what_was() {
    makers_are_interrupted(FaultMode::InPlace, LONG);
}

fn snapshot_made_for_long_under_signals_threaded_holds_what_was() {
    makers_are_interrupted(FaultMode::Threaded { threads: 2 }, LONG);
}

fn regions_that_come_and_go_while_handlers_write_hang_no_thread() {
    regions_come_and_go(Duration::ZERO);
}

fn regions_that_come_and_go_for_long_while_handlers_write_hang_no_thread() {
    regions_come_and_go(LONG);
}

/// Regions that are served in place come and go, and change the table of ranges, under the same signals.
fn regions_come_and_go(time: Duration) {
    if !can(FaultMode::InPlace) {
        skip("faults may not be served in place");
    }
    let code = in_a_child(|| {
        let memory = Memory::filled(4 * HUGE, true, 0);
        have_handlers_write(&memory);
        let until = Instant::now() + time;
        let pool = Pool::builder(4 << 20).backing(Backing::Base).clearing(Clearing::OnFault);
        let pool = pool.populate_on_allocation(true).scrub_threads(0).build().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _interrupted = Interrupted::start();
                let mut rounds = 0;
                while goes_on(rounds, until) {
                    rounds += 1;
                    let region = pool.region_builder(1 << 20).fault_mode(FaultMode::InPlace);
                    let mut region = region.build().unwrap();
                    region[PAGE] = 1;
                }
            });
            let _interrupted = Interrupted::start();
            let mut round = 0;
            while goes_on(round, until) {
                use_one(FaultMode::InPlace, &memory, round);
                round += 1;
            }
        });
        0
    });
    assert_eq!(code, 0);
}

/// Runs `child` in a process that shares the memory of this one, until it ends; whether it ended well.
///
/// # Safety
/// `child` may do what a child of vfork(2) may, and write memory of its own.
unsafe fn in_a_vfork_child(child: impl FnOnce()) -> bool {
    let mut status = 0;
    // SAFETY: the child leaves by `_exit`; this thread goes on when it has.
    unsafe {
        #[allow(deprecated, reason = "what is tried is what programs do")]
        let pid = libc::vfork();
        if pid == 0 {
            child();
            libc::_exit(0);
        }
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
    }
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

fn vfork_child_that_writes_a_snapshots_memory_is_served() {
    for fault_mode in [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }] {
        if !can(fault_mode) {
            continue;
        }
        let memory = Memory::filled(4 * HUGE, true, 7);
        let snapshot = of(fault_mode, &memory, 0, Granule::Huge).unwrap();
        // SAFETY: stores to memory.
        let lived = unsafe {
            in_a_vfork_child(|| {
                memory.words().iter().step_by(HUGE / 8).for_each(|word| {
                    word.store(8, Ordering::Relaxed);
                });
            })
        };
        assert!(lived, "{fault_mode:?}");
        assert!(Command::new("true").status().unwrap().success());
        assert_eq!(snapshot.stats().copied_by_writers, 4);
        let mut copy = vec![0; memory.len()];
        snapshot.copy_to(&mut copy).unwrap();
        assert!(copy.chunks_exact(8).all(|word| word == 7_u64.to_ne_bytes()));
        assert_eq!(memory.words()[0].load(Ordering::Relaxed), 8);
    }
}

/// The same for memory that is made ready at its first touch, and for forks of regions.
fn vfork_child_that_writes_a_region_is_served() {
    for fault_mode in [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }] {
        if !can(fault_mode) {
            continue;
        }
        let pool = Pool::builder(8 << 20).backing(Backing::Base).clearing(Clearing::OnFault);
        let pool = pool.populate_on_allocation(true).scrub_threads(0).build().unwrap();
        pool.region(4 << 20).unwrap().fill(7);
        let mut region = pool.region_builder(HUGE).fault_mode(fault_mode).build().unwrap();
        assert!(region.serving().is_some(), "nothing of it is dirty");
        // SAFETY: stores to memory.
        assert!(unsafe { in_a_vfork_child(|| region[PAGE] = 3) }, "{fault_mode:?}");
        assert_eq!((region[PAGE], region[PAGE + 1]), (3, 0));
        let mut fork = region.fork_builder().fault_mode(fault_mode).build().unwrap();
        // SAFETY: stores to memory.
        assert!(unsafe { in_a_vfork_child(|| (fork[0], region[PAGE]) = (1, 4)) }, "{fault_mode:?}");
        assert_eq!((fork[0], fork[PAGE], region[0], region[PAGE]), (1, 3, 0, 4));
    }
}

const CHECKS: Checks = hugekit_testing::checks![
    snapshot_made_under_signals_in_place_holds_what_was,
    snapshot_made_under_signals_threaded_holds_what_was,
    "[nightly: signals must meet each step] " snapshot_made_for_long_under_signals_in_place_holds_what_was,
    "[nightly: signals must meet each step] " snapshot_made_for_long_under_signals_threaded_holds_what_was,
    regions_that_come_and_go_while_handlers_write_hang_no_thread,
    "[nightly: signals must meet each step] " regions_that_come_and_go_for_long_while_handlers_write_hang_no_thread,
    vfork_child_that_writes_a_snapshots_memory_is_served,
    vfork_child_that_writes_a_region_is_served,
];

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials(CHECKS, permitted::lacking())).exit();
}
