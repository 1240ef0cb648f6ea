//! Reads batches in a separate thread, ahead of the code that takes them. Reading memory takes about as long as using
//! it, and the two run in parallel. With one CPU, no free thread, or little to read, one thread does both.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, available_parallelism};

use crate::SnapshotError;
use crate::reading::buffer::{BATCH_BYTES, Buffer};
use crate::reading::source::SnapshotSource;
use crate::reading::stream::Stream;
use hugekit_sys::thread::spawn_scoped;

/// The number of buffers: a buffer that is read, a buffer that is delivered, and a buffer that waits.
const BUFFERS: usize = 3;

/// Takes bytes that begin at an offset of the snapshot.
pub(super) type Take<'a> = &'a mut dyn FnMut(usize, &[u8]) -> io::Result<()>;

/// The callback after a batch was read.
pub(super) type AndThen<'a> = &'a (dyn Fn(&[Range<usize>]) + Sync);

/// A batch on its way to the code that takes it.
struct Batch {
    offset: usize,
    bytes: BatchBytes,
}

/// The place of a batch's bytes.
enum BatchBytes {
    /// The first bytes of a buffer.
    Read(Buffer, usize),
    /// Parts that a writer has copied.
    Retained(Vec<Range<usize>>),
}

/// Ranges of a snapshot, as offsets, which are read in order. `and_then` gets the addresses of each batch.
pub(super) struct ReadAhead<'a> {
    stream: Stream<'a>,
    ranges: &'a [Range<usize>],
    and_then: AndThen<'a>,
}

impl<'a> ReadAhead<'a> {
    pub(super) fn new(
        source: &'a SnapshotSource,
        ranges: &'a [Range<usize>],
        and_then: AndThen<'a>,
    ) -> Self {
        Self { stream: Stream::new(source), ranges, and_then }
    }

    fn bytes(&self) -> usize {
        self.ranges.iter().map(ExactSizeIterator::len).sum()
    }

    /// Passes the ranges to `take` in batches. Each batch is released before.
    pub(super) fn pass_all(&self, take: Take<'_>) -> Result<(), SnapshotError> {
        let bytes = self.bytes();
        // One batch does not justify the start of a thread.
        if bytes <= BATCH_BYTES || available_parallelism().map_or(1, usize::from) < 2 {
            return self.pass_in_turn(take);
        }
        let (filled, to_take) = sync_channel(BUFFERS);
        let (emptied, to_fill) = sync_channel(BUFFERS);
        for _ in 0..BUFFERS {
            let room = emptied.try_send(Buffer::new(bytes)?);
            debug_assert!(room.is_ok(), "there is room for all");
        }
        // The taker drops its channels however it ends, so the reader ends, too.
        thread::scope(move |scope| {
            let read = move || self.read(&to_fill, &filled);
            let Ok(reader) = spawn_scoped(scope, "hugekit-read", read) else {
                return self.pass_in_turn(take);
            };
            let passed = self.pass_filled(to_take, emptied, take);
            // The scope would wait for its work, and not until the thread has gone.
            let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            passed.and(read)
        })
    }

    /// Reads and passes on the calling thread.
    fn pass_in_turn(&self, take: Take<'_>) -> Result<(), SnapshotError> {
        let mut buffer = Buffer::new(self.bytes())?;
        self.each_batch(|batch, offset| {
            let mut take = |bytes: &[u8]| take(offset, bytes);
            self.stream.pass_batch(batch, offset, &mut buffer, &mut take)?;
            (self.and_then)(batch);
            Ok(())
        })
    }

    /// Fills buffers until all bytes are read, or the taker has ended.
    fn read(
        &self,
        to_fill: &Receiver<Buffer>,
        filled: &SyncSender<Batch>,
    ) -> Result<(), SnapshotError> {
        self.each_batch(|batch, offset| {
            let ended = || SnapshotError::Cancelled { bytes: offset, len: self.stream.len() };
            let bytes = if self.stream.is_retained(batch) {
                BatchBytes::Retained(batch.to_vec())
            } else {
                let mut buffer = to_fill.recv().map_err(|_| ended())?;
                let len = self.stream.read_and_release(batch, &mut buffer)?.len();
                (self.and_then)(batch);
                BatchBytes::Read(buffer, len)
            };
            filled.send(Batch { offset, bytes }).map_err(|_| ended())
        })
    }

    fn each_batch(
        &self,
        mut act: impl FnMut(&[Range<usize>], usize) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        let start = self.stream.source().range().start;
        self.ranges.iter().try_for_each(|range| {
            let addresses = start + range.start..start + range.end;
            self.stream.each_batch(addresses, |batch, done| act(batch, range.start + done))
        })
    }

    /// Passes filled buffers on until the reader has ended.
    fn pass_filled(
        &self,
        to_take: Receiver<Batch>,
        emptied: SyncSender<Buffer>,
        take: Take<'_>,
    ) -> Result<(), SnapshotError> {
        for Batch { offset, bytes } in to_take {
            let mut take = |bytes: &[u8]| take(offset, bytes);
            match bytes {
                BatchBytes::Retained(parts) => {
                    self.stream.pass_retained(&parts, offset, &mut take)?;
                    (self.and_then)(&parts);
                }
                BatchBytes::Read(buffer, len) => {
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
