//! Faults served by us, on every backing, in place and threaded: what is shown is clean, whoever comes
//! first, whatever happens meanwhile, and every signal that is not ours goes where it belongs.
#![allow(unsafe_code)]

mod backings;
mod child;

use std::io::{ErrorKind, Read, Write};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use backings::{Check, FOLIOS, is_zero, trials, unscrubbed};
use hugekit::fault::Handling;
use hugekit::pool::{Backing, Clearing};
use hugekit::{Pool, Region, RegionError, Threads};
use libtest_mimic::Arguments;

const HANDLINGS: [Handling; 3] =
    [Handling::InPlace, Handling::Threaded { threads: 1 }, Handling::Threaded { threads: 3 }];

/// A pool of which everything is dirty, filled with this byte.
fn soiled(backing: Backing, byte: u8) -> Pool {
    let pool = unscrubbed(backing);
    pool.region(FOLIOS * backing.page_size()).unwrap().fill(byte);
    pool
}

fn at_fault(pool: &Pool, len: usize, handling: Handling) -> Region {
    let region =
        pool.region_builder(len).clearing(Clearing::AtFault).handling(handling).build().unwrap();
    assert_eq!(region.serving().unwrap().handling, handling);
    region
}

/// Calls `check` with a region over all of a dirty pool, for every way to serve it.
fn each(backing: Backing, check: impl Fn(&Pool, Region)) {
    for handling in HANDLINGS {
        let pool = soiled(backing, 7);
        let region = at_fault(&pool, FOLIOS * backing.page_size(), handling);
        check(&pool, region);
        assert_eq!(pool.stats().unwrap().in_use, 0);
    }
}

fn what_is_dirty_reads_as_zeroes(backing: Backing) {
    each(backing, |pool, region| {
        let before = pool.stats().unwrap();
        assert_eq!(before.scrubbed_at_hand_out, 0);
        assert!(is_zero(&region));
        let after = pool.stats().unwrap();
        assert_eq!(after.scrubbed_at_fault, region.len() as u64);
        assert_eq!(after.scrubbed_at_hand_out, 0);
    });
}

fn what_is_written_stays(backing: Backing) {
    each(backing, |_, mut region| {
        let page = backing.page_size();
        // From the last byte backwards, so that no folio is touched at its start first.
        for at in (0..region.len()).rev().step_by(page / 4 + 1) {
            region[at] = at as u8 | 1;
        }
        let written = |at: usize| (region.len() - 1 - at) % (page / 4 + 1) == 0;
        for (at, &byte) in region.iter().enumerate() {
            assert_eq!(byte, if written(at) { at as u8 | 1 } else { 0 }, "{at}");
        }
    });
}

const CHECKS: &[Check] = &[
    ("what_is_dirty_reads_as_zeroes", what_is_dirty_reads_as_zeroes),
    ("what_is_written_stays", what_is_written_stays),
];

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials(CHECKS)).exit();
}
