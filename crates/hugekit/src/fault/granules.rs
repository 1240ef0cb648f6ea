//! What is still to be done before anybody may see a granule, and who is doing it.
//!
//! A granule is what one fault makes ready: a folio, or several where a folio is a base page. Its
//! state is one atomic byte. Whoever moves it from *waiting* to *busy* does the work alone; everybody
//! else who faults there meanwhile waits. All of this runs in signal handlers: nothing allocates, and
//! nobody waits for a thread that could be waiting for a fault, because the one who is busy touches
//! only the pool's alias mapping and has its signals blocked.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::sys::futex;

/// What a granule lacks. Both at once, where it consists of several folios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lacks {
    /// The file has no page for part of it.
    pub(super) pages: bool,
    /// Part of it holds what somebody else left.
    pub(super) clearing: bool,
}

const PAGES: u8 = 1 << 0;
const CLEARING: u8 = 1 << 1;
const BUSY: u8 = 1 << 2;
const POISONED: u8 = 1 << 3;

impl Lacks {
    fn bits(self) -> u8 {
        u8::from(self.pages) * PAGES | u8::from(self.clearing) * CLEARING
    }

    fn of(bits: u8) -> Self {
        Self { pages: bits & PAGES != 0, clearing: bits & CLEARING != 0 }
    }
}

/// The granules of one region.
#[derive(Debug)]
pub(super) struct Granules {
    states: Box<[AtomicU8]>,
    /// Counts the granules that stopped being busy: what waiters sleep on.
    finished: AtomicU32,
    waiters: AtomicU32,
}

/// What whoever faulted on a granule is to do.
#[derive(Debug)]
pub(super) enum Claim<'a> {
    /// Nothing: it may be mapped.
    Ready,
    /// Nothing can be done: the memory behind it is broken.
    Poisoned,
    /// The work, which is this thread's alone.
    Mine(Busy<'a>),
}

/// Work that was taken. Dropped before it is finished, the granule waits again, for somebody else.
#[derive(Debug)]
pub(super) struct Busy<'a> {
    granules: &'a Granules,
    index: usize,
    lacks: Lacks,
}

impl Granules {
    pub(super) fn new(lacks: impl IntoIterator<Item = Lacks>) -> Self {
        let states = lacks.into_iter().map(|lacks| AtomicU8::new(lacks.bits())).collect();
        Self { states, finished: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether anybody was ever shown it: nothing is lacking any more.
    pub(super) fn is_ready(&self, index: usize) -> bool {
        self.states[index].load(Ordering::Acquire) == 0
    }

    /// What it lacks at this moment; a busy one still lacks all of it.
    pub(super) fn lacks(&self, index: usize) -> Lacks {
        Lacks::of(self.states[index].load(Ordering::Acquire))
    }

    /// Takes the work that a granule needs, or waits until whoever has it is done.
    pub(super) fn claim(&self, index: usize) -> Claim<'_> {
        let state = &self.states[index];
        loop {
            let finished = self.finished.load(Ordering::SeqCst);
            let seen = state.load(Ordering::Acquire);
            match seen {
                0 => return Claim::Ready,
                _ if seen & POISONED != 0 => return Claim::Poisoned,
                _ if seen & BUSY != 0 => self.wait(finished),
                _ => {
                    let busy = seen | BUSY;
                    let taken =
                        state.compare_exchange(seen, busy, Ordering::Acquire, Ordering::Relaxed);
                    if taken.is_ok() {
                        let lacks = Lacks::of(seen);
                        return Claim::Mine(Busy { granules: self, index, lacks });
                    }
                }
            }
        }
    }

    /// Has everybody who faults there from now on do this work first. Nobody has it mapped.
    pub(super) fn set_lacking(&self, index: usize, lacks: Lacks) {
        self.states[index].store(lacks.bits(), Ordering::Release);
    }

    /// The memory behind it is broken: nobody is shown it any more.
    pub(super) fn poison(&self, index: usize) {
        self.states[index].fetch_or(POISONED, Ordering::AcqRel);
    }

    pub(super) fn is_poisoned(&self, index: usize) -> bool {
        self.states[index].load(Ordering::Acquire) & POISONED != 0
    }

    /// Sleeps until a granule is finished after `finished` was read.
    fn wait(&self, finished: u32) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        futex::wait(&self.finished, finished);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    fn release(&self, index: usize, state: u8) {
        let poisoned = self.states[index].load(Ordering::Acquire) & POISONED;
        self.states[index].store(state | poisoned, Ordering::Release);
        self.finished.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            futex::wake_all(&self.finished);
        }
    }
}

impl Busy<'_> {
    pub(super) fn lacks(&self) -> Lacks {
        self.lacks
    }

    /// The work is done, and the granule is ready.
    pub(super) fn finish(self) {
        self.granules.release(self.index, 0);
        std::mem::forget(self);
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.granules.release(self.index, self.lacks.bits());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    const DIRTY: Lacks = Lacks { pages: false, clearing: true };

    #[test]
    fn work_is_taken_once_and_others_wait_for_it() {
        let granules = Granules::new([DIRTY; 64]);
        let done: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        let serve = || {
            for (index, done) in done.iter().enumerate() {
                if let Claim::Mine(busy) = granules.claim(index) {
                    assert_eq!(busy.lacks(), DIRTY);
                    thread::yield_now();
                    done.fetch_add(1, Ordering::Relaxed);
                    busy.finish();
                }
                assert!(granules.is_ready(index));
                assert_eq!(done.load(Ordering::Relaxed), 1);
            }
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(serve);
            }
        });
    }

    #[test]
    fn work_that_fails_is_somebody_elses() {
        let both = Lacks { pages: true, clearing: true };
        let granules = Granules::new([both]);
        let Claim::Mine(busy) = granules.claim(0) else { panic!("nobody else is there") };
        drop(busy);
        assert_eq!(granules.lacks(0), both);
        assert!(matches!(granules.claim(0), Claim::Mine(_)));
    }

    #[test]
    fn a_poisoned_granule_stays_so_whoever_was_busy() {
        let granules = Granules::new([DIRTY, Lacks::default()]);
        let Claim::Mine(busy) = granules.claim(0) else { panic!("nobody else is there") };
        granules.poison(0);
        granules.poison(1);
        busy.finish();
        for index in 0..granules.len() {
            assert!(matches!(granules.claim(index), Claim::Poisoned));
            assert!(granules.is_poisoned(index));
        }
    }
}
