//! All of a snapshot in order, protection lifted behind the reader.
#![allow(unsafe_code)]

use std::io::{self, Write};
use std::ops::Range;

use super::lifecycle::Failure;
use super::source::Source;
use super::{Snapshot, SnapshotError, Stats};
use hugekit_bulk::Reuse;
use hugekit_bulk::parallel::{Cancel, Progress};
use hugekit_sys::HUGE_PAGE_BYTES;
use hugekit_sys::headroom;
use hugekit_sys::private_pages::PrivateBytes;

/// Bytes that are read before the protection behind them is lifted: every time, all CPUs that run this process
/// are interrupted. A buffer has as many.
pub(super) const BATCH_BYTES: usize = HUGE_PAGE_BYTES;

/// With less to read, a buffer is on base pages: where free memory is in pieces, the kernel takes milliseconds to find a
/// huge one.
const WORTH_A_HUGE_PAGE: usize = 128 << 20;

/// Where bytes go before any other code sees them, so that the code that takes them may take its time.
#[derive(Debug)]
pub(super) struct Buffer(PrivateBytes);

impl Buffer {
    /// One for so many bytes, one batch after the other.
    pub(super) fn new(all: usize) -> Result<Self, SnapshotError> {
        let bytes =
            PrivateBytes::new(BATCH_BYTES, BATCH_BYTES).map_err(SnapshotError::kernel("mmap"))?;
        if all >= WORTH_A_HUGE_PAGE {
            // A kernel without them has base pages.
            let _ = bytes.want_huge_pages();
        }
        Ok(Self(bytes))
    }

    /// Reads parts of one granule or one edge each, no more than a batch in all.
    pub(super) fn read(
        &mut self,
        source: &Source,
        parts: &[Range<usize>],
    ) -> Result<&[u8], Failure> {
        let mut filled = 0;
        for part in parts {
            assert!(filled + part.len() <= BATCH_BYTES);
            // SAFETY: within the buffer, which is borrowed mutably, and which the kernel may write.
            unsafe { source.read(part, self.0.start().wrapping_add(filled)) }?;
            filled += part.len();
        }
        Ok(self.bytes(filled))
    }

    /// The first bytes of it.
    pub(super) fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= BATCH_BYTES);
        // SAFETY: so many bytes of the buffer, borrowed as it is.
        unsafe { std::slice::from_raw_parts(self.0.start(), len) }
    }
}

impl Snapshot {
    /// Copies all of it, and ends it.
    ///
    /// # Errors
    /// [`SnapshotError::LengthsDiffer`]; [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) and
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost; [`Forked`](SnapshotError::Forked). What
    /// `bytes` holds after these is of no use.
    pub fn copy_to(self, bytes: &mut [u8]) -> Result<Stats, SnapshotError> {
        self.copy_to_with(bytes, None, None)
    }

    /// As [`copy_to`](Self::copy_to), telling `progress` and asking `cancel` after each batch.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to), and [`SnapshotError::Cancelled`].
    ///
    /// # Panics
    /// If `progress` does.
    pub fn copy_to_with(
        self,
        bytes: &mut [u8],
        progress: Option<&Progress<'_>>,
        cancel: Option<&Cancel>,
    ) -> Result<Stats, SnapshotError> {
        if bytes.len() != self.len() {
            let destination = bytes.len();
            return Err(SnapshotError::LengthsDiffer { len: self.len(), destination });
        }
        let to = bytes.as_mut_ptr();
        // SAFETY: as many bytes, borrowed mutably until this returns, which is after the delivery.
        let _delivery = unsafe { self.source.deliver_to(to) };
        self.stream(progress, cancel, |batch, offset| {
            let mut offset = offset;
            for part in batch {
                // SAFETY: this part of them; writers leave alone what is being read.
                unsafe { self.read_part(part, to.add(offset), Reuse::None) }?;
                offset += part.len();
            }
            self.done_with(batch);
            Ok(())
        })?;
        Ok(self.stats())
    }

    /// Writes all of it in order, and ends it. The writer may take its time: it is given bytes of a buffer, or
    /// those that were preserved, and no thread waits for it.
    ///
    /// # Errors
    /// [`SnapshotError::Write`] if the writer fails; [`CowLimitExceeded`](SnapshotError::CowLimitExceeded) and
    /// [`Changed`](SnapshotError::Changed) if the snapshot is lost; [`Forked`](SnapshotError::Forked). What was
    /// written then is the first part of the snapshot.
    pub fn write_to(self, writer: impl Write) -> Result<Stats, SnapshotError> {
        self.write_to_with(writer, None, None)
    }

    /// As [`write_to`](Self::write_to), telling `progress` and asking `cancel` after each batch.
    ///
    /// # Errors
    /// As [`write_to`](Self::write_to), and [`SnapshotError::Cancelled`].
    ///
    /// # Panics
    /// If `progress` or the writer does.
    pub fn write_to_with(
        self,
        mut writer: impl Write,
        progress: Option<&Progress<'_>>,
        cancel: Option<&Cancel>,
    ) -> Result<Stats, SnapshotError> {
        let mut buffer = Buffer::new(self.len())?;
        self.stream(progress, cancel, |batch, offset| {
            self.give(batch, offset, &mut buffer, &mut |bytes| writer.write_all(bytes))
        })?;
        let failed = |source| SnapshotError::Write { written: self.len(), source };
        writer.flush().map_err(failed)?;
        Ok(self.stats())
    }

    /// Gives the bytes of a batch to other code, and lets them go: they are elsewhere then, in the buffer or a slot.
    pub(super) fn give(
        &self,
        batch: &[Range<usize>],
        offset: usize,
        buffer: &mut Buffer,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        if self.is_kept(batch) {
            return self.give_kept(batch, offset, take);
        }
        let failed = |source| SnapshotError::Write { written: offset, source };
        take(self.read_and_let_go(batch, buffer)?).map_err(failed)
    }

    /// Whether a batch is one part, and preserved: it stays where it is until it is let go.
    pub(super) fn is_kept(&self, batch: &[Range<usize>]) -> bool {
        matches!(batch, [part] if self.source.kept(part).is_some())
    }

    /// Gives the bytes of parts that are preserved from where they are, and lets them go.
    pub(super) fn give_kept(
        &self,
        batch: &[Range<usize>],
        offset: usize,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        for part in batch {
            let kept = self.source.kept(part).expect("it was, and is not let go");
            // SAFETY: so many bytes, which do not change until they are let go, below.
            let kept = unsafe { std::slice::from_raw_parts(kept, part.len()) };
            take(kept).map_err(|source| SnapshotError::Write { written: offset, source })?;
        }
        self.done_with(batch);
        Ok(())
    }

    /// Reads a batch to the buffer, and lets it go.
    pub(super) fn read_and_let_go<'a>(
        &self,
        batch: &[Range<usize>],
        buffer: &'a mut Buffer,
    ) -> Result<&'a [u8], SnapshotError> {
        let read = buffer.read(&self.source, batch);
        let read = read.map_err(|failure| self.source.error(failure))?;
        self.done_with(batch);
        Ok(read)
    }

    /// Takes batch after batch; `take` is told where each begins.
    fn stream(
        &self,
        progress: Option<&Progress<'_>>,
        cancel: Option<&Cancel>,
        take: impl FnMut(&[Range<usize>], usize) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        self.stream_range(self.source.range(), progress, cancel, take)
    }

    /// As [`stream`](Self::stream), of a range of addresses; `take` is told how much of it came before.
    pub(super) fn stream_range(
        &self,
        range: Range<usize>,
        progress: Option<&Progress<'_>>,
        cancel: Option<&Cancel>,
        mut take: impl FnMut(&[Range<usize>], usize) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        self.source.is_here()?;
        headroom::check()?;
        let len = range.len();
        let mut parts = self.source.parts(range).flat_map(pieces).peekable();
        let mut done = 0;
        while let Some(first) = parts.next() {
            if cancel.is_some_and(Cancel::is_cancelled) {
                return Err(SnapshotError::Cancelled { bytes: done, len });
            }
            let mut batch = vec![first];
            let mut bytes = batch[0].len();
            while let Some(part) = parts.next_if(|part| bytes + part.len() <= BATCH_BYTES) {
                bytes += part.len();
                batch.push(part);
            }
            take(&batch, done)?;
            done += bytes;
            progress.into_iter().for_each(|tell| tell(done, len));
        }
        Ok(())
    }

    /// Lets go what was read: writers need not preserve it any more.
    fn done_with(&self, batch: &[Range<usize>]) {
        let (Some(first), Some(last)) = (batch.first(), batch.last()) else { return };
        // Granules larger than a batch are let go with their last part.
        let (inner, origin) = (self.source.inner(), self.source.origin());
        let granule = self.source.granule_bytes();
        let begins =
            |address: usize| (address - address.saturating_sub(origin) % granule).max(inner.start);
        let end = if last.end >= inner.end { inner.end } else { begins(last.end) };
        // What lies in the last edge alone ends no granule: the one before it may be on its way still.
        let whole = begins(first.start.max(inner.start))..end;
        if first.start < inner.end && !whole.is_empty() {
            self.source.let_go(&whole);
        }
    }
}

/// Pieces of at most a batch: edges and granules may be longer.
pub(super) fn pieces(part: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = part.end;
    part.step_by(BATCH_BYTES).map(move |start| start..end.min(start + BATCH_BYTES))
}
