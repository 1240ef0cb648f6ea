//! What clearing and copying share: knowledge of who uses the memory next, and the plan made of it.
//!
//! An [`Operation`] is a builder; [`Clear`](crate::Clear) and [`Copy`](crate::Copy) are its two
//! kinds, told apart by what their routines are. A plan is profile × sweep: an order of extents,
//! one routine for the far ones and one for the near window.

use std::convert::Infallible;
use std::ops::Range;

use crate::arch::{ClearFn, CopyFn, Routine, Unfenced};
use crate::parallel::{JobError, Report, Sharing};
use crate::profile::{Choice, Profile};
use crate::sweep::{Extent, Order, Reach, near_window};

/// Who uses the memory next, as far as the caller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reuse {
    /// Nothing is known, beyond the target if one is given: then as [`Target`](Self::Target),
    /// else the length decides.
    #[default]
    Unknown,
    /// The bytes around the target, or around offset 0 if none is given. The rest is not used
    /// soon and streams.
    Target,
    /// All of it, soon: as much as this CPU's cache holds well is left there, around the target.
    All,
    /// Nobody soon: all of it streams.
    None,
}

/// Why a hint was refused. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HintError {
    /// The target is not an offset within the memory.
    #[error("target offset {target} lies outside the {len} bytes of memory")]
    TargetOutside {
        /// The target asked for, in bytes from the start.
        target: usize,
        /// The length of the memory in bytes.
        len: usize,
    },
    /// The routine asked for does not run on this CPU.
    #[error("routine {name} is not available here: it needs {needs}")]
    RoutineUnavailable {
        /// The routine's name.
        name: &'static str,
        /// What the CPU lacks.
        needs: &'static str,
    },
}

/// What an operation's routines are: [`ClearFn`] or [`CopyFn`].
pub trait Method: Sized + Sync + 'static + sealed::Sealed {
    /// The profile's bands for this method.
    fn choice(profile: &Profile) -> &Choice<Self>;
}

impl Method for ClearFn {
    fn choice(profile: &Profile) -> &Choice<Self> {
        &profile.clear
    }
}

impl Method for CopyFn {
    fn choice(profile: &Profile) -> &Choice<Self> {
        &profile.copy
    }
}

mod sealed {
    use super::{ClearFn, CopyFn};

    pub trait Sealed {}
    impl Sealed for ClearFn {}
    impl Sealed for CopyFn {}
}

/// An operation with knowledge: who touches what next, in which order, by which routine. Used as
/// [`Clear`](crate::Clear) or [`Copy`](crate::Copy).
#[derive(Debug)]
#[must_use = "a builder does nothing until run"]
pub struct Operation<'a, F: 'static> {
    target: Option<usize>,
    reuse: Reuse,
    order: Option<Order>,
    routine: Option<&'static Routine<F>>,
    near_bytes: Option<usize>,
    profile: Option<&'a Profile>,
    pub(crate) sharing: Sharing<'a>,
}

impl<F> Clone for Operation<'_, F> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<F> Default for Operation<'_, F> {
    fn default() -> Self {
        Self {
            target: None,
            reuse: Reuse::default(),
            order: None,
            routine: None,
            near_bytes: None,
            profile: None,
            sharing: Sharing::default(),
        }
    }
}

impl<'a, F: Method> Operation<'a, F> {
    /// An operation of which nothing is known: the length alone decides.
    pub fn new() -> Self {
        Self::default()
    }

    /// The byte that is accessed next, as an offset from the start of the memory: for a page
    /// fault the faulting address, not that of the page.
    pub fn target(mut self, offset: usize) -> Self {
        self.target = Some(offset);
        self
    }

    /// Who uses the memory next.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// The order of extents, instead of [`Order::for_folio`].
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// One routine for everything, far and near, instead of the profile's choice.
    pub fn routine(mut self, routine: &'static Routine<F>) -> Self {
        self.routine = Some(routine);
        self
    }

    /// Bytes of the near window, instead of the profile's; rounded up to whole subpages.
    pub fn near_bytes(mut self, bytes: usize) -> Self {
        self.near_bytes = Some(bytes);
        self
    }

    /// The profile to decide by, instead of [`Profile::current`].
    pub fn profile(mut self, profile: &'a Profile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Runs `process` on every extent of `len` bytes, with its routine and in order, and publishes
    /// what was streamed. The routines handed out are available.
    #[inline]
    pub(crate) fn sweep(
        &self,
        len: usize,
        mut process: impl FnMut(&'static Routine<F>, Extent) -> Unfenced,
    ) -> Result<(), HintError> {
        self.check(len)?;
        let plan = self.plan(len, self.profile_in_force());
        let mut unfenced = Unfenced::nothing();
        for extent in plan.order.extents(len, plan.target, plan.near_bytes) {
            let routine = match extent.reach {
                Reach::Far => plan.far,
                Reach::Near => plan.near,
            };
            unfenced = unfenced.and(process(routine, extent));
        }
        unfenced.publish();
        Ok(())
    }

    /// As [`sweep`](Self::sweep), by as many threads as were asked for. `start` is where the bytes
    /// that are written lie in memory. Threads share the far extents in chunks and in no order; the
    /// near window is the calling thread's and comes last, so that it stays in this CPU's cache.
    #[inline]
    pub(crate) fn share<E: From<HintError> + From<JobError<Infallible>>>(
        &self,
        start: *const u8,
        len: usize,
        process: impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced + Sync,
    ) -> Result<Report, E> {
        if self.sharing.is_alone(len, self.profile_in_force()) {
            self.sweep(len, |routine, extent| process(routine, extent.bytes))?;
            return Ok(Report::alone(len));
        }
        self.check(len)?;
        self.share_far_then_near(start, len, process)
    }

    fn share_far_then_near<E: From<JobError<Infallible>>>(
        &self,
        start: *const u8,
        len: usize,
        process: impl Fn(&'static Routine<F>, Range<usize>) -> Unfenced + Sync,
    ) -> Result<Report, E> {
        let profile = self.profile_in_force();
        let plan = self.plan(len, profile);
        let window = plan.target.map_or(0..0, |target| near_window(len, target, plan.near_bytes));
        let far = |chunk: Range<usize>| {
            let parts = outside(chunk, &window);
            let unfenced = parts.map(|part| process(plan.far, part));
            // Before the chunk counts as done, because nobody else can fence for this CPU.
            unfenced.into_iter().fold(Unfenced::nothing(), Unfenced::and).publish();
            Ok(())
        };
        let report = self.sharing.run(start, len, profile, profile.min_chunk, far)?;
        process(plan.near, window).publish();
        Ok(report)
    }

    #[inline]
    fn profile_in_force(&self) -> &Profile {
        self.profile.unwrap_or_else(|| Profile::current())
    }

    /// Sees to it that the target lies within, and that a routine asked for is available; a profile
    /// names only such.
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

    fn plan(&self, len: usize, profile: &Profile) -> Plan<F> {
        let Choice { warm, cold } = F::choice(profile);
        let target = self.target_in(len);
        let near_bytes = self.near_bytes.unwrap_or(match self.reuse {
            Reuse::All => profile.near_bytes_all,
            _ => profile.near_bytes,
        });
        let far = match target {
            None if self.reuse == Reuse::Unknown => warm.routine_for(len),
            _ => cold.routine_for(len),
        };
        Plan {
            target,
            near_bytes,
            order: self.order.unwrap_or_else(|| Order::for_folio(len, target)),
            far: self.routine.unwrap_or(far),
            near: self.routine.unwrap_or_else(|| warm.cached_for(near_bytes.min(len))),
        }
    }

    /// The offset around which something is kept near, if anything is.
    fn target_in(&self, len: usize) -> Option<usize> {
        match self.reuse {
            Reuse::None => None,
            Reuse::Unknown => self.target,
            Reuse::Target | Reuse::All => Some(self.target.unwrap_or(0)).filter(|_| len > 0),
        }
    }
}

/// What an operation comes down to.
#[derive(Debug)]
struct Plan<F: 'static> {
    target: Option<usize>,
    near_bytes: usize,
    order: Order,
    far: &'static Routine<F>,
    near: &'static Routine<F>,
}

/// What lies before and behind the window; either may be empty.
fn outside(bytes: Range<usize>, window: &Range<usize>) -> [Range<usize>; 2] {
    let before = window.start.clamp(bytes.start, bytes.end);
    let behind = window.end.clamp(before, bytes.end);
    [bytes.start..before, behind..bytes.end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_what_lies_before_and_behind_the_window() {
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
