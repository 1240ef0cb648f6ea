//! Child processes while memory is snapshotted, forked and written: by fork(2), by `posix_spawn(3)`, and by a
//! vfork(2) whose child writes its parent's memory.

use std::ffi::{c_int, c_void};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use hugekit::{Region, Snapshot, SnapshotError};

use super::moments::{Written, anonymous_bytes, read_out, snapshot, unless_lost};
use super::regions::soiled;
use crate::mapping::AnonymousMapping;
use crate::model::{LANE, PAGE_WORDS};
use crate::status::Count;
use crate::world::World;

/// The finding of a child of fork(2).
const ALL_WELL: c_int = 0;
const NOT_REFUSED: c_int = 3;
const STACK: usize = 64 << 10;

pub(super) fn children(world: &mut World) {
    let bytes = anonymous_bytes(world);
    let memory = AnonymousMapping::new(bytes, world.rng.bool()).expect("there is memory");
    let backing = world.backing();
    let Some(pool) = soiled(world, backing, 2) else { return };
    let Some(region) = world.unless_short(pool.region(backing.page_size())) else { return };
    let Some(fork) = world.unless_short(region.fork()) else { return };
    // SAFETY: the mapping outlives it.
    let written = unsafe { Written::new(memory.start(), bytes, 1) };
    written.while_written(world, |world| {
        for _ in 0..world.steps() {
            // SAFETY: no thread blocks SIGBUS but while it starts a process, when it writes none of it.
            let made = unsafe { snapshot(world, &memory, &(0..bytes), world.fault_mode) };
            let Some(made) = made else { return };
            match world.rng.u32(0..3) {
                0 => by_fork(&made, &fork, &written),
                1 => by_spawn(),
                _ => by_vfork(written.words()),
            }
            world.count(Count::Children);
            let check = |offset, bytes: &[u8]| written.check(offset, bytes, "beside a child");
            let read = read_out(world, made, &check);
            unless_lost(world, read);
        }
    });
    drop((region, fork));
}

/// The child has a copy of the memory, of one moment, and no part of what hugekit made.
fn by_fork(snapshot: &Snapshot, fork: &Region, written: &Written<'_>) {
    // SAFETY: the child reads, asks hugekit, which promises to refuse it, and leaves by `_exit`; glibc keeps
    // its allocator usable across a fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(snapshot.read_at(0, &mut [0]), Err(SnapshotError::Forked))
            && fork.shared_bytes().is_err();
        written.check(0, &super::moments::bytes_of(written.words()), "a child's copy");
        written
            .words()
            .iter()
            .step_by(PAGE_WORDS)
            .for_each(|word| word.store(0, Ordering::Relaxed));
        // SAFETY: no precondition.
        unsafe { libc::_exit(if refused { ALL_WELL } else { NOT_REFUSED }) };
    }
    wait_for(child);
}

fn by_spawn() {
    let status = Command::new("true").status().expect("every system has it");
    assert!(status.success());
}

/// The child runs in its parent's memory, and writes to the handlers' words of it.
fn by_vfork(words: &[AtomicU64]) {
    extern "C" fn write(words: *mut c_void) -> c_int {
        // SAFETY: the parent waits, and has the slice.
        let words = unsafe { *words.cast::<&[AtomicU64]>() };
        for word in words.iter().skip(LANE).step_by(PAGE_WORDS) {
            word.fetch_add(1, Ordering::SeqCst);
        }
        ALL_WELL
    }
    let mut stack = vec![0_u128; STACK / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is the child's until it ends, which the parent waits for.
    let child = unsafe {
        let top = stack.as_mut_ptr_range().end.cast::<c_void>();
        libc::clone(write, top, flags, (&raw const words).cast_mut().cast())
    };
    wait_for(child);
}

fn wait_for(child: libc::pid_t) {
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: one status is written.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {}
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == ALL_WELL,
        "a child ended with status {status:#x}"
    );
}
