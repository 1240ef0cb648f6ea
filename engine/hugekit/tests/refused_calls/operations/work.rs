//! Clearing, copying and populating on several threads.

use std::convert::Infallible;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{ClearError, ClearOptions, CopyError, CopyOptions, PopulateError, PopulateOptions};
use hugekit_bulk::parallel::{Job, JobError, Threads};

use super::{Run, is_painted, is_zero, paint};
use crate::case::Point;

pub(super) const EACH: &[(&str, Run)] = hugekit_testing::checks![
    memory_is_cleared,
    memory_is_copied,
    memory_is_populated,
    job_beside_others_is_done,
];

const LEN: usize = 4 << 20;
const THREADS: Threads = Threads::Exactly(2);

fn memory_is_cleared(point: &Point, _: Backing, _: FaultMode) {
    let mut memory = vec![7_u8; LEN];
    let clear = ClearOptions::new().threads(THREADS).low_priority(true);
    let cleared = point.refuse(|| clear.run(&mut memory));
    if point.unless_refused(cleared, ClearError::kind).is_some() {
        point.check(is_zero(&memory), "not cleared");
    }
}

fn memory_is_copied(point: &Point, _: Backing, _: FaultMode) {
    let (mut from, mut to) = (vec![0_u8; LEN], vec![0_u8; LEN]);
    paint(&mut from);
    let copied = point.refuse(|| CopyOptions::new().threads(THREADS).run(&mut to, &from));
    if point.unless_refused(copied, CopyError::kind).is_some() {
        point.check(is_painted(&to), "not copied");
    }
}

fn memory_is_populated(point: &Point, _: Backing, _: FaultMode) {
    let mut memory = Box::<[u8]>::new_uninit_slice(LEN);
    let memory: &mut [MaybeUninit<u8>] = &mut memory;
    let populated = point.refuse(|| PopulateOptions::new().threads(THREADS).run(memory));
    point.unless_refused(populated, JobError::<PopulateError>::kind);
}

/// Which threads other jobs leave is asked for where the number of threads is left to the library.
fn job_beside_others_is_done(point: &Point, _: Backing, _: FaultMode) {
    let done = AtomicUsize::new(0);
    let count = |chunk: std::ops::Range<usize>| {
        done.fetch_add(chunk.len(), Ordering::Relaxed);
        Ok::<(), Infallible>(())
    };
    let ended = point.refuse(|| Job::new(LEN).threads(Threads::Auto).run(count));
    point.check(ended.is_ok() && done.into_inner() == LEN, "not done");
}
