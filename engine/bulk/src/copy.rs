//! Copying memory.

use std::convert::Infallible;
use std::ops::Range;

use crate::arch::{CopyFn, CopyRoutine};
use crate::engine::{Far, HintError, Operation, Reuse};
use crate::parallel::{Bytes, Done, JobError, Report};
use crate::profile::{COPY_PLAIN_BELOW, CacheState, Profile};
use hugekit_sys::ErrorKind;

/// An error of a copy.
///
/// Only a cancelled copy has written to the destination: [`done`](Self::done) returns the copied
/// bytes. After every other error the destination is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// Source and destination differ in length.
    #[error("cannot copy {src} bytes into {dst}: the lengths must be the same")]
    LengthsDiffer {
        /// Length of the destination in bytes.
        dst: usize,
        /// Length of the source in bytes.
        src: usize,
    },
    /// Source and destination overlap. Only a copy by pointers can fail this way.
    #[error("source at {src:#x} and destination at {dst:#x} overlap within {len} bytes")]
    Overlap {
        /// Address of the destination.
        dst: usize,
        /// Address of the source.
        src: usize,
        /// Length of source and destination in bytes.
        len: usize,
    },
    /// The target lies outside the memory, or this CPU cannot run the routine.
    #[error(transparent)]
    Hint(#[from] HintError),
    /// The number of threads was 0, the process may use no CPU, or the copy was cancelled.
    #[error(transparent)]
    Job(#[from] JobError<Infallible>),
}

impl CopyError {
    /// Returns the bytes that a cancelled copy has copied; `None` for other errors.
    #[must_use]
    pub const fn done(&self) -> Option<&Done> {
        match self {
            Self::Job(error) => error.done(),
            _ => None,
        }
    }
}

/// Copies `src` to `dst`, on the calling thread, by the routine that is fastest for this length.
///
/// The function does not know who uses the memory next. If the caller knows, [`CopyOptions`] can be
/// faster.
///
/// ```
/// let source = vec![7_u8; 1 << 20];
/// let mut copy = vec![0_u8; 1 << 20];
/// hugekit::copy(&mut copy, &source)?;
/// assert!(copy == source);
/// # Ok::<(), hugekit::CopyError>(())
/// ```
///
/// # Errors
/// [`CopyError::LengthsDiffer`] if the slices differ in length. `dst` is unchanged then.
#[inline]
pub fn copy(dst: &mut [u8], src: &[u8]) -> Result<(), CopyError> {
    same_length(dst, src)?;
    if dst.len() < COPY_PLAIN_BELOW.warm() {
        dst.copy_from_slice(src);
    } else {
        copy_long(dst, src);
    }
    Ok(())
}

#[allow(unsafe_code)]
#[inline(never)]
fn copy_long(dst: &mut [u8], src: &[u8]) {
    let (to, from, len) = (dst.as_mut_ptr(), src.as_ptr(), dst.len());
    let copy = |routine: &'static CopyRoutine, part: Range<usize>| {
        // SAFETY: the slices are equally long, and the part lies within; a mutable borrow overlaps no other, and is
        // ours alone to write; a profile, and what is learned, names only routines that are available.
        unsafe { routine.run(to.add(part.start), from.add(part.start), part.len()) }
    };
    Far::by(Profile::current(), CacheState::Warm).run(0..len, &copy).publish();
}

fn same_length(dst: &[u8], src: &[u8]) -> Result<(), CopyError> {
    if dst.len() == src.len() {
        Ok(())
    } else {
        Err(CopyError::LengthsDiffer { dst: dst.len(), src: src.len() })
    }
}

/// Options for a copy: the next user of the bytes, threads, progress, cancellation.
///
/// Target and order apply to source and destination. [`reuse`](Operation::reuse) is about the
/// destination, [`source_reuse`](Self::source_reuse) is about the source.
///
/// ```
/// use hugekit::{CopyOptions, HUGE_PAGE_BYTES, Reuse};
///
/// let source = vec![7_u8; HUGE_PAGE_BYTES];
/// let mut folio = vec![0_u8; HUGE_PAGE_BYTES];
/// // No thread reads the copy soon: it streams past the cache.
/// CopyOptions::new().reuse(Reuse::None).run(&mut folio, &source)?;
/// assert!(folio == source);
/// # Ok::<(), hugekit::CopyError>(())
/// ```
pub type CopyOptions<'a> = Operation<'a, CopyFn>;

impl CopyOptions<'_> {
    /// Sets the next use of the source. By default [`Reuse::Unknown`].
    ///
    /// [`reuse`](Operation::reuse) and this option together choose the bytes that stay in the
    /// cache. They apply to the near window, which is the part around the target:
    ///
    /// | destination | source | near window |
    /// | --- | --- | --- |
    /// | used next | `Unknown`, `Target`, `All` | ordinary copy: both sides are cached |
    /// | used next | `None` | destination cached, source prefetched past the cache |
    /// | not used next, or unknown | `Target`, `All` | copied last, streamed; source cached |
    pub fn source_reuse(self, reuse: Reuse) -> Self {
        self.reuse_of_source(reuse)
    }

    /// Copies `src` to `dst`.
    ///
    /// # Errors
    /// - [`CopyError::LengthsDiffer`] if the slices differ in length, and [`CopyError::Hint`] if
    ///   the target lies outside or this CPU cannot run the routine. `dst` is unchanged.
    /// - [`CopyError::Job`] if the number of threads is 0 or the process may use no CPU: `dst` is
    ///   unchanged. Also if the copy is cancelled: some bytes are copied.
    ///
    /// # Panics
    /// If the progress callback panics.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn run(&self, dst: &mut [u8], src: &[u8]) -> Result<Report, CopyError> {
        same_length(dst, src)?;
        // SAFETY: both slices are `dst.len()` bytes; `dst` is borrowed mutably, so no other thread
        // accesses it, and `src` is shared, so no thread writes it.
        unsafe { self.run_raw(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }
    }

    /// Copies `len` bytes from `src` to `dst`, as [`run`](Self::run) does.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run), and [`CopyError::Overlap`] if source and destination
    /// overlap.
    ///
    /// # Panics
    /// If the progress callback panics.
    ///
    /// # Safety
    /// `src` is valid for reads of `len` bytes, and `dst` is valid for writes of `len` bytes.
    /// During the call no other thread, process or device writes to `src` or `dst`, or reads from
    /// `dst`.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn run_raw(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
    ) -> Result<Report, CopyError> {
        if dst.addr().abs_diff(src.addr()) < len {
            return Err(CopyError::Overlap { dst: dst.addr(), src: src.addr(), len });
        }
        let (destination, source) = (Bytes(dst), Bytes(src.cast_mut()));
        self.share(dst, len, |routine, bytes| {
            let (dst, src) = (destination.at(bytes.start), source.at(bytes.start));
            // SAFETY: the sweep and the threads' chunks split 0..len into ranges that do not overlap, and each range is
            // processed once. So the destination is the caller's, and no other thread accesses it. Source and destination
            // do not overlap: the check above. A plan contains only routines whose CPU features were checked.
            unsafe { routine.run(dst, src, bytes.len()) }
        })
    }
}

impl CopyError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::LengthsDiffer { .. } | Self::Overlap { .. } => ErrorKind::Invalid,
            Self::Hint(error) => error.kind(),
            Self::Job(error) => error.kind_with(|&never| match never {}),
        }
    }
}
