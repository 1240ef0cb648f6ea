//! Where the bytes of a snapshot come from: anonymous memory that is protected, or a fork of a region. Both have
//! granules that are read, preserved and let go; addresses are the owner's.
#![allow(unsafe_code)]

use std::ops::Range;

use super::anonymous::Anonymous;
use super::buffer::Buffer;
use super::piece::Piece;
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
    Piece(Piece),
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

    /// Returns the addresses of the granules: all but the edges. For a piece: those of the whole that it was cut from.
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

    /// The granule that a part lies in, if that is no edge.
    pub(crate) fn granule_of(&self, part: &Range<usize>) -> Option<usize> {
        let is_in_one = self.inner().contains(&part.start);
        is_in_one.then(|| part.start.saturating_sub(self.origin()) / self.granule_bytes())
    }

    /// The parts of a range of addresses that lie in one granule or one edge each. The first and the last granule
    /// may be cut by the ends.
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

    /// Copies bytes of one part to where the kernel may refuse to write, past the cache unless they are used
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

    /// Like [`try_read`](Self::try_read), to memory of our own.
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

    /// Copies bytes of one part, through a buffer where the kernel may not write to `to`.
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

    /// Bytes of one part that are retained, and so do not change until it is let go.
    pub(super) fn kept(&self, part: &Range<usize>) -> Option<*const u8> {
        match self {
            Self::Anonymous(of) => of.snapshot.kept(part),
            Self::Region(_) => None,
            Self::Piece(piece) => piece.whole().kept(part),
        }
    }

    /// Has each thread that preserves a granule put it where all of it is being copied to, where that is possible.
    ///
    /// # Safety
    /// Until the delivery ends, `to` can be written by any thread for as many bytes as there are, and only
    /// [`try_read`](Self::try_read) writes it, in order.
    pub(super) unsafe fn deliver_to(&self, to: *mut u8) -> Option<Delivering<'_>> {
        match self {
            // SAFETY: until the delivery ends `to` can be written by any thread, and only `try_read` writes it, in
            // order: the contract of this function.
            Self::Anonymous(of) => unsafe { of.deliver_to(to) },
            Self::Region(_) | Self::Piece(_) => None,
        }
    }

    /// No reader wants the granules that begin in a range any more: writers need not preserve them.
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

    /// Preserves what a part lies in.
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

    /// Checks that this is the process that made it: another one must not ask anything of the descriptor, because
    /// it would be asked of that process's memory.
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
