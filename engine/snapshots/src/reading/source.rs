//! The source of the bytes of a snapshot: protected anonymous memory, a fork of a region, or a part
//! of another source. Every source has granules, which are read, preserved and released. Addresses
//! are addresses of the owner's memory.
#![allow(unsafe_code)]

use std::ops::Range;

use super::anonymous::Anonymous;
use super::buffer::Buffer;
use super::piece::SnapshotPiece;
use super::stream;
use crate::making::limit;
use crate::serving::lifecycle::LossCause;
use crate::serving::state::{Delivering, ReadError};
use crate::{SnapshotError, SnapshotStats};
use hugekit_bulk::Reuse;
use hugekit_machine::Root;
use hugekit_regions::fault::Serving;
use hugekit_regions::region::ReadOnlyFork;

#[derive(Debug)]
pub(crate) enum SnapshotSource {
    Anonymous(Anonymous),
    Region(ReadOnlyFork),
    Piece(SnapshotPiece),
}

impl SnapshotSource {
    /// Returns the addresses of the memory.
    pub(crate) fn range(&self) -> Range<usize> {
        match self {
            Self::Anonymous(of) => of.snapshot.interval().range().clone(),
            Self::Region(fork) => fork.addresses(),
            Self::Piece(piece) => piece.range().clone(),
        }
    }

    /// Returns the addresses of the granules: all except the edges. A piece returns those of its whole snapshot.
    pub(super) fn inner(&self) -> Range<usize> {
        match self {
            Self::Anonymous(of) => of.snapshot.interval().inner().clone(),
            Self::Region(fork) => fork.addresses(),
            Self::Piece(piece) => piece.whole().inner(),
        }
    }

    /// Returns the address at which the first granule would begin if it were whole.
    pub(super) fn origin(&self) -> usize {
        match self {
            Self::Anonymous(of) => of.snapshot.interval().origin(),
            Self::Region(fork) => fork.addresses().start,
            Self::Piece(piece) => piece.whole().origin(),
        }
    }

    pub(crate) fn granule_bytes(&self) -> usize {
        match self {
            Self::Anonymous(of) => of.snapshot.interval().granule_bytes(),
            Self::Region(fork) => fork.granule_bytes(),
            Self::Piece(piece) => piece.whole().granule_bytes(),
        }
    }

    /// Returns the granule of a part. `None` if the part is an edge.
    pub(crate) fn granule_of(&self, part: &Range<usize>) -> Option<usize> {
        let is_in_one = self.inner().contains(&part.start);
        is_in_one.then(|| part.start.saturating_sub(self.origin()) / self.granule_bytes())
    }

    /// Returns the parts of a range of addresses. Each part lies in one granule or one edge. The ends of the range
    /// may cut the first and the last granule.
    pub(crate) fn parts(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let (inner, origin, granule) = (self.inner(), self.origin(), self.granule_bytes());
        let mut next = range.start;
        std::iter::from_fn(move || {
            let end = if next < inner.start {
                inner.start
            } else if next < inner.end {
                (next - (next - origin) % granule + granule).min(inner.end)
            } else {
                range.end
            };
            let part = next..end.min(range.end);
            next = part.end;
            (!part.is_empty()).then_some(part)
        })
    }

    /// Copies bytes of one part. The kernel may refuse to write to `to`. Bypasses the cache if the bytes are not used
    /// soon.
    ///
    /// # Safety
    /// `to` can be written for the part's length, and no other thread uses it.
    pub(super) unsafe fn try_read(
        &self,
        part: &Range<usize>,
        to: *mut u8,
        reuse: Reuse,
    ) -> Result<(), ReadError> {
        match self {
            // SAFETY: `to` can be written for the part's length, and no other thread uses it: the contract of this
            // function.
            Self::Anonymous(of) => unsafe { of.snapshot.try_read(part, to, reuse) },
            Self::Region(fork) => {
                // SAFETY: `to` can be written for the part's length, and no other thread uses it: the contract of this
                // function.
                unsafe { fork.read(part, to, reuse) }
                    .map_err(|_lost| ReadError::Failed(LossCause::Changed(part.start)))
            }
            // SAFETY: `to` can be written for the part's length, and no other thread uses it: the contract of this
            // function.
            Self::Piece(piece) => unsafe { piece.whole().try_read(part, to, reuse) },
        }
    }

    /// Like [`try_read`](Self::try_read), to memory of hugekit.
    ///
    /// # Safety
    /// `to` can be written for the part's length, by the kernel too, and no other thread uses it.
    pub(super) unsafe fn read(&self, part: &Range<usize>, to: *mut u8) -> Result<(), LossCause> {
        match self {
            // SAFETY: `to` can be written for the part's length, by the kernel too, and no other thread uses it: the
            // contract of this function.
            Self::Anonymous(of) => unsafe { of.snapshot.read(part, to) },
            Self::Region(fork) => {
                // SAFETY: `to` can be written for the part's length, and no other thread uses it: the contract of this
                // function.
                unsafe { fork.read(part, to, Reuse::All) }
                    .map_err(|_lost| LossCause::Changed(part.start))
            }
            // SAFETY: `to` can be written for the part's length, by the kernel too, and no other thread uses it: the
            // contract of this function.
            Self::Piece(piece) => unsafe { piece.whole().read(part, to) },
        }
    }

    /// Copies bytes of one part. If the kernel refuses to write to `to`, copies them through a buffer.
    ///
    /// # Safety
    /// `to` can be written for the part's length, and no other thread uses it.
    pub(crate) unsafe fn read_part(
        &self,
        part: &Range<usize>,
        to: *mut u8,
        reuse: Reuse,
    ) -> Result<(), SnapshotError> {
        // SAFETY: `to` can be written for the part's length, and no other thread uses it: the contract of this
        // function.
        match unsafe { self.try_read(part, to, reuse) } {
            Ok(()) => return Ok(()),
            Err(ReadError::Failed(failure)) => return Err(self.error(failure)),
            Err(ReadError::Refused) => {}
        }
        let mut buffer = Buffer::new(part.len())?;
        for piece in stream::pieces(part.clone()) {
            let read = buffer.read(self, std::slice::from_ref(&piece));
            let read = read.map_err(|failure| self.error(failure))?;
            // SAFETY: within the part; the buffer is elsewhere.
            unsafe { to.add(piece.start - part.start).copy_from(read.as_ptr(), read.len()) };
        }
        Ok(())
    }

    /// Returns the bytes of one part if they are preserved. They do not change until the part is let go.
    pub(super) fn kept(&self, part: &Range<usize>) -> Option<*const u8> {
        match self {
            Self::Anonymous(of) => of.snapshot.kept(part),
            Self::Region(_) => None,
            Self::Piece(piece) => piece.whole().kept(part),
        }
    }

    /// Starts a delivery to `to` if the source supports it: each thread that preserves a granule puts it there.
    ///
    /// # Safety
    /// Until the delivery ends, any thread may write to `to`, which has as many bytes as the snapshot. Only
    /// [`try_read`](Self::try_read) writes to it besides, in order.
    pub(super) unsafe fn deliver_to(&self, to: *mut u8) -> Option<Delivering<'_>> {
        match self {
            // SAFETY: until the delivery ends `to` can be written by any thread, and only `try_read` writes it, in
            // order: the contract of this function.
            Self::Anonymous(of) => unsafe { of.deliver_to(to) },
            Self::Region(_) | Self::Piece(_) => None,
        }
    }

    /// Returns the delivery of a staging, which ends with this value.
    pub(super) fn delivery(&self) -> Option<Delivering<'_>> {
        match self {
            Self::Anonymous(of) => Some(of.snapshot.delivery()),
            Self::Region(_) | Self::Piece(_) => None,
        }
    }

    /// Lets go of the granules that begin in a range: no reader wants them any more, so writers need not preserve
    /// them.
    pub(super) fn let_go(&self, range: &Range<usize>) {
        match self {
            Self::Anonymous(of) => of.let_go(range),
            Self::Region(fork) => fork.let_go(range),
            Self::Piece(piece) => {
                let own = piece.own(range);
                if !own.is_empty() {
                    piece.whole().let_go(&own);
                }
            }
        }
    }

    /// Preserves the granule of a part.
    pub(crate) fn preserve(&self, part: &Range<usize>) -> Result<(), SnapshotError> {
        match self {
            Self::Anonymous(of) => {
                of.preserve(part);
                of.snapshot.failure().map_or(Ok(()), |failure| Err(self.error(failure)))
            }
            Self::Region(fork) => {
                fork.preserve(part);
                Ok(())
            }
            Self::Piece(piece) => piece.whole().preserve(part),
        }
    }

    pub(crate) fn serving(&self) -> Option<&Serving> {
        match self {
            Self::Anonymous(of) => of.serving.as_ref(),
            Self::Region(fork) => Some(fork.serving()),
            Self::Piece(piece) => piece.whole().serving(),
        }
    }

    pub(crate) fn stats(&self) -> SnapshotStats {
        match self {
            Self::Anonymous(of) => of.stats(),
            Self::Region(fork) => SnapshotStats::of_fork(fork),
            Self::Piece(piece) => piece.whole().stats(),
        }
    }

    /// Checks that this process made the snapshot. Another process must not use the descriptor, because its calls
    /// would act on the memory of the process that made it.
    pub(crate) fn check_process(&self) -> Result<(), SnapshotError> {
        let is_here = match self {
            Self::Anonymous(of) => of.tracker.is_ours(),
            Self::Region(fork) => fork.is_ours(),
            Self::Piece(piece) => return piece.whole().check_process(),
        };
        if is_here { Ok(()) } else { Err(SnapshotError::Forked) }
    }

    pub(crate) fn error(&self, failure: LossCause) -> SnapshotError {
        if let Self::Piece(piece) = self {
            return piece.whole().error(failure);
        }
        match failure {
            LossCause::CowLimitExceeded => {
                let SnapshotStats { cap, retained, .. } = self.stats();
                let available = limit::attainable(&Root::default(), retained);
                SnapshotError::CowLimitExceeded { cap, len: self.range().len(), available }
            }
            LossCause::Unserved => SnapshotError::Unserved,
            LossCause::Refused => SnapshotError::Refused,
            LossCause::Changed(address) => SnapshotError::Changed { address },
        }
    }
}
