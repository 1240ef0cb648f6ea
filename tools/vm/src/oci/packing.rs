//! A file cut into frames by several threads, in its order.
//!
//! Thread *k* of *n* makes the batches *k*, *k + n*, and so on, and has a short queue. The calling thread takes from the
//! queues in turn, hashes and writes. So the result does not depend on the number of threads, and memory is bounded.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use hugekit_sys::new_file::NewFile;
use hugekit_sys::thread;

use super::digest::{Digest, Hasher};
use super::error::OciError;
use super::frames::{CHUNK, Encoder};

/// Chunks that a thread reads and compresses together: 1 MiB.
const BATCH: u64 = 16;

/// Batches that wait for the writer, for each thread.
const QUEUE: usize = 2;

/// The chunks of a file that are packed.
pub(crate) struct Input<'a, R> {
    /// Bytes of the file.
    pub(crate) length: u64,
    /// The number of chunks.
    pub(crate) count: u64,
    /// The chunk with a number: ascending.
    pub(crate) chunk: &'a (dyn Fn(u64) -> u64 + Sync),
    /// Makes a reader for one thread, which fills its second argument from an offset on.
    pub(crate) reader: &'a (dyn Fn() -> Result<R, OciError> + Sync),
}

/// Frames that were written, and the table of them.
pub(crate) struct Packed {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) table: Vec<u8>,
}

struct Batch {
    frames: Vec<u8>,
    entries: Vec<u8>,
}

/// Writes the frames of a file to `to`, by this many threads besides the calling one.
///
/// `tell` gets the chunks that were written so far.
pub(crate) fn pack<R>(
    input: &Input<'_, R>,
    to: &mut NewFile,
    refused: &dyn Fn(io::Error) -> OciError,
    threads: usize,
    tell: &dyn Fn(u64),
) -> Result<Packed, OciError>
where
    R: FnMut(u64, &mut [u8]) -> Result<(), OciError>,
{
    let batches = input.count.div_ceil(BATCH);
    let threads = (threads as u64).clamp(1, batches.max(1));
    std::thread::scope(|scope| {
        let mut queues: Vec<Receiver<Result<Batch, OciError>>> = Vec::new();
        for first in 0..threads {
            let (filled, batches_of) = sync_channel(QUEUE);
            let work = move || {
                let numbers = (first..batches).step_by(threads as usize);
                if let Err(why) = make(input, numbers, &filled) {
                    let _ = filled.send(Err(why));
                }
            };
            thread::spawn_scoped(scope, "hugekit-pack", work).map_err(OciError::Thread)?;
            queues.push(batches_of);
        }
        let (mut hasher, mut entries) = (Hasher::default(), Vec::new());
        for (number, queue) in (0..batches).zip((0..queues.len()).cycle()) {
            let lost = || OciError::Thread(io::Error::other("a thread has ended early"));
            let batch = queues[queue].recv().map_err(|_| lost())??;
            hasher.update(&batch.frames);
            to.write_all(&batch.frames).map_err(refused)?;
            entries.extend_from_slice(&batch.entries);
            tell(((number + 1) * BATCH).min(input.count));
        }
        let mut encoder = Encoder::new().map_err(OciError::Thread)?;
        let table = encoder.table(input.length, &entries).map_err(OciError::Thread)?;
        Ok(Packed { size: hasher.bytes(), digest: hasher.finish(), table })
    })
}

/// Makes batches until there are no more, or nobody takes them.
fn make<R>(
    input: &Input<'_, R>,
    numbers: impl Iterator<Item = u64>,
    filled: &SyncSender<Result<Batch, OciError>>,
) -> Result<(), OciError>
where
    R: FnMut(u64, &mut [u8]) -> Result<(), OciError>,
{
    let mut encoder = Encoder::new().map_err(OciError::Thread)?;
    let mut read = (input.reader)()?;
    let mut room = vec![0; CHUNK as usize];
    for number in numbers {
        let mut batch = Batch { frames: Vec::new(), entries: Vec::new() };
        for number in number * BATCH..((number + 1) * BATCH).min(input.count) {
            let chunk = (input.chunk)(number);
            let offset = chunk * CHUNK;
            let bytes = &mut room[..CHUNK.min(input.length - offset) as usize];
            read(offset, bytes)?;
            let added = encoder.add(chunk, bytes, &mut batch.frames, &mut batch.entries);
            added.map_err(OciError::Thread)?;
        }
        if filled.send(Ok(batch)).is_err() {
            return Ok(());
        }
    }
    Ok(())
}
