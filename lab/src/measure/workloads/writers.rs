//! Writers that run at the same time, each on memory of its own: processes or threads, from one signal on,
//! with the time that each of them took and the CPU time that it used.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::machine::usage::{Usage, Who};
use crate::measure::workloads::anonymous::Pages;
use crate::measure::workloads::forking::{Child, Shared};
use crate::measure::workloads::outside::Outside;
use crate::measure::workloads::threads::spawn;

/// The time that one writer took and used, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    pub elapsed: u64,
    pub user: u64,
    pub system: u64,
}

/// A writer's work: all of it on its memory, and without allocating or taking a lock, which another thread
/// may have held when the process was copied. It is told which of the writers it is.
pub type WriterFn = fn(&mut [u8], usize);

/// A writer that is not told to begin gives up: the process that was to tell it is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory that parent and children see alike: how many are ready, whether they may begin, and what each of
/// them spent.
#[derive(Debug)]
struct Board(Outside);

const READY: usize = 0;
const GO: usize = 1;
const FIRST: usize = 2;

impl Board {
    fn new(writers: usize) -> Result<Self, LabError> {
        let len = (FIRST + 3 * writers) * size_of::<u64>();
        let outside = Outside::new(Pages::Base, len.next_multiple_of(rustix::param::page_size()))?;
        outside.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(Self(outside))
    }

    fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }

    /// Waits for the signal and works.
    fn take_part(&self, index: usize, memory: &mut [u8], work: WriterFn) {
        let words = self.words();
        words[READY].fetch_add(1, Ordering::Relaxed);
        let since = Instant::now();
        while words[GO].load(Ordering::Acquire) == 0 {
            if since.elapsed() > PATIENCE {
                return;
            }
            rustix::thread::sched_yield();
        }
        let (before, start) = (cpu_time(), Instant::now());
        work(memory, index);
        let (elapsed, after) = (start.elapsed(), cpu_time());
        let spent = [elapsed.as_nanos() as u64, after.0 - before.0, after.1 - before.1];
        for (word, spent) in words[FIRST + 3 * index..].iter().zip(spent) {
            word.store(spent, Ordering::Relaxed);
        }
    }

    /// Has them all begin, if they come in time; one may have been killed.
    fn begin(&self, writers: usize) -> Result<(), LabError> {
        let since = Instant::now();
        while self.words()[READY].load(Ordering::Relaxed) < writers as u64 {
            if since.elapsed() > PATIENCE {
                return Err(LabError::Writers(writers));
            }
            rustix::thread::sched_yield();
        }
        self.release();
        Ok(())
    }

    /// Has the writers begin that are ready, and those that become ready later.
    fn release(&self) {
        self.words()[GO].store(1, Ordering::Release);
    }

    fn spent(&self, writers: usize) -> Vec<Spent> {
        let words = self.words()[FIRST..].chunks(3).take(writers);
        words
            .map(|words| {
                let [elapsed, user, system] = [0, 1, 2].map(|at| words[at].load(Ordering::Relaxed));
                Spent { elapsed, user, system }
            })
            .collect()
    }
}

/// User and system time of this thread, in nanoseconds. A kernel that accounts by ticks (1 to 10 ms) answers
/// `getrusage(2)` with what it knew at the last one, unless the thread's clock was read right before: that
/// brings the sum of both up to date. How it is divided remains a matter of ticks.
fn cpu_time() -> (u64, u64) {
    let _ = hugekit_sys::thread::cpu_time();
    let usage = Usage::of(Who::ThisThread);
    (usage.user.as_nanos() as u64, usage.system.as_nanos() as u64)
}

/// So many children share the memory, and each works on its copy.
pub fn in_processes(
    shared: &mut Shared,
    writers: usize,
    work: WriterFn,
) -> Result<Vec<Spent>, LabError> {
    let board = Board::new(writers)?;
    let children: Result<Vec<_>, LabError> = (0..writers)
        .map(|index| Ok(shared.child(|memory| board.take_part(index, memory, work))?.0))
        .collect();
    let children = children?;
    board.begin(writers)?;
    children.into_iter().try_for_each(Child::wait)?;
    Ok(board.spent(writers))
}

/// A thread works on each of these.
pub fn in_threads(memories: &mut [&mut [u8]], work: WriterFn) -> Result<Vec<Spent>, LabError> {
    let (board, writers) = (&Board::new(memories.len())?, memories.len());
    std::thread::scope(|scope| {
        let mut memories = memories.iter_mut().enumerate();
        let started = memories.try_for_each(|(index, memory)| {
            spawn(scope, move || board.take_part(index, memory, work)).map(drop)
        });
        // Those that were started are not kept waiting for the others.
        started.inspect_err(|_| board.release())?;
        board.begin(writers)
    })?;
    Ok(board.spent(writers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_machine::size::MIB;

    fn mark(memory: &mut [u8], index: usize) {
        memory.fill(10 + index as u8);
    }

    #[test]
    fn threads_write_their_own_and_say_what_they_spent() {
        let (mut one, mut other) = (vec![0; 8 * MIB], vec![0; 8 * MIB]);
        let spent = in_threads(&mut [&mut one, &mut other], mark).unwrap();
        assert_eq!((one[5], other[5], spent.len()), (10, 11, 2));
        assert!(spent.iter().all(|spent| spent.elapsed > 0));
    }

    #[test]
    fn processes_write_copies_and_the_parent_keeps_what_it_had() {
        let mut shared = Shared::new(Pages::Base, 8 * MIB).unwrap();
        let spent = in_processes(&mut shared, 3, mark).unwrap();
        assert_eq!((shared.bytes()[0], spent.len()), (1, 3));
        assert!(spent.iter().all(|spent| spent.elapsed > 0));
    }

    /// Work much shorter than a tick is counted as well as work that takes many, on a CPU of any speed.
    #[test]
    fn cpu_time_is_that_of_who_works() {
        let mut shared = Shared::new(Pages::Base, MIB).unwrap();
        for _ in 0..20 {
            let spent = in_processes(&mut shared, 1, mark).unwrap()[0];
            let used = spent.user + spent.system;
            assert!(used > 0 && used < spent.elapsed + 20_000_000, "{spent:?}");
        }
    }
}
