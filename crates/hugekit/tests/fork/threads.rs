//! Forks while threads write, release and fork: each is of one moment, and stays what it was.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hugekit::Region;
use hugekit::pool::Backing;

use crate::backings::{Check, FOLIOS, is_zero};
use crate::fixture::{FAULT_MODES, granules, is_painted, paint, pool};

/// Threads write numbered generations in the same order again and again while forks are taken: a fork has
/// everything that was written before, nothing that was written after, and of each thread a state that was.
fn fork_under_writers_is_one_moment(backing: Backing) {
    const WRITERS: usize = 2;
    for fault_mode in FAULT_MODES {
        for granule in granules(backing) {
            let pool = pool(backing, 4);
            let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
            let slots = region.len() / granule;
            let (begun, done) =
                ([const { AtomicU64::new(0) }; WRITERS], [const { AtomicU64::new(0) }; WRITERS]);
            let stop = AtomicBool::new(false);
            let seen = |region: &[u8], slot: usize, writer: usize| {
                let at = slot * granule + 8 * writer;
                u64::from_ne_bytes(region[at..at + 8].try_into().unwrap())
            };
            thread::scope(|scope| {
                for writer in 0..WRITERS {
                    let (region, begun, done, stop) = (&region, &begun, &done, &stop);
                    scope.spawn(move || {
                        for generation in 1.. {
                            begun[writer].store(generation, Ordering::SeqCst);
                            for slot in 0..slots {
                                region.words()[slot * granule / 8 + writer]
                                    .store(generation, Ordering::SeqCst);
                            }
                            done[writer].store(generation, Ordering::SeqCst);
                            if stop.load(Ordering::SeqCst) {
                                break;
                            }
                        }
                    });
                }
                let mut kept: Option<(Region, Vec<u8>)> = None;
                for round in 0..60 {
                    let before = [0, 1].map(|writer| done[writer].load(Ordering::SeqCst));
                    let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
                    let mut fork = fork.build().unwrap();
                    let after = [0, 1].map(|writer| begun[writer].load(Ordering::SeqCst));
                    if round % 3 == 0 {
                        thread::yield_now();
                    }
                    for writer in 0..WRITERS {
                        let states: Vec<u64> =
                            (0..slots).map(|slot| seen(&fork, slot, writer)).collect();
                        let (first, last) = (states[0], states[slots - 1]);
                        assert!(states.is_sorted_by(|a, b| a >= b), "{states:?}");
                        assert!(
                            last >= before[writer] && first <= after[writer] && first - last <= 1,
                            "{states:?} {before:?} {after:?}"
                        );
                    }
                    let bytes = fork.to_vec();
                    if let Some((mut kept, bytes)) = kept.take() {
                        assert!(*kept == *bytes);
                        paint(&mut kept, round);
                        assert!(is_painted(&kept, round));
                        drop(kept);
                    }
                    if round % 2 == 0 {
                        kept = Some((fork, bytes));
                    } else {
                        fork[5 * 8] = 1;
                        assert_eq!(fork[granule + 5 * 8], 0);
                    }
                }
                stop.store(true, Ordering::SeqCst);
            });
        }
    }
}

/// A fork that is made ready, and read meanwhile, shows what it showed before, whatever its parent writes: first copies
/// are made, then they are mapped, and in between its page tables may not have what the parent goes on writing.
fn prepare_write_beside_a_writing_parent_changes_no_byte(backing: Backing) {
    for fault_mode in FAULT_MODES {
        for granule in granules(backing) {
            let pool = pool(backing, 3);
            let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
            let slots = region.len() / granule;
            let (stop, mut same) = (AtomicBool::new(false), true);
            let seen = |fork: &Region, slot: usize| {
                let word = fork[slot * granule..][..8].as_ptr().cast::<u64>();
                // SAFETY: eight bytes of the fork, aligned; the compiler must not know them from before.
                unsafe { word.read_volatile() }
            };
            thread::scope(|scope| {
                scope.spawn(|| {
                    for generation in 1.. {
                        for slot in (0..slots).rev() {
                            region.words()[slot * granule / 8].store(generation, Ordering::SeqCst);
                        }
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                    }
                });
                for _ in 0..20 {
                    let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
                    let fork = fork.build().unwrap();
                    let before: Vec<u64> = (0..slots).map(|slot| seen(&fork, slot)).collect();
                    let is_ready = AtomicBool::new(false);
                    let is_same = || (0..slots).all(|slot| seen(&fork, slot) == before[slot]);
                    thread::scope(|scope| {
                        let reader = scope.spawn(|| {
                            let mut same = true;
                            while !is_ready.load(Ordering::SeqCst) {
                                same &= is_same();
                            }
                            same
                        });
                        fork.prepare_write(0..fork.len()).unwrap();
                        is_ready.store(true, Ordering::SeqCst);
                        same &= reader.join().unwrap() && is_same();
                    });
                }
                // Before anything is asserted: the scope waits for the writer.
                stop.store(true, Ordering::SeqCst);
            });
            assert!(same, "the parent's writes were seen");
        }
    }
}

/// Forks of one region are written, forked and dropped by threads of their own, all at a time.
fn forks_by_several_threads_keep_their_bytes(backing: Backing) {
    const THREADS: usize = 4;
    for fault_mode in FAULT_MODES {
        for granule in granules(backing) {
            let pool = pool(backing, 4 * THREADS);
            let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
            paint(&mut region, 1);
            let fork = |region: &Region| {
                region.fork_builder().granule(granule).fault_mode(fault_mode).build().unwrap()
            };
            let rounds = if backing == Backing::Base { 40 } else { 6 };
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (region, fork) = (&region, &fork);
                    scope.spawn(move || {
                        for round in 0..rounds {
                            let who = (2 + thread * rounds + round) as u8;
                            let mut child = fork(region);
                            let half = child.len() / 2;
                            paint(&mut child[..half], who);
                            let grandchild = fork(&child);
                            child.release(0..backing.page_size()).unwrap();
                            assert!(is_zero(&child[..backing.page_size()]));
                            if round % 2 == 0 {
                                drop(child);
                            }
                            assert!(is_painted(&grandchild[..half], who));
                            assert!(grandchild[half..] == region[half..]);
                        }
                    });
                }
            });
            assert!(is_painted(&region, 1));
            drop(region);
            assert_eq!(pool.stats().unwrap().in_use, 0);
        }
    }
}

/// Folios are released and written again while forks are made: in a fork a word is zero or what was
/// written, and stays what it is.
fn fork_beside_release_reads_zero_or_what_was_written(backing: Backing) {
    const WRITTEN: u64 = 0x5a5a_5a5a_5a5a_5a5a;
    for fault_mode in FAULT_MODES {
        let granule = *granules(backing).last().unwrap();
        let pool = pool(backing, 4);
        let page = backing.page_size();
        let region = pool.region(FOLIOS * page).unwrap().share();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for folio in (0..FOLIOS).cycle() {
                    region.release(folio * page..(folio + 1) * page).unwrap();
                    let words = &region.words()[folio * page / 8..(folio + 1) * page / 8];
                    words.iter().for_each(|word| word.store(WRITTEN, Ordering::Relaxed));
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            for _ in 0..40 {
                let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
                let fork = fork.build().unwrap().share();
                let words: Vec<u64> =
                    fork.words().iter().map(|word| word.load(Ordering::Relaxed)).collect();
                assert!(words.iter().all(|&word| word == 0 || word == WRITTEN));
                thread::yield_now();
                let again = fork.words().iter().map(|word| word.load(Ordering::Relaxed));
                assert!(again.eq(words));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

pub(crate) const CHECKS: &[Check] = &[
    ("fork_under_writers_is_one_moment", fork_under_writers_is_one_moment),
    (
        "prepare_write_beside_a_writing_parent_changes_no_byte",
        prepare_write_beside_a_writing_parent_changes_no_byte,
    ),
    ("forks_by_several_threads_keep_their_bytes", forks_by_several_threads_keep_their_bytes),
    (
        "fork_beside_release_reads_zero_or_what_was_written",
        fork_beside_release_reads_zero_or_what_was_written,
    ),
];
