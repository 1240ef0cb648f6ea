//! Advice about memory, by this process and by another one: it may move bytes about, and change none.

use std::ffi::{c_int, c_void};

use hugekit::{HUGE_PAGE_BYTES, SnapshotError};

use super::moments::{Written, anonymous_bytes, bytes_of, read_out, snapshot, unless_lost};
use super::regions::{region, soiled, step};
use crate::mapping::AnonymousMapping;
use crate::status::Count;
use crate::world::World;

/// Advice that changes no byte of any memory.
const HARMLESS: [c_int; 3] = [libc::MADV_COLLAPSE, libc::MADV_PAGEOUT, libc::MADV_COLD];

pub(super) fn advice(world: &mut World) {
    if world.rng.bool() { on_region(world) } else { on_snapshot(world) }
}

/// Discards memory of a region. It is mapped again, with the bytes of the file.
fn on_region(world: &mut World) {
    let backing = world.backing();
    let folios = world.folios(backing);
    let Some(pool) = soiled(world, backing, 2 * folios) else { return };
    let len = folios * backing.page_size();
    let Some((region, mut tracked)) = region(world, &pool, len) else { return };
    let adviser = Adviser::start(region.as_ptr(), region.mapped_len());
    for _ in 0..world.steps() {
        advise(world, region.as_ptr(), len, &[libc::MADV_DONTNEED]);
        advise(world, region.as_ptr(), len, &HARMLESS);
        step(world, &region, &mut tracked);
        if world.one_in(6) {
            let least = tracked.least();
            let Some(snapshot) = world.unless_short(hugekit::Snapshot::of_region(&region)) else {
                break;
            };
            let model = tracked.moment(&least);
            advise(world, region.as_ptr(), len, &HARMLESS);
            let check = |offset, bytes: &[u8]| model.check(offset, bytes, "snapshot under advice");
            read_out(world, snapshot, &check).expect("a region's snapshot is never lost");
        }
    }
    world.verified(tracked.check("region under advice"));
    drop(adviser);
    drop(tracked);
}

fn on_snapshot(world: &mut World) {
    let bytes = anonymous_bytes(world);
    let memory = AnonymousMapping::new(bytes, world.rng.bool()).expect("there is memory");
    // SAFETY: the mapping outlives it.
    let written = unsafe { Written::new(memory.start(), bytes, 1) };
    let adviser = Adviser::start(memory.start(), bytes);
    written.while_written(world, |world| {
        for _ in 0..world.steps() {
            // SAFETY: no thread blocks SIGBUS, and no system call writes to the memory, which stays.
            let made = unsafe { snapshot(world, &memory, &(0..bytes), world.fault_mode) };
            let Some(made) = made else { return };
            advise(world, memory.start(), bytes, &HARMLESS);
            let check =
                |offset, bytes: &[u8]| written.check(offset, bytes, "snapshot under advice");
            let read = read_out(world, made, &check);
            unless_lost(world, read);
        }
    });
    drop(adviser);
    world.verified(written.check(0, &bytes_of(written.words()), "owner under advice"));
    discarded(world, &memory, &written);
}

/// Memory that its owner discards is gone from the snapshot, and the snapshot says so, unless it was preserved.
fn discarded(world: &mut World, memory: &AnonymousMapping, written: &Written<'_>) {
    // SAFETY: the mapping outlives the snapshot, no thread blocks SIGBUS, and no system call writes there.
    let made = unsafe { snapshot(world, memory, &(0..memory.range().len()), world.fault_mode) };
    let Some(made) = made else { return };
    advise(world, memory.start(), memory.range().len(), &[libc::MADV_DONTNEED]);
    let check = |offset, bytes: &[u8]| written.check(offset, bytes, "discarded memory's snapshot");
    match read_out(world, made, &check) {
        Err(SnapshotError::Changed { .. }) => world.count(Count::Lost),
        read => unless_lost(world, read),
    }
}

/// Gives one of several pieces of advice about whole pages of memory.
fn advise(world: &mut World, start: *mut u8, len: usize, advice: &[c_int]) {
    let pages = world.part_of(len / 4096);
    let at = start.wrapping_add(pages.start * 4096).cast::<c_void>();
    let advice = advice[world.rng.usize(0..advice.len())];
    // SAFETY: memory that the caller may discard, or advice that changes no byte. A refusal is an answer.
    unsafe { libc::madvise(at, pages.len() * 4096, advice) };
    world.count(Count::Advice);
}

/// Another process that gives harmless advice about this one's memory, until it is dropped.
struct Adviser(libc::pid_t);

impl Adviser {
    fn start(start: *mut u8, len: usize) -> Self {
        // SAFETY: the child makes system calls only.
        unsafe {
            let parent = libc::getpid();
            let child = libc::fork();
            if child == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let process = libc::syscall(libc::SYS_pidfd_open, parent, 0);
                let pieces = len.div_ceil(HUGE_PAGE_BYTES);
                for round in 0.. {
                    let offset = (round % pieces) << 21;
                    let piece = libc::iovec {
                        iov_base: start.wrapping_add(offset).cast(),
                        iov_len: (len - offset).min(HUGE_PAGE_BYTES),
                    };
                    let advice = HARMLESS[round / pieces % HARMLESS.len()];
                    libc::syscall(
                        libc::SYS_process_madvise,
                        process,
                        &raw const piece,
                        1,
                        advice,
                        0,
                    );
                }
            }
            Self(child)
        }
    }
}

impl Drop for Adviser {
    fn drop(&mut self) {
        // SAFETY: a child of this process that was not waited for yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            while libc::waitpid(self.0, std::ptr::null_mut(), 0) != self.0 {}
        }
    }
}
