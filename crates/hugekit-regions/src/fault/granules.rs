//! What is still to be done before any user may see a granule, and who is at it.
//!
//! A granule is what one fault makes ready: a folio, or several where a folio is a base page. The thread that
//! [claims](Claims) it does the work alone, even if that is only to map it; every other one that faults there
//! meanwhile waits. So no thread maps a granule that another one is taking back.

use rustix::io;

use hugekit_sys::sync::{Claim, Claims, State};
use hugekit_sys::thread::SignalsBlocked;

/// What a granule lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// Nothing: it may be mapped.
    Nothing,
    /// A clear: part of it holds what an earlier user left.
    Clearing,
    /// Its page: the file has none. Only where a granule is one folio.
    Page,
}

impl State for Pending {
    fn bits(self) -> u32 {
        self as u32
    }

    fn of(bits: u32) -> Self {
        match bits {
            0 => Self::Nothing,
            1 => Self::Clearing,
            _ => Self::Page,
        }
    }
}

/// The granules of one region. Async-signal-safe, all but `new`.
#[derive(Debug)]
pub(crate) struct Granules(Claims<Pending>);

/// The memory behind a granule is broken.
#[derive(Debug)]
pub(crate) struct Broken;

impl Granules {
    pub(crate) fn new(lacks: &[Pending]) -> io::Result<Self> {
        Ok(Self(Claims::with(lacks.len(), lacks.iter().copied())?))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// What it lacks at this moment, and whether its memory is broken. A claimed one lacks what it did.
    pub(crate) fn look(&self, index: usize) -> Result<Pending, Broken> {
        let seen = self.0.look(index);
        if seen.is_broken { Err(Broken) } else { Ok(seen.state) }
    }

    /// Claims it, after another thread that has it.
    pub(crate) fn claim<'a>(
        &'a self,
        index: usize,
        blocked: &'a SignalsBlocked,
    ) -> Result<Claim<'a, Pending>, Broken> {
        let claim = self.0.claim(index, blocked);
        if claim.is_broken() { Err(Broken) } else { Ok(claim) }
    }

    /// The memory behind it is broken: it is shown to no thread any more.
    pub(crate) fn break_(&self, index: usize) {
        self.0.break_(index);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;
    use hugekit_sys::thread::without_signals;

    #[test]
    fn claim_by_several_is_done_once_and_waited_for() {
        let granules = Granules::new(&[Pending::Clearing; 64]).unwrap();
        let done: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        let serve = |blocked: &SignalsBlocked| {
            for (index, done) in done.iter().enumerate() {
                let busy = granules.claim(index, blocked).unwrap();
                if busy.state() == Pending::Clearing {
                    thread::yield_now();
                    done.fetch_add(1, Ordering::Relaxed);
                }
                busy.finish(Pending::Nothing);
                assert_eq!(done.load(Ordering::Relaxed), 1);
            }
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| without_signals(serve));
            }
        });
    }

    #[test]
    fn claim_that_fails_goes_to_another_thread() {
        without_signals(|blocked| {
            for lacks in [Pending::Nothing, Pending::Clearing, Pending::Page] {
                let granules = Granules::new(&[lacks]).unwrap();
                drop(granules.claim(0, blocked).unwrap());
                assert_eq!(granules.look(0).unwrap(), lacks);
                assert_eq!(granules.claim(0, blocked).unwrap().state(), lacks);
            }
        });
    }

    #[test]
    fn granule_broken_while_busy_stays_so() {
        without_signals(|blocked| {
            let granules = Granules::new(&[Pending::Clearing, Pending::Nothing]).unwrap();
            let busy = granules.claim(0, blocked).unwrap();
            granules.break_(0);
            granules.break_(1);
            busy.finish(Pending::Nothing);
            for index in 0..granules.len() {
                assert!(granules.claim(index, blocked).is_err());
                assert!(granules.look(index).is_err());
            }
        });
    }
}
