//! Clearing memory.

use std::convert::Infallible;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::arch::{ClearFn, ClearRoutine};
use crate::engine::{Far, HintError, Operation};
use crate::parallel::{Bytes, Done, JobError, Report};
use crate::profile::{CLEAR_PLAIN_BELOW, CacheState, Profile};
use hugekit_sys::ErrorKind;

/// Sets every byte to zero, on the calling thread, by the fastest routine for this length.
///
/// Nothing is assumed about who uses the memory next; [`ClearOptions`] takes such knowledge. Never
/// slower than `memset`, whatever the length.
///
/// ```
/// let mut page = vec![0xff_u8; hugekit::HUGE_PAGE_BYTES];
/// hugekit::clear(&mut page);
/// assert!(page.iter().all(|&byte| byte == 0));
/// ```
#[inline]
pub fn clear(bytes: &mut [u8]) {
    if bytes.len() < CLEAR_PLAIN_BELOW.warm() {
        bytes.fill(0);
    } else {
        clear_long(bytes);
    }
}

#[allow(unsafe_code)]
#[inline(never)]
fn clear_long(bytes: &mut [u8]) {
    let (start, len) = (bytes.as_mut_ptr(), bytes.len());
    let clear = |routine: &'static ClearRoutine, part: Range<usize>| {
        // SAFETY: the slice is ours alone to write, and the part lies within; a profile, and what is learned, names
        // only routines that are available.
        unsafe { routine.run(start.add(part.start), part.len()) }
    };
    Far::by(Profile::current(), CacheState::Warm).run(0..len, &clear).publish();
}

/// Why a clear was refused, or stopped. Nothing was written, unless it was cancelled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClearError {
    /// The target lies outside, or the routine does not run here.
    #[error(transparent)]
    Hint(#[from] HintError),
    /// No thread was asked for, or the clear was cancelled.
    #[error(transparent)]
    Job(#[from] JobError<Infallible>),
}

impl ClearError {
    /// Of a clear that was cancelled, which bytes it was done with.
    #[must_use]
    pub const fn done(&self) -> Option<&Done> {
        match self {
            Self::Job(error) => error.done(),
            _ => None,
        }
    }
}

/// A clear with knowledge: who touches what next, in which order, by which routine.
///
/// ```
/// use hugekit::{ClearOptions, HUGE_PAGE_BYTES, Reuse};
///
/// let mut folio = vec![0xff_u8; HUGE_PAGE_BYTES];
/// // Offset 0x1234 is read right after: its surroundings stay cached, the rest streams.
/// ClearOptions::new().target(0x1234).reuse(Reuse::Target).run(&mut folio)?;
/// assert!(folio.iter().all(|&byte| byte == 0));
/// # Ok::<(), hugekit::ClearError>(())
/// ```
pub type ClearOptions<'a> = Operation<'a, ClearFn>;

impl ClearOptions<'_> {
    /// Sets every byte to zero.
    ///
    /// # Errors
    /// [`ClearError`] if the target lies outside `bytes`, the routine does not run here, or no
    /// thread is asked for; nothing is written then. And if it is cancelled.
    ///
    /// # Panics
    /// If the progress callback does.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn run(&self, bytes: &mut [u8]) -> Result<Report, ClearError> {
        // SAFETY: a slice borrowed mutably is valid for writes and no other thread accesses it.
        unsafe { self.run_raw(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// As [`run`](Self::run), for memory that holds nothing yet; returns it as initialised bytes.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
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
    /// # Panics
    /// As [`run`](Self::run).
    ///
    /// # Safety
    /// `start` is valid for writes of `len` bytes, and nothing else accesses them meanwhile.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn run_raw(&self, start: *mut u8, len: usize) -> Result<Report, ClearError> {
        let memory = Bytes(start);
        self.share(start, len, |routine, bytes| {
            // SAFETY: the sweep and the threads' chunks split 0..len into ranges that do not overlap, and each range is
            // processed once. So these bytes are the caller's, and no other thread accesses them. A plan contains only
            // routines whose CPU features were checked.
            unsafe { routine.run(memory.at(bytes.start), bytes.len()) }
        })
    }
}

impl ClearError {
    /// What it means for a program.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Hint(error) => error.kind(),
            Self::Job(error) => error.kind_with(|&never| match never {}),
        }
    }
}
