//! Operations measure which routine is fastest on this machine at this time.
//!
//! The built-in [`Profile`] knows CPU models, and does not know newer models. Therefore a clear or
//! a copy with the built-in profile measures while it works. Its first slices of 2 MiB are
//! *trials*: libc and each streaming routine of this CPU process a slice in turn, timed by the
//! CPU's clock. The fastest routine processes the rest. The process shares these timings, and later
//! operations of the same kind use them. After that, one slice in 16 is a trial, because neighbours
//! and CPU frequencies change. This share falls to one slice in 128. Operations of 16 KiB and more
//! that are shorter than a slice use the timings of long operations. At first, one in eight of them
//! is a trial as a whole. `README.md` beside this file describes the comparisons, the highest cost,
//! and the races that were considered.
//!
//! The choice of the routine never changes the resulting bytes, nor the moment at which other
//! threads may see them.
//!
//! A program that needs the same routine every time [installs](Profile::install) a profile, or
//! calls [`set_enabled(false)`](set_enabled).

mod candidates;
mod learner;
mod measurement;
mod samples;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::arch::{ClearFn, CopyFn, Routine, clear_routines, copy_routines};
use crate::profile::{CacheState, Choice, Profile};
use hugekit_sys::headroom;
use hugekit_sys::process::may_read_ticks;
use hugekit_sys::sync::First;

pub(crate) use self::candidates::Candidates;
pub(crate) use self::learner::Learner;

/// The routine that processed the bytes of an operation, except the near window and trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Used {
    /// The routine's name.
    pub routine: &'static str,
    /// The source of the choice.
    pub by: ChosenBy,
}

/// The source of the choice of a routine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChosenBy {
    /// The caller named it.
    Caller,
    /// A profile: the operation's profile, the installed profile, or the built-in profile while
    /// nothing is learned.
    Profile,
    /// Trials in this process found it the fastest.
    Learned,
}

/// Measurements of operations of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Learned {
    /// `clear` or `copy`.
    pub operation: &'static str,
    /// The state of the bytes before the operation: possibly in the cache, or not.
    pub state: CacheState,
    /// The shortest length in bytes of this class. The class ends where the next class begins.
    pub from: usize,
    /// The routine that the process uses for this class.
    pub routine: &'static str,
    /// Pieces of operations that were timed.
    pub trials: u32,
    /// True if each candidate was timed as often as the first comparison needs.
    pub is_settled: bool,
}

/// The timings of a process. A method has no candidates if libc's routine is the only routine of
/// this CPU. Candidates are only read. Operations, also those in signal handlers, write to memory
/// that this crate has mapped.
#[derive(Debug)]
pub(crate) struct Knowledge {
    pub(crate) clear: Option<Candidates<ClearFn>>,
    pub(crate) copy: Option<Candidates<CopyFn>>,
}

static IS_ENABLED: AtomicBool = AtomicBool::new(true);
static KNOWLEDGE: First<Option<Knowledge>> = First::new();

/// Switches learning on or off for later operations of this process that use the built-in profile.
/// By default on. Timings are kept while learning is off, but not used.
pub fn set_enabled(enabled: bool) {
    IS_ENABLED.store(enabled, Ordering::Relaxed);
}

/// Returns true if operations learn. They do not if learning was [switched off](set_enabled), if a
/// profile is installed, if this CPU has only one routine, or if it has no clock.
#[must_use]
pub fn is_enabled() -> bool {
    knowledge().is_some()
}

/// Discards all timings: the next operations begin as in a new process. This is for a program that
/// was moved to other CPUs and does not want to wait for the next trials, and for measurements.
pub fn forget() {
    if let Some(Some(knowledge)) = KNOWLEDGE.get() {
        knowledge.clear.iter().for_each(Candidates::forget);
        knowledge.copy.iter().for_each(Candidates::forget);
    }
}

/// Returns the timings so far, by operation, state and length. Classes without timings are left
/// out.
#[must_use]
pub fn learned() -> Vec<Learned> {
    let Some(Some(knowledge)) = KNOWLEDGE.get() else { return Vec::new() };
    let clear = knowledge.clear.iter().flat_map(|clear| clear.learned("clear"));
    let copy = knowledge.copy.iter().flat_map(|copy| copy.learned("copy"));
    clear.chain(copy).collect()
}

/// Returns the knowledge of operations, if they learn. The first call allocates and maps memory. [`prepare`] makes it
/// for fault handlers.
#[inline]
pub(crate) fn knowledge() -> Option<&'static Knowledge> {
    if !IS_ENABLED.load(Ordering::Relaxed) || Profile::is_installed() {
        return None;
    }
    KNOWLEDGE.get_or_make(Knowledge::new).as_ref()
}

/// Allocates the memory for timings now. Fault handlers need this, because they may not allocate.
pub fn prepare() {
    let _ = (Profile::current(), knowledge());
}

impl Knowledge {
    /// Allocates the memory for timings. `None` if nothing can be learned here, or if memory is
    /// short. Not inlined, so that fault handlers, which never call this function, need no stack
    /// for it.
    #[cold]
    #[inline(never)]
    fn new() -> Option<Self> {
        if !may_read_ticks() || headroom::check().is_err() {
            return None;
        }
        let profile = Profile::built_in();
        let clear = candidates(clear_routines(), &profile.clear).ok()?;
        let copy = candidates(copy_routines(), &profile.copy).ok()?;
        (clear.is_some() || copy.is_some()).then_some(Self { clear, copy })
    }
}

/// Returns the candidates of a method, if there are several.
fn candidates<F>(
    table: &'static [Routine<F>],
    built_in: &'static Choice<F>,
) -> rustix::io::Result<Option<Candidates<F>>> {
    let has_choice = table.iter().filter(|row| row.is_available()).nth(1).is_some();
    has_choice.then(|| Candidates::new(table, built_in)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::ticks;

    /// An architecture with more than libc's routines needs a clock, or learning compares nothing.
    #[test]
    fn clock_of_an_architecture_with_routines_of_its_own_advances() {
        if clear_routines().len() + copy_routines().len() > 2 {
            let start = ticks();
            assert!((0..1 << 24).any(|_| ticks() > start), "`ticks` of this architecture stands");
        }
    }

    /// Checks each method separately, because an architecture may have a routine for clears and
    /// none for copies.
    #[test]
    fn method_with_several_routines_has_candidates_and_one_with_libcs_has_none() {
        let built_in = &Profile::built_in().clear;
        let (one, all) = (&clear_routines()[..1], clear_routines());
        assert!(candidates(one, built_in).unwrap().is_none());
        let is_there = |row: &&Routine<_>| row.is_available();
        let several = all.iter().filter(is_there).count() > 1;
        assert_eq!(candidates(all, built_in).unwrap().is_some(), several);
    }
}
