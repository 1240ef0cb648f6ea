//! Jobs run on the node that holds their memory, however it came there.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use hugekit::{
    ClearOptions, CopyOptions, HUGE_PAGE_BYTES as HUGE, PopulateOptions, Profile, Threads,
};
use hugekit_bulk::parallel::{Job, NodeMap, Placement, Report};
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

use crate::memory::Memory;
use crate::placed::{
    Placing, bind, current_cpu, holder, holders, ids, node_of_cpu, nodes, part, touch,
};

/// What a chunk ran on.
struct Ran {
    bytes: Range<usize>,
    by: ThreadId,
    cpu: u32,
}

/// Runs a job on the memory with a thread for each CPU, none of which goes on before all have begun.
fn run(memory: &Memory, map: &NodeMap) -> Vec<Ran> {
    let threads = Placement::here().threads();
    let (begun, ran) = (AtomicUsize::new(0), Mutex::new(Vec::<Ran>::new()));
    let job = Job::new(memory.len())
        .min_chunk(page_size())
        .address(memory.start().addr())
        .nodes(map)
        .threads(Threads::Exactly(threads));
    let report = job.run(|bytes| {
        let (by, cpu) = (thread::current().id(), current_cpu());
        let is_first = {
            let mut ran = ran.lock().unwrap();
            let is_first = ran.iter().all(|ran| ran.by != by);
            ran.push(Ran { bytes, by, cpu });
            is_first
        };
        if is_first {
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < threads {
                thread::yield_now();
            }
        }
        Ok::<(), Infallible>(())
    });
    let report = report.unwrap();
    assert_eq!((report.threads, report.took_part, report.unpinned), (threads, threads, 0));
    ran.into_inner().unwrap()
}

/// The node that holds all of these pages.
fn sole(holders: &[Option<u32>], bytes: &Range<usize>) -> Option<u32> {
    let pages = &holders[bytes.start / page_size()..bytes.end.div_ceil(page_size())];
    pages[0].filter(|_| pages.iter().all(|holder| *holder == pages[0]))
}

/// Chunks of each node, however small the pieces that are its own, run there: all of them but those that the calling
/// thread takes, which stays on its node.
fn chunks_run_on_the_node_that_holds_them(huge: bool) {
    let share = if huge { 4 * HUGE } else { 16 * page_size() * Placement::here().threads() };
    for placing in Placing::ALL {
        let memory = placing.memory(share, huge);
        let holders = holders(memory.range());
        for at in (0..memory.len()).step_by(share / 4) {
            let said = holders[at / page_size()];
            assert_eq!(holder(memory.start().wrapping_add(at)), said, "{placing:?} at {at}");
        }
        let grain = if huge { HUGE } else { page_size() };
        let map = NodeMap::of_memory(memory.addresses(), grain).unwrap();
        let (ran, caller) = (run(&memory, &map), thread::current().id());
        let mut helped = BTreeMap::new();
        for ran in ran.iter().filter(|ran| ran.by != caller) {
            let node = sole(&holders, &ran.bytes);
            assert!(node.is_some(), "{placing:?}: {:?} is of several nodes", ran.bytes);
            assert_eq!(node_of_cpu(ran.cpu), node, "{placing:?}: {:?}", ran.bytes);
            *helped.entry(node).or_insert(0) += 1;
        }
        // As many threads as CPUs: each other CPU is one's, and only the caller's node may have no helper.
        assert!(helped.len() + 1 >= nodes().len(), "{placing:?}: {helped:?}");
    }
}

/// Where no node holds a whole piece, there is no owner, and all of it is done all the same.
fn chunks_of_several_nodes_run_anywhere(huge: bool) {
    let grain = if huge { HUGE } else { page_size() };
    let share = if huge { 4 * HUGE } else { 16 * page_size() * Placement::here().threads() };
    let memory = Placing::Interleaved.memory(share, huge);
    assert_eq!(NodeMap::of_memory(memory.addresses(), 16 * grain), None);
    let elsewhere = NodeMap::new([(memory.len()..memory.len() + 1, ids()[0])]).unwrap();
    let mut ran = run(&memory, &elsewhere);
    ran.sort_by_key(|ran| ran.bytes.start);
    assert!(ran.windows(2).all(|two| two[0].bytes.end == two[1].bytes.start));
    let whole: usize = ran.iter().map(|ran| ran.bytes.len()).sum();
    assert_eq!(whole, memory.len());
}

/// Where the helpers of an operation were, asked after each of their chunks; it is repeated until some had one.
pub(crate) fn nodes_of_helpers(
    operation: impl Fn(&(dyn Fn(usize, usize) + Sync)) -> Report,
) -> Vec<Option<u32>> {
    let (caller, cpus) = (thread::current().id(), Mutex::new(Vec::new()));
    let progress = |_, _| {
        if thread::current().id() == caller {
            thread::sleep(Duration::from_millis(1));
        } else {
            cpus.lock().unwrap().push(current_cpu());
        }
    };
    while cpus.lock().unwrap().is_empty() {
        assert_eq!(operation(&progress).unpinned, 0);
    }
    cpus.into_inner().unwrap().into_iter().map(node_of_cpu).collect()
}

/// This machine's profile with chunks so small that a test has many.
pub(crate) fn small_chunks(len: usize) -> Profile {
    let mut profile = Profile::current().clone();
    (profile.parallel_from, profile.min_chunk) = (0, len);
    profile
}

/// The whole operations, on memory that is one node's.
fn operations_help_on_the_node_that_holds_the_memory(huge: bool) {
    let grain = if huge { HUGE } else { page_size() };
    let len = 64 * grain.min(16 * page_size());
    let profile = small_chunks(grain.min(len / 64));
    let source = vec![0x5a; len];
    for node in nodes() {
        let memory = Memory::untouched(len, huge);
        bind(memory.range(), libc::MPOL_BIND, &[node.id], 0);
        touch(memory.range());
        // SAFETY: no other thread uses the memory.
        let bytes = || unsafe { std::slice::from_raw_parts_mut(memory.start(), len) };
        // Beside the calling thread, whose node it may be or not, there are as many threads for a node as it has CPUs.
        let auto = (node.cpus.len() > 1).then_some(Threads::Auto);
        let all = Threads::Exactly(Placement::here().threads());
        for threads in [all].into_iter().chain(auto) {
            let clear = nodes_of_helpers(|progress| {
                let clear = ClearOptions::new().profile(&profile).threads(threads);
                clear.progress(progress).run(bytes()).unwrap()
            });
            assert!(bytes().iter().all(|&byte| byte == 0));
            let copy = nodes_of_helpers(|progress| {
                let copy = CopyOptions::new().profile(&profile).threads(threads);
                copy.progress(progress).run(bytes(), &source).unwrap()
            });
            assert!(bytes() == source);
            for (what, helped) in [("clear", clear), ("copy", copy)] {
                assert!(
                    helped.iter().all(|on| *on == Some(node.id)),
                    "{what} on {}: {helped:?}",
                    node.id
                );
            }
        }
    }
}

/// Pages that are not there yet are populated on the node that they will come from.
fn populate_helps_on_the_node_that_the_pages_come_from(huge: bool) {
    let grain = if huge { HUGE } else { page_size() };
    let (profile, len) = (small_chunks(grain), 16 * grain);
    for node in nodes() {
        for mode in [libc::MPOL_BIND, libc::MPOL_PREFERRED] {
            let memory = Memory::untouched(len, huge);
            bind(memory.range(), mode, &[node.id], 0);
            let helped = nodes_of_helpers(|progress| {
                // SAFETY: the test's own memory, whose bytes are not needed any more.
                unsafe { madvise(memory.start().cast(), len, Advice::LinuxDontNeed) }.unwrap();
                let populate = PopulateOptions::new()
                    .profile(&profile)
                    .threads(Threads::Exactly(nodes().len()));
                {
                    let start = memory.start().expose_provenance();
                    populate.progress(progress).run_range(start..start + len).unwrap()
                }
            });
            assert!(helped.iter().all(|on| *on == Some(node.id)), "{mode} {}: {helped:?}", node.id);
            let holders = holders(part(&memory, 0, len));
            assert!(holders.iter().all(|holder| *holder == Some(node.id)), "{holders:?}");
        }
    }
}

pub(crate) type Check = (&'static str, fn(bool));

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    chunks_run_on_the_node_that_holds_them,
    chunks_of_several_nodes_run_anywhere,
    operations_help_on_the_node_that_holds_the_memory,
    populate_helps_on_the_node_that_the_pages_come_from,
];
