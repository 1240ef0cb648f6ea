//! Clears, copies and populates by one thread and by several, cancelled by a progress callback where chance says.

use std::mem::MaybeUninit;

use hugekit::{
    Cancel, ClearError, ClearOptions, CopyError, CopyOptions, PopulateOptions, Reuse, Threads,
};
use hugekit_bulk::parallel::JobError;

use crate::mapping::AnonymousMapping;
use crate::model::{Model, Tracked};
use crate::status::Count;
use crate::world::{Size, World};

pub(super) fn jobs(world: &mut World) {
    let bytes = match world.size {
        Size::Stepped => world.rng.usize(1..9) << 12,
        // Two threads have chunks of 2 MiB at least.
        _ => world.rng.usize(1..3000) << 12,
    };
    let memory = AnonymousMapping::new(bytes, world.rng.bool()).expect("there is memory");
    let other = AnonymousMapping::new(bytes, world.rng.bool()).expect("there is memory");
    let threads = [Threads::One, Threads::Auto, Threads::Exactly(2)][world.rng.usize(0..3)];
    populate(world, &memory, bytes, threads);
    // SAFETY: the mapping outlives it.
    let mut source = unsafe { Tracked::new(memory.start(), Model::zeroed(bytes)) };
    source.write(0..source.model.tags.len(), world.tag());
    source.conceal(); // Handlers that write what is being copied would be races of the program's.
    copy(world, &source, &other, threads);
    clear(world, &mut source, threads);
}

fn populate(world: &World, memory: &AnonymousMapping, bytes: usize, threads: Threads) {
    // SAFETY: the mapping is ours alone, and any bytes are valid uninitialised ones.
    let uninit =
        unsafe { std::slice::from_raw_parts_mut(memory.start().cast::<MaybeUninit<u8>>(), bytes) };
    let report = PopulateOptions::new().threads(threads).run(uninit).expect("there is memory");
    assert_eq!(report.bytes, bytes);
    world.count(Count::Jobs);
}

fn copy(world: &mut World, source: &Tracked, other: &AnonymousMapping, threads: Threads) {
    let len = source.bytes();
    // SAFETY: both are ours alone now, and of that length.
    let (from, to) = unsafe {
        (
            std::slice::from_raw_parts(source.words().as_ptr().cast::<u8>(), len),
            std::slice::from_raw_parts_mut(other.start(), len),
        )
    };
    let (cancel, is_cancelled) = (Cancel::new(), world.one_in(4));
    let progress = |_, _| {
        if is_cancelled {
            cancel.cancel();
        }
    };
    let reuse = [Reuse::Unknown, Reuse::All, Reuse::None][world.rng.usize(0..3)];
    let copy = CopyOptions::new().reuse(reuse).threads(threads).progress(&progress).cancel(&cancel);
    match copy.run(to, from) {
        Ok(_) => world.verified(source.model.check(0, to, "copy")),
        Err(CopyError::Job(JobError::Cancelled { .. })) if is_cancelled => {
            world.count(Count::Cancelled);
        }
        Err(error) => panic!("{error}"),
    }
    world.count(Count::Jobs);
}

fn clear(world: &mut World, memory: &mut Tracked, threads: Threads) {
    let bytes = world.part_of(memory.bytes());
    let start = memory.words().as_ptr().cast::<u8>().cast_mut();
    let (cancel, is_cancelled) = (Cancel::new(), world.one_in(4));
    let progress = |_, _| {
        if is_cancelled {
            cancel.cancel();
        }
    };
    let clear = ClearOptions::new().threads(threads).progress(&progress).cancel(&cancel);
    // SAFETY: within memory that is ours alone now.
    let slice = unsafe { std::slice::from_raw_parts_mut(start.add(bytes.start), bytes.len()) };
    let before = world.rng.u8(1..);
    slice.fill(before);
    match clear.run(slice) {
        Ok(_) => {
            assert!(slice.iter().all(|&byte| byte == 0), "it is cleared");
            world.verified(slice.len());
        }
        Err(ClearError::Job(JobError::Cancelled { .. })) if is_cancelled => {
            let is_either = |&byte: &u8| byte == 0 || byte == before;
            assert!(slice.iter().all(is_either), "a chunk is cleared or not");
            world.count(Count::Cancelled);
        }
        Err(error) => panic!("{error}"),
    }
    world.count(Count::Jobs);
}
