//! A table of words. One thread at a time may claim a word, work on it, and leave it in another
//! state.
//!
//! The claim is a bit beside the state, so other threads still see the state before the claim. A
//! second bit permanently marks a word as broken. The second bit may be set at any moment, with a
//! claim or without.
//!
//! All functions except the constructor are async-signal-safe and allocate nothing. A thread that
//! waits for a claim waits for a thread with blocked signals, which [`SignalsBlocked`] proves. The
//! thread with the claim must not cause a fault whose handler uses claims of the same table.

use std::fmt;
use std::marker::PhantomData;

use rustix::io;

use super::event::WakeEvent;
use super::held;
use super::primitives::{Ordering, Private, Words};
use crate::thread::SignalsBlocked;

/// The state in the lower 30 bits of a word. 0 must be a valid state, because new memory is zero.
pub trait ClaimState: Copy + fmt::Debug + PartialEq {
    fn bits(self) -> u32;
    fn of(bits: u32) -> Self;
}

/// No state except the claim: a table of locks.
impl ClaimState for () {
    fn bits(self) -> u32 {
        0
    }

    fn of(_: u32) -> Self {}
}

const BUSY: u32 = 1 << 31;
const BROKEN: u32 = 1 << 30;

#[derive(Debug)]
pub struct Claims<S> {
    words: Words,
    ended: Private<WakeEvent>,
    of: PhantomData<S>,
}

/// A word at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<S> {
    /// The state. While the word is claimed, this is the state before the claim.
    pub state: S,
    pub is_busy: bool,
    pub is_broken: bool,
}

/// The right to work on the object of a word. The thread has its signals blocked. A drop leaves the
/// state as it was.
#[derive(Debug)]
pub struct Claim<'a, S: ClaimState> {
    claims: &'a Claims<S>,
    index: usize,
    state: S,
    is_broken: bool,
}

impl<S: ClaimState> Seen<S> {
    fn of(bits: u32) -> Self {
        let state = S::of(bits & !(BUSY | BROKEN));
        Self { state, is_busy: bits & BUSY != 0, is_broken: bits & BROKEN != 0 }
    }
}

impl<S: ClaimState> Claims<S> {
    /// Makes a table of `len` words in state 0.
    pub fn new(len: usize) -> io::Result<Self> {
        Ok(Self {
            words: Words::new(len)?,
            ended: Private::new(WakeEvent::new())?,
            of: PhantomData,
        })
    }

    /// Makes a table of `len` words in these states.
    pub fn with(len: usize, states: impl IntoIterator<Item = S>) -> io::Result<Self> {
        let claims = Self::new(len)?;
        for (word, state) in claims.words.iter().zip(states) {
            // Before another thread knows of the table. Memory that stays zero is not touched.
            if state.bits() != 0 {
                word.store(state.bits(), Ordering::Relaxed);
            }
        }
        Ok(claims)
    }

    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns the current state. Everything that the last owner did before it finished is visible.
    pub fn look(&self, index: usize) -> Seen<S> {
        Seen::of(self.words[index].load(Ordering::Acquire))
    }

    /// Waits until the word is not claimed, and returns its state.
    pub fn settled(&self, index: usize) -> Seen<S> {
        self.ended.wait_for(|| Some(self.look(index)).filter(|seen| !seen.is_busy))
    }

    /// Claims the word. If another thread has it, waits for that thread.
    pub fn claim<'a>(&'a self, index: usize, _: &'a SignalsBlocked) -> Claim<'a, S> {
        self.ended.wait_for(|| self.try_claim(index, |_| true)).expect("claimed in any state")
    }

    /// Claims the word when it is not claimed, if `wanted` accepts its state.
    pub fn claim_if<'a>(
        &'a self,
        index: usize,
        wanted: impl Fn(S) -> bool,
        _: &'a SignalsBlocked,
    ) -> Option<Claim<'a, S>> {
        self.ended.wait_for(|| self.try_claim(index, &wanted))
    }

    /// Tries to claim the word. `None` while it is claimed. Otherwise returns a claim, or no claim
    /// if its state is not wanted.
    fn try_claim(&self, index: usize, wanted: impl Fn(S) -> bool) -> Option<Option<Claim<'_, S>>> {
        let free = |bits: u32| {
            let seen = Seen::<S>::of(bits);
            (!seen.is_busy && wanted(seen.state)).then_some(bits | BUSY)
        };
        // Acquire, whether it is claimed or only seen: what its last owner did has happened.
        match self.words[index].fetch_update(Ordering::Acquire, Ordering::Acquire, free) {
            Ok(bits) => {
                let Seen { state, is_broken, .. } = Seen::of(bits);
                held::note_taken();
                Some(Some(Claim { claims: self, index, state, is_broken }))
            }
            Err(bits) => (bits & BUSY == 0).then_some(None),
        }
    }

    /// Marks the word as broken permanently, whichever thread has claimed it.
    pub fn break_(&self, index: usize) {
        // Nothing is passed on with it: a bit is all there is to see.
        self.words[index].fetch_or(BROKEN, Ordering::Relaxed);
    }

    /// Ends a claim. A word that broke meanwhile stays broken.
    fn end_claim(&self, index: usize, state: S) {
        let ended = |bits: u32| Some(bits & BROKEN | state.bits());
        // Release: the next owner, and who looks, sees what this one did.
        let _ = self.words[index].fetch_update(Ordering::Release, Ordering::Relaxed, ended);
        self.ended.tell();
    }
}

impl<S: ClaimState> Claim<'_, S> {
    /// Returns the state at the time of the claim.
    pub fn state(&self) -> S {
        self.state
    }

    /// Returns true if the word was broken at the time of the claim.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Sets the new state and ends the claim. Returns the former state.
    pub fn finish(mut self, state: S) -> S {
        std::mem::replace(&mut self.state, state)
    }
}

impl<S: ClaimState> Drop for Claim<'_, S> {
    fn drop(&mut self) {
        held::note_released();
        self.claims.end_claim(self.index, self.state);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;
    use crate::thread::without_signals;

    impl ClaimState for u32 {
        fn bits(self) -> u32 {
            self
        }

        fn of(bits: u32) -> Self {
            bits
        }
    }

    #[test]
    fn claim_of_a_word_is_one_threads_and_loses_no_step() {
        let claims = Claims::with(7, [5, 0, 1]).unwrap();
        let inside: Vec<AtomicUsize> = (0..7).map(|_| AtomicUsize::new(0)).collect();
        let work = || {
            without_signals(|blocked| {
                for index in (0..7).cycle().take(2000) {
                    let claim = claims.claim(index, blocked);
                    assert_eq!(inside[index].fetch_add(1, Ordering::Relaxed), 0);
                    thread::yield_now();
                    inside[index].fetch_sub(1, Ordering::Relaxed);
                    let next = claim.state() + 1;
                    claim.finish(next);
                }
            });
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        let sum: u32 = (0..7).map(|index| claims.settled(index).state).sum();
        assert_eq!(sum, 4 * 2000 + 6);
    }

    #[test]
    fn claim_that_is_dropped_leaves_what_was() {
        without_signals(|blocked| {
            let claims = Claims::with(2, [3, 4]).unwrap();
            let claim = claims.claim(0, blocked);
            assert_eq!(claims.look(0), Seen { state: 3, is_busy: true, is_broken: false });
            drop(claim);
            assert_eq!(claims.look(0), Seen { state: 3, is_busy: false, is_broken: false });
            assert!(claims.claim_if(1, |state| state == 3, blocked).is_none());
            assert_eq!(claims.claim_if(1, |state| state == 4, blocked).unwrap().finish(9), 4);
            assert_eq!((claims.settled(1).state, claims.len()), (9, 2));
        });
    }

    #[test]
    fn break_of_a_word_at_any_time_stays() {
        without_signals(|blocked| {
            let claims = Claims::<u32>::new(1).unwrap();
            let claim = claims.claim(0, blocked);
            claims.break_(0);
            assert!(!claim.is_broken());
            claim.finish(8);
            assert_eq!(claims.look(0), Seen { state: 8, is_busy: false, is_broken: true });
            assert!(claims.claim(0, blocked).is_broken());
        });
    }
}

#[cfg(all(test, loom))]
#[allow(unsafe_code)]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const BLOCKED: SignalsBlocked = SignalsBlocked::in_a_model();

    /// 0: not done; 1: done; 2: released.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct WordStep(u32);

    impl ClaimState for WordStep {
        fn bits(self) -> u32 {
            self.0
        }

        fn of(bits: u32) -> Self {
            Self(bits)
        }
    }

    /// A table of one word, and memory that only its owner may touch: loom reports every access that is not
    /// ordered.
    struct ClaimedWord {
        claims: Claims<WordStep>,
        memory: UnsafeCell<u32>,
    }

    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Sync for ClaimedWord {}
    // SAFETY: loom reports every access that is not ordered.
    unsafe impl Send for ClaimedWord {}

    impl ClaimedWord {
        fn new() -> Arc<Self> {
            Arc::new(Self { claims: Claims::new(1).unwrap(), memory: UnsafeCell::new(0) })
        }

        /// Does the work, if no other thread has done it.
        fn serve(&self) {
            let claim = self.claims.claim(0, &BLOCKED);
            if claim.state() == WordStep(0) {
                self.add();
                claim.finish(WordStep(1));
            } else {
                assert_eq!(self.read(), 1);
            }
        }

        fn add(&self) {
            // SAFETY: the owner of the claim has it alone; loom checks just that.
            self.memory.with_mut(|memory| unsafe { *memory += 1 });
        }

        fn read(&self) -> u32 {
            // SAFETY: no thread writes it any more; loom checks just that.
            self.memory.with(|memory| unsafe { *memory })
        }
    }

    fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    #[test]
    fn claim_by_several_is_done_once_and_seen_later() {
        check(3, || {
            let shared = ClaimedWord::new();
            let other = Arc::clone(&shared);
            let other = thread::spawn(move || other.serve());
            shared.serve();
            other.join().unwrap();
            assert_eq!(shared.read(), 1);
        });
    }

    #[test]
    fn claim_by_three_is_had_by_each() {
        check(2, || {
            let shared = ClaimedWord::new();
            let start = |_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.serve())
            };
            let others = [0, 1].map(start);
            shared.serve();
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }

    #[test]
    fn claim_that_fails_is_left_to_the_next() {
        check(3, || {
            let shared = ClaimedWord::new();
            let other = Arc::clone(&shared);
            let other = thread::spawn(move || drop(other.claims.claim(0, &BLOCKED)));
            shared.serve();
            other.join().unwrap();
            assert_eq!(shared.claims.look(0).state, WordStep(1));
        });
    }

    /// A thread that only looks sees the completed work, too.
    #[test]
    fn look_after_a_claim_sees_what_was_done() {
        check(3, || {
            let shared = ClaimedWord::new();
            let looks = Arc::clone(&shared);
            let looks = thread::spawn(move || {
                if looks.claims.look(0).state == WordStep(1) {
                    assert_eq!(looks.read(), 1);
                }
            });
            shared.serve();
            looks.join().unwrap();
        });
    }

    /// The same holds for a thread that waits until the word is settled, or that would claim it
    /// only if there were work.
    #[test]
    fn wait_for_a_claim_sees_what_was_done() {
        check(3, || {
            let shared = ClaimedWord::new();
            let waits = Arc::clone(&shared);
            let waits = thread::spawn(move || {
                if waits.claims.settled(0).state == WordStep(1) {
                    assert_eq!(waits.read(), 1);
                }
                if waits.claims.claim_if(0, |step| step == WordStep(0), &BLOCKED).is_none() {
                    assert_eq!(waits.read(), 1);
                }
            });
            shared.serve();
            waits.join().unwrap();
        });
    }

    /// The page is released while another thread serves it: done, then released, or the other way
    /// round.
    #[test]
    fn release_beside_a_fault_does_not_mix() {
        check(3, || {
            let shared = ClaimedWord::new();
            let other = Arc::clone(&shared);
            let other = thread::spawn(move || {
                if let Some(claim) = other.claims.claim_if(0, |step| step == WordStep(1), &BLOCKED)
                {
                    other.memory.with_mut(|memory| {
                        // SAFETY: the owner of the claim has it alone; loom checks just that.
                        unsafe { *memory = 0 }
                    });
                    claim.finish(WordStep(0));
                }
            });
            shared.serve();
            other.join().unwrap();
            let seen = shared.claims.look(0);
            assert_eq!(shared.read(), seen.state.0);
        });
    }

    #[test]
    fn break_of_a_claimed_word_stays() {
        check(3, || {
            let shared = ClaimedWord::new();
            let other = Arc::clone(&shared);
            let other = thread::spawn(move || other.claims.break_(0));
            shared.serve();
            other.join().unwrap();
            let seen = shared.claims.look(0);
            assert!(seen.is_broken && !seen.is_busy && seen.state == WordStep(1));
        });
    }
}
