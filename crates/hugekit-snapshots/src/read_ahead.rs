//! Batches that a thread of its own reads, ahead of the code that takes them: reading memory takes about as long as what
//! is done with it, and both go on side by side. Where there is no second CPU or no further thread, or little to read,
//! one thread does both.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, available_parallelism};

use super::stream::{BATCH_BYTES, Buffer};
use super::{Snapshot, SnapshotError};
use hugekit_sys::thread::spawn_scoped;

/// One is being read, one taken, and one waits for either.
const BUFFERS: usize = 3;

/// Takes bytes that begin at an offset of the snapshot.
pub(super) type Take<'a> = &'a mut dyn FnMut(usize, &[u8]) -> io::Result<()>;

/// What follows when a batch was read.
pub(super) type AndThen<'a> = &'a (dyn Fn(&[Range<usize>]) + Sync);

/// A batch on its way to the code that takes it.
struct Batch {
    offset: usize,
    bytes: Bytes,
}

/// Where its bytes are.
enum Bytes {
    /// The first ones of a buffer.
    Read(Buffer, usize),
    /// Where a writer has put them: these parts.
    Kept(Vec<Range<usize>>),
}

impl Snapshot {
    /// Gives ranges of it, as offsets, to `take` in batches, each after it was let go and `and_then` was told of its
    /// addresses.
    pub(super) fn give_all(
        &self,
        ranges: &[Range<usize>],
        and_then: AndThen<'_>,
        take: Take<'_>,
    ) -> Result<(), SnapshotError> {
        let bytes = total(ranges);
        // One batch is not worth a thread's start.
        if bytes <= BATCH_BYTES || available_parallelism().map_or(1, usize::from) < 2 {
            return self.give_in_turn(ranges, and_then, take);
        }
        let (filled, to_take) = sync_channel(BUFFERS);
        let (emptied, to_fill) = sync_channel(BUFFERS);
        for _ in 0..BUFFERS {
            let room = emptied.try_send(Buffer::new(bytes)?);
            debug_assert!(room.is_ok(), "there is room for all");
        }
        // What the taker has goes with it, however it ends, and so the reader ends.
        thread::scope(move |scope| {
            let read = move || self.read_ahead(ranges, and_then, &to_fill, &filled);
            let Ok(reader) = spawn_scoped(scope, "hugekit-read", read) else {
                return self.give_in_turn(ranges, and_then, take);
            };
            self.take_all(to_take, emptied, and_then, take)?;
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn give_in_turn(
        &self,
        ranges: &[Range<usize>],
        and_then: AndThen<'_>,
        take: Take<'_>,
    ) -> Result<(), SnapshotError> {
        let mut buffer = Buffer::new(total(ranges))?;
        self.each_batch(ranges, |batch, offset| {
            self.give(batch, offset, &mut buffer, &mut |bytes| take(offset, bytes))?;
            and_then(batch);
            Ok(())
        })
    }

    /// Until all is read, or the taker has ended.
    fn read_ahead(
        &self,
        ranges: &[Range<usize>],
        and_then: AndThen<'_>,
        to_fill: &Receiver<Buffer>,
        filled: &SyncSender<Batch>,
    ) -> Result<(), SnapshotError> {
        self.each_batch(ranges, |batch, offset| {
            let ended = || SnapshotError::Cancelled { bytes: offset, len: self.len() };
            let bytes = if self.is_kept(batch) {
                Bytes::Kept(batch.to_vec())
            } else {
                let mut buffer = to_fill.recv().map_err(|_| ended())?;
                let len = self.read_and_let_go(batch, &mut buffer)?.len();
                and_then(batch);
                Bytes::Read(buffer, len)
            };
            filled.send(Batch { offset, bytes }).map_err(|_| ended())
        })
    }

    fn each_batch(
        &self,
        ranges: &[Range<usize>],
        mut act: impl FnMut(&[Range<usize>], usize) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        let start = self.source.range().start;
        ranges.iter().try_for_each(|range| {
            let addresses = start + range.start..start + range.end;
            self.stream_range(addresses, None, None, |batch, done| act(batch, range.start + done))
        })
    }

    /// Until the reader has ended.
    fn take_all(
        &self,
        to_take: Receiver<Batch>,
        emptied: SyncSender<Buffer>,
        and_then: AndThen<'_>,
        take: Take<'_>,
    ) -> Result<(), SnapshotError> {
        for Batch { offset, bytes } in to_take {
            let mut take = |bytes: &[u8]| take(offset, bytes);
            match bytes {
                Bytes::Kept(parts) => {
                    self.give_kept(&parts, offset, &mut take)?;
                    and_then(&parts);
                }
                Bytes::Read(buffer, len) => {
                    let failed = |source| SnapshotError::Write { written: offset, source };
                    take(buffer.bytes(len)).map_err(failed)?;
                    // The reader may have ended.
                    let _ = emptied.try_send(buffer);
                }
            }
        }
        Ok(())
    }
}

fn total(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(ExactSizeIterator::len).sum()
}
