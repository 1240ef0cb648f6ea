//! Snapshots of anonymous memory.
#![allow(unsafe_code)]

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::snapshot::{Builder, Epoch, KeptMemory, Reserve, Staging, View};
use hugekit::{HUGE_PAGE_BYTES, Snapshot, SnapshotError};
use hugekit_testing::states::try_save;

use super::Run;
use crate::case::Point;
use crate::memory::Memory;

pub(super) const EACH: &[(&str, Run)] = hugekit_testing::checks![
    memory_is_snapshotted,
    several_are_snapshotted,
    snapshotted_memory_is_written,
    a_snapshot_is_read,
    a_snapshot_is_copied,
    memory_is_staged,
    staged_memory_is_written,
    a_staging_is_copied,
    a_snapshot_is_viewed,
    a_snapshot_is_dropped,
    a_snapshot_is_copied_in_the_background,
    a_reserve_is_made,
    an_epoch_begins,
    watched_memory_is_written,
    a_state_follows_an_epoch,
];

const LEN: usize = 3 << 20;

fn memory() -> Memory {
    Memory::filled(LEN, true, 7)
}

fn holds(memory: &Memory, value: u64) -> bool {
    memory.words().iter().all(|word| word.load(Ordering::Relaxed) == value)
}

fn write(memory: &Memory, value: u64) {
    memory.words().iter().for_each(|word| word.store(value, Ordering::Relaxed));
}

fn is_first(copy: &[u8]) -> bool {
    copy[..8] == 7_u64.to_ne_bytes() && copy[8..] == copy[..copy.len() - 8]
}

fn builder(fault_mode: FaultMode) -> Builder {
    Snapshot::builder().fault_mode(fault_mode).max_cow_bytes(LEN + HUGE_PAGE_BYTES)
}

fn taken(builder: Builder, memory: &Memory) -> Result<Snapshot, SnapshotError> {
    // SAFETY: no thread blocks SIGBUS, or has the kernel write there.
    unsafe { builder.of_anonymous(memory.range()) }
}

fn is_read_as_taken(point: &Point, snapshot: Snapshot) {
    let mut same = Same(0);
    let read = snapshot.write_to(&mut same);
    if point.unless_lost(read, SnapshotError::kind).is_some() {
        point.check(same.0 == LEN, "the snapshot changed");
    }
}

/// Counts the bytes that are as they were first. The heap may have no room for all of them.
struct Same(usize);

impl Write for Same {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_same = self.0 % 8 == 0 && is_first(bytes);
        self.0 += if is_same { bytes.len() } else { 0 };
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn memory_is_snapshotted(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = memory();
    let snapshot = point.refuse(|| taken(builder(fault_mode), &memory));
    let snapshot = point.unless_refused(snapshot, SnapshotError::kind);
    write(&memory, 8);
    if let Some(snapshot) = snapshot {
        is_read_as_taken(point, snapshot);
    }
    point.check(holds(&memory, 8), "not as written");
}

fn several_are_snapshotted(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = [memory(), memory()];
    let ranges = memory.each_ref().map(Memory::range);
    // SAFETY: no thread blocks SIGBUS, or has the kernel write there.
    let snapshots = point.refuse(|| unsafe { builder(fault_mode).take_many(&ranges) });
    let snapshots = point.unless_refused(snapshots, SnapshotError::kind);
    memory.iter().for_each(|memory| write(memory, 8));
    for snapshot in snapshots.into_iter().flatten() {
        is_read_as_taken(point, snapshot);
    }
    point.check(memory.iter().all(|memory| holds(memory, 8)), "not as written");
}

fn snapshotted_memory_is_written(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = memory();
    let snapshot = taken(builder(fault_mode), &memory).unwrap();
    point.refuse(|| write(&memory, 8));
    point.check(holds(&memory, 8), "not as written");
    is_read_as_taken(point, snapshot);
}

fn a_snapshot_is_read(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = memory();
    let snapshot = taken(builder(fault_mode), &memory).unwrap();
    memory.words()[0].store(8, Ordering::Relaxed);
    point.refuse(|| is_read_as_taken(point, snapshot));
    write(&memory, 9);
    point.check(holds(&memory, 9), "not as written");
}

fn a_snapshot_is_copied(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = memory();
    let snapshot = taken(builder(fault_mode), &memory).unwrap();
    memory.words()[0].store(8, Ordering::Relaxed);
    let mut copy = vec![0; LEN];
    let read = point.refuse(|| snapshot.copy_to(&mut copy));
    if point.unless_lost(read, SnapshotError::kind).is_some() {
        point.check(is_first(&copy), "the snapshot changed");
    }
    write(&memory, 9);
    point.check(holds(&memory, 9), "not as written");
}

fn staged(
    fault_mode: FaultMode,
    memory: &Memory,
    kept: &KeptMemory,
) -> Result<Vec<Staging>, SnapshotError> {
    // SAFETY: no thread blocks SIGBUS, or has the kernel write there.
    unsafe { builder(fault_mode).stage_many(&[memory.range()], kept) }
}

/// Copies the rest of a staging. Its memory has the bytes as they were, or there is an error.
fn is_copied_as_staged(point: &Point, staging: Staging) {
    let copy = staging.memory();
    if point.unless_lost(staging.copy(None), SnapshotError::kind).is_some() {
        // SAFETY: the memory has as many bytes, and nobody writes to them any more.
        let copy = unsafe { std::slice::from_raw_parts(copy.start(), LEN) };
        point.check(is_first(copy), "the staging changed");
    }
}

fn memory_is_staged(point: &Point, _: Backing, fault_mode: FaultMode) {
    let (memory, kept) = (memory(), KeptMemory::default());
    let stagings = point.refuse(|| staged(fault_mode, &memory, &kept));
    let stagings = point.unless_refused(stagings, SnapshotError::kind);
    write(&memory, 8);
    stagings.into_iter().flatten().for_each(|staging| is_copied_as_staged(point, staging));
    point.check(holds(&memory, 8), "not as written");
}

fn staged_memory_is_written(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = memory();
    let stagings = staged(fault_mode, &memory, &KeptMemory::default()).unwrap();
    point.refuse(|| write(&memory, 8));
    point.check(holds(&memory, 8), "not as written");
    stagings.into_iter().for_each(|staging| is_copied_as_staged(point, staging));
}

fn a_staging_is_copied(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = memory();
    let stagings = staged(fault_mode, &memory, &KeptMemory::default()).unwrap();
    memory.words()[0].store(8, Ordering::Relaxed);
    point.refuse(|| {
        stagings.into_iter().for_each(|staging| is_copied_as_staged(point, staging));
    });
    write(&memory, 9);
    point.check(holds(&memory, 9), "not as written");
}

fn a_snapshot_is_viewed(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = memory();
    let snapshot = taken(builder(fault_mode), &memory).unwrap();
    memory.words()[0].store(8, Ordering::Relaxed);
    point.refuse(|| {
        let view = View::of(&snapshot);
        let Some(view) = point.unless_lost(view, SnapshotError::kind) else { return };
        if let Some(bytes) = point.unless_lost(view.bytes(0..LEN), SnapshotError::kind) {
            point.check(is_first(bytes), "the snapshot changed");
        }
    });
    drop(snapshot);
    write(&memory, 9);
    point.check(holds(&memory, 9), "not as written");
}

fn a_snapshot_is_dropped(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = memory();
    let snapshot = taken(builder(fault_mode), &memory).unwrap();
    memory.words()[0].store(8, Ordering::Relaxed);
    point.refuse(|| drop(snapshot));
    write(&memory, 9);
    point.check(holds(&memory, 9), "not as written");
}

fn a_snapshot_is_copied_in_the_background(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = memory();
    point.refuse(|| {
        let snapshot = taken(builder(fault_mode).in_background(true), &memory);
        let snapshot = point.unless_refused(snapshot, SnapshotError::kind);
        write(&memory, 8);
        if let Some(snapshot) = snapshot {
            is_read_as_taken(point, snapshot);
        }
    });
    point.check(holds(&memory, 8), "not as written");
}

fn a_reserve_is_made(point: &Point, _: Backing, fault_mode: FaultMode) {
    let memory = memory();
    let reserve = point.refuse(|| Reserve::new(LEN));
    let reserve = point.unless_refused(reserve, SnapshotError::kind);
    let wishes = reserve.iter().fold(builder(fault_mode), Builder::reserve);
    let snapshot = taken(wishes, &memory).unwrap();
    write(&memory, 8);
    is_read_as_taken(point, snapshot);
}

fn begun(fault_mode: FaultMode, memory: &Memory, image: &mut [u8]) -> Result<Epoch, SnapshotError> {
    // SAFETY: no thread blocks SIGBUS, or has the kernel write there.
    unsafe { builder(fault_mode).first_epoch(memory.range()) }
        .and_then(|changes| try_save(changes, image))
}

/// The next state has what was written, whatever was refused before; or there is none.
fn is_gone_on_from(
    point: &Point,
    fault_mode: FaultMode,
    memory: &Memory,
    epoch: Epoch,
    mut image: Vec<u8>,
) {
    // SAFETY: no thread blocks SIGBUS, or has the kernel write there.
    let next = unsafe { builder(fault_mode).since(epoch) }
        .and_then(|changes| try_save(changes, &mut image));
    if point.unless_lost(next, SnapshotError::kind).is_some() {
        let words = image.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        let now = memory.words().iter().map(|word| word.load(Ordering::Relaxed));
        point.check(words.eq(now), "a write was forgotten");
    }
    write(memory, 9);
    point.check(holds(memory, 9), "not as written");
}

fn an_epoch_begins(point: &Point, _: Backing, fault_mode: FaultMode) {
    let (memory, mut image) = (memory(), vec![0; LEN]);
    let epoch = point.refuse(|| begun(fault_mode, &memory, &mut image));
    let epoch = point.unless_lost(epoch, SnapshotError::kind);
    memory.words()[5].store(8, Ordering::Relaxed);
    match epoch {
        Some(epoch) => is_gone_on_from(point, fault_mode, &memory, epoch, image),
        None => point.check(memory.words()[5].load(Ordering::Relaxed) == 8, "not as written"),
    }
}

fn watched_memory_is_written(point: &Point, _: Backing, fault_mode: FaultMode) {
    let (memory, mut image) = (memory(), vec![0; LEN]);
    let epoch = begun(fault_mode, &memory, &mut image).unwrap();
    point.refuse(|| write(&memory, 8));
    is_gone_on_from(point, fault_mode, &memory, epoch, image);
}

fn a_state_follows_an_epoch(point: &Point, _: Backing, fault_mode: FaultMode) {
    let (memory, mut image) = (memory(), vec![0; LEN]);
    let epoch = begun(fault_mode, &memory, &mut image).unwrap();
    memory.words()[5].store(8, Ordering::Relaxed);
    point.refuse(|| is_gone_on_from(point, fault_mode, &memory, epoch, image));
}
