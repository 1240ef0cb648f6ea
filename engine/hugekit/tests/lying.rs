//! Code of the program's that the library calls or asks, and that lies, panics, or calls the library again: a writer,
//! a callback, an iterator, a `Borrow`. The list of all of them is in docs/security.md. In children of their own, whose
//! alarm ends what hangs.
#![allow(unsafe_code)]

use hugekit_testing::child;
use hugekit_testing::memory;
use hugekit_testing::permitted;
use hugekit_testing::trials::{Checks, trials};

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{self, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use child::in_a_child;
use hugekit::pool::Backing;
use hugekit::snapshot::View;
use hugekit::{
    ClearOptions, CopyOptions, HUGE_PAGE_BYTES as HUGE, Pool, PopulateOptions, Snapshot,
    SnapshotError, Threads,
};
use hugekit_bulk::parallel::{Job, NodeMap};
use libtest_mimic::Arguments;
use memory::Memory;

const LEN: usize = 4 * HUGE;
const TWO: Threads = Threads::Exactly(2);

fn taken(memory: &Memory) -> Snapshot {
    // SAFETY: no thread blocks SIGBUS, and no system call writes there.
    unsafe { Snapshot::of_anonymous(memory.range()) }.unwrap()
}

/// The memory can be written and snapshotted, as if nothing had been.
fn is_as_before(memory: &Memory) {
    memory.words().iter().for_each(|word| word.store(9, Ordering::Relaxed));
    let mut copy = vec![0; memory.len()];
    taken(memory).copy_to(&mut copy).unwrap();
    assert!(copy.chunks_exact(8).all(|word| word == 9_u64.to_ne_bytes()));
}

fn panics<R>(act: impl FnOnce() -> R) {
    assert!(catch_unwind(AssertUnwindSafe(act)).is_err(), "it did not panic");
}

fn child(act: impl FnOnce()) {
    let code = in_a_child(|| {
        std::panic::set_hook(Box::new(|_| {}));
        act();
        0
    });
    assert_eq!(code, 0);
}

/// Writers that a snapshot is written to.
mod writers {
    use super::*;

    /// Answers each write as the closure says.
    struct Liar<F>(F);

    impl<F: FnMut(&[u8]) -> io::Result<usize>> Write for Liar<F> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            (self.0)(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn with(act: impl FnOnce(&Memory, Snapshot)) {
        child(|| {
            let memory = Memory::filled(LEN, false, 7);
            let snapshot = taken(&memory);
            memory.words()[0].store(8, Ordering::Relaxed);
            act(&memory, snapshot);
            is_as_before(&memory);
        });
    }

    pub(super) fn writer_that_says_more_than_it_was_given_panics_and_writes_nothing() {
        with(|_, snapshot| panics(|| snapshot.write_to(Liar(|bytes: &[u8]| Ok(bytes.len() + 1)))));
        with(|_, snapshot| panics(|| snapshot.write_to(Liar(|_: &[u8]| Ok(usize::MAX)))));
    }

    pub(super) fn writer_that_takes_nothing_is_an_error() {
        with(|_, snapshot| {
            let written = snapshot.write_to(Liar(|_: &[u8]| Ok(0)));
            assert!(matches!(written, Err(SnapshotError::Write { written: 0, .. })));
        });
    }

    pub(super) fn writer_that_panics_ends_the_snapshot() {
        with(|_, snapshot| panics(|| snapshot.write_to(Liar(|_: &[u8]| panic!("as it was told")))));
    }

    pub(super) fn writer_that_snapshots_and_writes_the_same_memory_gets_what_was() {
        with(|memory, snapshot| {
            let sum = Cell::new(0_u64);
            let writer = Liar(|bytes: &[u8]| {
                memory
                    .words()
                    .iter()
                    .step_by(100)
                    .for_each(|word| word.store(6, Ordering::Relaxed));
                taken(memory).write_to(io::sink()).unwrap();
                let words = bytes.chunks_exact(8);
                sum.set(sum.get() + words.map(|word| u64::from(word[0])).sum::<u64>());
                Ok(bytes.len())
            });
            snapshot.write_to(writer).unwrap();
            assert_eq!(sum.get(), 7 * (LEN as u64 / 8));
        });
    }

    pub(super) fn taker_of_changes_that_panics_or_calls_again_ends_them() {
        for panic in [false, true] {
            child(|| {
                let memory = Memory::filled(LEN, false, 7);
                // SAFETY: no thread blocks SIGBUS, and no system call writes there.
                let changes = unsafe { Snapshot::builder().first_epoch(memory.range()) }.unwrap();
                let take = |offset: usize, bytes: &[u8]| {
                    assert!(!panic || offset == 0, "as it was told");
                    assert!(bytes.iter().step_by(8).all(|&byte| byte == 7));
                    memory.words()[offset / 8].store(8, Ordering::Relaxed);
                    taken(&memory).write_to(io::sink()).map(drop).map_err(io::Error::other)
                };
                match panic {
                    true => panics(|| changes.deliver(take)),
                    false => drop(changes.deliver(take).unwrap()),
                }
                is_as_before(&memory);
            });
        }
    }
}

/// Callbacks that are told of progress, and chunks of jobs.
mod callbacks {
    use super::*;

    pub(super) fn progress_that_panics_stops_the_work_and_leaves_nothing_locked() {
        child(|| {
            let told = |_: usize, _: usize| panic!("as it was told");
            let (mut bytes, other) = (vec![1; LEN], vec![2; LEN]);
            let memory = Memory::untouched(LEN, false);
            for _ in 0..3 {
                panics(|| ClearOptions::new().threads(TWO).progress(&told).run(&mut bytes));
                panics(|| CopyOptions::new().threads(TWO).progress(&told).run(&mut bytes, &other));
                let populate = PopulateOptions::new().threads(TWO).progress(&told);
                let start = memory.start().expose_provenance();
                panics(|| populate.run_range(start..start + LEN));
                panics(|| Pool::builder(LEN).threads(TWO).progress(&told).build());
            }
            ClearOptions::new().threads(TWO).run(&mut bytes).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 0));
        });
    }

    pub(super) fn progress_that_panics_gives_the_folios_back() {
        child(|| {
            let pool = Pool::builder(LEN).backing(Backing::Base).scrub_threads(0).build().unwrap();
            pool.region(LEN).unwrap().fill(1);
            panics(|| {
                pool.region_builder(LEN)
                    .threads(TWO)
                    .progress(&|_, _| panic!("as it was told"))
                    .build()
            });
            let region = pool.region(LEN).unwrap();
            assert!(region.iter().all(|&byte| byte == 0));
            panics(|| {
                region.populate_with(
                    0..LEN,
                    &PopulateOptions::new().threads(TWO).progress(&|_, _| panic!("as it was told")),
                )
            });
            let fork = region.fork();
            drop((region, fork, pool));
        });
    }

    pub(super) fn snapshot_whose_progress_panics_ends() {
        child(|| {
            let memory = Memory::filled(LEN, false, 7);
            let mut copy = vec![0; LEN];
            let told = |_: usize, _: usize| panic!("as it was told");
            panics(|| taken(&memory).reader().progress(&told).copy_to(&mut copy));
            panics(|| taken(&memory).reader().progress(&told).write_to(io::sink()));
            is_as_before(&memory);
        });
    }

    pub(super) fn progress_that_works_meanwhile_is_no_obstacle() {
        child(|| {
            let pool = Pool::builder(4 * LEN).backing(Backing::Base);
            let pool = pool.populate_on_allocation(true).build().unwrap();
            pool.region(2 * LEN).unwrap().fill(1);
            let is_told = AtomicBool::new(false);
            let told = |_: usize, _: usize| {
                is_told.store(true, Ordering::Relaxed);
                let mut other = pool.region(LEN / 2).unwrap();
                ClearOptions::new().threads(TWO).run(&mut other).unwrap();
                drop(other.fork());
                Job::new(LEN).threads(TWO).run(|_| Ok::<(), Infallible>(())).unwrap();
                pool.stats().unwrap();
            };
            let region = pool.region_builder(LEN).threads(TWO).progress(&told).build().unwrap();
            region
                .populate_with(0..LEN, &PopulateOptions::new().threads(TWO).progress(&told))
                .unwrap();
            let mut bytes = vec![1; LEN];
            ClearOptions::new().threads(TWO).progress(&told).run(&mut bytes).unwrap();
            assert!(is_told.into_inner() && bytes.iter().all(|&byte| byte == 0));
        });
    }

    pub(super) fn chunk_that_panics_or_works_meanwhile_is_no_obstacle() {
        child(|| {
            let job = Job::new(LEN).min_chunk(4096).threads(TWO);
            panics(|| job.run(|_| -> Result<(), Infallible> { panic!("as it was told") }));
            let inner = || Job::new(LEN).threads(TWO).run(|_| Ok::<(), Infallible>(()));
            job.run(|_| inner().map(drop)).unwrap();
        });
    }

    pub(super) fn progress_that_forks_the_process_leaves_a_child_that_ends() {
        child(|| {
            let mut bytes = vec![1; LEN];
            let told = |_: usize, _: usize| {
                // SAFETY: the child only leaves.
                match unsafe { libc::fork() } {
                    // SAFETY: `_exit` has no precondition.
                    0 => unsafe { libc::_exit(0) },
                    child => {
                        // SAFETY: its own child; no status is written.
                        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                    }
                }
            };
            ClearOptions::new().threads(TWO).progress(&told).run(&mut bytes).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 0));
        });
    }
}

/// Iterators, and what is asked which snapshot it holds.
mod answers {
    use super::*;

    /// Says that it has more, or fewer, than it has.
    struct Hinted<I>(I, usize);

    impl<I: Iterator> Iterator for Hinted<I> {
        type Item = I::Item;

        fn next(&mut self) -> Option<I::Item> {
            self.0.next()
        }

        fn size_hint(&self) -> (usize, Option<usize>) {
            (self.1, Some(self.1))
        }
    }

    pub(super) fn iterators_that_lie_about_their_length_give_what_they_have() {
        for hint in [0, 1, 1000] {
            let parts = [(0..LEN / 2, 0), (LEN / 2..LEN, 0)];
            let map = NodeMap::new(Hinted(parts.into_iter(), hint)).unwrap();
            Job::new(LEN).nodes(&map).threads(TWO).run(|_| Ok::<(), Infallible>(())).unwrap();
            let tiers = Hinted([Backing::Base].into_iter(), hint);
            Pool::builder(4096).ladder(tiers).build().unwrap();
            let cpus: hugekit_machine::CpuSet =
                Hinted([0, u32::MAX, 0].into_iter(), hint).collect();
            assert_eq!(cpus.len(), 2);
        }
    }

    pub(super) fn node_map_that_goes_beyond_the_bytes_gives_no_chunk_there() {
        let beyond = NodeMap::new([(LEN / 2..4 * LEN, 0), (4 * LEN..usize::MAX, 1)]).unwrap();
        let done = AtomicUsize::new(0);
        let count = |chunk: Range<usize>| {
            assert!(chunk.end <= LEN);
            done.fetch_add(chunk.len(), Ordering::Relaxed);
            Ok::<(), Infallible>(())
        };
        Job::new(LEN).nodes(&beyond).min_chunk(4096).threads(TWO).run(count).unwrap();
        assert_eq!(done.into_inner(), LEN);
    }

    pub(super) fn node_maps_that_overlap_or_do_not_ascend_are_refused() {
        for parts in [vec![(0..10, 0), (5..20, 1)], vec![(10..20, 0), (0..10, 1)], vec![]] {
            assert!(NodeMap::new(parts).is_err());
        }
    }

    pub(super) fn view_holds_its_snapshot_by_reference_or_shares_it() {
        child(|| {
            let memory = Memory::filled(LEN, false, 7);
            let snapshot = Arc::new(taken(&memory));
            let shared = View::of(Arc::clone(&snapshot)).unwrap();
            let by_reference = View::of(&*snapshot).unwrap();
            assert_eq!(shared.bytes(0..LEN).unwrap(), by_reference.bytes(0..LEN).unwrap());
            drop(by_reference);
            drop(snapshot);
            assert!(shared.bytes(0..LEN).unwrap().iter().step_by(8).all(|&byte| byte == 7));
        });
    }
}

/// Those that any process can run.
const CHECKS: Checks = &[
    (
        "callbacks::progress_that_panics_stops_the_work_and_leaves_nothing_locked",
        callbacks::progress_that_panics_stops_the_work_and_leaves_nothing_locked,
    ),
    (
        "callbacks::progress_that_panics_gives_the_folios_back",
        callbacks::progress_that_panics_gives_the_folios_back,
    ),
    (
        "callbacks::progress_that_works_meanwhile_is_no_obstacle",
        callbacks::progress_that_works_meanwhile_is_no_obstacle,
    ),
    (
        "callbacks::chunk_that_panics_or_works_meanwhile_is_no_obstacle",
        callbacks::chunk_that_panics_or_works_meanwhile_is_no_obstacle,
    ),
    (
        "callbacks::progress_that_forks_the_process_leaves_a_child_that_ends",
        callbacks::progress_that_forks_the_process_leaves_a_child_that_ends,
    ),
    (
        "answers::iterators_that_lie_about_their_length_give_what_they_have",
        answers::iterators_that_lie_about_their_length_give_what_they_have,
    ),
    (
        "answers::node_map_that_goes_beyond_the_bytes_gives_no_chunk_there",
        answers::node_map_that_goes_beyond_the_bytes_gives_no_chunk_there,
    ),
    (
        "answers::node_maps_that_overlap_or_do_not_ascend_are_refused",
        answers::node_maps_that_overlap_or_do_not_ascend_are_refused,
    ),
];

/// Those that take snapshots.
const OF_SNAPSHOTS: Checks = &[
    (
        "writers::writer_that_says_more_than_it_was_given_panics_and_writes_nothing",
        writers::writer_that_says_more_than_it_was_given_panics_and_writes_nothing,
    ),
    (
        "writers::writer_that_takes_nothing_is_an_error",
        writers::writer_that_takes_nothing_is_an_error,
    ),
    (
        "writers::writer_that_panics_ends_the_snapshot",
        writers::writer_that_panics_ends_the_snapshot,
    ),
    (
        "writers::writer_that_snapshots_and_writes_the_same_memory_gets_what_was",
        writers::writer_that_snapshots_and_writes_the_same_memory_gets_what_was,
    ),
    (
        "writers::taker_of_changes_that_panics_or_calls_again_ends_them",
        writers::taker_of_changes_that_panics_or_calls_again_ends_them,
    ),
    (
        "callbacks::snapshot_whose_progress_panics_ends",
        callbacks::snapshot_whose_progress_panics_ends,
    ),
    (
        "answers::view_holds_its_snapshot_by_reference_or_shares_it",
        answers::view_holds_its_snapshot_by_reference_or_shares_it,
    ),
];

fn main() {
    let mut tests = trials(CHECKS, None);
    tests.extend(trials(OF_SNAPSHOTS, permitted::lacking()));
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
