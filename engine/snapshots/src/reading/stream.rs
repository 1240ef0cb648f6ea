//! Reads a snapshot in order, and lifts the protection behind the reader.
#![allow(unsafe_code)]

use std::io::{self, Write};
use std::ops::Range;

use super::buffer::{BATCH_BYTES, Buffer};
use super::source::SnapshotSource;
use crate::SnapshotError;
use hugekit_bulk::Reuse;
use hugekit_bulk::parallel::{Cancel, Progress};
use hugekit_sys::headroom;

/// A reader of a snapshot, in order.
#[derive(Clone, Copy)]
pub(crate) struct Stream<'a> {
    source: &'a SnapshotSource,
    progress: Option<&'a Progress<'a>>,
    cancel: Option<&'a Cancel>,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(source: &'a SnapshotSource) -> Self {
        Self { source, progress: None, cancel: None }
    }

    /// Calls `progress` after each batch, and checks `cancel` before it.
    pub(super) fn watched(
        self,
        progress: Option<&'a Progress<'a>>,
        cancel: Option<&'a Cancel>,
    ) -> Self {
        Self { progress, cancel, ..self }
    }

    pub(crate) fn source(&self) -> &'a SnapshotSource {
        self.source
    }

    pub(crate) fn len(&self) -> usize {
        self.source.range().len()
    }

    /// Copies the whole snapshot to `bytes`.
    pub(super) fn copy_to(&self, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        if bytes.len() != self.len() {
            let destination = bytes.len();
            return Err(SnapshotError::LengthsDiffer { len: self.len(), destination });
        }
        let to = bytes.as_mut_ptr();
        // SAFETY: `bytes` has as many bytes as the snapshot. It is borrowed mutably until this function returns,
        // after the delivery has ended.
        let _delivery = unsafe { self.source.deliver_to(to) };
        // SAFETY: the same.
        unsafe { self.copy_all(to) }
    }

    /// Copies the whole snapshot.
    ///
    /// # Safety
    /// `to` has as many bytes as the snapshot. No other thread uses them, except to deliver granules.
    pub(super) unsafe fn copy_all(&self, to: *mut u8) -> Result<(), SnapshotError> {
        self.each_batch(self.source.range(), |batch, offset| {
            let mut offset = offset;
            for part in batch {
                // SAFETY: the part lies within the bytes of `to`: the contract of this function. Writers deliver no
                // granule that is being read.
                unsafe { self.source.read_part(part, to.add(offset), Reuse::None) }?;
                offset += part.len();
            }
            self.release(batch);
            Ok(())
        })
    }

    /// Writes the whole snapshot to `writer`.
    pub(super) fn write_to(&self, mut writer: impl Write) -> Result<(), SnapshotError> {
        let mut buffer = Buffer::new(self.len())?;
        self.each_batch(self.source.range(), |batch, offset| {
            self.pass_batch(batch, offset, &mut buffer, &mut |bytes| writer.write_all(bytes))
        })?;
        let failed = |source| SnapshotError::Write { written: self.len(), source };
        writer.flush().map_err(failed)
    }

    /// Passes the bytes of a batch to `take`, and releases their granules. The bytes lie in the buffer or in a slot.
    pub(crate) fn pass_batch(
        &self,
        batch: &[Range<usize>],
        offset: usize,
        buffer: &mut Buffer,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        if self.is_retained(batch) {
            return self.pass_retained(batch, offset, take);
        }
        let failed = |source| SnapshotError::Write { written: offset, source };
        take(self.read_and_release(batch, buffer)?).map_err(failed)
    }

    /// Returns true if a batch is one preserved part, which stays in its slot until it is released.
    pub(crate) fn is_retained(&self, batch: &[Range<usize>]) -> bool {
        matches!(batch, [part] if self.source.kept(part).is_some())
    }

    /// Passes the bytes of preserved parts from their slots, and releases them.
    pub(crate) fn pass_retained(
        &self,
        batch: &[Range<usize>],
        offset: usize,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        for part in batch {
            let kept = self.source.kept(part).expect("the part is preserved and not released");
            // SAFETY: the slot has the bytes of the part, which do not change until they are released below.
            let kept = unsafe { std::slice::from_raw_parts(kept, part.len()) };
            take(kept).map_err(|source| SnapshotError::Write { written: offset, source })?;
        }
        self.release(batch);
        Ok(())
    }

    /// Reads a batch to the buffer, and releases its granules.
    pub(crate) fn read_and_release<'b>(
        &self,
        batch: &[Range<usize>],
        buffer: &'b mut Buffer,
    ) -> Result<&'b [u8], SnapshotError> {
        let read = buffer.read(self.source, batch);
        let read = read.map_err(|failure| self.source.error(failure))?;
        self.release(batch);
        Ok(read)
    }

    /// Calls `act` with each batch of a range of addresses, and with the bytes before the batch.
    pub(crate) fn each_batch(
        &self,
        range: Range<usize>,
        mut act: impl FnMut(&[Range<usize>], usize) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        self.source.check_process()?;
        headroom::check()?;
        let len = range.len();
        let mut parts = self.source.parts(range).flat_map(pieces).peekable();
        let mut done = 0;
        while let Some(first) = parts.next() {
            if self.cancel.is_some_and(Cancel::is_cancelled) {
                return Err(SnapshotError::Cancelled { bytes: done, len });
            }
            let mut batch = vec![first];
            let mut bytes = batch[0].len();
            while let Some(part) = parts.next_if(|part| bytes + part.len() <= BATCH_BYTES) {
                bytes += part.len();
                batch.push(part);
            }
            act(&batch, done)?;
            done += bytes;
            self.progress.into_iter().for_each(|tell| tell(done, len));
        }
        Ok(())
    }

    /// Releases the granules of a batch: writers need not preserve them any more.
    fn release(&self, batch: &[Range<usize>]) {
        let (Some(first), Some(last)) = (batch.first(), batch.last()) else { return };
        // A granule larger than a batch is let go with its last part.
        let (inner, origin) = (self.source.inner(), self.source.origin());
        let granule = self.source.granule_bytes();
        let begins =
            |address: usize| (address - address.saturating_sub(origin) % granule).max(inner.start);
        let end = if last.end >= inner.end { inner.end } else { begins(last.end) };
        // A part in the last edge ends no granule: the granule before it may still be on its way.
        let whole = begins(first.start.max(inner.start))..end;
        if first.start < inner.end && !whole.is_empty() {
            self.source.let_go(&whole);
        }
    }
}

/// Returns pieces of at most a batch. Edges and granules may be longer.
pub(super) fn pieces(part: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = part.end;
    part.step_by(BATCH_BYTES).map(move |start| start..end.min(start + BATCH_BYTES))
}
