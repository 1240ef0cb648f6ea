//! Pages that the kernel moves from node to node while they are cleared, served, forked and snapshotted: no byte is
//! lost, none is stale, and later jobs find the memory on its new node.

use std::ffi::c_ulong;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit::snapshot::Granule;
use hugekit::{ClearOptions, HUGE_PAGE_BYTES as HUGE, PopulateOptions, Region, Snapshot, Threads};
use hugekit_bulk::parallel::Placement;
use hugekit_testing::racing::Stops;
use rustix::param::page_size;

use crate::backings::{Check, builder, is_zero};
use crate::jobs::{Check as CheckOfMemory, nodes_of_helpers, small_chunks};
use crate::memory::Memory;
use crate::placed::{AND_MOVE, bind, holders, ids, mask, move_pages};
use crate::served::{at_fault, soiled};

const FOLIOS: usize = 4;
/// How often work is repeated at least.
const ROUNDS: usize = 6;
const FAULT_MODES: [FaultMode; 2] = [FaultMode::InPlace, FaultMode::Threaded { threads: 1 }];

/// An address range that another thread has moved about.
#[derive(Clone, Copy)]
struct Range(*const [u8]);

// SAFETY: an address range, which the kernel is told and no thread follows.
unsafe impl Sync for Range {}

impl Range {
    fn of(bytes: &[u8]) -> Self {
        Self(bytes)
    }

    /// Moves what is there to a node, by each of the calls that do; how many pages were elsewhere before.
    fn move_to(self, node: u32) -> usize {
        let before = holders(self.0);
        move_pages(self.0, Some(node));
        let is_moved = |(was, is): &(Option<u32>, Option<u32>)| {
            was.is_some() && was != is && *is == Some(node)
        };
        before.into_iter().zip(holders(self.0)).filter(is_moved).count()
    }
}

/// Moves all pages of this process, those that no region maps included.
fn move_process(to: u32) {
    let (all, to) = (mask(&ids()), mask(&[to]));
    let bits = all.len() * c_ulong::BITS as usize;
    // SAFETY: two masks are read; pages that move keep their bytes and addresses.
    let answer =
        unsafe { libc::syscall(libc::SYS_migrate_pages, 0, bits + 1, all.as_ptr(), to.as_ptr()) };
    assert!(answer >= 0, "{}", std::io::Error::last_os_error());
}

/// Repeats `work` while another thread moves the range from node to node, until pages have been moved several times.
fn while_it_moves(range: Range, mut work: impl FnMut(usize)) {
    let (moved, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        // Ends the other thread also if `work` panics.
        let _done = Stops(&done);
        scope.spawn(|| {
            for (round, node) in ids().into_iter().cycle().enumerate() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                if round % 3 == 2 {
                    move_process(node);
                }
                moved.fetch_add(range.move_to(node), Ordering::Relaxed);
            }
        });
        let mut round = 0;
        while round < ROUNDS || moved.load(Ordering::Relaxed) < 2 {
            work(round);
            round += 1;
        }
    });
}

fn all_threads() -> Threads {
    Threads::Exactly(Placement::here().threads())
}

/// Bytes that tell where they are and who wrote them.
fn paint(bytes: &mut [u8], who: usize) {
    bytes.chunks_mut(512).enumerate().for_each(|(at, chunk)| chunk.fill(colour(at, who)));
}

fn colour(at: usize, who: usize) -> u8 {
    (at + 31 * who) as u8 | 1
}

fn is_painted(bytes: &[u8], who: usize) -> bool {
    let is_right = |(at, chunk): (usize, &[u8])| chunk.iter().all(|&byte| byte == colour(at, who));
    bytes.chunks(512).enumerate().all(is_right)
}

fn region_that_moves_is_cleared_and_written(backing: Backing) {
    let pool = builder(backing, FOLIOS).build().unwrap();
    let mut region = pool.region(pool.capacity()).unwrap();
    let profile = small_chunks(page_size());
    while_it_moves(Range::of(&region), |round| {
        paint(&mut region, round);
        assert!(is_painted(&region, round), "round {round}");
        ClearOptions::new().profile(&profile).threads(all_threads()).run(&mut region).unwrap();
        assert!(is_zero(&region), "round {round}");
    });
}

/// Dirty memory that is cleared at its first touch, and allocated again and again.
fn region_that_moves_is_served(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let pool = soiled(backing, FOLIOS);
        let len = pool.capacity();
        // All regions of it are at different addresses, and one pool: what moves is the process.
        let anchor = Memory::filled(page_size(), false, 1);
        while_it_moves(Range(anchor.range()), |round| {
            let mut region = at_fault(&pool, len, fault_mode);
            let range = Range::of(&region);
            let middle = len / 2;
            region[middle] = 7;
            thread::scope(|scope| {
                scope.spawn(|| ids().into_iter().map(|node| range.move_to(node)).sum::<usize>());
                assert!(is_zero(&region[..middle]), "{fault_mode:?} {round}");
            });
            assert_eq!(region[middle], 7);
            assert!(is_zero(&region[middle + 1..]), "{fault_mode:?} {round}");
            region.fill(0xd1);
        });
    }
}

fn forks_that_move_keep_their_bytes(backing: Backing) {
    for fault_mode in FAULT_MODES {
        let pool = builder(backing, 3 * FOLIOS).build().unwrap();
        let len = FOLIOS * pool.page_size();
        let mut parent = pool.region(len).unwrap();
        while_it_moves(Range::of(&parent), |round| {
            paint(&mut parent, round);
            let fork =
                |region: &Region| region.fork_builder().fault_mode(fault_mode).build().unwrap();
            let (mut one, mut other) = (fork(&parent), fork(&parent));
            let range = Range::of(&one);
            thread::scope(|scope| {
                scope.spawn(|| ids().into_iter().map(|node| range.move_to(node)).sum::<usize>());
                paint(&mut one[..len / 2], round + 1);
                paint(&mut parent[len / 4..len / 2], round + 2);
            });
            paint(&mut other[len / 4..], round + 3);
            assert!(is_painted(&one[..len / 2], round + 1), "{fault_mode:?} {round}");
            assert!(is_rest_painted(&one, len / 2, round), "{fault_mode:?} {round}");
            assert!(is_painted(&parent[len / 4..len / 2], round + 2), "{fault_mode:?} {round}");
            assert!(is_rest_painted(&parent, len / 2, round), "{fault_mode:?} {round}");
            assert!(is_painted(&other[..len / 4], round), "{fault_mode:?} {round}");
            assert!(is_painted(&other[len / 4..], round + 3), "{fault_mode:?} {round}");
        });
    }
}

/// Whether all from `at` on is as it was when all of the bytes were painted.
fn is_rest_painted(bytes: &[u8], at: usize, who: usize) -> bool {
    bytes
        .chunks(512)
        .enumerate()
        .skip(at / 512)
        .all(|(at, chunk)| chunk.iter().all(|&byte| byte == colour(at, who)))
}

fn snapshot_of_a_region_that_moves_is_one_moment(backing: Backing) {
    let pool = builder(backing, 3 * FOLIOS).build().unwrap();
    let mut region = pool.region(FOLIOS * pool.page_size()).unwrap();
    while_it_moves(Range::of(&region), |round| {
        paint(&mut region, round);
        let snapshot = Snapshot::of_region(&region).unwrap();
        let half = region.len() / 2;
        paint(&mut region[..half], round + 1);
        let mut copy = vec![0; region.len()];
        snapshot.copy_to(&mut copy).unwrap();
        assert!(is_painted(&copy, round), "round {round}");
        assert!(is_painted(&region[..half], round + 1), "round {round}");
    });
}

/// The jobs of later find the memory where it is then.
fn jobs_follow_a_region_to_its_new_node(backing: Backing) {
    let pool = builder(backing, FOLIOS).build().unwrap();
    let mut region = pool.region(pool.capacity()).unwrap();
    region.fill(7);
    let (start, len) = (region.as_mut_ptr(), region.len());
    let profile = small_chunks(page_size());
    for node in ids() {
        while holders(&raw const region[..]).iter().any(|holder| *holder != Some(node)) {
            Range::of(&region).move_to(node);
        }
        let helped = nodes_of_helpers(|progress| {
            let clear = ClearOptions::new().profile(&profile).threads(all_threads());
            // SAFETY: the region is not used otherwise meanwhile.
            unsafe { clear.progress(progress).run_raw(start, len) }.unwrap()
        });
        assert!(helped.iter().all(|on| *on == Some(node)), "{node}: {helped:?}");
    }
}

pub(crate) const OF_POOLS: &[Check] = hugekit_testing::checks![
    region_that_moves_is_cleared_and_written,
    region_that_moves_is_served,
    forks_that_move_keep_their_bytes,
    snapshot_of_a_region_that_moves_is_one_moment,
    jobs_follow_a_region_to_its_new_node,
];

/// A point in time of a program's own memory.
fn snapshot_of_memory_that_moves_is_one_moment(huge: bool) {
    let len = if huge { 2 * HUGE } else { 64 * page_size() };
    let memory = Memory::filled(len, huge, 0);
    for fault_mode in FAULT_MODES {
        while_it_moves(Range(memory.range()), |round| {
            let paint = |bytes: *mut u8, len: usize, who: usize| {
                // SAFETY: no other thread uses the memory now.
                paint(unsafe { std::slice::from_raw_parts_mut(bytes, len) }, who);
            };
            paint(memory.start(), len, round);
            let builder = Snapshot::builder().fault_mode(fault_mode).granule(Granule::Auto);
            // SAFETY: this thread blocks no signal, and no system call writes to the memory.
            let snapshot = unsafe { builder.of_anonymous(memory.range()) }.unwrap();
            paint(memory.start(), len / 2, round + 1);
            let mut copy = vec![0; len];
            snapshot.copy_to(&mut copy).unwrap();
            assert!(is_painted(&copy, round), "{fault_mode:?} {round}");
        });
    }
}

/// A policy that moves what is there already: the pages and all that are populated later are on the new node.
fn jobs_follow_memory_that_a_policy_moves(huge: bool) {
    let grain = if huge { HUGE } else { page_size() };
    let (memory, profile) = (Memory::filled(16 * grain, huge, 7), small_chunks(grain));
    for node in ids() {
        bind(memory.range(), libc::MPOL_BIND, &[node], AND_MOVE);
        assert!(holders(memory.range()).iter().all(|holder| *holder == Some(node)));
        assert!(memory.words().iter().all(|word| word.load(Ordering::Relaxed) == 7));
        let helped = nodes_of_helpers(|progress| {
            let populate = PopulateOptions::new().profile(&profile).threads(all_threads());
            {
                let start = memory.start().expose_provenance();
                populate.progress(progress).run_range(start..start + memory.len()).unwrap()
            }
        });
        assert!(helped.iter().all(|on| *on == Some(node)), "{node}: {helped:?}");
    }
}

pub(crate) const OF_MEMORY: &[CheckOfMemory] = hugekit_testing::checks![
    snapshot_of_memory_that_moves_is_one_moment,
    jobs_follow_memory_that_a_policy_moves,
];
