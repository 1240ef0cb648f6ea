//! Clearing, copying and populating on several threads.

use std::mem::MaybeUninit;

use hugekit::fault::FaultMode;
use hugekit::parallel::{JobError, Threads};
use hugekit::pool::Backing;
use hugekit::{ClearError, ClearOptions, CopyError, CopyOptions, PopulateError, PopulateOptions};

use super::{Run, is_painted, is_zero, paint};
use crate::case::Point;

pub(super) const EACH: &[(&str, Run)] = &[
    ("memory_is_cleared", memory_is_cleared),
    ("memory_is_copied", memory_is_copied),
    ("memory_is_populated", memory_is_populated),
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
