//! Snapshots of regions, on every backing, served in place and threaded: what they hold is what the region held,
//! whichever thread writes, forks or drops it meanwhile, and what was read costs writers nothing any more.
#![allow(unsafe_code)]

mod backings;
mod child;

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use backings::{Check, FOLIOS, builder, trials, trials_on};
use child::in_a_child;
use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::region::ForkError;
use hugekit::{
    Cancel, HUGE_PAGE_BYTES, Pool, Region, RegionError, SharedRegion, Snapshot, SnapshotError,
};
use libtest_mimic::Arguments;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;

const FAULT_MODES: [FaultMode; 2] = [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }];

/// Granules that are shared on a backing: the usual one, and a small one.
fn granules(backing: Backing) -> Vec<usize> {
    match backing {
        Backing::Base => vec![4096, 16384],
        Backing::Thp => vec![HUGE_PAGE_BYTES, 64 << 10],
        _ => vec![backing.page_size()],
    }
}

fn painted(at: usize) -> u8 {
    (at / 4096 + at / 97) as u8
}

/// How a region of a check is snapshotted.
type Take<'a> = &'a dyn Fn(&Region) -> Snapshot;

/// Calls `check` with a pool, a region of it that is painted and how to take snapshots, in every way.
fn each(backing: Backing, regions: usize, check: impl Fn(&Pool, Region, Take<'_>, usize)) {
    for fault_mode in FAULT_MODES {
        for granule in granules(backing) {
            let pool = builder(backing, regions * FOLIOS).scrub_threads(0).build().unwrap();
            let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
            region.iter_mut().enumerate().for_each(|(at, byte)| *byte = painted(at));
            let take = |region: &Region| {
                region.fork_builder().granule(granule).fault_mode(fault_mode).snapshot().unwrap()
            };
            check(&pool, region, &take, granule);
            assert_eq!(pool.stats().unwrap().in_use, 0, "{fault_mode:?} {granule}");
        }
    }
}

fn is_painted(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(at, &byte)| byte == painted(at))
}

fn copied(snapshot: Snapshot) -> Vec<u8> {
    let mut copy = vec![0; snapshot.len()];
    snapshot.copy_to(&mut copy).unwrap();
    copy
}

fn what_is_written_afterwards_is_not_in_it(backing: Backing) {
    each(backing, 2, |_, mut region, take, granule| {
        let snapshot = take(&region);
        assert_eq!(snapshot.len(), region.len());
        assert!(snapshot.serving().is_some());
        let written = region.len() / granule / 2;
        region.chunks_mut(granule).take(written).for_each(|bytes| bytes[5] ^= 0xff);
        let stats = snapshot.stats();
        assert_eq!((stats.granules, stats.granule_bytes), (region.len() / granule, granule));
        assert_eq!((stats.copied_by_writers, stats.copied_by_others), (written as u64, 0));
        assert_eq!((stats.retained, stats.cap), (written * granule, region.len()));
        // A thread counts after it has let the writer go on.
        while snapshot.stats().longest_fault.is_zero() {
            thread::yield_now();
        }
        let (at, mut some) = (granule - 50, [0; 100]);
        snapshot.read_at(at, &mut some).unwrap();
        assert!(some.iter().enumerate().all(|(i, &byte)| byte == painted(at + i)));
        let mut copy = Vec::new();
        assert_eq!(snapshot.write_to(&mut copy).unwrap().copied_by_writers, written as u64);
        assert!(is_painted(&copy));
        assert_eq!(region[5], !painted(5));
        assert_eq!(region[6], painted(6));
    });
}

/// Takes what it is given, and after each piece writes to the region where that came from.
struct Chases<'a> {
    region: &'a SharedRegion,
    granule: usize,
    taken: usize,
}

impl Write for Chases<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for (at, &byte) in bytes.iter().enumerate() {
            assert_eq!(byte, painted(self.taken + at));
        }
        let read = self.taken..self.taken + bytes.len();
        let shared = self.region.shared_bytes().unwrap();
        assert_eq!(shared, (self.region.len() - read.end).next_multiple_of(self.granule));
        for at in read.clone().step_by(self.granule) {
            self.region.write_at(at, &[!painted(at)]).unwrap();
        }
        self.taken = read.end;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn what_was_read_costs_writers_nothing(backing: Backing) {
    each(backing, 2, |_, region, take, granule| {
        let snapshot = take(&region);
        let region = region.share();
        let chases = Chases { region: &region, granule, taken: 0 };
        let stats = snapshot.write_to(chases).unwrap();
        assert_eq!((stats.copied_by_writers, stats.retained), (0, 0));
        assert!(stats.longest_fault.is_zero(), "{stats:?}");
        let mut bytes = vec![0; region.len()];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes[1], painted(1));
        assert_eq!(bytes[granule], !painted(granule));
    });
}

#[derive(Clone, Debug)]
enum Step {
    Write { of: Index, at: Index, len: usize, byte: u8 },
    Fork { of: Index },
    Take { of: Index },
    Release { of: Index, folio: Index },
    Drop { of: Index },
    Read { which: Index, at: Index, len: usize },
    Free { which: Index, at: Index, len: usize },
    View { which: Index, at: Index, len: usize },
    CopyOut { which: Index },
    CopyInto { which: Index, of: Index },
    WriteOut { which: Index },
    Forget { which: Index },
}

/// Regions and snapshots that exist at a time, at most.
const MOST: usize = 6;

fn steps(page: usize) -> impl Strategy<Value = Vec<Step>> {
    let index = any::<Index>;
    let len = 1..3 * page;
    let step = prop_oneof![
        6 => (index(), index(), len.clone(), any::<u8>())
            .prop_map(|(of, at, len, byte)| Step::Write { of, at, len, byte }),
        2 => index().prop_map(|of| Step::Fork { of }),
        4 => index().prop_map(|of| Step::Take { of }),
        1 => (index(), index()).prop_map(|(of, folio)| Step::Release { of, folio }),
        1 => index().prop_map(|of| Step::Drop { of }),
        2 => (index(), index(), len.clone())
            .prop_map(|(which, at, len)| Step::Read { which, at, len }),
        2 => (index(), index(), len.clone())
            .prop_map(|(which, at, len)| Step::Free { which, at, len }),
        1 => (index(), index(), len).prop_map(|(which, at, len)| Step::View { which, at, len }),
        1 => index().prop_map(|which| Step::CopyOut { which }),
        1 => (index(), index()).prop_map(|(which, of)| Step::CopyInto { which, of }),
        1 => index().prop_map(|which| Step::WriteOut { which }),
        1 => index().prop_map(|which| Step::Forget { which }),
    ];
    vec(step, 1..40)
}

/// Regions with what they hold, and snapshots with what they should.
#[derive(Default)]
struct Model {
    regions: Vec<(Region, Vec<u8>)>,
    taken: Vec<(Snapshot, Vec<u8>)>,
}

impl Model {
    fn step(&mut self, step: &Step, page: usize, take: Take<'_>, fork: &dyn Fn(&Region) -> Region) {
        let Self { regions, taken } = self;
        let has_room = regions.len() + taken.len() < MOST;
        let piece = |at: &Index, len: usize, of: usize| {
            let at = at.index(of);
            at..(at + len).min(of)
        };
        match step {
            Step::Write { of, at, len, byte } => {
                let (region, bytes) = of.get_mut(regions);
                let range = piece(at, *len, bytes.len());
                bytes[range.clone()].fill(*byte);
                region[range].fill(*byte);
            }
            Step::Fork { of } if has_room => {
                let (region, bytes) = of.get(regions);
                let forked = (fork(region), bytes.clone());
                regions.push(forked);
            }
            Step::Take { of } if has_room => {
                let (region, bytes) = of.get(regions);
                taken.push((take(region), bytes.clone()));
            }
            Step::Release { of, folio } => {
                let (region, bytes) = of.get_mut(regions);
                let start = folio.index(bytes.len() / page) * page;
                region.release(start..start + page).unwrap();
                bytes[start..start + page].fill(0);
            }
            Step::Drop { of } if regions.len() > 1 => {
                regions.swap_remove(of.index(regions.len()));
            }
            _ if taken.is_empty() => {}
            Step::Read { which, at, len } => {
                let (snapshot, held) = which.get(taken);
                let range = piece(at, *len, held.len());
                let mut read = vec![0; range.len()];
                snapshot.read_at(range.start, &mut read).unwrap();
                assert!(read == held[range]);
            }
            Step::Free { which, at, len } => {
                let (snapshot, held) = which.get(taken);
                snapshot.prepare_write(piece(at, *len, held.len())).unwrap();
            }
            Step::View { which, at, len } => {
                let (snapshot, held) = which.get(taken);
                let range = piece(at, *len, held.len());
                let view = snapshot.view().unwrap();
                assert!(view.bytes(range.clone()).unwrap() == &held[range]);
            }
            Step::CopyOut { which } => {
                let (snapshot, held) = taken.swap_remove(which.index(taken.len()));
                assert!(copied(snapshot) == held);
            }
            // Where each page that it is written to may be one that it is read from.
            Step::CopyInto { which, of } => {
                let (snapshot, held) = taken.swap_remove(which.index(taken.len()));
                let (region, bytes) = of.get_mut(regions);
                snapshot.copy_to(region).unwrap();
                assert!(region[..] == held);
                *bytes = held;
            }
            Step::WriteOut { which } => {
                let (snapshot, held) = taken.swap_remove(which.index(taken.len()));
                let mut written = Vec::new();
                snapshot.write_to(&mut written).unwrap();
                assert!(written == held);
            }
            Step::Forget { which } => drop(taken.swap_remove(which.index(taken.len()))),
            _ => {}
        }
    }
}

/// Any steps on regions, forks and snapshots, against plain vectors.
fn steps_follow_the_model(backing: Backing) {
    let (page, folios) = (backing.page_size(), 5);
    for fault_mode in FAULT_MODES {
        for granule in granules(backing) {
            let cases = if backing == Backing::Base { 200 } else { 24 };
            let config =
                ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
            // Small granules keep folios in use, and so do those that are larger.
            let regions = if granule == page { MOST } else { 4 * MOST };
            let pool = builder(backing, regions * folios + 8).scrub_threads(0).build().unwrap();
            let run = |steps: Vec<Step>| {
                let mut model = Model::default();
                let mut region = pool.region(folios * page).unwrap();
                region.iter_mut().enumerate().for_each(|(at, byte)| *byte = painted(at));
                let bytes = region.to_vec();
                model.regions.push((region, bytes));
                let take = |region: &Region| {
                    let builder = region.fork_builder().granule(granule).fault_mode(fault_mode);
                    builder.snapshot().unwrap()
                };
                let fork = |region: &Region| {
                    let builder = region.fork_builder().granule(granule).fault_mode(fault_mode);
                    builder.build().unwrap()
                };
                steps.iter().for_each(|step| model.step(step, page, &take, &fork));
                let Model { regions, taken } = model;
                assert!(regions.iter().all(|(region, bytes)| region[..] == *bytes));
                assert!(taken.into_iter().all(|(snapshot, held)| copied(snapshot) == held));
                drop(regions);
                assert_eq!(pool.stats().unwrap().in_use, 0);
            };
            TestRunner::new(config)
                .run(&steps(page), |steps| {
                    run(steps);
                    Ok(())
                })
                .unwrap();
        }
    }
}

/// Writers number both ends of each granule, the first one first: in a snapshot the second may be behind by one,
/// never ahead, and neither is older than what was there before, or newer than afterwards.
fn racing_writers_are_seen_in_order(backing: Backing) {
    for fault_mode in FAULT_MODES {
        for granule in granules(backing) {
            let pool = builder(backing, 3 * FOLIOS).scrub_threads(0).build().unwrap();
            let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
            let slots = region.len() / granule;
            let ends = |slot: usize| (slot * granule / 8, (slot + 1) * granule / 8 - 1);
            let loaded = || -> Vec<u64> {
                region.words().iter().map(|word| word.load(Ordering::SeqCst)).collect()
            };
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                for writer in 0..2_usize {
                    let (region, stop) = (&region, &stop);
                    scope.spawn(move || {
                        for number in 1.. {
                            for slot in (writer..slots).step_by(2) {
                                if stop.load(Ordering::Relaxed) {
                                    return;
                                }
                                let (first, last) = ends(slot);
                                region.words()[first].store(number, Ordering::SeqCst);
                                region.words()[last].store(number, Ordering::SeqCst);
                            }
                        }
                    });
                }
                for round in 0..20 {
                    let before = loaded();
                    let snapshot = region.fork_builder().granule(granule).fault_mode(fault_mode);
                    let snapshot = snapshot.snapshot().unwrap();
                    let after = loaded();
                    let mut copy = vec![0; region.len()];
                    if round % 2 == 0 {
                        snapshot.read_at(0, &mut copy).unwrap();
                    } else {
                        snapshot.copy_to(&mut copy).unwrap();
                    }
                    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
                    let copy: Vec<u64> = copy.chunks_exact(8).map(word).collect();
                    for slot in 0..slots {
                        let (first, last) = ends(slot);
                        let seen = (copy[first], copy[last]);
                        assert!(seen.1 <= seen.0 && seen.0 <= seen.1 + 1, "{slot}: {seen:?}");
                        for at in [first, last] {
                            assert!((before[at]..=after[at]).contains(&copy[at]), "{at}");
                        }
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
    }
}

/// Snapshots and forks of one region, made, read and dropped by several threads while others write, and a region
/// that is retired while its snapshot is read.
fn they_come_and_go_under_writers(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let granule = granules(backing)[0];
        let pool = builder(backing, 8 * FOLIOS).scrub_threads(0).build().unwrap();
        let region = pool.region(FOLIOS * backing.page_size()).unwrap().share();
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for writer in 0..2_usize {
                let (region, stop, written) = (&region, &stop, &written);
                scope.spawn(move || {
                    let mut at = writer;
                    while !stop.load(Ordering::Relaxed) {
                        region.words()[at % region.words().len()].fetch_add(1, Ordering::SeqCst);
                        written.fetch_add(1, Ordering::SeqCst);
                        at += 8191;
                    }
                });
            }
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for round in 0..30 {
                            let before = written.load(Ordering::SeqCst);
                            let builder = region.fork_builder();
                            let builder = builder.granule(granule).fault_mode(fault_mode);
                            let snapshot = builder.snapshot().unwrap();
                            let after = written.load(Ordering::SeqCst);
                            let fork = builder.build().unwrap();
                            let of_fork = fork.snapshot().unwrap();
                            if round % 3 == 0 {
                                fork.retire().unwrap();
                            } else {
                                drop(fork);
                            }
                            let sum = |snapshot: Snapshot| {
                                let word =
                                    |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
                                copied(snapshot).chunks_exact(8).map(word).sum::<u64>()
                            };
                            // A writer counts after it has written.
                            assert!((before..=after + 2).contains(&sum(snapshot)));
                            assert!(sum(of_fork) >= before);
                        }
                    })
                })
                .collect();
            let ended: Vec<_> = takers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            stop.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        assert_eq!(region.shared_bytes().unwrap(), 0);
    }
}

fn it_outlives_its_region(backing: Backing) {
    each(backing, 5, |pool, mut region, take, granule| {
        let snapshots = [take(&region), take(&region), take(&region)];
        region[granule] = !painted(granule);
        let [dropped, retired, cut] = snapshots;
        let mut fork = region.fork().unwrap();
        drop(region);
        assert!(is_painted(&copied(dropped)));
        fork.truncate(granule).unwrap();
        assert!(is_painted(&copied(cut)));
        fork.retire().unwrap();
        assert!(is_painted(&copied(retired)));
        assert_eq!(pool.stats().unwrap().in_use, 0);
    });
}

fn system_calls_write_where_they_may(backing: Backing) {
    each(backing, 2, |_, mut region, take, granule| {
        let snapshot = take(&region);
        let range = granule + 10..granule + 110;
        let write = |region: &mut Region| {
            let (mut source, mut sink) = io::pipe().unwrap();
            sink.write_all(&[3; 100]).unwrap();
            source.read(&mut region[range.clone()])
        };
        let in_place = snapshot.serving().unwrap().fault_mode == FaultMode::InPlace;
        if in_place {
            assert_eq!(write(&mut region).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        }
        snapshot.prepare_write(range.clone()).unwrap();
        assert_eq!(write(&mut region).unwrap(), 100);
        assert_eq!(snapshot.stats().copied_by_others, 1);
        assert_eq!(snapshot.stats().copied_by_writers, 0);
        snapshot.prepare_write(range.clone()).unwrap();
        assert_eq!(snapshot.stats().copied_by_others, 1);
        assert!(is_painted(&copied(snapshot)));
        assert!(region[range.clone()].iter().all(|&byte| byte == 3));
        let beyond = take(&region).prepare_write(region.len()..region.len() + 1);
        assert!(matches!(beyond, Err(SnapshotError::OutOfRange { .. })));
    });
}

fn what_is_pinned_is_copied_at_once(backing: Backing) {
    each(backing, 2, |_, region, _, granule| {
        let region = region.share();
        let pin = region.pin(granule..granule + 1).unwrap();
        let snapshot = region.fork_builder().granule(granule).snapshot().unwrap();
        assert_eq!(snapshot.stats().copied_by_others, 1);
        region.write_at(granule, &[!painted(granule)]).unwrap();
        let stats = snapshot.stats();
        assert_eq!((stats.copied_by_writers, stats.retained), (0, granule));
        assert!(is_painted(&copied(snapshot)));
        drop(pin);
    });
}

/// Links are addresses in the region, found again in the view.
fn pointers_are_walked_in_a_view(backing: Backing) {
    each(backing, 2, |_, mut region, take, granule| {
        let (len, step) = (region.len() / granule, granule + 8 * 3);
        let link = |region: &Region, index: usize| {
            region.as_ptr().wrapping_add(index * step % (region.len() - 8) / 8 * 8).cast::<u64>()
        };
        for index in 0..len {
            let (at, next) = (link(&region, index), link(&region, index + 1).addr() as u64);
            let next = if index + 1 == len { 0 } else { next };
            let offset = at.addr() - region.as_ptr().addr();
            region[offset..offset + 8].copy_from_slice(&next.to_ne_bytes());
        }
        let snapshot = take(&region);
        region.fill(1);
        let view = snapshot.view().unwrap();
        let (mut at, mut count) = (link(&region, 0), 1);
        loop {
            // SAFETY: the view has an aligned word there, for as long as it lives.
            let next = unsafe { view.rebase(at).unwrap().read() };
            if next == 0 {
                break;
            }
            at = std::ptr::with_exposed_provenance(next as usize);
            count += 1;
        }
        assert_eq!(count, len);
        let last = region.as_ptr().wrapping_add(region.len() - 4).cast::<u64>();
        assert!(matches!(view.rebase(last), Err(SnapshotError::OutOfRange { .. })));
    });
}

/// Fails when it has taken so many bytes.
struct Fails(usize);

impl Write for Fails {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => self.0 = left,
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn who_fails_is_told_of_and_nothing_stays_protected(backing: Backing) {
    each(backing, 2, |pool, mut region, take, granule| {
        let after_all = |region: &mut Region| {
            assert_eq!(region.shared_bytes().unwrap(), 0);
            assert_eq!(pool.stats().unwrap().in_use, FOLIOS);
            region.chunks_mut(granule).enumerate().for_each(|(at, bytes)| {
                bytes[0] = painted(at * granule);
            });
        };
        let failed = take(&region).write_to(Fails(0)).unwrap_err();
        assert!(matches!(failed, SnapshotError::Write { written: 0, .. }), "{failed}");
        after_all(&mut region);
        let (cancel, all) = (Cancel::new(), region.len());
        let told = |done: usize, of: usize| {
            assert_eq!(of, all);
            assert!(done > 0);
            cancel.cancel();
        };
        let ended = take(&region).write_to_with(io::sink(), Some(&told), Some(&cancel));
        match ended {
            // All of it may have been one piece.
            Ok(_) => assert!(all <= HUGE_PAGE_BYTES),
            Err(SnapshotError::Cancelled { bytes, len }) => assert!(bytes > 0 && len == all),
            Err(other) => panic!("{other}"),
        }
        after_all(&mut region);
        let mut short = vec![0; all - 1];
        let failed = take(&region).copy_to(&mut short).unwrap_err();
        assert!(matches!(failed, SnapshotError::LengthsDiffer { .. }));
        let beyond = take(&region).read_at(all - 1, &mut [0; 2]);
        assert!(matches!(beyond, Err(SnapshotError::OutOfRange { .. })));
        after_all(&mut region);
    });
}

fn a_forked_process_has_no_part_of_it(backing: Backing) {
    each(backing, 2, |_, mut region, take, granule| {
        let snapshot = take(&region);
        let code = in_a_child(|| {
            let read = snapshot.read_at(0, &mut [0]);
            if !matches!(read, Err(SnapshotError::Forked)) {
                return 1;
            }
            if !matches!(snapshot.prepare_write(0..1), Err(SnapshotError::Forked)) {
                return 2;
            }
            match region.snapshot() {
                Err(SnapshotError::Fork(ForkError::Forked)) => 0,
                _ => 3,
            }
        });
        assert_eq!(code, 0);
        region[granule] = !painted(granule);
        assert!(is_painted(&copied(snapshot)));
    });
}

fn what_cannot_be_is_refused_and_nothing_changes(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let pool = builder(backing, FOLIOS).scrub_threads(0).build().unwrap();
        let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
        region.iter_mut().enumerate().for_each(|(at, byte)| *byte = painted(at));
        let refused = region.fork_builder().fault_mode(fault_mode).snapshot().unwrap_err();
        assert!(matches!(refused, SnapshotError::Fork(ForkError::Pool(_))), "{refused}");
        let odd = region.fork_builder().granule(3 << 12).snapshot().unwrap_err();
        assert!(matches!(odd, SnapshotError::Fork(ForkError::Granule { .. })), "{odd}");
        assert!(is_painted(&region));
        region[0] = 1;
        drop(region);
        let region = pool.region(backing.page_size()).unwrap().share();
        // SAFETY: no thread uses it.
        let _ = unsafe { region.file() }.unwrap();
        let refused = region.snapshot().unwrap_err();
        assert!(matches!(refused, SnapshotError::Fork(ForkError::FileGiven)), "{refused}");
        let other = pool.region(backing.page_size()).unwrap().share();
        let snapshot = other.snapshot().unwrap();
        // SAFETY: as above.
        let file = unsafe { other.file() }.map(|_| ());
        assert!(matches!(file, Err(RegionError::Forks)));
        drop(snapshot);
        assert_eq!(pool.stats().unwrap().in_use, 2);
    }
}

fn thousands_leave_nothing_behind(backing: Backing) {
    let possessions = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        (maps, std::fs::read_dir("/proc/self/fd").unwrap().count())
    };
    let take = |fault_mode: FaultMode| {
        let granule = granules(backing)[0];
        let pool = builder(backing, 2 * FOLIOS).scrub_threads(0).build().unwrap();
        let mut region = pool.region(FOLIOS * backing.page_size()).unwrap();
        let mut before = None;
        for round in 0..2000_usize {
            let snapshot = region.fork_builder().granule(granule).fault_mode(fault_mode).snapshot();
            let snapshot = snapshot.unwrap();
            let at = round * 4099 % region.len();
            let seen = region[at];
            region[at] = seen.wrapping_add(1);
            let mut byte = [0];
            snapshot.read_at(at, &mut byte).unwrap();
            assert_eq!(byte[0], seen);
            drop(snapshot);
            if round == 100 {
                before = Some(possessions());
            }
        }
        assert_eq!(Some(possessions()), before);
        assert_eq!(pool.stats().unwrap().in_use, FOLIOS);
        0
    };
    for fault_mode in FAULT_MODES {
        // Where no other test has mappings and descriptors come and go.
        assert_eq!(in_a_child(|| take(fault_mode)), 0);
    }
}

const CHECKS: &[Check] = &[
    ("what_is_written_afterwards_is_not_in_it", what_is_written_afterwards_is_not_in_it),
    ("what_was_read_costs_writers_nothing", what_was_read_costs_writers_nothing),
    ("steps_follow_the_model", steps_follow_the_model),
    ("racing_writers_are_seen_in_order", racing_writers_are_seen_in_order),
    ("they_come_and_go_under_writers", they_come_and_go_under_writers),
    ("it_outlives_its_region", it_outlives_its_region),
    ("system_calls_write_where_they_may", system_calls_write_where_they_may),
    ("what_is_pinned_is_copied_at_once", what_is_pinned_is_copied_at_once),
    ("pointers_are_walked_in_a_view", pointers_are_walked_in_a_view),
    (
        "who_fails_is_told_of_and_nothing_stays_protected",
        who_fails_is_told_of_and_nothing_stays_protected,
    ),
    ("a_forked_process_has_no_part_of_it", a_forked_process_has_no_part_of_it),
    (
        "what_cannot_be_is_refused_and_nothing_changes",
        what_cannot_be_is_refused_and_nothing_changes,
    ),
    ("thousands_leave_nothing_behind", thousands_leave_nothing_behind),
];

fn a_gigantic_page_cannot_be_snapshotted(backing: Backing) {
    let pool = builder(backing, 1).build().unwrap();
    let refused = pool.region(1).unwrap().snapshot().unwrap_err();
    assert!(matches!(refused, SnapshotError::Fork(ForkError::Gigantic)));
}

fn main() {
    let mut trials = trials(CHECKS);
    let gigantic: &[Check] =
        &[("a_gigantic_page_cannot_be_snapshotted", a_gigantic_page_cannot_be_snapshotted)];
    trials.extend(trials_on(Backing::Hugetlb1G, 1, gigantic));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
