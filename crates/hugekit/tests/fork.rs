//! Forks of regions, on every backing, served in place and threaded: each side changes its own bytes and
//! no other's, whichever region writes first and goes first.
#![allow(unsafe_code)]

mod backings;
mod child;

use std::io::{Read, Write};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use backings::{Check, FOLIOS, builder, is_zero, trials, trials_on, unscrubbed};
use child::in_a_child;
use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::region::{ForkError, PinnedRange};
use hugekit::{HUGE_PAGE_BYTES, Pool, Region, RegionError, SharedRegion};
use libtest_mimic::Arguments;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

const FAULT_MODES: [FaultMode; 2] = [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }];

/// A pool for so many regions of as many folios as a test's have.
fn pool(backing: Backing, regions: usize) -> Pool {
    builder(backing, regions * FOLIOS).scrub_threads(0).build().unwrap()
}

/// Folios that so many regions have, where granules are no smaller than folios: those smaller keep a folio
/// in use for as long as one of them is.
fn folios_in_use(pool: &Pool, granule: usize, folios: usize) {
    let in_use = pool.stats().unwrap().in_use;
    assert!(in_use == folios || granule < pool.page_size() && in_use > folios, "{in_use} {folios}");
}

/// Granules that are shared on a backing: the usual one, and those at both ends.
fn granules(backing: Backing) -> Vec<usize> {
    match backing {
        Backing::Base => vec![4096, 16384],
        Backing::Thp => vec![HUGE_PAGE_BYTES, 64 << 10],
        _ => vec![backing.page_size()],
    }
}

/// Calls `check` with a pool, a region of it and how to fork it, in every way.
fn each(
    backing: Backing,
    regions: usize,
    check: impl Fn(&Pool, Region, &dyn Fn(&Region) -> Region, usize),
) {
    for fault_mode in FAULT_MODES {
        for granule in granules(backing) {
            let pool = pool(backing, regions);
            let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
            paint(&mut region, 1);
            let fork = |region: &Region| {
                region.fork_builder().granule(granule).fault_mode(fault_mode).build().unwrap()
            };
            check(&pool, region, &fork, granule);
            assert_eq!(pool.stats().unwrap().in_use, 0, "{fault_mode:?} {granule}");
        }
    }
}

/// Bytes that tell where they are and who wrote them.
fn paint(bytes: &mut [u8], who: u8) {
    for (at, page) in bytes.chunks_mut(4096).enumerate() {
        page.fill(who.wrapping_mul(31).wrapping_add(at as u8));
    }
}

fn is_painted(bytes: &[u8], who: u8) -> bool {
    let page = |(at, page): (usize, &[u8])| {
        page.iter().all(|&byte| byte == who.wrapping_mul(31).wrapping_add(at as u8))
    };
    bytes.chunks(4096).enumerate().all(page)
}

fn a_fork_has_the_same_bytes(backing: Backing) {
    each(backing, 2, |_, region, fork, _| {
        let child = fork(&region);
        assert_eq!((child.len(), child.mapped_len()), (region.len(), region.mapped_len()));
        assert!(is_painted(&child, 1));
        assert!(is_painted(&region, 1));
        assert_eq!(child.shared_bytes().unwrap(), child.len());
        assert!(child.serving().is_some());
    });
}

fn what_a_child_writes_is_its_own(backing: Backing) {
    each(backing, 2, |_, region, fork, _| {
        let mut child = fork(&region);
        let page = backing.page_size();
        child[page + 5] = 0xee;
        assert_eq!(region[page + 5], region[page + 6]);
        assert_eq!(child[page + 6], region[page + 6]);
        assert!(child.shared_bytes().unwrap() < child.len());
        paint(&mut child, 2);
        assert!(is_painted(&child, 2));
        assert!(is_painted(&region, 1));
        assert_eq!(child.shared_bytes().unwrap(), 0);
        assert_eq!(region.shared_bytes().unwrap(), 0);
    });
}

fn what_a_parent_writes_is_its_own(backing: Backing) {
    each(backing, 2, |_, mut region, fork, _| {
        let child = fork(&region);
        let half = region.len() / 2;
        // Of half of it the child has seen something.
        assert!(is_painted(&child[..half], 1));
        paint(&mut region, 2);
        assert!(is_painted(&child, 1));
        assert!(is_painted(&region, 2));
    });
}

fn any_order_of_dropping(backing: Backing) {
    each(backing, 4, |pool, mut region, fork, granule| {
        for parent_first in [true, false] {
            let mut child = fork(&region);
            let page = backing.page_size();
            child[0] = 7;
            region[3 * page] = 8;
            if parent_first {
                drop(region);
                folios_in_use(pool, granule, FOLIOS);
                assert_eq!(child[0], 7);
                assert_eq!(child[3 * page], child[3 * page + 1]);
                paint(&mut child, 3);
                assert!(is_painted(&child, 3));
                region = child;
            } else {
                drop(child);
                folios_in_use(pool, granule, FOLIOS);
                assert_eq!((region[1], region[3 * page]), (31, 8));
            }
            paint(&mut region, 1);
        }
    });
}

fn the_last_sharer_copies_nothing(backing: Backing) {
    each(backing, 2, |pool, mut region, fork, _| {
        let child = fork(&region);
        drop(child);
        let dirty = pool.stats().unwrap().dirty;
        region[9] = 1;
        assert_eq!(region.shared_bytes().unwrap(), 0);
        let child = fork(&region);
        drop(region);
        assert_eq!(pool.stats().unwrap().dirty, dirty);
        assert_eq!(child.shared_bytes().unwrap(), 0);
        assert_eq!(child[9], 1);
    });
}

fn forks_of_forks(backing: Backing) {
    each(backing, 5, |_, mut region, fork, _| {
        let page = backing.page_size();
        let mut first = fork(&region);
        let mut second = fork(&region);
        first[page] = 1;
        let mut third = fork(&first);
        let fourth = fork(&second);
        region[0] = 0xa0;
        first[0] = 0xa1;
        third[page] = 0xa3;
        second[2 * page] = 0xa2;
        assert_eq!([region[0], first[0], second[0], third[0], fourth[0]], [0xa0, 0xa1, 31, 31, 31]);
        let at = page;
        let old = second[at + 1];
        let seen = [region[at], first[at], second[at], third[at], fourth[at]];
        assert_eq!(seen, [old, 1, old, 0xa3, old]);
        drop(region);
        drop(second);
        assert_eq!(fourth[2 * page], fourth[2 * page + 1]);
        assert_eq!((first[0], third[0], fourth[0]), (0xa1, 31, 31));
        drop(first);
        assert_eq!((third[page], fourth[page]), (0xa3, old));
    });
}

fn what_is_released_is_zero_on_one_side(backing: Backing) {
    each(backing, 2, |_, mut region, fork, _| {
        let page = backing.page_size();
        let mut child = fork(&region);
        child.release(page..3 * page).unwrap();
        assert!(is_zero(&child[page..3 * page]));
        assert!(is_painted(&region, 1));
        region.release(2 * page..4 * page).unwrap();
        assert!(is_zero(&region[2 * page..4 * page]) && is_zero(&child[page..3 * page]));
        assert!(is_painted(&child[..page], 1));
        assert_eq!(child[3 * page], region[5 * page].wrapping_sub((2 * page / 4096) as u8));
    });
}

fn a_shortage_is_an_error_and_changes_nothing(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let pool = unscrubbed(backing);
        let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
        paint(&mut region, 1);
        let refused = region.fork_builder().fault_mode(fault_mode).build().unwrap_err();
        let message = refused.to_string();
        assert!(message.contains("0 bytes are free"), "{message}");
        assert!(matches!(refused, ForkError::Pool(_)));
        assert!(region.serving().is_none());
        assert!(is_painted(&region, 1));
        paint(&mut region, 2);
        assert!(is_painted(&region, 2));
    }
}

/// One region of a tree, and what it must read as.
#[derive(Debug)]
struct Modelled {
    region: SharedRegion,
    bytes: Vec<u8>,
    pins: Vec<PinnedRange>,
}

#[derive(Clone, Debug)]
enum Step {
    Fork(Index),
    Write(Index, Index, usize, u8),
    Drop(Index),
    Release(Index, Index, Index),
    Populate(Index, Index, Index),
    Ready(Index, Index, Index),
    Pin(Index, Index, Index),
    Unpin(Index),
    Truncate(Index, Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<Index>;
    let step = prop_oneof![
        4 => index().prop_map(Step::Fork),
        8 => (index(), index(), 1_usize..9000, any::<u8>())
            .prop_map(|(which, at, len, byte)| Step::Write(which, at, len, byte)),
        2 => index().prop_map(Step::Drop),
        1 => (index(), index(), index()).prop_map(|(which, a, b)| Step::Release(which, a, b)),
        1 => (index(), index(), index()).prop_map(|(which, a, b)| Step::Populate(which, a, b)),
        1 => (index(), index(), index()).prop_map(|(which, a, b)| Step::Ready(which, a, b)),
        1 => (index(), index(), index()).prop_map(|(which, a, b)| Step::Pin(which, a, b)),
        1 => index().prop_map(Step::Unpin),
        1 => (index(), index()).prop_map(|(which, len)| Step::Truncate(which, len)),
    ];
    vec(step, 1..40)
}

/// Regions of a tree at most, and folios of its first.
const MOST: usize = 5;
const FEW: usize = 3;

impl Modelled {
    fn new(region: Region, bytes: Vec<u8>) -> Self {
        Self { region: region.share(), bytes, pins: Vec::new() }
    }

    /// Every byte, or a few of each page.
    fn check(&self, all: bool) {
        let step = if all { 4096 } else { 128 << 10 };
        let mut seen = [0; 4096];
        for (at, bytes) in self.bytes.chunks(4096).enumerate().step_by(step / 4096) {
            let seen = &mut seen[..bytes.len()];
            self.region.read_at(at * 4096, seen).unwrap();
            assert!(seen == bytes, "page {at}");
        }
    }

    fn range(&self, a: &Index, b: &Index, unit: usize) -> Range<usize> {
        let units = self.bytes.len() / unit;
        let (a, b) = (a.index(units + 1), b.index(units + 1));
        a.min(b) * unit..a.max(b) * unit
    }
}

type HowToFork<'a> = &'a dyn Fn(&SharedRegion) -> Result<Region, ForkError>;

impl Modelled {
    /// A child, if there are mappings for one.
    fn fork(&self, how: HowToFork<'_>) -> Option<Self> {
        match how(&self.region) {
            Ok(child) => Some(Self::new(child, self.bytes.clone())),
            // What is pinned cannot be moved together, and a new place may not be free in one piece.
            Err(ForkError::Mappings { needed, most: 3, .. }) => {
                assert!(needed > 0);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self, at: usize, len: usize, byte: u8) {
        let end = (at + len).min(self.bytes.len());
        self.bytes[at..end].fill(byte);
        self.region.write_at(at, &self.bytes[at..end]).unwrap();
    }

    fn release(&mut self, range: Range<usize>) {
        self.region.release(range.clone()).unwrap();
        self.bytes[range].fill(0);
    }

    /// The kernel may write there from then on.
    fn prepare_write(&self, range: Range<usize>) {
        self.region.prepare_write(range.clone()).unwrap();
        let (mut source, mut sink) = std::io::pipe().unwrap();
        let len = range.len().min(100);
        if len > 0 {
            sink.write_all(&self.bytes[range.start..range.start + len]).unwrap();
            let start = self.region.as_ptr().wrapping_add(range.start);
            // SAFETY: bytes of the region, which no thread accesses meanwhile; they stay what they are.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
            assert_eq!(source.read(bytes).unwrap(), len);
        }
    }

    fn truncated(self, len: usize) -> Self {
        let Self { region, mut bytes, .. } = self;
        // SAFETY: no other thread uses the region.
        let mut region = unsafe { region.into_exclusive() }.unwrap();
        region.truncate(len).unwrap();
        bytes.truncate(len);
        assert_eq!(region.len(), len);
        Self::new(region, bytes)
    }
}

fn take(tree: &mut Vec<Modelled>, step: &Step, how: HowToFork<'_>, page: usize) {
    let of = |tree: &[Modelled], index: &Index| index.index(tree.len());
    match step {
        Step::Fork(which) if tree.len() < MOST => {
            let child = tree[of(tree, which)].fork(how);
            tree.extend(child);
        }
        Step::Fork(_) => {}
        Step::Write(which, at, len, byte) => {
            let modelled = which.get_mut(tree);
            let at = at.index(modelled.bytes.len());
            modelled.write(at, *len, *byte);
        }
        Step::Drop(which) => {
            if tree.len() > 1 {
                let which = of(tree, which);
                drop(tree.swap_remove(which));
            }
        }
        Step::Release(which, a, b) => {
            let modelled = which.get_mut(tree);
            let range = modelled.range(a, b, page);
            modelled.release(range);
        }
        Step::Populate(which, a, b) => {
            let modelled = which.get(tree);
            modelled.region.populate(modelled.range(a, b, 1)).unwrap();
        }
        Step::Ready(which, a, b) => {
            let modelled = which.get(tree);
            modelled.prepare_write(modelled.range(a, b, 1));
        }
        Step::Pin(which, a, b) => {
            let modelled = which.get_mut(tree);
            let pin = modelled.region.pin(modelled.range(a, b, 1)).unwrap();
            modelled.pins.push(pin);
        }
        Step::Unpin(which) => drop(which.get_mut(tree).pins.pop()),
        Step::Truncate(which, len) => {
            let which = of(tree, which);
            if tree[which].pins.is_empty() {
                let modelled = tree.swap_remove(which);
                let len = 1 + len.index(modelled.bytes.len());
                tree.push(modelled.truncated(len));
            }
        }
    }
}

/// Random operations on trees of regions, against a plain vector for each.
fn like_vectors(backing: Backing) {
    for fault_mode in FAULT_MODES {
        for granule in granules(backing) {
            let cases = if backing == Backing::Base { 200 } else { 24 };
            let config =
                ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
            let page = backing.page_size();
            // Small granules keep folios in use, and so do those that are larger.
            let spare = if granule == page { MOST } else { 4 * MOST };
            let pool = builder(backing, spare * FEW + 8).scrub_threads(0).build().unwrap();
            let run = |steps: Vec<Step>, most: usize| {
                let mut region = pool.region(FEW * page).unwrap();
                paint(&mut region, 1);
                let bytes = region.to_vec();
                let mut tree = vec![Modelled::new(region, bytes)];
                let how = |region: &SharedRegion| {
                    let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
                    fork.max_vmas(most).build()
                };
                for step in &steps {
                    take(&mut tree, step, &how, page);
                    tree.iter().for_each(|modelled| modelled.check(backing == Backing::Base));
                    if granule == page {
                        let in_use =
                            tree.iter().map(|modelled| modelled.region.mapped_len() / page);
                        assert_eq!(pool.stats().unwrap().in_use, in_use.sum::<usize>());
                    }
                }
                tree.iter().for_each(|modelled| modelled.check(true));
                drop(tree);
                assert_eq!(pool.stats().unwrap().in_use, 0);
            };
            TestRunner::new(config)
                .run(&(steps(), prop_oneof![Just(3_usize), Just(1000)]), |(steps, most)| {
                    run(steps, most);
                    Ok(())
                })
                .unwrap();
        }
    }
}

/// Threads write numbered generations in the same order again and again while forks are taken: a fork has
/// everything that was written before, nothing that was written after, and of each thread a state that was.
fn forks_are_moments(backing: Backing) {
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
            let stop = AtomicBool::new(false);
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
                        assert!(reader.join().unwrap(), "the parent's writes were seen");
                    });
                    assert!(is_same());
                }
                stop.store(true, Ordering::SeqCst);
            });
        }
    }
}

/// Forks of one region are written, forked and dropped by threads of their own, all at a time.
fn fork_groups_in_threads(backing: Backing) {
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

/// A fork group whose slots are in every state there is is made ready by all of its regions at the same time: each
/// has its own bytes, and the kernel may write them.
fn what_is_ready_is_open_to_the_kernel(backing: Backing) {
    each(backing, 4, |_, mut region, fork, granule| {
        let mut forks = [(); 3].map(|()| fork(&region));
        let mut models = [(); 4].map(|()| region.to_vec());
        let mut write = |which: usize, bytes: &mut [u8], slots: std::iter::StepBy<Range<usize>>| {
            for slot in slots {
                bytes[slot * granule] = !bytes[slot * granule];
                models[which][slot * granule] = bytes[slot * granule];
            }
        };
        let slots = region.len() / granule;
        let half = region.len() / 2;
        // The first has copies of its own here and there, the second has half of it mapped, and the parent's
        // writes leave copies that all of them show.
        write(1, &mut forks[0], (0..slots).step_by(3));
        assert!(is_painted(&forks[1][..half], 1));
        write(0, &mut region, (1..slots).step_by(5));
        let [first, second, third] = forks;
        let mut regions = [region, first, second, third];
        thread::scope(|scope| {
            for region in &regions {
                scope.spawn(|| region.prepare_write(0..region.len()).unwrap());
            }
        });
        for (region, model) in regions.iter().zip(&models) {
            assert!(**region == **model);
            assert_eq!(region.shared_bytes().unwrap(), 0);
        }
        let mut zeroes = std::fs::File::open("/dev/zero").unwrap();
        for which in 0..regions.len() {
            zeroes.read_exact(&mut regions[which]).unwrap();
            assert!(is_zero(&regions[which]));
            for (region, model) in regions.iter().zip(&models).skip(which + 1) {
                assert!(**region == **model);
            }
        }
    });
}

fn bad_terms_are_typed_errors(backing: Backing) {
    let pool = pool(backing, 2);
    let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
    paint(&mut region, 1);
    for granule in [0, 3, 2048, 12288, HUGE_PAGE_BYTES + 4096, 4 << 20, usize::MAX] {
        match region.fork_builder().granule(granule).build() {
            Err(ForkError::Granule { granule: asked, least, most }) => {
                assert_eq!(asked, granule);
                assert!(least <= most && most <= HUGE_PAGE_BYTES);
            }
            other => panic!("{granule}: {other:?}"),
        }
    }
    let fault_mode = FaultMode::Threaded { threads: 0 };
    assert!(matches!(
        region.fork_builder().fault_mode(fault_mode).build(),
        Err(ForkError::Fault(_))
    ));
    assert!(region.serving().is_none());
    let granule = *granules(backing).last().unwrap();
    let how = || region.fork_builder().granule(granule).fault_mode(FaultMode::InPlace);
    let child = how().build().unwrap();
    let other = granule ^ 8192;
    let differs = child.fork_builder().granule(other).build();
    assert!(matches!(differs, Err(ForkError::GranuleDiffers { .. })), "{differs:?}");
    let fault_mode = FaultMode::Threaded { threads: 1 };
    let differs = child.fork_builder().fault_mode(fault_mode).build();
    assert!(matches!(differs, Err(ForkError::FaultModeDiffers { .. })), "{differs:?}");
    drop(child);
    assert!(is_painted(&region, 1));
}

/// A holder of the file writes past any protection, so one excludes the other.
fn forks_and_the_file_exclude_each_other(backing: Backing) {
    let pool = pool(backing, 2);
    let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
    // SAFETY: no thread writes the file.
    unsafe { region.file() }.unwrap();
    assert!(matches!(region.fork(), Err(ForkError::FileGiven)));
    drop(region);
    let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
    let child = region.fork().unwrap().share();
    for forked in [&region, &child] {
        // SAFETY: as above.
        assert_eq!(unsafe { forked.file() }.unwrap_err(), RegionError::Forks);
    }
}

/// A region that is cleared when it is touched is cleared by its first fork.
fn a_region_that_is_served_can_be_forked(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let pool = builder(backing, 2 * FOLIOS).scrub_threads(0).build().unwrap();
        pool.region(2 * FOLIOS * backing.page_size()).unwrap().fill(0xd1);
        let region = pool.region_builder(FOLIOS * backing.page_size());
        let mut region = region.clearing(Clearing::OnFault).fault_mode(fault_mode).build().unwrap();
        region[7] = 7;
        let mut child = region.fork_builder().fault_mode(fault_mode).build().unwrap();
        child[8] = 8;
        assert_eq!((region[7], region[8], child[7], child[8]), (7, 0, 7, 8));
        assert!(is_zero(&region[9..]) && is_zero(&child[9..]));
    }
}

/// What a ring holds goes on in the parent's pages: the kernel writes there by a reference of its own.
fn what_is_pinned_stays_where_it_is(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let pool = pool(backing, 3);
        let page = backing.page_size();
        let region = pool.region(FOLIOS * page).unwrap().share();
        region.write_at(page + 5, b"before").unwrap();
        let pin = region.pin(page..page + 100).unwrap();
        assert_eq!((pin.range(), pin.region().len()), (page..page + 100, region.len()));
        let how = || region.fork_builder().fault_mode(fault_mode).build().unwrap();
        let child = how();
        // Not by a fault: nothing holds the write back.
        let (mut source, mut sink) = std::io::pipe().unwrap();
        sink.write_all(b"behind").unwrap();
        // SAFETY: bytes of the region, which no thread accesses meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.as_ptr().add(page + 5), 6) };
        assert_eq!(source.read(bytes).unwrap(), 6);
        assert_eq!(&child[page + 5..page + 11], b"before");
        let second = how();
        assert_eq!(&second[page + 5..page + 11], b"behind");
        drop(pin);
        drop(second);
        let third = how();
        assert!(third.shared_bytes().unwrap() > child.shared_bytes().unwrap());
        assert!(matches!(region.pin(0..region.len() + 1), Err(RegionError::OutOfRange { .. })));
    }
}

/// Mappings of this process in an address range.
fn mappings(region: &Region) -> usize {
    let (start, end) = (region.as_ptr().addr(), region.as_ptr().addr() + region.mapped_len());
    let lies_in = |line: &&str| {
        let (first, _) = line.split_once('-').unwrap();
        (start..end).contains(&usize::from_str_radix(first, 16).unwrap())
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(lies_in).count()
}

/// Where forks may cost no more mappings, a region copies what it shares and is one mapping again.
fn mappings_are_budgeted(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let pool = pool(backing, 2);
        let granule = *granules(backing).first().unwrap();
        let region = pool.region(FOLIOS * backing.page_size()).unwrap();
        let how = region.fork_builder().granule(granule).fault_mode(fault_mode).max_vmas(4);
        let mut child = how.build().unwrap();
        child[granule] = 1;
        child[3 * granule] = 3;
        assert_eq!(mappings(&child), 5);
        assert!(child.shared_bytes().unwrap() > 0);
        child[5 * granule] = 5;
        assert_eq!(mappings(&child), 1);
        assert_eq!(child.shared_bytes().unwrap(), 0);
        let written = child.iter().enumerate().filter(|(_, byte)| **byte != 0);
        let written: Vec<_> = written.map(|(at, byte)| (at, *byte)).collect();
        assert_eq!(written, [1_u8, 3, 5].map(|slot| (usize::from(slot) * granule, slot)));
        assert!(is_zero(&region));
    }
}

/// A region whose frames are fragmented is brought together before it is forked, where mappings are few:
/// into its own place if it has all of that, else into a new one.
fn what_is_scattered_is_brought_together(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let pool = pool(backing, 3);
        let (page, granule) = (backing.page_size(), backing.page_size());
        let mut region = pool.region(FOLIOS * page).unwrap();
        paint(&mut region, 1);
        let how = |region: &Region| {
            let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
            fork.max_vmas(8).build()
        };
        let mut child = how(&region).unwrap();
        for slot in [1, 3, 5] {
            let byte = child[slot * page + 1];
            child[slot * page] = byte;
        }
        assert_eq!(mappings(&child), 7);
        // In its own place.
        let grandchild = how(&child).unwrap();
        assert_eq!((mappings(&child), mappings(&grandchild)), (1, 1));
        assert_eq!(child.shared_bytes().unwrap(), child.len());
        assert_eq!(region.shared_bytes().unwrap(), 0);
        drop(grandchild);
        drop(child);
        // In a new one, because half of its own is the pool's again.
        let mut child = how(&region).unwrap();
        for slot in [1, 3, 5] {
            let byte = child[slot * page + 1];
            child[slot * page] = byte;
        }
        drop(region);
        assert_eq!(pool.stats().unwrap().in_use, FOLIOS);
        let shared = child.share();
        let pin = shared.pin(0..1).unwrap();
        let refused = shared.fork();
        assert!(matches!(refused, Err(ForkError::Mappings { .. })), "{refused:?}");
        drop(pin);
        // SAFETY: no other thread uses it.
        let child = unsafe { shared.into_exclusive() }.unwrap();
        let grandchild = how(&child).unwrap();
        assert_eq!((mappings(&child), mappings(&grandchild)), (1, 1));
        assert!(is_painted(&child, 1) && is_painted(&grandchild, 1));
        assert_eq!(pool.stats().unwrap().in_use, 2 * FOLIOS);
    }
}

/// Neighbours that were written are one mapping again, whatever the order.
fn neighbours_become_one_mapping(backing: Backing) {
    const SLOTS: usize = 64;
    let granule = granules(backing)[0];
    let folios = (SLOTS * granule).div_ceil(backing.page_size());
    for step in [1, 5, 27] {
        for fault_mode in FAULT_MODES {
            let Ok(pool) = builder(backing, 2 * folios).scrub_threads(0).build() else { return };
            let region = pool.region(folios * backing.page_size()).unwrap();
            let fork = region.fork_builder().granule(granule).fault_mode(fault_mode);
            let mut child = fork.build().unwrap();
            for index in 0..SLOTS {
                let slot = index * step % SLOTS;
                child[slot * granule] = slot as u8 + 1;
            }
            // A handler thread may still be at the last one.
            child.populate(0..child.len()).unwrap();
            assert_eq!(mappings(&child), 1, "{step}");
            assert_eq!(child.shared_bytes().unwrap(), 0);
            let written =
                |(slot, bytes): (usize, &[u8])| bytes[0] == slot as u8 + 1 && is_zero(&bytes[1..]);
            assert!(child.chunks(granule).enumerate().all(written));
            assert!(is_zero(&region));
        }
    }
}

/// A process that has no mapping left can still write its forks, and cannot make more of them.
fn a_process_without_mappings_goes_on(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let code = in_a_child(|| {
            let pool = pool(backing, 3);
            let granule = granules(backing)[0];
            let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
            paint(&mut region, 1);
            let how = || region.fork_builder().granule(granule).fault_mode(fault_mode).build();
            let mut child = how().unwrap();
            child[granule] = 9;
            // Neighbours with different rights never become one.
            let prots = [ProtFlags::empty(), ProtFlags::READ];
            let use_all = || {
                let map = |&count: &usize| {
                    let (nowhere, prot) = (std::ptr::null_mut(), prots[count % 2]);
                    // SAFETY: a new mapping, which no thread uses.
                    unsafe { mmap_anonymous(nowhere, 4096, prot, MapFlags::PRIVATE) }.is_ok()
                };
                (0..).take_while(map).count()
            };
            let used = use_all();
            child[3 * granule] = 7;
            let seen = (child[granule], child[3 * granule], child[3 * granule + 1]);
            let expected = (9, 7, region[3 * granule + 1]);
            use_all();
            let refused = matches!(how(), Err(ForkError::NotMapped { .. }));
            i32::from(seen != expected) + 2 * i32::from(!refused) + 4 * i32::from(used < 1000)
        });
        assert_eq!(code, 0, "{fault_mode:?}");
    }
}

/// A process that locks all it maps has pages mapped by the kernel that no thread touched: none of them may
/// let a write through.
fn a_process_that_locks_its_memory(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let code = in_a_child(|| {
            let pool = pool(backing, 4);
            let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
            paint(&mut region, 1);
            let granule = granules(backing)[0];
            let how = |region: &Region| {
                region.fork_builder().granule(granule).fault_mode(fault_mode).build().unwrap()
            };
            let early = how(&region);
            // SAFETY: changes no byte.
            if unsafe { libc::mlockall(libc::MCL_FUTURE) } != 0 {
                return 0; // More than this user may lock.
            }
            let mut child = how(&region);
            paint(&mut child[..2 * granule], 2);
            let mut grandchild = how(&child);
            paint(&mut grandchild, 3);
            region[granule] = 9;
            let fine = is_painted(&child[..2 * granule], 2)
                && is_painted(&grandchild, 3)
                && is_painted(&early, 1)
                && child[3 * granule..] == early[3 * granule..]
                && is_painted(&region[..granule], 1);
            i32::from(!fine)
        });
        assert_eq!(code, 0, "{fault_mode:?}");
    }
}

/// Folios are released and written again while forks are made: in a fork a word is zero or what was
/// written, and stays what it is.
fn forks_against_release(backing: Backing) {
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

/// In a child process nothing of a fork group is there, in whatever state it is, and what it does changes
/// nothing for the parent.
fn a_forked_process_has_no_part_of_it(backing: Backing) {
    each(backing, 3, |pool, mut region, fork, _| {
        let mut child = fork(&region);
        let grandchild = fork(&child);
        child[0] = 5;
        region[backing.page_size()] = 6;
        let regions = Mutex::new(vec![region, child, grandchild]);
        let code = in_a_child(|| {
            let mut regions = std::mem::take(&mut *regions.lock().unwrap());
            for region in &mut regions {
                if !matches!(region.fork(), Err(ForkError::Forked)) {
                    return 1;
                }
                let refused = [region.release(0..region.len()), region.prepare_write(0..1)];
                if refused.iter().any(|refused| *refused != Err(RegionError::Forked)) {
                    return 2;
                }
            }
            drop(regions);
            // A fork group of its own.
            let pool = Pool::builder(64 << 10).backing(Backing::Base).build().unwrap();
            let mut region = pool.region(32 << 10).unwrap();
            let mut child = region.fork().unwrap();
            region[1] = 1;
            child[2] = 2;
            i32::from((region[1], region[2], child[1], child[2]) != (1, 0, 0, 2)) * 3
        });
        assert_eq!(code, 0);
        let regions = regions.into_inner().unwrap();
        let [region, child, grandchild] = <[Region; 3]>::try_from(regions).unwrap();
        assert_eq!((region[0], child[0], grandchild[0]), (31, 5, 31));
        assert_eq!(child[backing.page_size()], child[backing.page_size() + 1]);
        drop((region, child));
        assert!(is_painted(&grandchild, 1));
        drop(grandchild);
        assert_eq!(pool.stats().unwrap().in_use, 0);
    });
}

fn what_is_retired_is_the_kernels_again(backing: Backing) {
    each(backing, 3, |pool, region, fork, granule| {
        let mut child = fork(&region);
        let other = fork(&region);
        paint(&mut child, 2);
        child.retire().unwrap();
        folios_in_use(pool, granule, 2 * FOLIOS);
        assert!(pool.stats().unwrap().holes >= FOLIOS);
        region.retire().unwrap();
        assert!(is_painted(&other, 1));
    });
}

const CHECKS: &[Check] = &[
    ("a_fork_has_the_same_bytes", a_fork_has_the_same_bytes),
    ("what_a_child_writes_is_its_own", what_a_child_writes_is_its_own),
    ("what_a_parent_writes_is_its_own", what_a_parent_writes_is_its_own),
    ("any_order_of_dropping", any_order_of_dropping),
    ("the_last_sharer_copies_nothing", the_last_sharer_copies_nothing),
    ("forks_of_forks", forks_of_forks),
    ("what_is_released_is_zero_on_one_side", what_is_released_is_zero_on_one_side),
    ("like_vectors", like_vectors),
    ("forks_are_moments", forks_are_moments),
    (
        "prepare_write_beside_a_writing_parent_changes_no_byte",
        prepare_write_beside_a_writing_parent_changes_no_byte,
    ),
    ("fork_groups_in_threads", fork_groups_in_threads),
    ("what_is_ready_is_open_to_the_kernel", what_is_ready_is_open_to_the_kernel),
    ("bad_terms_are_typed_errors", bad_terms_are_typed_errors),
    ("forks_and_the_file_exclude_each_other", forks_and_the_file_exclude_each_other),
    ("a_region_that_is_served_can_be_forked", a_region_that_is_served_can_be_forked),
    ("what_is_pinned_stays_where_it_is", what_is_pinned_stays_where_it_is),
    ("mappings_are_budgeted", mappings_are_budgeted),
    ("a_forked_process_has_no_part_of_it", a_forked_process_has_no_part_of_it),
    ("what_is_retired_is_the_kernels_again", what_is_retired_is_the_kernels_again),
    ("what_is_scattered_is_brought_together", what_is_scattered_is_brought_together),
    ("neighbours_become_one_mapping", neighbours_become_one_mapping),
    ("a_process_without_mappings_goes_on", a_process_without_mappings_goes_on),
    ("a_process_that_locks_its_memory", a_process_that_locks_its_memory),
    ("forks_against_release", forks_against_release),
    ("a_shortage_is_an_error_and_changes_nothing", a_shortage_is_an_error_and_changes_nothing),
];

fn a_gigantic_page_cannot_be_forked(backing: Backing) {
    let pool = builder(backing, 1).build().unwrap();
    let mut region = pool.region(1).unwrap();
    region[0] = 7;
    assert!(matches!(region.fork(), Err(ForkError::Gigantic)));
    assert_eq!(region[0], 7);
}

fn main() {
    let mut trials = trials(CHECKS);
    let gigantic: &[Check] =
        &[("a_gigantic_page_cannot_be_forked", a_gigantic_page_cannot_be_forked)];
    trials.extend(trials_on(Backing::Hugetlb1G, 1, gigantic));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
