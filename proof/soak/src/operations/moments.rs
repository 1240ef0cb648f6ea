//! Forks and snapshots while another thread writes without end: each must be of one moment.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};

use hugekit::fault::FaultMode;
use hugekit::snapshot::Granule;
use hugekit::snapshot::View;
use hugekit::{Cancel, Snapshot, SnapshotError};

use super::regions::soiled;
use crate::exposed::Exposed;
use crate::mapping::AnonymousMapping;
use crate::model::{CELL_BYTES, PAGE_BYTES, Sequence};
use crate::status::Count;
use crate::world::{Size, World};

/// Memory that threads write in known orders, each its own part, while handlers touch it.
pub(super) struct Written<'a> {
    words: &'a [AtomicU64],
    sequences: Vec<Sequence>,
    _exposed: Option<Exposed>,
    stop: AtomicBool,
}

impl<'a> Written<'a> {
    /// # Safety
    /// `bytes` bytes from `start` on may be read and written for as long as this exists.
    pub(super) unsafe fn new(start: *mut u8, bytes: usize, writers: usize) -> Self {
        let _paused = crate::step::Paused::new();
        // SAFETY: the bytes may be read and written for as long as this exists, which is all that accesses the words.
        let words = unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), bytes / 8) };
        let share = bytes / CELL_BYTES / writers;
        let sequences: Vec<_> =
            (0..writers).map(|at| Sequence::new(at * share..(at + 1) * share)).collect();
        for sequence in &sequences {
            (1..=sequence.round()).for_each(|number| sequence.write(words, number));
        }
        // SAFETY: the bytes may be read and written for as long as this exists, which owns `exposed`.
        let exposed = unsafe { Exposed::new(start.cast(), bytes / PAGE_BYTES) };
        Self { words, sequences, _exposed: exposed, stop: AtomicBool::new(false) }
    }

    /// Lets its writers write while `work` runs, and none afterwards.
    pub(super) fn while_written<R>(
        &self,
        world: &mut World,
        work: impl FnOnce(&mut World) -> R,
    ) -> R {
        let every = world.every;
        thread::scope(|scope| {
            let start =
                |sequence| scope.spawn(move || crate::step::every(every, || self.write(sequence)));
            let writers: Vec<ScopedJoinHandle<'_, ()>> = self.sequences.iter().map(start).collect();
            let stopped = StopsWriters(&self.stop);
            let result = work(world);
            drop(stopped);
            for writer in writers {
                writer.join().expect("writers only write");
            }
            self.stop.store(false, Ordering::SeqCst);
            result
        })
    }

    fn write(&self, sequence: &Sequence) {
        // It goes on where it was: its own cells say so.
        let mut number = sequence.last(self.words);
        while !self.stop.load(Ordering::Relaxed) {
            number += 1;
            sequence.write(self.words, number);
        }
    }

    pub(super) fn words(&self) -> &'a [AtomicU64] {
        self.words
    }

    /// Checks bytes of one moment; returns how many.
    pub(super) fn check(&self, offset: usize, bytes: &[u8], what: &str) -> usize {
        self.sequences.iter().map(|sequence| sequence.check(offset, bytes, what)).sum()
    }
}

/// Has writers stop, if `work` panics too.
struct StopsWriters<'a>(&'a AtomicBool);

impl Drop for StopsWriters<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub(super) fn forks(world: &mut World) {
    let backing = world.backing();
    let folios = world.folios(backing).div_ceil(2);
    let Some(pool) = soiled(world, backing, 2 * folios) else { return };
    let len = folios * backing.page_size();
    let Some(region) = world.unless_short(pool.region(len)) else { return };
    let region = region.share();
    // SAFETY: the region outlives it.
    let written = unsafe { Written::new(region.as_ptr(), region.mapped_len(), 1) };
    written.while_written(world, |world| {
        for _ in 0..world.steps() {
            let forked = region.fork_builder().fault_mode(world.fault_mode).build();
            let Some(mut child) = world.unless_short(forked) else { return };
            world.count(Count::Forks);
            world.verified(written.check(0, &child, "fork"));
            let page = world.rng.usize(0..child.len() / PAGE_BYTES) * PAGE_BYTES;
            child[page..page + PAGE_BYTES].fill(0xee);
            world.count(Count::Writes);
            assert!(child[page..page + PAGE_BYTES].iter().all(|&byte| byte == 0xee));
        }
    });
    world.verified(written.check(0, &bytes_of(written.words), "parent"));
}

pub(super) fn of_region(world: &mut World) {
    let backing = world.backing();
    let folios = world.folios(backing).div_ceil(2);
    let Some(pool) = soiled(world, backing, 2 * folios) else { return };
    let len = folios * backing.page_size();
    let Some(region) = world.unless_short(pool.region(len)) else { return };
    let region = region.share();
    // SAFETY: the region outlives it.
    let written = unsafe { Written::new(region.as_ptr(), region.mapped_len(), 1) };
    written.while_written(world, |world| {
        for _ in 0..world.steps() {
            let made = Snapshot::of_region(region.fork_builder().fault_mode(world.fault_mode));
            let Some(snapshot) = world.unless_short(made) else { return };
            world.count(Count::Snapshots);
            read_out(world, snapshot, &|offset, bytes| written.check(offset, bytes, "snapshot"))
                .expect("a region's snapshot is never lost");
        }
    });
}

pub(super) fn of_anonymous(world: &mut World) {
    let (bytes, writers) = (anonymous_bytes(world), world.rng.usize(1..3));
    let memory = AnonymousMapping::new(bytes, world.rng.bool()).expect("there is memory");
    // SAFETY: the mapping outlives it.
    let written = unsafe { Written::new(memory.start(), bytes, writers) };
    written.while_written(world, |world| {
        for _ in 0..world.steps() {
            let part = unaligned_part(world, bytes);
            // SAFETY: no thread blocks SIGBUS, and no system call writes to the memory, which stays.
            let Some(snapshot) = (unsafe { snapshot(world, &memory, &part, world.fault_mode) })
            else {
                return;
            };
            let read = read_out(world, snapshot, &|offset, bytes| {
                written.check(part.start + offset, bytes, "snapshot")
            });
            unless_lost(world, read);
        }
    });
    world.verified(written.check(0, &bytes_of(written.words), "owner"));
}

/// Bytes of memory for snapshots.
pub(super) fn anonymous_bytes(world: &mut World) -> usize {
    match world.size {
        Size::Stepped => world.rng.usize(2..5) << 16,
        Size::Short => world.rng.usize(2..40) << 16,
        Size::Soak => world.rng.usize(1..8) << 20,
    }
}

/// All of it, or any bytes of it, but at least half.
pub(super) fn unaligned_part(world: &mut World, bytes: usize) -> Range<usize> {
    if world.rng.bool() {
        return 0..bytes;
    }
    world.rng.usize(0..bytes / 4)..bytes - world.rng.usize(0..bytes / 4)
}

/// A snapshot of part of a mapping, with random options.
///
/// # Safety
/// As for `of_anonymous`.
pub(super) unsafe fn snapshot(
    world: &mut World,
    memory: &AnonymousMapping,
    part: &Range<usize>,
    fault_mode: FaultMode,
) -> Option<Snapshot> {
    let granule = [Granule::Auto, Granule::Huge, Granule::Small][world.rng.usize(0..3)];
    let mut builder = Snapshot::builder().fault_mode(fault_mode).granule(granule);
    builder = if world.one_in(4) { builder.in_background(true) } else { builder };
    builder = if world.one_in(4) { builder.max_cow_bytes(part.len() / 2) } else { builder };
    builder = if world.one_in(4) { builder.populate_copies(part.len() / 4) } else { builder };
    let start = memory.start().wrapping_add(part.start);
    let range = std::ptr::slice_from_raw_parts(start, part.len());
    // SAFETY: this function has the contract of `of_anonymous`.
    let snapshot = world.unless_short(unsafe { builder.of_anonymous(range) })?;
    world.count(Count::Snapshots);
    Some(snapshot)
}

/// A snapshot that was lost because its writers outran it is one that the interface announces.
pub(super) fn unless_lost(world: &World, read: Result<(), SnapshotError>) {
    match read {
        Ok(()) => {}
        Err(SnapshotError::CowLimitExceeded { .. }) => world.count(Count::Lost),
        Err(error) => panic!("{error}"),
    }
}

/// Reads a snapshot in one of all the ways, and has `check` look at every byte that was read.
pub(super) fn read_out(
    world: &mut World,
    snapshot: Snapshot,
    check: &dyn Fn(usize, &[u8]) -> usize,
) -> Result<(), SnapshotError> {
    world.count(Count::Reads);
    let len = snapshot.len();
    let mut bytes = vec![0; len];
    match world.rng.u32(0..8) {
        0 => drop(snapshot),
        1 => {
            let cancel = Cancel::new();
            cancel.cancel();
            let cancelled = snapshot.reader().cancel(&cancel).write_to(std::io::sink());
            assert!(matches!(cancelled, Err(SnapshotError::Cancelled { .. })));
            world.count(Count::Cancelled);
        }
        2 | 3 => {
            bytes.clear();
            snapshot.write_to(&mut bytes)?;
            world.verified(check(0, &bytes));
        }
        4 | 5 => {
            snapshot.copy_to(&mut bytes)?;
            world.verified(check(0, &bytes));
        }
        6 => {
            let view = View::of(&snapshot)?;
            let part = world.part_of(len);
            world.verified(check(part.start, view.bytes(part.clone())?));
            world.verified(check(0, view.bytes(0..len)?));
        }
        _ => read_parts(world, &snapshot, &mut bytes, check)?,
    }
    Ok(())
}

fn read_parts(
    world: &mut World,
    snapshot: &Snapshot,
    bytes: &mut [u8],
    check: &dyn Fn(usize, &[u8]) -> usize,
) -> Result<(), SnapshotError> {
    for _ in 0..4 {
        let part = world.part_of(bytes.len());
        if world.one_in(3) {
            snapshot.prepare_write(part.clone())?;
        }
        snapshot.read_at(part.start, &mut bytes[part.clone()])?;
        world.verified(check(part.start, &bytes[part]));
    }
    snapshot.read_at(0, bytes)?;
    world.verified(check(0, bytes));
    Ok(())
}

pub(super) fn bytes_of(words: &[AtomicU64]) -> Vec<u8> {
    let _paused = crate::step::Paused::new();
    words.iter().flat_map(|word| word.load(Ordering::SeqCst).to_ne_bytes()).collect()
}
