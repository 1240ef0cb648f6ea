//! An operation that learns while it works.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::course::{Class, Course, SLICE};
use super::lesson::{Contest, Lesson};
use super::samples::Cost;
use super::{ChosenBy, Used};
use crate::arch::{Routine, Unfenced, ticks};
use crate::profile::CacheState;

/// The most looks of one operation that has nothing left to learn but whether it still holds.
const LOOKS_AT_ONCE: u32 = 16;

/// Chooses the routine for pieces of an operation, by what is known and to know more.
#[derive(Debug)]
pub(crate) struct Pupil<F: 'static> {
    course: &'static Course<F>,
    state: CacheState,
}

impl<F> Clone for Pupil<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Pupil<F> {}

impl<F> Pupil<F> {
    pub(crate) fn new(course: &'static Course<F>, state: CacheState) -> Self {
        Self { course, state }
    }

    /// What a piece of so many bytes goes by when no look is due.
    pub(crate) fn routine_for(&self, len: usize) -> &'static Routine<F> {
        self.in_charge(len).0
    }

    /// What a report says of it.
    pub(crate) fn used(&self, len: usize) -> Used {
        let (routine, is_learned) = self.in_charge(len);
        Used {
            routine: routine.name(),
            by: if is_learned { ChosenBy::Learned } else { ChosenBy::Profile },
        }
    }

    fn in_charge(&self, len: usize) -> (&'static Routine<F>, bool) {
        match Class::of(self.state, len) {
            Some(class) => self.course.in_charge(class, len),
            None => (self.course.prior(self.state, len), false),
        }
    }

    /// Has `process` do a piece by the routine in charge; some of it, now and then, by others that are looked at.
    #[inline]
    pub(crate) fn run(
        &self,
        piece: Range<usize>,
        process: &impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced,
    ) -> Unfenced {
        let len = piece.len();
        let Some(class) = Class::of(self.state, len) else {
            return process(self.course.prior(self.state, len), piece);
        };
        let count = self.course.count(class);
        let units = count.load(Ordering::Relaxed).saturating_add(units(len));
        if self.course.lesson(class).is_due(units) {
            return self.look(class, piece, units, process);
        }
        count.store(units, Ordering::Relaxed);
        process(self.course.in_charge(class, len).0, piece)
    }

    #[cold]
    #[inline(never)]
    fn look(
        &self,
        class: Class,
        piece: Range<usize>,
        units: u32,
        process: &impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced,
    ) -> Unfenced {
        let looking = Looking::new(self.course, class, piece.len());
        let interval = looking.lesson.verdict().interval;
        self.course.count(class).store(units & ((1 << interval) - 1), Ordering::Relaxed);
        if class.is_sliced() && piece.len() >= 2 * SLICE {
            let most = (piece.len() / SLICE) as u32;
            return looking.at_slices(looking.due(units >> interval).min(most), piece, process);
        }
        looking.at(piece, ticks(), process);
        Unfenced::nothing()
    }
}

/// Looks of one operation.
struct Looking<F: 'static> {
    course: &'static Course<F>,
    class: Class,
    len: usize,
    lesson: &'static Lesson,
    contest: Contest,
}

impl<F> Looking<F> {
    fn new(course: &'static Course<F>, class: Class, len: usize) -> Self {
        let (lesson, contest) = (course.lesson(class), course.contest(class, len));
        Self { course, class, len, lesson, contest }
    }

    /// How many slices are looked at: until the lesson is settled, and then as many as are due.
    fn due(&self, due: u32) -> u32 {
        match self.lesson.looks_left(&self.contest) {
            0 => due.min(LOOKS_AT_ONCE),
            left => left,
        }
    }

    /// The first slices by candidates in turn, the rest by the routine in charge then.
    fn at_slices(
        &self,
        slices: u32,
        piece: Range<usize>,
        process: &impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced,
    ) -> Unfenced {
        let (mut rest, mut now) = (piece, ticks());
        for _ in 0..slices {
            let slice = rest.start..rest.start + SLICE;
            rest.start = slice.end;
            now = self.at(slice, now, process);
        }
        if rest.is_empty() {
            return Unfenced::nothing();
        }
        process(self.course.in_charge(self.class, self.len).0, rest)
    }

    /// All of these bytes by the candidate whose turn it is, from `begun` to the moment that it returns.
    fn at(
        &self,
        bytes: Range<usize>,
        begun: u64,
        process: &impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced,
    ) -> u64 {
        let (course, lesson) = (self.course, self.lesson);
        let look = lesson.begin(&self.contest);
        let len = bytes.len();
        // Streamed bytes count when they are out.
        process(course.candidate(look.candidate), bytes).publish();
        let now = ticks();
        let cost = Cost::of(now.saturating_sub(begun), len);
        lesson.end(look, cost, &self.contest);
        if !look.counts {
            // The other one of the pair is the next operation.
            let due = 1 << lesson.verdict().interval;
            course.count(self.class).store(due, Ordering::Relaxed);
        }
        now
    }
}

/// What an operation counts for: its slices, or one.
#[inline]
fn units(len: usize) -> u32 {
    u32::try_from(len / SLICE).unwrap_or(u32::MAX).max(1)
}
