//! Forks while threads write, release and fork: each is of one moment, and stays what it was.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::{Region, SharedRegion};
use hugekit_testing::racing::Stops;

use crate::backings::{Check, FOLIOS, is_zero};
use crate::fixture::{granules, is_painted, paint, pool};
use crate::permitted::fault_modes;
use crate::rounds::rounds;

const WRITERS: usize = 2;

/// A region into which threads write numbered generations, in the same order again and again.
struct Generations {
    region: SharedRegion,
    granule: usize,
    slots: usize,
    /// By writer, the generation that it writes, and the last one that it has written.
    begun: [AtomicU64; WRITERS],
    done: [AtomicU64; WRITERS],
    stop: AtomicBool,
}

impl Generations {
    fn new(region: SharedRegion, granule: usize) -> Self {
        let slots = region.len() / granule;
        let (begun, done) = (Default::default(), Default::default());
        Self { region, granule, slots, begun, done, stop: AtomicBool::new(false) }
    }

    fn write(&self, writer: usize) {
        for generation in 1.. {
            self.begun[writer].store(generation, Ordering::SeqCst);
            for slot in 0..self.slots {
                let word = &self.region.words()[slot * self.granule / 8 + writer];
                word.store(generation, Ordering::SeqCst);
            }
            self.done[writer].store(generation, Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                break;
            }
        }
    }

    /// A fork, which is of a moment between the beginning and the end of this.
    fn fork(&self, fault_mode: FaultMode, waits: bool) -> Region {
        let now = |all: &[AtomicU64; WRITERS]| all.each_ref().map(|of| of.load(Ordering::SeqCst));
        let before = now(&self.done);
        let fork = self.region.fork_builder().granule(self.granule).fault_mode(fault_mode);
        let fork = fork.build().unwrap();
        let after = now(&self.begun);
        if waits {
            thread::yield_now();
        }
        for writer in 0..WRITERS {
            self.is_one_moment(&fork, writer, before[writer]..=after[writer]);
        }
        fork
    }

    /// What one writer wrote into a fork: everything of a generation, but perhaps the last slots.
    fn is_one_moment(&self, fork: &[u8], writer: usize, between: RangeInclusive<u64>) {
        let state = |slot| {
            let at = slot * self.granule + 8 * writer;
            u64::from_ne_bytes(fork[at..at + 8].try_into().unwrap())
        };
        let states: Vec<u64> = (0..self.slots).map(state).collect();
        let (first, last) = (states[0], states[self.slots - 1]);
        assert!(states.is_sorted_by(|a, b| a >= b), "{states:?}");
        assert!(
            last >= *between.start() && first <= *between.end() && first - last <= 1,
            "{states:?} {between:?}"
        );
    }
}

/// Threads write while forks are taken: a fork has everything that was written before, nothing that was written after,
/// and of each thread a state that was.
fn fork_under_writers_is_one_moment(backing: Backing) {
    forks_under_writers(backing, 4);
}

fn fork_under_writers_many_times_is_one_moment(backing: Backing) {
    forks_under_writers(backing, rounds(60) as u8);
}

fn forks_under_writers(backing: Backing, rounds: u8) {
    for fault_mode in fault_modes() {
        for granule in granules(backing) {
            let pool = pool(backing, 4);
            let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
            let generations = Generations::new(region, granule);
            thread::scope(|scope| {
                let _stops = Stops(&generations.stop);
                for writer in 0..WRITERS {
                    let generations = &generations;
                    scope.spawn(move || generations.write(writer));
                }
                forks_stay_what_they_were(&generations, fault_mode, rounds);
            });
        }
    }
}

/// Every other fork is kept for a round, and compared then and written; the others are written at once.
fn forks_stay_what_they_were(generations: &Generations, fault_mode: FaultMode, rounds: u8) {
    let mut kept: Option<(Region, Vec<u8>)> = None;
    for round in 0..rounds {
        let mut fork = generations.fork(fault_mode, round % 3 == 0);
        let bytes = fork.to_vec();
        if let Some((mut kept, bytes)) = kept.take() {
            assert!(*kept == *bytes);
            paint(&mut kept, round);
            assert!(is_painted(&kept, round));
        }
        if round % 2 == 0 {
            kept = Some((fork, bytes));
        } else {
            fork[5 * 8] = 1;
            assert_eq!(fork[generations.granule + 5 * 8], 0);
        }
    }
}

/// A fork that is made ready, and read meanwhile, shows what it showed before, whatever its parent writes: first copies
/// are made, then they are mapped, and in between its page tables may not have what the parent goes on writing.
fn prepare_write_beside_a_writing_parent_changes_no_byte(backing: Backing) {
    for fault_mode in fault_modes() {
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
                let _end = Stops(&stop);
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
            });
            assert!(same, "the parent's writes were seen");
        }
    }
}

/// Forks of one region are written, forked and dropped by threads of their own, all at a time.
fn forks_by_several_threads_keep_their_bytes(backing: Backing) {
    const THREADS: usize = 4;
    for fault_mode in fault_modes() {
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
    for fault_mode in fault_modes() {
        let granule = *granules(backing).last().unwrap();
        let pool = pool(backing, 4);
        let page = backing.page_size();
        let region = pool.region(FOLIOS * page).unwrap().share();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = Stops(&stop);
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
        });
    }
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    fork_under_writers_is_one_moment,
    "[nightly: threads must meet] " fork_under_writers_many_times_is_one_moment,
    prepare_write_beside_a_writing_parent_changes_no_byte,
    forks_by_several_threads_keep_their_bytes,
    fork_beside_release_reads_zero_or_what_was_written,
];
