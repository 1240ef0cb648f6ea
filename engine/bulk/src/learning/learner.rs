//! An operation that learns while it works.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::candidates::{Candidates, Class, SLICE};
use super::measurement::{Comparison, Measurement};
use super::samples::TimePerByte;
use super::{ChosenBy, Used};
use crate::arch::{Routine, Unfenced, ticks};
use crate::profile::CacheState;

/// The most trials of one operation whose class is settled.
const TRIALS_AT_ONCE: u32 = 16;

/// A chooser of the routine for each piece of an operation. It uses the timings so far, and
/// measures.
#[derive(Debug)]
pub(crate) struct Learner<F: 'static> {
    candidates: &'static Candidates<F>,
    state: CacheState,
}

impl<F> Clone for Learner<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Learner<F> {}

impl<F> Learner<F> {
    pub(crate) fn new(candidates: &'static Candidates<F>, state: CacheState) -> Self {
        Self { candidates, state }
    }

    /// Returns the routine for a piece of this many bytes if no trial is due.
    pub(crate) fn routine_for(&self, len: usize) -> &'static Routine<F> {
        self.in_charge(len).0
    }

    /// Returns the routine for a report.
    pub(crate) fn used(&self, len: usize) -> Used {
        let (routine, is_learned) = self.in_charge(len);
        Used {
            routine: routine.name(),
            by: if is_learned { ChosenBy::Learned } else { ChosenBy::Profile },
        }
    }

    fn in_charge(&self, len: usize) -> (&'static Routine<F>, bool) {
        match Class::of(self.state, len) {
            Some(class) => self.candidates.in_charge(class, len),
            None => (self.candidates.prior(self.state, len), false),
        }
    }

    /// Passes a piece to `process` with the routine in charge. If a trial is due, other candidates
    /// process parts of the piece.
    #[inline]
    pub(crate) fn run(
        &self,
        piece: Range<usize>,
        process: &impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced,
    ) -> Unfenced {
        let len = piece.len();
        let Some(class) = Class::of(self.state, len) else {
            return process(self.candidates.prior(self.state, len), piece);
        };
        let count = self.candidates.count(class);
        let units = count.load(Ordering::Relaxed).saturating_add(units(len));
        if self.candidates.measurement(class).is_due(units) {
            return self.run_trials(class, piece, units, process);
        }
        count.store(units, Ordering::Relaxed);
        process(self.candidates.in_charge(class, len).0, piece)
    }

    #[cold]
    #[inline(never)]
    fn run_trials(
        &self,
        class: Class,
        piece: Range<usize>,
        units: u32,
        process: &impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced,
    ) -> Unfenced {
        let trials = Trials::new(self.candidates, class, piece.len());
        let interval = trials.measurement.verdict().interval;
        self.candidates.count(class).store(units & ((1 << interval) - 1), Ordering::Relaxed);
        if class.is_sliced() && piece.len() >= 2 * SLICE {
            let most = (piece.len() / SLICE) as u32;
            return trials.run_slices(
                trials.count_due(units >> interval).min(most),
                piece,
                process,
            );
        }
        trials.run_one(piece, ticks(), process);
        Unfenced::nothing()
    }
}

/// The trials of one operation.
struct Trials<F: 'static> {
    candidates: &'static Candidates<F>,
    class: Class,
    len: usize,
    measurement: &'static Measurement,
    comparison: Comparison,
}

impl<F> Trials<F> {
    fn new(candidates: &'static Candidates<F>, class: Class, len: usize) -> Self {
        let (measurement, comparison) =
            (candidates.measurement(class), candidates.comparison(class, len));
        Self { candidates, class, len, measurement, comparison }
    }

    /// Returns the number of slices that are trials: all slices until the class is settled, and
    /// then the slices that are due.
    fn count_due(&self, due: u32) -> u32 {
        match self.measurement.trials_left(&self.comparison) {
            0 => due.min(TRIALS_AT_ONCE),
            left => left,
        }
    }

    /// Processes the first slices by the candidates in turn, and the rest by the routine that is
    /// then in charge.
    fn run_slices(
        &self,
        slices: u32,
        piece: Range<usize>,
        process: &impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced,
    ) -> Unfenced {
        let (mut rest, mut now) = (piece, ticks());
        for _ in 0..slices {
            let slice = rest.start..rest.start + SLICE;
            rest.start = slice.end;
            now = self.run_one(slice, now, process);
        }
        if rest.is_empty() {
            return Unfenced::nothing();
        }
        process(self.candidates.in_charge(self.class, self.len).0, rest)
    }

    /// Processes all of these bytes by the candidate whose turn it is. The time of the trial runs
    /// from `begun` to the return of the routine.
    fn run_one(
        &self,
        bytes: Range<usize>,
        begun: u64,
        process: &impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced,
    ) -> u64 {
        let (candidates, measurement) = (self.candidates, self.measurement);
        let trial = measurement.begin_trial(&self.comparison);
        let len = bytes.len();
        // Streamed bytes count when they are out.
        process(candidates.candidate(trial.candidate), bytes).publish();
        let now = ticks();
        let cost = TimePerByte::of(now.saturating_sub(begun), len);
        measurement.end_trial(trial, cost, &self.comparison);
        if !trial.counts {
            // The other one of the pair is the next operation.
            let due = 1 << measurement.verdict().interval;
            candidates.count(self.class).store(due, Ordering::Relaxed);
        }
        now
    }
}

/// Returns the number of units of an operation: its slices, at least one.
#[inline]
fn units(len: usize) -> u32 {
    u32::try_from(len / SLICE).unwrap_or(u32::MAX).max(1)
}
