//! Snapshots of the same memory, made by one thread while others read, stream and drop earlier ones.

use std::sync::mpsc;
use std::thread;

use hugekit::Snapshot;

use super::moments::{Written, anonymous_bytes, read_out, snapshot, unless_lost};
use crate::mapping::AnonymousMapping;
use crate::world::World;

pub(super) fn overlapping(world: &mut World) {
    let bytes = anonymous_bytes(world);
    let memory = AnonymousMapping::new(bytes, world.rng.bool()).expect("there is memory");
    // SAFETY: the mapping outlives it.
    let written = unsafe { Written::new(memory.start(), bytes, 1) };
    let mut others = [world.fork(), world.fork()];
    written.while_written(world, |world| {
        thread::scope(|scope| {
            // One waits at most: writers would outrun more.
            let mut lines: Vec<mpsc::SyncSender<Snapshot>> = Vec::new();
            for other in &mut others {
                let (line, snapshots) = mpsc::sync_channel::<Snapshot>(0);
                lines.push(line);
                let (written, every) = (&written, other.every);
                scope.spawn(move || crate::step::every(every, || read(other, written, &snapshots)));
            }
            for round in 0..2 * world.steps() {
                // SAFETY: no thread blocks SIGBUS, and no system call writes to the memory, which stays.
                let made = unsafe { snapshot(world, &memory, &(0..bytes), world.fault_mode) };
                let Some(made) = made else { return };
                if lines[round % 2].send(made).is_err() {
                    return; // Its reader has failed, and the scope says so.
                }
            }
        });
    });
}

fn read(world: &mut World, written: &Written<'_>, snapshots: &mpsc::Receiver<Snapshot>) {
    for snapshot in snapshots {
        let check = |offset, bytes: &[u8]| written.check(offset, bytes, "snapshot");
        let read = read_out(world, snapshot, &check);
        unless_lost(world, read);
    }
}
