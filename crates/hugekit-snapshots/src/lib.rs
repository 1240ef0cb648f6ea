//! A point in time of memory, while writers go on.
//!
//! [`Snapshot::of_anonymous`] protects memory against writes, which takes microseconds a gigabyte, and returns.
//! Who writes to it afterwards copies the *granule* that he meets aside before it changes; a reader of the
//! snapshot takes each granule from there, or from the owner if it was not written, and lifts the protection
//! behind itself. Nothing is copied but what is read or written, there is no second process, and page tables
//! stay as they are.
//!
//! [`Snapshot::of_region`] does the same for memory of a pool, by a fork that is only read: the bytes that it may
//! take to retain granules are reserved, so that writers never outrun it and nothing that the owner does
//! takes anything from it.
//!
//! The snapshot is what `fork(2)` would have given a child, granule by granule: a store that happened before the
//! call is in it, one that begins after its return is not, and one that races with the call lands on either
//! side. Not seen at all are writes by devices, and by system calls through pages that the kernel held
//! before the snapshot (`io_uring` fixed buffers, `vmsplice`, `O_DIRECT` reads in flight).
//!
//! # System calls
//! *Threaded* ([`FaultMode`]), a thread of ours is told of each write and copies; no program notices
//! more than that it takes longer, system calls and KVM included. *In place*, the writer itself
//! copies, in a handler of SIGBUS. The kernel has no such handler: a system call that is to write
//! into a granule that is still protected fails with EFAULT and transfers nothing.
//! [`Snapshot::prepare_write`] preserves the granules of a range before such a call. No thread may
//! block SIGBUS while it writes: the kernel ends a process for that. System calls that read the
//! memory work either way. [`Snapshot::serving`] says which it is.
//!
//! `README.md` beside this file draws states and locks and names the races that were considered.
#![warn(missing_docs, clippy::incompatible_msrv)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![allow(unsafe_code)]

mod anonymous;
mod arena;
mod background;
mod builder;
mod collapse;
mod costs;
mod crew;
mod delivery;
mod edges;
mod epoch;
mod error;
mod granules;
mod heat;
mod interval;
mod lifecycle;
mod limit;
mod piece;
mod read_ahead;
mod region;
mod reserve;
mod segment;
mod several;
mod source;
mod state;
mod stream;
mod survey;
mod taken;
mod tracker;
mod view;
mod write_protector;

use std::ops::Range;
use std::time::Duration;

pub use self::builder::{Builder, Granule};
pub use self::collapse::{Collapsed, collapse};
pub use self::epoch::{Changes, Epoch};
pub use self::error::{SnapshotError, Unsuitable};
pub use self::reserve::Reserve;
use self::source::Source;
use self::state::Trouble;
use self::stream::Buffer;
pub use self::view::{Holder, View};
use hugekit_bulk::Reuse;
#[cfg(doc)]
use hugekit_regions::fault::FaultMode;
use hugekit_regions::fault::Serving;

/// Bytes of a range of memory as they were at one point in time: of any anonymous memory
/// ([`of_anonymous`](Self::of_anonymous)), or of a region ([`Snapshot::of_region`]). Dropped, it lifts the
/// protection that no other snapshot needs.
#[derive(Debug)]
pub struct Snapshot {
    source: Source,
}

/// What a snapshot has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Granules it has, the first and the last of which may be shorter; bytes that share a page with others' were
    /// copied at once.
    pub granules: usize,
    /// Bytes of each.
    pub granule_bytes: usize,
    /// Granules that writers preserved.
    pub copied_by_writers: u64,
    /// Granules that were preserved by [`Snapshot::prepare_write`], in the background, and at once
    /// because a region has them pinned.
    pub copied_by_others: u64,
    /// Bytes of granules that are retained now. A region's are held until the snapshot is dropped.
    pub retained: usize,
    /// Bytes that were retained at most.
    pub most_retained: usize,
    /// Bytes that may be retained: of a region all, reserved.
    pub cap: usize,
    /// Bytes of those that were there before, in a [`Reserve`] or the region's pool.
    pub reserved: usize,
    /// The longest time that a write to the memory took because of snapshots, and of a region's other forks;
    /// signal delivery not counted.
    pub longest_fault: Duration,
}

impl Snapshot {
    /// Takes a snapshot of private anonymous memory of this process, whatever mapped it, on huge pages or not, in
    /// one mapping or several. As [`builder`](Self::builder) without any wishes.
    ///
    /// # Errors
    /// [`SnapshotError`], naming the mapping where one is in the way. Nothing is changed then.
    ///
    /// # Safety
    /// As for [`Builder::of_anonymous`].
    pub unsafe fn of_anonymous(memory: *const [u8]) -> Result<Self, SnapshotError> {
        // SAFETY: the caller's to promise.
        unsafe { Self::builder().of_anonymous(memory) }
    }

    /// A snapshot with wishes: granule, bytes retained.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// How writes to the memory are handled, and so whether system calls may write to it; `None` if nothing is
    /// protected, because all of it was copied at once.
    #[must_use]
    pub fn serving(&self) -> Option<&Serving> {
        self.source.serving()
    }

    /// Bytes of the snapshot.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.source.range().len()
    }

    /// Copies bytes from `offset` on. Any number of threads may, and each byte may be read often.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`], nothing is copied then; [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) and
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost; [`Forked`](SnapshotError::Forked). What
    /// `bytes` holds after these is of no use.
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        let range = self.addresses(offset, bytes.len())?;
        self.source.is_here()?;
        for part in self.source.parts(range.clone()) {
            let to = &mut bytes[part.start - range.start..part.end - range.start];
            // SAFETY: as many bytes, borrowed mutably.
            unsafe { self.read_part(&part, to.as_mut_ptr(), Reuse::Unknown) }?;
        }
        Ok(())
    }

    /// Makes a range of the memory writable without a fault from now on, as a system call or a
    /// device needs it: its granules are preserved, and protection that no other snapshot needs is
    /// lifted. The snapshot keeps its bytes.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfRange`]; and [`CowLimitExceeded`](SnapshotError::CowLimitExceeded), [`Changed`](SnapshotError::Changed)
    /// if the snapshot is lost, [`Forked`](SnapshotError::Forked).
    pub fn prepare_write(&self, range: Range<usize>) -> Result<(), SnapshotError> {
        let range = self.addresses(range.start, range.end.saturating_sub(range.start))?;
        self.source.is_here()?;
        self.source.parts(range).try_for_each(|part| self.source.preserve(&part))
    }

    /// What it has cost so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.source.stats()
    }

    /// The addresses of so many bytes from an offset on.
    fn addresses(&self, offset: usize, len: usize) -> Result<Range<usize>, SnapshotError> {
        let end = offset.saturating_add(len);
        if end > self.len() {
            return Err(SnapshotError::OutOfRange { range: offset..end, len: self.len() });
        }
        let start = self.source.range().start;
        Ok(start + offset..start + end)
    }

    /// Copies bytes of one part, through a buffer where the kernel may not write to `to`.
    ///
    /// # Safety
    /// As many bytes of `to` may be written, and no other thread uses them.
    unsafe fn read_part(
        &self,
        part: &Range<usize>,
        to: *mut u8,
        reuse: Reuse,
    ) -> Result<(), SnapshotError> {
        // SAFETY: the caller's to promise.
        match unsafe { self.source.try_read(part, to, reuse) } {
            Ok(()) => return Ok(()),
            Err(Trouble::Failed(failure)) => return Err(self.source.error(failure)),
            Err(Trouble::Refused) => {}
        }
        let mut buffer = Buffer::new(part.len())?;
        for piece in stream::pieces(part.clone()) {
            let read = buffer.read(&self.source, std::slice::from_ref(&piece));
            let read = read.map_err(|failure| self.source.error(failure))?;
            // SAFETY: within the part; the buffer is elsewhere.
            unsafe { to.add(piece.start - part.start).copy_from(read.as_ptr(), read.len()) };
        }
        Ok(())
    }
}
