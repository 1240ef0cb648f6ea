//! What is still to be done before anybody may see a granule, and who is at it.
//!
//! A granule is what one fault makes ready: a folio, or several where a folio is a base page. Its
//! state is one atomic byte. Whoever makes it busy does the work alone, even if that is only to map it;
//! everybody else who faults there meanwhile waits. So nobody maps a granule that somebody else is
//! taking back.
//!
//! All of this runs in signal handlers: nothing allocates, and nobody waits for a thread that could be
//! waiting for a fault, because the one who is busy touches only the pool's alias mapping and has its
//! signals blocked.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::sys::futex;

/// What a granule lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacks {
    /// Nothing: it may be mapped.
    Nothing,
    /// A clear: part of it holds what somebody left.
    Clearing,
    /// Its page: the file has none. Only where a granule is one folio.
    Page,
}

const KIND: u8 = 0b11;
const BUSY: u8 = 1 << 2;
const BROKEN: u8 = 1 << 3;

impl Lacks {
    fn of(bits: u8) -> Self {
        match bits & KIND {
            0 => Self::Nothing,
            1 => Self::Clearing,
            _ => Self::Page,
        }
    }
}

/// The granules of one region.
#[derive(Debug)]
pub(crate) struct Granules {
    states: Box<[AtomicU8]>,
    /// Counts the granules that stopped being busy: what waiters sleep on.
    finished: AtomicU32,
    waiters: AtomicU32,
}

/// The memory behind a granule is broken.
#[derive(Debug)]
pub(crate) struct Broken;

/// The right to a granule. Dropped, it lacks what it did.
#[derive(Debug)]
pub(crate) struct Busy<'a> {
    granules: &'a Granules,
    index: usize,
    lacks: Lacks,
}

impl Granules {
    pub(crate) fn new(lacks: impl IntoIterator<Item = Lacks>) -> Self {
        let states = lacks.into_iter().map(|lacks| AtomicU8::new(lacks as u8)).collect();
        Self { states, finished: AtomicU32::new(0), waiters: AtomicU32::new(0) }
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// What it lacks at this moment, and whether its memory is broken. A busy one lacks what it did.
    pub(crate) fn look(&self, index: usize) -> Result<Lacks, Broken> {
        let seen = self.states[index].load(Ordering::Acquire);
        if seen & BROKEN != 0 { Err(Broken) } else { Ok(Lacks::of(seen)) }
    }

    /// Makes it busy, after whoever else is at it.
    pub(crate) fn claim(&self, index: usize) -> Result<Busy<'_>, Broken> {
        let state = &self.states[index];
        loop {
            let finished = self.finished.load(Ordering::SeqCst);
            let seen = state.load(Ordering::SeqCst);
            if seen & BROKEN != 0 {
                return Err(Broken);
            }
            if seen & BUSY != 0 {
                self.wait(finished);
                continue;
            }
            let taken =
                state.compare_exchange(seen, seen | BUSY, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return Ok(Busy { granules: self, index, lacks: Lacks::of(seen) });
            }
        }
    }

    /// The memory behind it is broken: nobody is shown it any more.
    pub(crate) fn break_(&self, index: usize) {
        self.states[index].fetch_or(BROKEN, Ordering::AcqRel);
    }

    /// Sleeps until a granule is finished after `finished` was read.
    fn wait(&self, finished: u32) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        futex::wait(&self.finished, finished);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends being busy; a granule that broke meanwhile stays broken.
    fn release(&self, index: usize, lacks: Lacks) {
        let ended = |seen: u8| Some(seen & BROKEN | lacks as u8);
        let _ = self.states[index].fetch_update(Ordering::SeqCst, Ordering::Relaxed, ended);
        self.finished.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            futex::wake_all(&self.finished);
        }
    }
}

impl Busy<'_> {
    pub(crate) fn lacks(&self) -> Lacks {
        self.lacks
    }

    /// It lacks this from now on.
    pub(crate) fn finish(mut self, lacks: Lacks) {
        self.lacks = lacks;
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.granules.release(self.index, self.lacks);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn work_is_done_once_and_others_wait_for_it() {
        let granules = Granules::new([Lacks::Clearing; 64]);
        let done: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        let serve = || {
            for (index, done) in done.iter().enumerate() {
                let busy = granules.claim(index).unwrap();
                if busy.lacks() == Lacks::Clearing {
                    thread::yield_now();
                    done.fetch_add(1, Ordering::Relaxed);
                }
                busy.finish(Lacks::Nothing);
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
        for lacks in [Lacks::Nothing, Lacks::Clearing, Lacks::Page] {
            let granules = Granules::new([lacks]);
            drop(granules.claim(0).unwrap());
            assert_eq!(granules.look(0).unwrap(), lacks);
            assert_eq!(granules.claim(0).unwrap().lacks(), lacks);
        }
    }

    #[test]
    fn a_broken_granule_stays_so_whoever_was_busy() {
        let granules = Granules::new([Lacks::Clearing, Lacks::Nothing]);
        let busy = granules.claim(0).unwrap();
        granules.break_(0);
        granules.break_(1);
        busy.finish(Lacks::Nothing);
        for index in 0..granules.len() {
            assert!(granules.claim(index).is_err());
            assert!(granules.look(index).is_err());
        }
    }
}
