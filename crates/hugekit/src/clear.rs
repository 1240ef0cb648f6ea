//! Clearing memory: profile × sweep × routine.

use std::mem::MaybeUninit;

use crate::arch::{ClearRoutine, Unfenced};
use crate::profile::Profile;
use crate::sweep::{Order, Reach};

/// Lengths below this go straight to `memset`, where a look at the profile (3 ns) would show.
const SMALL: usize = 4096;

/// Sets every byte to zero, on the calling thread, by the fastest routine for this length.
///
/// Nothing is assumed about who uses the memory next; [`Clear`] takes such knowledge. Never slower
/// than `memset`, whatever the length.
///
/// ```
/// let mut page = vec![0xff_u8; 2 << 20];
/// hugekit::clear(&mut page);
/// assert!(page.iter().all(|&byte| byte == 0));
/// ```
#[inline]
pub fn clear(bytes: &mut [u8]) {
    if bytes.len() < SMALL {
        bytes.fill(0);
    } else {
        clear_large(bytes);
    }
}

#[allow(unsafe_code)]
fn clear_large(bytes: &mut [u8]) {
    let routine = Profile::current().warm.routine_for(bytes.len());
    // SAFETY: the slice is ours alone to write; a profile names only routines that are available.
    unsafe { routine.run(bytes.as_mut_ptr(), bytes.len()) }.publish();
}

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

/// Why a clear was refused. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClearError {
    /// The target is not an offset within the memory.
    #[error("target offset {target} lies outside the {len} bytes to clear")]
    TargetOutside {
        /// The target asked for, in bytes from the start.
        target: usize,
        /// The length of the memory in bytes.
        len: usize,
    },
    /// The routine asked for does not run on this CPU.
    #[error("clear routine {name} is not available here: it needs {needs}")]
    RoutineUnavailable {
        /// The routine's name.
        name: &'static str,
        /// What the CPU lacks.
        needs: &'static str,
    },
}

/// A clear with knowledge: who touches what next, in which order, by which routine.
///
/// ```
/// use hugekit::{Clear, Reuse};
///
/// let mut folio = vec![0xff_u8; 2 << 20];
/// // Offset 0x1234 is read right after: its surroundings stay cached, the rest streams.
/// Clear::new().target(0x1234).reuse(Reuse::Target).run(&mut folio)?;
/// assert!(folio.iter().all(|&byte| byte == 0));
/// # Ok::<(), hugekit::ClearError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder clears nothing until run"]
pub struct Clear<'a> {
    target: Option<usize>,
    reuse: Reuse,
    order: Option<Order>,
    routine: Option<&'static ClearRoutine>,
    near_bytes: Option<usize>,
    profile: Option<&'a Profile>,
}

impl<'a> Clear<'a> {
    /// A clear of which nothing is known; run like this it does what [`clear`] does.
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
    pub fn routine(mut self, routine: &'static ClearRoutine) -> Self {
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

    /// Sets every byte to zero on the calling thread.
    ///
    /// # Errors
    /// [`ClearError`] if the target lies outside `bytes` or the routine does not run here; nothing
    /// is written then.
    #[allow(unsafe_code)]
    pub fn run(&self, bytes: &mut [u8]) -> Result<(), ClearError> {
        // SAFETY: a slice borrowed mutably is valid for writes and nobody else accesses it.
        unsafe { self.run_raw(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// As [`run`](Self::run), for memory that holds nothing yet; returns it as initialised bytes.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    #[allow(unsafe_code)]
    pub fn run_uninit<'m>(
        &self,
        bytes: &'m mut [MaybeUninit<u8>],
    ) -> Result<&'m mut [u8], ClearError> {
        let (start, len) = (bytes.as_mut_ptr().cast::<u8>(), bytes.len());
        // SAFETY: the slice is valid for writes and borrowed for 'm; once the call has succeeded
        // each of its bytes is an initialised zero.
        unsafe {
            self.run_raw(start, len)?;
            Ok(std::slice::from_raw_parts_mut(start, len))
        }
    }

    /// As [`run`](Self::run), for memory known by its address only.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Safety
    /// `start` is valid for writes of `len` bytes, and nothing else accesses them meanwhile.
    #[allow(unsafe_code)]
    pub unsafe fn run_raw(&self, start: *mut u8, len: usize) -> Result<(), ClearError> {
        self.check(len)?;
        let plan = self.plan(len);
        let mut unfenced = Unfenced::nothing();
        for extent in plan.order.extents(len, plan.target, plan.near_bytes) {
            let routine = match extent.reach {
                Reach::Far => plan.far,
                Reach::Near => plan.near,
            };
            // SAFETY: extents lie within 0..len, so these bytes are the caller's; `check` saw to
            // the availability of a routine asked for, and a profile names only available ones.
            let part = unsafe { routine.run(start.add(extent.bytes.start), extent.bytes.len()) };
            unfenced = unfenced.and(part);
        }
        unfenced.publish();
        Ok(())
    }

    fn check(&self, len: usize) -> Result<(), ClearError> {
        if let Some(target) = self.target.filter(|&target| target >= len) {
            return Err(ClearError::TargetOutside { target, len });
        }
        match self.routine {
            Some(routine) if !routine.is_available() => {
                Err(ClearError::RoutineUnavailable { name: routine.name(), needs: routine.needs() })
            }
            _ => Ok(()),
        }
    }

    fn plan(&self, len: usize) -> Plan {
        let profile = self.profile.unwrap_or_else(|| Profile::current());
        let target = self.target_in(len);
        let near_bytes = self.near_bytes.unwrap_or(match self.reuse {
            Reuse::All => profile.near_bytes_all,
            _ => profile.near_bytes,
        });
        let far = match target {
            None if self.reuse == Reuse::Unknown => profile.warm.routine_for(len),
            _ => profile.cold.routine_for(len),
        };
        Plan {
            target,
            near_bytes,
            order: self.order.unwrap_or_else(|| Order::for_folio(len, target)),
            far: self.routine.unwrap_or(far),
            near: self.routine.unwrap_or_else(|| profile.warm.cached_for(near_bytes.min(len))),
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

/// What a clear comes down to.
#[derive(Debug)]
struct Plan {
    target: Option<usize>,
    near_bytes: usize,
    order: Order,
    far: &'static ClearRoutine,
    near: &'static ClearRoutine,
}
