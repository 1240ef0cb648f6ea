//! Copying memory.

use crate::arch::CopyFn;
use crate::engine::{HintError, Operation};
use crate::profile::Profile;

/// Lengths below this go straight to `memcpy`, where a look at the profile (3 ns) would show.
const SMALL: usize = 4096;

/// Why a copy was refused. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// Source and destination are not equally long.
    #[error("cannot copy {src} bytes into {dst}: the lengths must be the same")]
    LengthsDiffer {
        /// Length of the destination in bytes.
        dst: usize,
        /// Length of the source in bytes.
        src: usize,
    },
    /// Source and destination share bytes, which only pointers can.
    #[error("source at {src:#x} and destination at {dst:#x} overlap within {len} bytes")]
    Overlap {
        /// Address of the destination.
        dst: usize,
        /// Address of the source.
        src: usize,
        /// Length of both in bytes.
        len: usize,
    },
    /// The target lies outside, or the routine does not run here.
    #[error(transparent)]
    Hint(#[from] HintError),
}

/// Copies `src` to `dst`, on the calling thread, by the fastest routine for this length.
///
/// Nothing is assumed about who uses either next; [`Copy`](type@Copy) takes such knowledge.
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
/// [`CopyError::LengthsDiffer`]; nothing is written then.
#[inline]
pub fn copy(dst: &mut [u8], src: &[u8]) -> Result<(), CopyError> {
    same_length(dst, src)?;
    if dst.len() < SMALL {
        dst.copy_from_slice(src);
    } else {
        copy_large(dst, src);
    }
    Ok(())
}

#[allow(unsafe_code)]
fn copy_large(dst: &mut [u8], src: &[u8]) {
    let routine = Profile::current().copy.warm.routine_for(dst.len());
    // SAFETY: the slices are equally long; a mutable borrow overlaps no other, and is ours alone to
    // write; a profile names only routines that are available.
    unsafe { routine.run(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }.publish();
}

fn same_length(dst: &[u8], src: &[u8]) -> Result<(), CopyError> {
    if dst.len() == src.len() {
        Ok(())
    } else {
        Err(CopyError::LengthsDiffer { dst: dst.len(), src: src.len() })
    }
}

/// A copy with knowledge: who touches what next, in which order, by which routine. Target and
/// order are those of the destination; the near window is copied through the cache, so that both
/// sides of it stay there.
///
/// ```
/// use hugekit::{Copy, Reuse};
///
/// let source = vec![7_u8; 2 << 20];
/// let mut folio = vec![0_u8; 2 << 20];
/// // Nobody reads the copy soon: it streams past the cache.
/// Copy::new().reuse(Reuse::None).run(&mut folio, &source)?;
/// assert!(folio == source);
/// # Ok::<(), hugekit::CopyError>(())
/// ```
pub type Copy<'a> = Operation<'a, CopyFn>;

impl Copy<'_> {
    /// Copies `src` to `dst` on the calling thread.
    ///
    /// # Errors
    /// [`CopyError`] if the lengths differ, the target lies outside or the routine does not run
    /// here; nothing is written then.
    #[allow(unsafe_code)]
    pub fn run(&self, dst: &mut [u8], src: &[u8]) -> Result<(), CopyError> {
        same_length(dst, src)?;
        // SAFETY: both slices are `dst.len()` bytes; `dst` is borrowed mutably, so nobody else
        // accesses it, and `src` is shared, so nobody writes it.
        unsafe { self.run_raw(dst.as_mut_ptr(), src.as_ptr(), dst.len()) }
    }

    /// As [`run`](Self::run), for memory known by its addresses only.
    ///
    /// # Errors
    /// As [`run`](Self::run), and [`CopyError::Overlap`].
    ///
    /// # Safety
    /// `src` is valid for reads and `dst` for writes of `len` bytes; nothing else writes to either,
    /// or reads from `dst`, meanwhile.
    #[allow(unsafe_code)]
    pub unsafe fn run_raw(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
    ) -> Result<(), CopyError> {
        if dst.addr().abs_diff(src.addr()) < len {
            return Err(CopyError::Overlap { dst: dst.addr(), src: src.addr(), len });
        }
        self.sweep(len, |routine, extent| {
            let start = extent.bytes.start;
            // SAFETY: extents lie within 0..len, so these bytes are the caller's; the two sides are
            // at least `len` apart; a sweep hands out available routines.
            unsafe { routine.run(dst.add(start), src.add(start), extent.bytes.len()) }
        })?;
        Ok(())
    }
}
