//! Snapshots of several ranges taken at once, and reserves.

use hugekit::Snapshot;
use hugekit::snapshot::Reserve;

use super::moments::{Written, anonymous_bytes, read_out, unless_lost};
use crate::mapping::AnonymousMapping;
use crate::status::Count;
use crate::world::{Size, World};

pub(super) fn several(world: &mut World) {
    let bytes = anonymous_bytes(world);
    let memory = AnonymousMapping::new(bytes, world.rng.bool()).expect("there is memory");
    // SAFETY: the mapping outlives it.
    let written = unsafe { Written::new(memory.start(), bytes, 1) };
    written.while_written(world, |world| {
        for _ in 0..world.steps() {
            let mut cuts = [0, world.rng.usize(1..bytes), world.rng.usize(1..bytes), bytes];
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts
                .windows(2)
                .map(|cut| cut[0]..cut[1])
                .filter(|piece| !piece.is_empty())
                .collect();
            let slice = |piece: &std::ops::Range<usize>| {
                std::ptr::slice_from_raw_parts(
                    memory.start().wrapping_add(piece.start).cast_const(),
                    piece.len(),
                )
            };
            let ranges: Vec<*const [u8]> = pieces.iter().map(slice).collect();
            let builder = Snapshot::builder().fault_mode(world.fault_mode);
            // SAFETY: no thread blocks SIGBUS, and no system call writes to the memory, which stays.
            let made = world.unless_short(unsafe { builder.take_many(&ranges) });
            for (snapshot, piece) in made.into_iter().flatten().zip(&pieces) {
                world.count(Count::Snapshots);
                let check = |offset, bytes: &[u8]| {
                    written.check(piece.start + offset, bytes, "one of several")
                };
                let read = read_out(world, snapshot, &check);
                unless_lost(world, read);
            }
        }
    });
}

pub(super) fn reserves(world: &mut World) {
    let bytes = anonymous_bytes(world);
    let memory = AnonymousMapping::new(bytes, world.rng.bool()).expect("there is memory");
    let size = if world.size == Size::Soak { bytes } else { 1 };
    let Some(reserve) = world.unless_short(Reserve::new(size)) else { return };
    // SAFETY: the mapping outlives it.
    let written = unsafe { Written::new(memory.start(), bytes, 1) };
    written.while_written(world, |world| {
        for _ in 0..world.steps().min(4) {
            assert!(reserve.touch(), "no snapshot has it");
            let builder = Snapshot::builder().fault_mode(world.fault_mode).reserve(&reserve);
            // SAFETY: the mapping outlives the snapshot, no thread blocks SIGBUS, and no system call writes there.
            let made = world.unless_short(unsafe { builder.of_anonymous(memory.range()) });
            let Some(snapshot) = made else { return };
            world.count(Count::Snapshots);
            assert!(!reserve.touch(), "the snapshot has it");
            let check = |offset, bytes: &[u8]| written.check(offset, bytes, "with a reserve");
            let read = read_out(world, snapshot, &check);
            unless_lost(world, read);
        }
    });
}
