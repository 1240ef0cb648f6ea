//! Everything at once: actors that run scenario after scenario, in one process, under signals.

use std::convert::Infallible;
use std::panic;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hugekit::Threads;
use hugekit::fault::FaultMode;
use hugekit_bulk::parallel::{Job, JobError};

use crate::footprint::{self, Footprint};
use crate::operations::{FAULT_MODES, OPERATIONS, Operation};
use crate::status::{ACTORS, Status};
use crate::storm::Storm;
use crate::world::{Size, World};
use crate::{backtraces, exposed};

/// The length and the content of a soak.
#[derive(Clone, Debug)]
pub struct Orders {
    pub time: Duration,
    pub seed: u64,
    pub actors: usize,
    /// The only operation to run; by default all of them.
    pub only: Option<String>,
}

/// The longest time until a thread that has been joined leaves the process: the kernel reports its end before it
/// removes the thread from the list.
const TO_LEAVE: Duration = Duration::from_secs(10);

/// The time in which a process makes all that it makes once, after each operation was run once in each way.
const WARM_UP: Duration = Duration::from_secs(8);

/// Does as ordered; returns whether all that was taken was given back. A wrong byte ends the process.
///
/// # Panics
/// If there is no page for counters.
#[must_use]
pub fn work(orders: &Orders) -> bool {
    footprint::steady_heap();
    let status = Status::inherited().expect("a page");
    backtraces::allow();
    end_at_the_first_failure(status);
    exposed::install();
    hire_helpers();
    act(orders, status, WARM_UP.min(orders.time), Part::WarmUp);
    let start = Footprint::now();
    println!("at the start: {start}");
    act(orders, status, orders.time, Part::Soak);
    let (end, grown) = what_stays_grown(&start);
    println!("at the end:   {end}");
    for line in &grown {
        println!("leaked: {line}");
    }
    println!("{} leaks", grown.len());
    grown.is_empty()
}

/// The resources of now, and those that are more than at `start` and stay so.
fn what_stays_grown(start: &Footprint) -> (Footprint, Vec<String>) {
    let end = Instant::now() + TO_LEAVE;
    loop {
        let now = Footprint::now();
        let grown = now.grown_since(start);
        if grown.is_empty() || Instant::now() > end {
            return (now, grown);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Has jobs of either priority start the thread that helps with them, which lives as long as the process: on a busy
/// machine it could be started after the warm-up first, and counted.
fn hire_helpers() {
    for low in [false, true] {
        let job = Job::new(64 << 20).threads(Threads::Exactly(2)).low_priority(low);
        let ran: Result<_, JobError<Infallible>> = job.run(|_| Ok(()));
        ran.expect("nothing is asked for but a thread");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// First each operation in each way, however long that takes on a slow machine.
    WarmUp,
    Soak,
}

/// The work of the actors.
struct Script {
    operations: Vec<&'static Operation>,
    seed: u64,
    /// The number of operations, in each way, that have been begun.
    begun: AtomicUsize,
    stop: AtomicBool,
}

impl Script {
    fn new(orders: &Orders, part: Part) -> Self {
        let is_wanted = |name| orders.only.as_deref().is_none_or(|only| name == only);
        let operations: Vec<_> =
            OPERATIONS.iter().filter(|operation| is_wanted(operation.name)).collect();
        let begun = match part {
            Part::WarmUp => 0,
            Part::Soak => operations.len() * FAULT_MODES.len(),
        };
        let seed = mix(orders.seed, part as u64);
        Self { operations, seed, begun: AtomicUsize::new(begun), stop: AtomicBool::new(false) }
    }

    /// The next one in its way: in turn as long as one has not been begun at all, and then as the seed has it.
    fn next(&self, seed: u64) -> Option<(&'static Operation, FaultMode, Size)> {
        let turn = self.begun.fetch_add(1, Ordering::Relaxed);
        let count = self.operations.len();
        let (operation, way, size) = match turn / count {
            // What is made once is made for little, too.
            way if way < FAULT_MODES.len() => (turn % count, way, Size::Short),
            _ if self.stop.load(Ordering::Relaxed) => return None,
            _ => (seed as usize % count, (seed >> 32) as usize % FAULT_MODES.len(), Size::Soak),
        };
        Some((self.operations[operation], FAULT_MODES[way].1, size))
    }
}

/// Runs a part: all actors until the time is over.
fn act(orders: &Orders, status: &'static Status, time: Duration, part: Part) {
    let (end, script) = (Instant::now() + time, Script::new(orders, part));
    let storm = Storm::start();
    thread::scope(|scope| {
        let script = &script;
        let perform_as = |actor| scope.spawn(move || perform(status, actor, script));
        let actors: Vec<_> = (0..orders.actors.min(ACTORS)).map(perform_as).collect();
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
            status.counts[crate::status::Count::Signals as usize]
                .store(exposed::calls(), Ordering::Relaxed);
        }
        script.stop.store(true, Ordering::Relaxed);
        // A scope waits for what its threads do, not for the threads: their stacks would be counted.
        actors.into_iter().for_each(|actor| actor.join().expect("a panic ends the process"));
    });
    drop(storm);
}

fn perform(status: &'static Status, actor: usize, script: &Script) {
    let own = mix(script.seed, actor as u64);
    for round in 0.. {
        let seed = mix(own, round);
        let Some((operation, fault_mode, size)) = script.next(seed) else { return };
        let rng = fastrand::Rng::with_seed(0);
        let mut world = World { rng, fault_mode, size, every: 0, actor, status };
        operation.run(&mut world, seed);
    }
}

/// Makes one number of two, as far from its neighbours' as possible.
#[must_use]
pub fn mix(seed: u64, number: u64) -> u64 {
    let mut mixed = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Has any panic, of any thread, end the process after saying what every actor was at.
pub fn end_at_the_first_failure(status: &'static Status) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        exposed::stop_all(); // The report that is printed now is not to be interrupted by another fault.
        usual(info);
        status.print_actors();
        // SAFETY: no precondition; destructors would wait for threads that are in the middle of something.
        unsafe { libc::_exit(101) };
    }));
}
