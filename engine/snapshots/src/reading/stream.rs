//! All of a snapshot in order, protection lifted behind the reader.
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

    /// Tells `progress` and asks `cancel` after each batch.
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

    /// Copies all of it to `bytes`.
    pub(super) fn copy_to(&self, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        if bytes.len() != self.len() {
            let destination = bytes.len();
            return Err(SnapshotError::LengthsDiffer { len: self.len(), destination });
        }
        let to = bytes.as_mut_ptr();
        // SAFETY: as many bytes, borrowed mutably until this returns, which is after the delivery.
        let _delivery = unsafe { self.source.deliver_to(to) };
        self.each_batch(self.source.range(), |batch, offset| {
            let mut offset = offset;
            for part in batch {
                // SAFETY: this part of them; writers leave alone what is being read.
                unsafe { self.source.read_part(part, to.add(offset), Reuse::None) }?;
                offset += part.len();
            }
            self.release(batch);
            Ok(())
        })
    }

    /// Writes all of it to `writer`.
    pub(super) fn write_to(&self, mut writer: impl Write) -> Result<(), SnapshotError> {
        let mut buffer = Buffer::new(self.len())?;
        self.each_batch(self.source.range(), |batch, offset| {
            self.pass_batch(batch, offset, &mut buffer, &mut |bytes| writer.write_all(bytes))
        })?;
        let failed = |source| SnapshotError::Write { written: self.len(), source };
        writer.flush().map_err(failed)
    }

    /// Passes the bytes of a batch to `take`, and releases their granules: the bytes are in the buffer or a slot then.
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

    /// Returns whether a batch is one part, and preserved: it stays where it is until it is released.
    pub(crate) fn is_retained(&self, batch: &[Range<usize>]) -> bool {
        matches!(batch, [part] if self.source.kept(part).is_some())
    }

    /// Passes the bytes of preserved parts from where they are, and releases them.
    pub(crate) fn pass_retained(
        &self,
        batch: &[Range<usize>],
        offset: usize,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        for part in batch {
            let kept = self.source.kept(part).expect("it was, and is not released");
            // SAFETY: so many bytes, which do not change until they are released, below.
            let kept = unsafe { std::slice::from_raw_parts(kept, part.len()) };
            take(kept).map_err(|source| SnapshotError::Write { written: offset, source })?;
        }
        self.release(batch);
        Ok(())
    }

    /// Reads a batch to the buffer, and releases it.
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

    /// Reads a range of addresses batch by batch. `act` does what is to be done with each, and is told how many bytes came
    /// before it.
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

    /// Releases what was read: writers need not preserve it any more.
    fn release(&self, batch: &[Range<usize>]) {
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
