//! The candidates of one method, its classes, and the measurements of each class.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Learned;
use super::measurement::{Comparison, ComparisonRules, MAX_CANDIDATES, Measurement};
use crate::arch::{Compared, Kind, Routine, clear_routines, copy_routines};
use crate::profile::{COLD_MOST, CacheState, Choice, WARM_MOST};
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::private_pages::{PrivatePiece, PrivateSlice};

/// Bytes of a slice. In a large operation, each candidate processes whole slices; a unit has at
/// most one slice.
pub(super) const SLICE: usize = HUGE_PAGE_BYTES;

/// Operations of at least this many bytes teach, as a logarithm. All operations from the second
/// number on form one class.
const COLD: (u32, u32) = (COLD_MOST.ilog2(), SLICE.ilog2());
const WARM: (u32, u32) = (WARM_MOST.ilog2(), 30);

/// Warm operations below this length are compared as wholes, not in slices, because the previous
/// operation decides which bytes are in the cache when the next operation begins. Logarithm.
const WHOLE_BELOW: u32 = 25;

/// The number of units for each trial of a settled class, at first and at last, as logarithms. A
/// trial of a whole operation costs more than the work of the other routine, because a CPU that
/// changes from one kind of vectors to another may stop for 10 µs. So such trials are rarer.
const SLICES: (u32, u32) = (4, 7);
const WHOLES: (u32, u32) = (6, 10);

/// The margin by which another candidate must win: a thirty-second, about the difference of two
/// medians of three slices; a sixteenth if the best of three samples of several candidates counts;
/// an eighth if the samples are microseconds.
const INERTIA: (u64, u64) = (1, 32);
const HELD_INERTIA: (u64, u64) = (1, 16);
const SHORT_INERTIA: (u64, u64) = (1, 8);

const SLICED: ComparisonRules = ComparisonRules {
    patience: 0,
    may_be_held: false,
    intervals: SLICES,
    inertia: INERTIA,
    readers_share: (0, 1),
};

const SHORT: ComparisonRules =
    ComparisonRules { patience: 3, intervals: WHOLES, inertia: SHORT_INERTIA, ..SLICED };

/// If a cache holds the bytes, their reader loses by streaming, and streaming is up to 1.3 times as
/// fast. If no cache holds the bytes, streaming is 1.6 to 2.8 times as fast (decision 19).
const HELD: ComparisonRules =
    ComparisonRules { may_be_held: true, inertia: HELD_INERTIA, readers_share: (1, 2), ..SHORT };

/// The number of classes of both states.
const CLASSES: usize = (COLD.1 - COLD.0 + 1 + WARM.1 - WARM.0 + 1) as usize;

/// The number of counters of the units since the last trial. With several counters, threads do not
/// write the same line.
const STRIPES: usize = 16;

/// By class, the units since the last trial, for the threads that share a stripe.
#[derive(Debug)]
#[repr(align(128))]
struct Stripe([AtomicU32; CLASSES]);

impl Stripe {
    const fn new() -> Self {
        Self([const { AtomicU32::new(0) }; CLASSES])
    }
}

/// A class of similar operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) state: CacheState,
    /// The class's shortest length in bytes, as a logarithm.
    pub(super) log: u32,
}

impl Class {
    /// Returns the class of pieces of this many bytes; `None` if they are too short to learn from.
    #[inline]
    pub(super) fn of(state: CacheState, len: usize) -> Option<Self> {
        let (first, last) = Self::range(state);
        let log = len.checked_ilog2().filter(|&log| log >= first)?;
        Some(Self { state, log: log.min(last) })
    }

    const fn range(state: CacheState) -> (u32, u32) {
        match state {
            CacheState::Cold => COLD,
            CacheState::Warm => WARM,
        }
    }

    #[inline]
    fn index(self) -> usize {
        match self.state {
            CacheState::Cold => (self.log - COLD.0) as usize,
            CacheState::Warm => (COLD.1 - COLD.0 + 1 + self.log - WARM.0) as usize,
        }
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        [CacheState::Cold, CacheState::Warm].into_iter().flat_map(|state| {
            let (first, last) = Self::range(state);
            (first..=last).map(move |log| Self { state, log })
        })
    }

    /// Returns true if the class's operations are compared as wholes: the candidates that store
    /// through the cache, and the best candidate that streams.
    pub(super) fn is_whole(self) -> bool {
        self.state == CacheState::Warm && self.log < WHOLE_BELOW
    }

    /// Returns true if the class's operations are divided into slices for trials.
    pub(super) fn is_sliced(self) -> bool {
        !self.is_whole() && (1 << self.log) >= SLICE
    }

    fn rules(self) -> &'static ComparisonRules {
        match self {
            _ if self.is_whole() => &HELD,
            _ if self.is_sliced() => &SLICED,
            _ => &SHORT,
        }
    }
}

/// The knowledge of one method, clear or copy: its candidates, and their measurements by
/// class.
#[derive(Debug)]
pub(crate) struct Candidates<F: 'static> {
    /// Routines of the table that this CPU can run; libc's is the first.
    candidates: Vec<&'static Routine<F>>,
    /// Bits, one per candidate, set if the candidate is compared for bytes that only pass through
    /// the cache. The candidate's row says so, or the built-in profile chooses the candidate for
    /// them.
    passing: u32,
    /// Bits, one per candidate, set if the candidate's row says that it is compared for bytes that
    /// a cache may hold.
    held: u32,
    built_in: &'static Choice<F>,
    /// The measurements, by class.
    measurements: PrivateSlice<Measurement>,
    stripes: PrivateSlice<Stripe>,
}

const _: () = assert!(
    clear_routines().len() <= MAX_CANDIDATES && copy_routines().len() <= MAX_CANDIDATES,
    "raise MAX_CANDIDATES: a table of routines is longer"
);

impl<F> Candidates<F> {
    pub(super) fn new(
        table: &'static [Routine<F>],
        built_in: &'static Choice<F>,
    ) -> rustix::io::Result<Self> {
        let is_there = |routine: &&Routine<F>| routine.is_available();
        let candidates: Vec<&Routine<F>> = table.iter().filter(is_there).collect();
        let is_named =
            |routine| built_in.cold.as_slice().iter().any(|band| band.routine == routine);
        let (mut passing, mut held) = (0, 0);
        for (index, &routine) in candidates.iter().enumerate() {
            let (is_passing, is_held) = match routine.compared() {
                Compared::Held => (is_named(routine), true),
                Compared::Passing => (true, false),
                Compared::All => (true, true),
            };
            passing |= u32::from(is_passing) << index;
            held |= u32::from(is_held) << index;
        }
        let len = PrivatePiece::bytes_of::<Measurement>(CLASSES)
            + PrivatePiece::bytes_of::<Stripe>(STRIPES);
        let mut piece = PrivatePiece::new(len)?;
        let measurements = piece.filled(CLASSES, |_| Measurement::new());
        let stripes = piece.filled(STRIPES, |_| Stripe::new());
        Ok(Self { candidates, passing, held, built_in, measurements, stripes })
    }

    #[inline]
    pub(super) fn measurement(&self, class: Class) -> &Measurement {
        &self.measurements[class.index()]
    }

    /// Returns the routine in charge of a class, and true if the routine was learned. Short cold
    /// operations use the routine that long operations found fastest, until their own class is
    /// settled.
    #[inline]
    pub(super) fn in_charge(&self, class: Class, len: usize) -> (&'static Routine<F>, bool) {
        let verdict = self.measurement(class).verdict();
        let is_own = verdict.is_settled || class.state == CacheState::Warm;
        let own = || verdict.candidate;
        let learned = if is_own { own() } else { self.longest_cold().or_else(own) };
        match learned.and_then(|index| self.candidates.get(index)) {
            Some(routine) => (routine, true),
            None => (self.prior(class.state, len), false),
        }
    }

    /// Returns the built-in choice.
    #[inline]
    pub(super) fn prior(&self, state: CacheState, len: usize) -> &'static Routine<F> {
        self.built_in.bands(state).routine_for(len)
    }

    /// Returns the routine that cold slices found fastest.
    fn longest_cold(&self) -> Option<usize> {
        let verdict = self.measurement(Class { state: CacheState::Cold, log: COLD.1 }).verdict();
        verdict.candidate.filter(|_| verdict.is_settled)
    }

    /// Returns the candidates that an operation of this class and of `len` bytes compares: those
    /// whose rows say so. For bytes that a cache may hold, also the candidate that streams best, as
    /// far as is known.
    pub(super) fn comparison(&self, class: Class, len: usize) -> Comparison {
        let prior = self.index_of(self.in_charge(class, len).0);
        let streams = |index: &usize| self.candidates[*index].kind() == Kind::Streaming;
        let all = 0..self.candidates.len();
        if !class.is_whole() {
            let passing = all.filter(|index| self.passing >> index & 1 != 0);
            return Comparison::new(class.rules(), prior, passing, streams);
        }
        let cold = self.index_of(self.prior(CacheState::Cold, len));
        let best = self.longest_cold().into_iter().chain([cold]).chain(all.clone()).find(streams);
        let held = all.filter(|index| self.held >> index & 1 != 0);
        Comparison::new(class.rules(), prior, held.chain(best), streams)
    }

    pub(super) fn candidate(&self, index: usize) -> &'static Routine<F> {
        self.candidates[index]
    }

    /// Returns the index of a routine. The routines of the built-in profile are among the
    /// candidates.
    fn index_of(&self, routine: &Routine<F>) -> usize {
        self.candidates.iter().position(|candidate| *candidate == routine).unwrap_or(0)
    }

    /// Returns the counter of the calling thread for the units of a class.
    #[inline]
    pub(super) fn count(&self, class: Class) -> &AtomicU32 {
        &self.stripes[stripe()].0[class.index()]
    }

    /// Returns the measurements of the classes that have any.
    pub(super) fn learned(&self, operation: &'static str) -> impl Iterator<Item = Learned> {
        Class::all().filter_map(move |class| {
            let (measurement, verdict) =
                (self.measurement(class), self.measurement(class).verdict());
            Some(Learned {
                operation,
                state: class.state,
                from: 1 << class.log,
                routine: self.candidates.get(verdict.candidate?)?.name(),
                trials: measurement.trials(),
                is_settled: verdict.is_settled,
            })
        })
    }

    pub(super) fn forget(&self) {
        self.measurements.iter().for_each(Measurement::forget);
        for stripe in &*self.stripes {
            stripe.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        }
    }
}

/// Returns a stripe, chosen by the address of the calling thread's stack. Most threads get
/// different stripes. A signal handler gets a stripe, too. The function needs no thread-local
/// state.
#[inline]
fn stripe() -> usize {
    let here = 0_u8;
    let stack = std::hint::black_box(&raw const here).addr() as u64 >> 21;
    (stack.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % STRIPES
}

#[cfg(test)]
mod tests {
    use super::super::samples::TimePerByte;
    use super::*;

    #[test]
    fn classes_of_any_length_have_a_place_of_their_own() {
        let mut seen = [false; CLASSES];
        for class in Class::all() {
            assert!(!std::mem::replace(&mut seen[class.index()], true), "{class:?}");
            assert_eq!(Class::of(class.state, 1 << class.log), Some(class));
            assert_eq!(Class::of(class.state, (2 << class.log) - 1), Some(class));
        }
        assert_eq!(seen, [true; CLASSES]);
        for state in [CacheState::Warm, CacheState::Cold] {
            assert_eq!(Class::of(state, 0), None);
            assert!(Class::of(state, usize::MAX).is_some());
        }
        assert_eq!(Class::of(CacheState::Cold, COLD_MOST - 1), None);
        assert!(Class::of(CacheState::Cold, COLD_MOST).is_some());
        assert_eq!(Class::of(CacheState::Warm, WARM_MOST - 1), None);
        assert!(Class::of(CacheState::Warm, WARM_MOST).is_some());
    }

    /// Works through operations of a class until it is settled. A piece of work by `fastest` costs half of that by any
    /// other routine.
    fn settle<F>(candidates: &Candidates<F>, class: Class, fastest: &Routine<F>) {
        let (measurement, len) = (candidates.measurement(class), 1 << class.log);
        while !measurement.verdict().is_settled {
            let comparison = candidates.comparison(class, len);
            let trial = measurement.begin_trial(&comparison);
            let is_fastest = candidates.candidate(trial.candidate) == fastest;
            let ticks = if is_fastest { 1 << 20 } else { 2 << 20 };
            measurement.end_trial(trial, TimePerByte::of(ticks, SLICE), &comparison);
        }
    }

    /// For each row that this CPU has, measurements in which it is the fastest let operations of each class of its row
    /// use it. So no row is left out, whatever its name.
    fn chooses_each<F>(table: &'static [Routine<F>], built_in: &'static Choice<F>) {
        for row in table.iter().filter(|row| row.is_available()) {
            let candidates = Candidates::new(table, built_in).unwrap();
            let is_of_row = |class: &Class| match row.compared() {
                Compared::Held => class.is_whole(),
                Compared::Passing => !class.is_whole(),
                Compared::All => true,
            };
            for class in Class::all().filter(is_of_row) {
                settle(&candidates, class, row);
                let used = candidates.in_charge(class, 1 << class.log);
                assert_eq!((used.0.name(), used.1), (row.name(), true), "{class:?}");
            }
            if row.kind() == Kind::Streaming {
                let class = Class { state: CacheState::Warm, log: WARM.0 };
                settle(&candidates, class, row);
                assert_eq!(
                    candidates.in_charge(class, WARM_MOST).0.name(),
                    row.name(),
                    "{class:?}"
                );
            }
        }
    }

    #[test]
    fn routine_that_measures_fastest_is_used_whichever_row_of_the_table_it_is() {
        let profile = crate::profile::Profile::built_in();
        chooses_each(clear_routines(), &profile.clear);
        chooses_each(copy_routines(), &profile.copy);
    }

    #[test]
    fn stripes_of_stacks_apart_differ() {
        let of = |_| std::thread::spawn(stripe).join().unwrap();
        assert!((0..32).map(of).all(|stripe| stripe < STRIPES));
    }
}
