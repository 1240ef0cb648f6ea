//! Options and plan of a clear or a copy: hints about the next use of the memory, and the routine
//! for each part of it.
//!
//! An [`Operation`] is a builder. [`ClearOptions`](crate::ClearOptions) and
//! [`CopyOptions`](crate::CopyOptions) are its two kinds, with different types of routines. A plan
//! combines a profile with a sweep: an order of extents, one routine for the far extents and one
//! routine for the near window.

use std::convert::Infallible;
use std::ops::Range;

use crate::arch::{
    ClearFn, CopyFn, CopyRoutine, Routine, Unfenced, clear_routines, copy_once_routine,
    copy_routines,
};
use crate::learning::{self, Candidates, ChosenBy, Knowledge, Learner, Used};
use crate::parallel::{Cancel, JobError, Progress, Report, Threads, WorkSharing};
use crate::profile::{
    CLEAR_PLAIN_BELOW, COPY_PLAIN_BELOW, CacheState, Choice, PlainBelow, Profile,
};
use crate::sweep::{Order, Reach, near_window};
use hugekit_sys::ErrorKind;

/// The next use of the memory, as far as the caller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reuse {
    /// The next use is not known. With a target, the same as [`Target`](Self::Target). Without a
    /// target, the length decides if the bytes stream past the cache.
    #[default]
    Unknown,
    /// The next user needs the bytes around the target, or around offset 0 if there is no target.
    /// These bytes stay in the cache. The rest streams past the cache.
    Target,
    /// The next user needs all bytes soon. As many bytes as fit into this CPU's cache stay there,
    /// beginning with the bytes around the target.
    All,
    /// No thread uses the bytes soon. All of them stream past the cache.
    None,
}

impl Reuse {
    /// Returns true if some of the memory is used soon.
    fn is_soon(self) -> bool {
        matches!(self, Self::Target | Self::All)
    }
}

/// An error of a hint. The memory is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HintError {
    /// The target is not an offset within the memory.
    #[error("target offset {target} lies outside the {len} bytes of memory")]
    TargetOutside {
        /// The requested target, in bytes from the start.
        target: usize,
        /// The length of the memory in bytes.
        len: usize,
    },
    /// This CPU cannot run the requested routine.
    #[error("routine {name} is not available here: it needs {needs}")]
    RoutineUnavailable {
        /// The routine's name.
        name: &'static str,
        /// The feature that the CPU lacks.
        needs: &'static str,
    },
}

/// The kind of operation: [`ClearFn`] or [`CopyFn`]. No other type can implement it.
pub trait Method: Sized + Sync + 'static + sealed::Sealed {
    /// Returns the profile's bands for this method.
    #[doc(hidden)]
    fn choice(profile: &Profile) -> &Choice<Self>;

    /// Returns the routine for a near window whose source no thread uses, if the method has a
    /// source and a routine for this case.
    #[doc(hidden)]
    fn source_once() -> Option<&'static Routine<Self>>;
}

impl Method for ClearFn {
    fn choice(profile: &Profile) -> &Choice<Self> {
        &profile.clear
    }

    fn source_once() -> Option<&'static Routine<Self>> {
        None
    }
}

impl Method for CopyFn {
    fn choice(profile: &Profile) -> &Choice<Self> {
        &profile.copy
    }

    fn source_once() -> Option<&'static Routine<Self>> {
        Some(copy_once_routine())
    }
}

#[allow(private_interfaces, reason = "no other crate can name the trait")]
mod sealed {
    use super::{
        CLEAR_PLAIN_BELOW, COPY_PLAIN_BELOW, Candidates, ClearFn, CopyFn, Knowledge, PlainBelow,
        Routine, clear_routines, copy_routines,
    };

    pub trait Sealed: Sized + 'static {
        /// Returns libc's routine.
        fn libc() -> &'static Routine<Self>;

        /// Returns the lengths below which the routine is libc's, for every profile.
        fn plain_below() -> &'static PlainBelow;

        /// Returns the candidates of this method, if there are several.
        fn candidates(knowledge: &Knowledge) -> Option<&Candidates<Self>>;
    }

    impl Sealed for ClearFn {
        fn libc() -> &'static Routine<Self> {
            &clear_routines()[0]
        }

        fn plain_below() -> &'static PlainBelow {
            &CLEAR_PLAIN_BELOW
        }

        fn candidates(knowledge: &Knowledge) -> Option<&Candidates<Self>> {
            knowledge.clear.as_ref()
        }
    }

    impl Sealed for CopyFn {
        fn libc() -> &'static Routine<Self> {
            &copy_routines()[0]
        }

        fn plain_below() -> &'static PlainBelow {
            &COPY_PLAIN_BELOW
        }

        fn candidates(knowledge: &Knowledge) -> Option<&Candidates<Self>> {
            knowledge.copy.as_ref()
        }
    }
}

/// Options of a clear ([`ClearOptions`](crate::ClearOptions)) or a copy
/// ([`CopyOptions`](crate::CopyOptions)).
#[derive(Debug)]
#[must_use = "a builder does nothing until run"]
pub struct Operation<'a, F: 'static> {
    /// True if the caller set any option other than a reuse that keeps nothing in the cache.
    asks: bool,
    target: Option<usize>,
    reuse: Reuse,
    source_reuse: Reuse,
    routine: Option<&'static Routine<F>>,
    near_bytes: Option<usize>,
    profile: Option<&'a Profile>,
    pub(crate) sharing: WorkSharing<'a>,
}

impl<F> Clone for Operation<'_, F> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<F: Method> Default for Operation<'_, F> {
    fn default() -> Self {
        Self::with_hints(None, Reuse::default(), Reuse::default())
    }
}

impl<'a, F: Method> Operation<'a, F> {
    /// Returns the default options: one thread, and only the length chooses the routine.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an operation with a target, a reuse and a reuse of the source, in one call. Each step
    /// of a builder needs stack, and a signal handler has little stack.
    #[doc(hidden)]
    pub fn with_hints(target: Option<usize>, reuse: Reuse, source_reuse: Reuse) -> Self {
        Self {
            asks: target.is_some() || reuse.is_soon() || source_reuse.is_soon(),
            target,
            reuse,
            source_reuse,
            routine: None,
            near_bytes: None,
            profile: None,
            sharing: WorkSharing::default(),
        }
    }

    /// Sets the byte that is used next, as an offset from the start of the memory. By default no
    /// byte. In a page-fault handler, pass the offset of the faulting address, not of its page.
    pub fn target(mut self, offset: usize) -> Self {
        self.asks = true;
        self.target = Some(offset);
        self
    }

    /// Sets the next use of the written memory. By default [`Reuse::Unknown`].
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.asks |= reuse.is_soon();
        self.reuse = reuse;
        self
    }

    /// Sets the next use of the source of a copy.
    pub(crate) fn reuse_of_source(mut self, reuse: Reuse) -> Self {
        self.asks |= reuse.is_soon();
        self.source_reuse = reuse;
        self
    }

    /// Sets the routine for all bytes, near and far. By default the profile and the process's
    /// timings choose the routine.
    pub fn routine(mut self, routine: &'static Routine<F>) -> Self {
        self.asks = true;
        self.routine = Some(routine);
        self
    }

    /// Sets the length of the near window in bytes, rounded up to a multiple of 4 KiB. By default
    /// the length in the profile.
    pub fn near_bytes(mut self, bytes: usize) -> Self {
        self.near_bytes = Some(bytes);
        self
    }

    /// Sets the profile that chooses routines and threads. By default [`Profile::current`].
    pub fn profile(mut self, profile: &'a Profile) -> Self {
        self.asks = true;
        self.profile = Some(profile);
        self
    }

    /// Sets the number of threads, the calling thread included. By default [`Threads::One`].
    pub fn threads(mut self, threads: Threads) -> Self {
        self.asks = true;
        self.sharing.threads = threads;
        self
    }

    /// Sets a callback that is called after each chunk, with the number of bytes done. By default
    /// none. The near window is processed last, but its bytes count with the chunks around the
    /// window.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.asks = true;
        self.sharing.progress = Some(progress);
        self
    }

    /// Sets the flag that stops the operation. The operation stops between chunks, never within a
    /// chunk. By default none.
    pub fn cancel(mut self, cancel: &'a Cancel) -> Self {
        self.asks = true;
        self.sharing.cancel = Some(cancel);
        self
    }

    /// Sets the priority of the threads other than the calling thread. If `low` is true, they run
    /// only on CPUs that no other thread needs (`SCHED_IDLE`). By default false.
    pub fn low_priority(mut self, low: bool) -> Self {
        self.sharing.low_priority = low;
        self
    }

    /// Returns the routine that would process `len` bytes now, except the near window. The caller,
    /// a profile or the process's timings chose this routine.
    #[must_use]
    #[doc(hidden)]
    pub fn chosen_for(&self, len: usize) -> Used {
        self.plan(len, self.profile_in_force()).far.used(len)
    }

    /// Runs `process` for all of the `len` bytes: in order on the calling thread, or on the
    /// requested number of threads. `start` is the address of the written bytes. Every routine
    /// passed to `process` is available on this CPU. Streamed bytes are published before the call
    /// returns.
    ///
    /// Always inlined, because a report that goes through memory behind a fence costs 30 ns of the
    /// 340 ns of a streamed base page.
    #[inline(always)]
    pub(crate) fn share<E: From<HintError> + From<JobError<Infallible>>>(
        &self,
        start: *const u8,
        len: usize,
        process: impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced + Sync,
    ) -> Result<Report, E> {
        if self.is_plain(len) {
            process(F::libc(), 0..len).publish();
            return Ok(Report {
                used: Some(Used { routine: F::libc().name(), by: ChosenBy::Profile }),
                ..Report::alone(len)
            });
        }
        self.check(len)?;
        let profile = self.profile_in_force();
        let plan = self.plan(len, profile);
        if !self.sharing.is_alone(len, profile) {
            return self.share_far_then_near(start, len, profile, &plan, process);
        }
        match &plan.near {
            None => plan.far.run(0..len, &process).publish(),
            Some(near) => near.sweep(len, &plan.far, process),
        }
        Ok(Report { used: Some(plan.far.used(len)), ..Report::alone(len) })
    }

    /// Returns true if the operation is short and the caller set no option that could choose
    /// another routine than libc's. This is the first check of each operation.
    #[inline(always)]
    fn is_plain(&self, len: usize) -> bool {
        !self.asks && len < F::plain_below().cold()
    }

    /// Runs the operation on several threads. The threads share the far extents in chunks, in no
    /// order. The calling thread processes the near window last, so the window stays in this CPU's
    /// cache.
    #[inline(never)]
    fn share_far_then_near<E: From<JobError<Infallible>>>(
        &self,
        start: *const u8,
        len: usize,
        profile: &Profile,
        plan: &RoutinePlan<'_, F>,
        process: impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced + Sync,
    ) -> Result<Report, E> {
        let window = plan.near.as_ref().map_or(0..0, |near| near.window(len));
        let far = |chunk: Range<usize>| {
            let parts = outside(chunk, &window);
            let unfenced = parts.map(|part| plan.far.run(part, &process));
            // Before the chunk counts as done, because no other thread can fence for this CPU.
            unfenced.into_iter().fold(Unfenced::nothing(), Unfenced::and).publish();
            Ok(())
        };
        let shared = self.sharing.run(start, len, profile, profile.min_chunk, far);
        let report = shared.map_err(|error| error.without(&window))?;
        if let Some(near) = &plan.near {
            process(near.routine, near.window(len)).publish();
        }
        Ok(Report { used: Some(plan.far.used(len)), ..report })
    }

    #[inline]
    fn profile_in_force(&self) -> &Profile {
        self.profile.unwrap_or_else(|| Profile::current())
    }

    /// Checks that the target lies within the memory and that the requested routine is available. A
    /// profile names only available routines.
    fn check(&self, len: usize) -> Result<(), HintError> {
        if let Some(target) = self.target.filter(|&target| target >= len) {
            return Err(HintError::TargetOutside { target, len });
        }
        match self.routine {
            Some(routine) if !routine.is_available() => {
                Err(HintError::RoutineUnavailable { name: routine.name(), needs: routine.needs() })
            }
            _ => Ok(()),
        }
    }

    fn plan<'p>(&'p self, len: usize, profile: &'p Profile) -> RoutinePlan<'p, F> {
        let is_warm = self.reuse == Reuse::Unknown && self.target.is_none();
        let state = if is_warm { CacheState::Warm } else { CacheState::Cold };
        let far = match (self.routine, self.profile) {
            (Some(routine), _) => Far::Asked(routine),
            (None, Some(profile)) => Far::Profile(F::choice(profile), state),
            (None, None) => Far::by(profile, state),
        };
        let keeps_any = self.keeps_destination() || self.source_reuse.is_soon();
        let near = (keeps_any && len > 0).then(|| self.near(len, profile, far.routine_for(len)));
        RoutinePlan { far, near }
    }

    fn near(&self, len: usize, profile: &Profile, far: &'static Routine<F>) -> NearWindow<F> {
        let all = self.reuse == Reuse::All || self.source_reuse == Reuse::All;
        let usual = if all { profile.near_bytes_all } else { profile.near_bytes };
        let bytes = self.near_bytes.unwrap_or(usual);
        let cached = || F::choice(profile).warm.cached_for(bytes.min(len));
        let routine = self.routine.unwrap_or_else(|| match self.source_reuse {
            // Loads leave the source in the cache, whatever stores the destination.
            _ if !self.keeps_destination() => far,
            Reuse::None => F::source_once().unwrap_or_else(cached),
            _ => cached(),
        });
        NearWindow { target: self.target.unwrap_or(0), bytes, routine }
    }

    fn keeps_destination(&self) -> bool {
        self.reuse.is_soon() || (self.reuse == Reuse::Unknown && self.target.is_some())
    }
}

/// The plan of an operation.
struct RoutinePlan<'p, F: 'static> {
    far: Far<'p, F>,
    /// The window that is kept in the cache, if there is one.
    near: Option<NearWindow<F>>,
}

/// The source of the routine for bytes that are far from a target.
pub(crate) enum Far<'p, F: 'static> {
    /// The caller.
    Asked(&'static Routine<F>),
    /// A profile, by length.
    Profile(&'p Choice<F>, CacheState),
    /// Measurements of this process, or the built-in profile for lengths without measurements.
    Learned(Learner<F>),
}

impl<'p, F: Method> Far<'p, F> {
    /// Returns the source of the routine: the process's timings if the built-in profile is current,
    /// otherwise the current profile.
    #[inline]
    pub(crate) fn by(profile: &'p Profile, state: CacheState) -> Self {
        match learning::knowledge().and_then(F::candidates) {
            Some(candidates) => Self::Learned(Learner::new(candidates, state)),
            None => Self::Profile(F::choice(profile), state),
        }
    }

    /// Processes a piece.
    #[inline]
    pub(crate) fn run(
        &self,
        piece: Range<usize>,
        process: &impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced,
    ) -> Unfenced {
        match self {
            Self::Learned(learner) => learner.run(piece, process),
            _ => process(self.routine_for(piece.len()), piece),
        }
    }

    fn routine_for(&self, len: usize) -> &'static Routine<F> {
        match self {
            Self::Asked(routine) => routine,
            Self::Profile(choice, state) => choice.bands(*state).routine_for(len),
            Self::Learned(learner) => learner.routine_for(len),
        }
    }

    fn used(&self, len: usize) -> Used {
        match self {
            Self::Asked(routine) => Used { routine: routine.name(), by: ChosenBy::Caller },
            Self::Profile(..) => {
                Used { routine: self.routine_for(len).name(), by: ChosenBy::Profile }
            }
            Self::Learned(learner) => learner.used(len),
        }
    }
}

/// The window around the target.
#[derive(Debug)]
struct NearWindow<F: 'static> {
    target: usize,
    bytes: usize,
    routine: &'static Routine<F>,
}

/// Returns the routine for an extent of `len` bytes that are copied piece by piece, by profile or
/// learning. Async-signal-safe.
#[must_use]
#[doc(hidden)]
pub fn copy_routine_for(len: usize, reach: Reach) -> &'static CopyRoutine {
    let profile = Profile::current();
    match reach {
        Reach::Far => Far::by(profile, CacheState::Cold).routine_for(len),
        Reach::Near => profile.copy.warm.cached_for(len),
    }
}

impl<F: Method> NearWindow<F> {
    /// Processes extent by extent, in order. Out of line, so that an operation on one extent
    /// inlines into its caller.
    #[inline(never)]
    fn sweep(
        &self,
        len: usize,
        far: &Far<'_, F>,
        process: impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced,
    ) {
        let order = Order::for_folio(len, Some(self.target));
        let mut unfenced = Unfenced::nothing();
        for extent in order.extents(len, Some(self.target), self.bytes) {
            unfenced = unfenced.and(match extent.reach {
                Reach::Near => process(self.routine, extent.bytes),
                Reach::Far => far.run(extent.bytes, &process),
            });
        }
        unfenced.publish();
    }

    fn window(&self, len: usize) -> Range<usize> {
        near_window(len, self.target, self.bytes)
    }
}

/// Returns the bytes before and behind the window. Either may be empty.
fn outside(bytes: Range<usize>, window: &Range<usize>) -> [Range<usize>; 2] {
    let before = window.start.clamp(bytes.start, bytes.end);
    let behind = window.end.clamp(before, bytes.end);
    [bytes.start..before, behind..bytes.end]
}

impl HintError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TargetOutside { .. } => ErrorKind::Invalid,
            Self::RoutineUnavailable { .. } => ErrorKind::Unsupported,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::sweep::{GIGANTIC_OVER_BYTES, SUBPAGE_BYTES};
    use crate::{ClearError, ClearOptions};

    /// Returns pieces in the order in which they were processed.
    fn processed(clear: &ClearOptions<'_>, len: usize) -> Vec<Range<usize>> {
        let (memory, pieces) = (vec![0_u8; len], Mutex::new(Vec::new()));
        let note = |_: &'static Routine<ClearFn>, piece: Range<usize>| {
            pieces.lock().unwrap_or_else(PoisonError::into_inner).push(piece);
            Unfenced::nothing()
        };
        clear.share::<ClearError>(memory.as_ptr(), len, note).unwrap();
        pieces.into_inner().unwrap().into_iter().filter(|piece| !piece.is_empty()).collect()
    }

    #[test]
    fn near_window_comes_last_by_threads_with_progress_and_cancellation_too() {
        let (len, target) = (GIGANTIC_OVER_BYTES, 100 * SUBPAGE_BYTES + 7);
        let (cancel, progress) = (Cancel::new(), |_: usize, _: usize| {});
        // Nothing is timed that processes nothing.
        let profile = Profile::current();
        let alone = ClearOptions::new().target(target).profile(profile);
        let by_threads = alone.clone().threads(Threads::Exactly(2));
        let others = [alone.clone().progress(&progress), alone.clone().cancel(&cancel)];
        for clear in [alone, by_threads].iter().chain(&others) {
            let mut pieces = processed(clear, len);
            let window = near_window(len, target, profile.near_bytes);
            assert_eq!(pieces.last(), Some(&window), "{clear:?}");
            pieces.sort_unstable_by_key(|piece| piece.start);
            assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start), "{pieces:?}");
            assert_eq!((pieces[0].start, pieces[pieces.len() - 1].end), (0, len));
        }
    }

    #[test]
    fn chunk_around_a_window_is_what_lies_before_and_behind() {
        assert_eq!(outside(10..20, &(12..15)), [10..12, 15..20]);
        assert_eq!(outside(10..20, &(0..15)), [10..10, 15..20]);
        assert_eq!(outside(10..20, &(15..90)), [10..15, 20..20]);
        assert_eq!(outside(10..20, &(0..90)), [10..10, 20..20]);
        for elsewhere in [0..0, 0..10, 20..30, 25..30] {
            let left: usize = outside(10..20, &elsewhere).iter().map(Range::len).sum();
            assert_eq!(left, 10, "{elsewhere:?}");
        }
    }
}
