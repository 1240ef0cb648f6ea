//! Clearing memory.

use std::convert::Infallible;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::arch::{ClearFn, ClearRoutine};
use crate::engine::{Far, HintError, Operation};
use crate::parallel::{Bytes, Done, JobError, Report};
use crate::profile::{CLEAR_PLAIN_BELOW, CacheState, Profile};
use hugekit_sys::ErrorKind;

/// Sets every byte to zero, on the calling thread, by the routine that is fastest for this length.
///
/// The function does not know who uses the memory next. If the caller knows, [`ClearOptions`] can
/// be faster. [benchmarks.md] lists gains and losses against `memset` by length.
///
/// ```
/// let mut page = vec![0xff_u8; hugekit::HUGE_PAGE_BYTES];
/// hugekit::clear(&mut page);
/// assert!(page.iter().all(|&byte| byte == 0));
/// ```
///
/// [benchmarks.md]: https://github.com/hugekit/hugekit/blob/main/docs/benchmarks.md
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

/// An error of a clear.
///
/// Only a cancelled clear has written to the memory: [`done`](Self::done) returns the cleared
/// bytes. After every other error the memory is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClearError {
    /// The target lies outside the memory, or this CPU cannot run the routine.
    #[error(transparent)]
    Hint(#[from] HintError),
    /// The number of threads was 0, the process may use no CPU, or the clear was cancelled.
    #[error(transparent)]
    Job(#[from] JobError<Infallible>),
}

impl ClearError {
    /// Returns the bytes that a cancelled clear has cleared; `None` for other errors.
    #[must_use]
    pub const fn done(&self) -> Option<&Done> {
        match self {
            Self::Job(error) => error.done(),
            _ => None,
        }
    }
}

/// Options for a clear: the next user of the bytes, threads, progress, cancellation.
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
    /// Sets every byte of `bytes` to zero.
    ///
    /// # Errors
    /// - [`ClearError::Hint`] if the target lies outside `bytes`, or if this CPU cannot run the
    ///   routine. The memory is unchanged.
    /// - [`ClearError::Job`] if the number of threads is 0 or the process may use no CPU: the
    ///   memory is unchanged. Also if the clear is cancelled: some bytes are zero.
    ///
    /// # Panics
    /// If the progress callback panics.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn run(&self, bytes: &mut [u8]) -> Result<Report, ClearError> {
        // SAFETY: a slice borrowed mutably is valid for writes and no other thread accesses it.
        unsafe { self.run_raw(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Clears memory that is not initialised yet, as [`run`](Self::run) does, and returns the
    /// memory as initialised bytes.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run). After an error, the memory counts as not initialised.
    ///
    /// # Panics
    /// If the progress callback panics.
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

    /// Clears `len` bytes at `start`, as [`run`](Self::run) does.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    ///
    /// # Panics
    /// If the progress callback panics.
    ///
    /// # Safety
    /// `start` is valid for writes of `len` bytes. During the call no other thread, process or
    /// device accesses these bytes.
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
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Hint(error) => error.kind(),
            Self::Job(error) => error.kind_with(|&never| match never {}),
        }
    }
}
