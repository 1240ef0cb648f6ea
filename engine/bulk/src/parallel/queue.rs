//! The chunks that are left: one lane of chunks for each node. Any thread may take chunks from any
//! lane.
//!
//! A chunk is a number, and its bytes follow from the number. So a lane is a counter, not a list.
//! To take a chunk is one atomic addition, and a job of a million chunks needs no more memory than
//! a job of four. No chunk is ever put back, so an empty lane stays empty.

use std::ops::Range;

use hugekit_sys::sync::primitives::{AtomicUsize, Ordering};

/// The lanes of one job.
#[derive(Debug)]
pub(super) struct Queue {
    lanes: Vec<Lane>,
    grid: ChunkGrid,
}

/// The ends of chunks: every offset for which `offset + skew` is a multiple of `chunk`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkGrid {
    pub(super) chunk: usize,
    pub(super) skew: usize,
}

/// The parts of the range that one node holds. Each lane has a pair of cache lines of its own, so
/// threads of different nodes do not share a line until a thread moves to another lane.
#[derive(Debug)]
#[repr(align(128))]
struct Lane {
    parts: Vec<Part>,
    /// The number of the next chunk; beyond the last chunk if the lane is empty.
    next: AtomicUsize,
}

/// A contiguous part, and the number of its first chunk within the lane.
#[derive(Debug)]
struct Part {
    bytes: Range<usize>,
    first: usize,
}

impl ChunkGrid {
    /// Returns the number of chunks that contain a byte of `bytes`, which must not be empty.
    fn count_chunks(self, bytes: &Range<usize>) -> usize {
        self.cell_of(bytes.end - 1) - self.cell_of(bytes.start) + 1
    }

    fn cell_of(self, offset: usize) -> usize {
        (offset + self.skew) / self.chunk
    }

    /// Returns the chunk of `bytes` with the index `index`.
    fn chunk_of(self, bytes: &Range<usize>, index: usize) -> Range<usize> {
        let start = (self.cell_of(bytes.start) + index) * self.chunk;
        let end = start.saturating_add(self.chunk);
        bytes.start.max(start.saturating_sub(self.skew))..bytes.end.min(end - self.skew)
    }
}

impl Queue {
    /// Makes a queue of these parts, lane by lane. No part is empty.
    pub(super) fn new(lanes: Vec<Vec<Range<usize>>>, grid: ChunkGrid) -> Self {
        Self { lanes: lanes.into_iter().map(|parts| Lane::new(parts, grid)).collect(), grid }
    }

    /// Returns the bytes of every chunk that was taken so far, in any order. The result is complete
    /// when no thread takes chunks any more.
    pub(super) fn taken(&self) -> Vec<Range<usize>> {
        self.lanes.iter().flat_map(|lane| lane.taken(self.grid)).collect()
    }

    /// Returns the next chunk and its lane: `lane` if that has a chunk left, otherwise the next
    /// lane that has.
    pub(super) fn take_chunk(&self, lane: usize) -> Option<(usize, Range<usize>)> {
        let lanes = self.lanes.len();
        (lane..lane + lanes).map(|lane| lane % lanes).find_map(|lane| {
            let bytes = self.lanes[lane].take_chunk(self.grid)?;
            Some((lane, bytes))
        })
    }
}

impl Lane {
    fn new(parts: Vec<Range<usize>>, grid: ChunkGrid) -> Self {
        let mut first = 0;
        let numbered = parts.into_iter().map(|bytes| {
            let part = Part { first, bytes };
            first += grid.count_chunks(&part.bytes);
            part
        });
        Self { parts: numbered.collect(), next: AtomicUsize::new(0) }
    }

    fn taken(&self, grid: ChunkGrid) -> impl Iterator<Item = Range<usize>> {
        let next = self.next.load(Ordering::Relaxed);
        self.parts.iter().filter(move |part| part.first < next).map(move |Part { bytes, first }| {
            let last = (next - first).min(grid.count_chunks(bytes)) - 1;
            bytes.start..grid.chunk_of(bytes, last).end
        })
    }

    /// The addition is relaxed, because it passes only a number. The bytes existed before other
    /// threads saw the job, and a helper publishes its stores when it leaves.
    fn take_chunk(&self, grid: ChunkGrid) -> Option<Range<usize>> {
        let last = self.parts.last()?;
        let end = last.first + grid.count_chunks(&last.bytes);
        if self.next.load(Ordering::Relaxed) >= end {
            return None;
        }
        let taken = self.next.fetch_add(1, Ordering::Relaxed);
        (taken < end).then(|| {
            let part = self.parts.partition_point(|part| part.first <= taken) - 1;
            let Part { bytes, first } = &self.parts[part];
            grid.chunk_of(bytes, taken - first)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(queue: &Queue, lane: usize) -> Vec<(usize, Range<usize>)> {
        std::iter::from_fn(|| queue.take_chunk(lane)).collect()
    }

    #[test]
    fn take_from_any_start_ends_at_multiples() {
        let whole = 0..100;
        let queue = Queue::new(vec![vec![whole]], ChunkGrid { chunk: 32, skew: 5 });
        let chunks: Vec<_> = drain(&queue, 0).into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(chunks, [0..27, 27..59, 59..91, 91..100]);
    }

    #[test]
    fn take_of_the_only_chunk_leaves_none() {
        let whole = 0..7;
        let queue = Queue::new(vec![vec![whole.clone()]], ChunkGrid { chunk: 7, skew: 0 });
        assert_eq!(drain(&queue, 0), [(0, whole)]);
    }

    #[test]
    fn take_at_an_empty_lane_moves_to_the_next_with_work() {
        let lanes = vec![vec![0..10, 30..35], vec![], vec![10..30]];
        let queue = Queue::new(lanes, ChunkGrid { chunk: 10, skew: 0 });
        let expected = [(2, 10..20), (2, 20..30), (0, 0..10), (0, 30..35)];
        assert_eq!(drain(&queue, 2), expected);
        assert_eq!(queue.take_chunk(1), None);
    }

    proptest! {
        #[test]
        fn take_until_the_end_gives_every_byte_once(
            lens in prop::collection::vec((1_usize..5000, 0_usize..4), 1..12),
            chunk in 1_usize..3000,
            skew in 0_usize..3000,
        ) {
            let (mut lanes, mut total) = (vec![Vec::new(); 4], 0);
            for (len, lane) in lens {
                lanes[lane].push(total..total + len);
                total += len;
            }
            let queue = Queue::new(lanes, ChunkGrid { chunk, skew: skew % chunk });
            let mut chunks: Vec<_> = drain(&queue, 1).into_iter().map(|(_, bytes)| bytes).collect();
            chunks.sort_by_key(|bytes| bytes.start);
            let mut covered = 0;
            for bytes in chunks {
                prop_assert_eq!(bytes.start, covered);
                prop_assert!(!bytes.is_empty() && bytes.len() <= chunk);
                covered = bytes.end;
            }
            prop_assert_eq!(covered, total);
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    /// Two threads begin at different lanes, and every byte is passed exactly once.
    #[test]
    fn take_by_several_gives_every_chunk_once() {
        loom::model(|| {
            let lanes = vec![vec![0..3], vec![3..5]];
            let queue = Arc::new(Queue::new(lanes, ChunkGrid { chunk: 2, skew: 1 }));
            let taken = Arc::new(Mutex::new(Vec::new()));
            let worker = |lane| {
                let (queue, taken) = (Arc::clone(&queue), Arc::clone(&taken));
                move || {
                    let mut lane = lane;
                    while let Some((next, bytes)) = queue.take_chunk(lane) {
                        lane = next;
                        taken.lock().unwrap().push(bytes);
                    }
                }
            };
            let other = thread::spawn(worker(1));
            worker(0)();
            other.join().unwrap();
            let mut bytes: Vec<usize> = taken.lock().unwrap().iter().cloned().flatten().collect();
            bytes.sort_unstable();
            assert_eq!(bytes, [0, 1, 2, 3, 4]);
        });
    }
}
