//! Operations measure which routine is fastest on this machine at this time.
//!
//! A [`Profile`] knows CPU models, so it misses newer ones. Therefore a clear or a copy with the
//! built-in profile measures while it works. Its first slices of 2 MiB are *trials*: libc and each
//! routine that streams on this CPU do one in turn, timed by the CPU's clock. The fastest does the
//! rest. The process shares these timings, and later operations of the same kind use them. After
//! that, one slice in 16 is a trial, because neighbours and frequencies change. This share falls to
//! one in 128. Shorter operations, from 16 KiB on, use the timings of long ones. At first, one of
//! eight of them is a trial as a whole. `README.md` beside this file describes the comparisons, the
//! highest cost, and the races that were considered.
//!
//! The routine never changes the resulting bytes, nor when other threads may see them.
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

/// The routine that did an operation's work, near window and trials apart.
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
    /// A profile: the operation's, the installed one, or the built-in one as long as nothing is
    /// learned.
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
    /// In the cache, as far as is known, or out of it.
    pub state: CacheState,
    /// The shortest length in bytes that it is for; the next one's, if any, ends it.
    pub from: usize,
    /// The routine in charge.
    pub routine: &'static str,
    /// Pieces of operations that were timed.
    pub trials: u32,
    /// True if each candidate had its turns.
    pub is_settled: bool,
}

/// All that a process learns. A method of which this CPU has only libc's routine has no candidates. Candidates are only
/// read; what operations write, signal handlers among them, lies in memory of our own.
#[derive(Debug)]
pub(crate) struct Knowledge {
    pub(crate) clear: Option<Candidates<ClearFn>>,
    pub(crate) copy: Option<Candidates<CopyFn>>,
}

static IS_ENABLED: AtomicBool = AtomicBool::new(true);
static KNOWLEDGE: First<Option<Knowledge>> = First::new();

/// Sets whether operations that go by the built-in profile learn, from now on, in this process. They do by default. What was learned is kept, and not gone by while it is off.
pub fn set_enabled(enabled: bool) {
    IS_ENABLED.store(enabled, Ordering::Relaxed);
}

/// Returns whether operations learn: not if that was [switched off](set_enabled), if a profile is installed, or if this
/// CPU offers nothing to choose from, or no clock.
#[must_use]
pub fn is_enabled() -> bool {
    knowledge().is_some()
}

/// Forgets what was learned: the next operations begin as a new process's do. For a program that was moved to other
/// CPUs and does not want to wait for the next trials; and for measuring.
pub fn forget() {
    if let Some(Some(knowledge)) = KNOWLEDGE.get() {
        knowledge.clear.iter().for_each(Candidates::forget);
        knowledge.copy.iter().for_each(Candidates::forget);
    }
}

/// Returns the measurements so far, by operation, state and length. Classes without measurements are left out.
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

/// Makes what operations need, for fault handlers, which may not allocate.
pub fn prepare() {
    let _ = (Profile::current(), knowledge());
}

impl Knowledge {
    /// `None` if nothing can be learned here. A shortage of memory is one reason. Not inlined, so that fault handlers,
    /// which never come here, have none of it on their stacks.
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

    /// Each method by itself, because an architecture may have a routine for clears and none for copies.
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
